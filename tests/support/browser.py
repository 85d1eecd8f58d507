"""A browser without a window: it keeps cookies, follows links and sends forms."""

import html
import re
from typing import Any

from fastapi.testclient import TestClient

from icefloe.service import login
from icefloe.service.http.access import cookie_name
from tests.support.desk import Desk

PASSWORD = "a canary in a coal mine"


class Browser:
    """Sends forms with their hidden fields, by any client that follows redirects."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.text = ""

    def open(self, path: str) -> Any:
        response = self.client.get(path)
        self.text = response.text
        return response

    def send(self, path: str, **fields: str) -> Any:
        hidden = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', self.text)
        values = {name: html.unescape(value) for name, value in hidden}
        response = self.client.post(path, data=values | fields)
        self.text = response.text
        return response

    def join(self, link: str, name: str, password: str = PASSWORD) -> Any:
        path = "/join/" + link.rpartition("/")[2]
        if self.open(path).is_error:
            self.open("/login")  # which also has a form
        return self.send(path, name=name, password=password, repeated=password)

    def log_in(self, name: str, password: str = PASSWORD) -> Any:
        self.open("/login")
        return self.send("/login", name=name, password=password)


def client_of(desk: Desk, cookie: str | None = None) -> TestClient:
    """Return another client of a service, in the same event loop, perhaps with a session."""
    client = TestClient(desk.client.app, follow_redirects=True, raise_server_exceptions=False)
    client.portal = desk.client.portal
    if cookie is not None:
        client.cookies.set(cookie_name(desk.service), cookie)
    return client


def visitor(desk: Desk, person: str) -> Browser:
    """Return a browser in which somebody is logged in, without a password."""
    return Browser(client_of(desk, login.start_session(desk.service, person, "test", "test")))
