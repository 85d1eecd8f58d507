"""Local accounts, browser sessions, and programs that log in by the device flow."""

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from icefloe.catalog.model import Organisation, Person, PersonKind
from icefloe.service import login
from icefloe.service.database import accounts
from icefloe.service.http.device import GRANT_TYPE
from icefloe.service.limits import Limits
from icefloe.service.settings import RateLimits, Settings
from tests.support.browser import PASSWORD, Browser
from tests.support.desk import START, Desk


@pytest.fixture
def desk(tmp_path: Path, database_url: str) -> Iterator[Desk]:
    limits = RateLimits(logins=1000)
    settings = Settings(folder=tmp_path / "service", database=database_url, limits=limits)
    desk = Desk(settings)
    with desk.client:
        yield desk


def new_browser(desk: Desk, url: str = "http://testserver") -> Browser:
    return Browser(TestClient(desk.client.app, url, follow_redirects=True))


@pytest.fixture
def browser(desk: Desk) -> Browser:
    """A browser in which the first operator is logged in."""
    link = login.create_first_link(desk.service)
    assert link is not None
    browser = new_browser(desk)
    assert browser.join(link, "root").status_code == 200
    assert browser.open("/account").status_code == 200
    assert "You are logged in as <strong>root</strong>" in browser.text
    return browser


# Links


def test_the_first_operator_comes_by_a_link_that_works_once(desk: Desk, browser: Browser) -> None:
    assert "an operator of this service" in browser.text
    assert login.create_first_link(desk.service) is None
    assert desk.audited() == [
        ("root", "login:join", "by password", True),
        ("root", "login", "after an invitation", True),
    ]


def test_a_new_first_link_ends_the_one_before(desk: Desk) -> None:
    first, second = (login.create_first_link(desk.service) or "" for _ in range(2))
    thief = new_browser(desk)
    assert thief.join(first, "thief").status_code == 404
    assert "used already" in thief.text
    assert new_browser(desk).join(second, "root").status_code == 200
    assert new_browser(desk).join(second, "thief").status_code == 404


def test_a_link_ends_by_itself(desk: Desk) -> None:
    link = login.create_first_link(desk.service)
    assert link is not None
    desk.now += login.LINK_LIFETIME
    assert new_browser(desk).join(link, "root").status_code == 404
    with desk.service.database.reading() as connection:
        assert accounts.find_caller(connection, "root") is None


def test_an_invitation_to_an_organisation(desk: Desk) -> None:
    for person in (Person("ada"), Person("root", operator=True)):
        desk.add_person(person)
    with desk.service.database.writing() as connection:
        accounts.create_organisation(connection, Organisation("lab"), "ada", START)
    body = {"role": "writer", "person": "bob"}
    assert desk.ask("root", "POST", "/orgs/lab/invitations", body).status_code == 404
    created = desk.ask("ada", "POST", "/orgs/lab/invitations", body).json()
    bob = new_browser(desk)
    assert bob.open("/join/" + created["link"].rpartition("/")[2]).status_code == 200
    assert "<strong>lab</strong> as writer" in bob.text
    bob.join(created["link"], "somebody-else")
    with desk.service.database.reading() as connection:
        caller = accounts.find_caller(connection, "bob")
    assert caller is not None
    assert caller.roles == {"lab": "writer"}
    assert not caller.person.operator


def test_an_operator_invites_another_one(desk: Desk) -> None:
    desk.add_person(Person("root", operator=True))
    desk.add_person(Person("eve"))
    assert desk.ask("eve", "POST", "/invitations", {"operator": True}).status_code == 403
    created = desk.ask("root", "POST", "/invitations", {"operator": True}).json()
    browser = new_browser(desk)
    browser.join(created["link"], "Second")
    browser.open("/account")
    assert "an operator of this service" in browser.text
    assert created["link"] not in str(desk.audited())


def test_a_taken_name_is_refused_and_the_link_stays(desk: Desk) -> None:
    desk.add_person(Person("ada"))
    link = login.create_first_link(desk.service)
    assert link is not None
    browser = new_browser(desk)
    assert browser.join(link, "ada").status_code == 409
    assert browser.join(link, "<b>").status_code == 422
    assert "&lt;b&gt;" in browser.text
    assert "<b>" not in browser.text
    assert browser.join(link, "root", "too short").status_code == 422
    assert browser.join(link, "root").status_code == 200


# Passwords


def test_log_in_and_out(desk: Desk, browser: Browser) -> None:
    assert browser.send("/logout").status_code == 200
    assert "Logged out" in browser.text
    assert browser.open("/password").url.path == "/login"
    wrong = browser.log_in("root", "wrong " + PASSWORD)
    unknown = browser.log_in("nobody")
    assert (wrong.status_code, unknown.status_code) == (401, 401)
    assert "the name or the password is wrong" in wrong.text
    assert wrong.text.replace("root", "nobody").split("csrf")[0] == unknown.text.split("csrf")[0]
    assert browser.log_in("Root").status_code == 200
    assert ("root", "login", "by password", False) in desk.audited()


def test_a_login_leads_to_the_page_that_was_asked_for(desk: Desk, browser: Browser) -> None:
    browser.send("/logout")
    browser.open("/login?next=/password")
    assert browser.send("/login", name="root", password=PASSWORD).url.path == "/password"
    browser.send("/logout")
    browser.open("/login?next=//evil.example/")
    assert browser.send("/login", name="root", password=PASSWORD).url.path == "/"


def test_changing_the_password_ends_other_sessions(desk: Desk, browser: Browser) -> None:
    other = new_browser(desk)
    other.log_in("root")
    new = "another canary entirely"

    def change(present: str, password: str, repeated: str) -> int:
        browser.open("/password")
        fields = {"present": present, "password": password, "repeated": repeated}
        return int(browser.send("/password", **fields).status_code)

    assert change("wrong", new, new) == 403
    assert change(PASSWORD, new, new + "x") == 422
    assert change(PASSWORD, "short", "short") == 422
    assert change(PASSWORD, new, new) == 200
    assert browser.open("/").url.path == "/"
    assert other.open("/").url.path == "/login"
    assert other.log_in("root").status_code == 401
    assert other.log_in("root", new).status_code == 200


def test_a_link_for_a_new_password(desk: Desk, browser: Browser) -> None:
    link = login.create_password_link(desk.service, "root")
    other = new_browser(desk)
    assert other.join(link, "ignored", "a third canary, yellow").status_code == 200
    assert browser.open("/").url.path == "/login"
    assert browser.log_in("root", "a third canary, yellow").status_code == 200
    desk.add_person(Person("bot", PersonKind.SERVICE))
    with pytest.raises(Exception, match="cannot log in"):
        login.create_password_link(desk.service, "bot")


def test_the_database_contains_no_secret_of_a_login(desk: Desk, browser: Browser) -> None:
    cookie = browser.client.cookies["icefloe"]
    link = login.create_password_link(desk.service, "root").rpartition("/")[2]
    code = desk.client.post("/api/v1/device/code", data={"client_id": "x"}).json()["device_code"]
    with desk.service.database.reading() as connection:
        stored = "".join(
            str(connection.execute(text(f"SELECT * FROM {table}")).all())
            for table in ("people", "logins", "audit")
        )
    assert "$argon2id$" in stored
    for secret in (PASSWORD, cookie, link, code):
        assert secret not in stored


# Cookies


def test_a_session_ends_after_a_while_and_with_its_person(desk: Desk, browser: Browser) -> None:
    desk.now += login.SESSION_LIFETIME - timedelta(seconds=1)
    assert browser.open("/").url.path == "/"
    desk.now += timedelta(seconds=1)
    assert browser.open("/").url.path == "/login"
    browser.log_in("root")
    with desk.service.database.writing() as connection:
        accounts.disable_person(connection, "root", desk.now)
    assert browser.open("/").url.path == "/login"
    assert browser.log_in("root").status_code == 401


def test_a_login_changes_the_cookie(desk: Desk, browser: Browser) -> None:
    browser.send("/logout")
    browser.open("/login")
    before = browser.client.cookies["icefloe"]
    browser.send("/login", name="root", password=PASSWORD)
    assert browser.client.cookies["icefloe"] != before


@pytest.mark.parametrize("path", ["/login", "/logout", "/password", "/device", "/join/x"])
def test_a_form_of_another_site_is_refused(desk: Desk, browser: Browser, path: str) -> None:
    for csrf in ({}, {"csrf": "x"}, {"csrf": "é"}):
        response = browser.client.post(path, data={"name": "root", "password": PASSWORD} | csrf)
        assert response.status_code == 403
        assert "came from another site" in response.text
    assert browser.open("/").url.path == "/"


def test_a_session_asks_the_api_with_the_token_of_its_forms(desk: Desk, browser: Browser) -> None:
    client, path = browser.client, "/api/v1/orgs"
    assert client.get("/api/v1/me").json()["person"] == "root"
    assert client.post(path, json={"name": "lab"}).status_code == 403
    headers = {"x-csrf-token": "0" * 64}
    assert client.post(path, json={"name": "lab"}, headers=headers).status_code == 403
    headers = {"x-csrf-token": re.findall(r'name="csrf" value="(\w+)"', browser.text)[0]}
    assert client.post(path, json={"name": "lab"}, headers=headers).status_code == 201


def test_cookies_and_headers_of_pages(tmp_path: Path) -> None:
    settings = Settings(folder=tmp_path, url="https://data.example.org")
    desk = Desk(settings)
    with desk.client:
        response = new_browser(desk, settings.url).open("/login")
    cookie = response.headers["set-cookie"]
    assert cookie.startswith("__Host-icefloe=")
    for part in ("HttpOnly", "Secure", "SameSite=lax", "Path=/"):
        assert part in cookie
    assert "Domain" not in cookie
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    for forbidden in ("<script>", "style=", "onclick", "<style"):
        assert forbidden not in response.text
    assert set(re.findall('<script src="(/[^"]*)', response.text)) == {
        "/static/vendor/htmx.min.js",
        "/static/icefloe.js",
    }


def test_errors_of_pages_are_pages(desk: Desk) -> None:
    response = new_browser(desk).open("/nowhere")
    assert response.status_code == 404
    assert response.headers["content-type"].startswith("text/html")
    assert "frame-ancestors 'none'" in response.headers["content-security-policy"]
    assert desk.client.get("/static/style.css").status_code == 200
    assert desk.client.get("/static/../site.py").status_code == 404


def test_logins_are_limited(tmp_path: Path) -> None:
    now = 0.0
    desk = Desk(Settings(folder=tmp_path, limits=RateLimits(logins=2)))
    desk.service.limits = Limits(lambda: now)  # type: ignore[misc]
    with desk.client:
        browser = new_browser(desk)
        assert [browser.log_in("root").status_code for _ in range(3)] == [401, 401, 429]
        assert "too many requests" in browser.text
        now += 30
        assert browser.log_in("root").status_code == 401


# Devices


def ask_token(desk: Desk, device_code: str) -> Any:
    data = {"grant_type": GRANT_TYPE, "device_code": device_code, "client_id": "icefloe"}
    return desk.client.post("/api/v1/device/token", data=data)


def start_device(desk: Desk, scope: str = "") -> Any:
    data = {"client_id": "icefloe on laptop", "scope": scope}
    response = desk.client.post("/api/v1/device/code", data=data)
    assert response.status_code == 200
    return response.json()


def test_a_program_is_approved(desk: Desk, browser: Browser) -> None:
    codes = start_device(desk, "read lab/*")
    assert codes["verification_uri"] == "http://127.0.0.1:8321/device"
    assert codes["verification_uri_complete"].endswith(f"/device?user_code={codes['user_code']}")
    assert re.fullmatch(r"[B-Z]{4}-[B-Z]{4}", codes["user_code"])
    assert (codes["expires_in"], codes["interval"]) == (900, 5)
    waiting = ask_token(desk, codes["device_code"])
    assert waiting.status_code == 400
    problem = waiting.json()
    assert (problem["error"], problem["code"]) == ("authorization_pending", "authorization-pending")
    assert problem["request_id"] == waiting.headers["x-request-id"]
    browser.open(f"/device?user_code={codes['user_code'].lower().replace('-', ' ')}")
    assert "icefloe on laptop" in browser.text
    assert "read lab/*" in browser.text
    browser.send("/device", decision="approve")
    assert "Approved" in browser.text
    desk.now += timedelta(seconds=5)
    token = ask_token(desk, codes["device_code"]).json()
    assert (token["token_type"], token["scope"], token["person"]) == (
        "Bearer",
        "read lab/*",
        "root",
    )
    assert token["expires_in"] == 30 * 24 * 3600
    assert desk.ask(token["access_token"], "GET", "/me").json()["person"] == "root"
    assert desk.ask(token["access_token"], "POST", "/orgs", {"name": "lab"}).status_code == 403
    assert ask_token(desk, codes["device_code"]).json()["error"] == "expired_token"
    desk.now += timedelta(days=30)
    assert desk.ask(token["access_token"], "GET", "/me").status_code == 401


def test_a_program_that_asks_too_often_waits_longer(desk: Desk, browser: Browser) -> None:
    code = start_device(desk)["device_code"]

    def ask_after(seconds: float) -> str:
        desk.now += timedelta(seconds=seconds)
        return str(ask_token(desk, code).json()["error"])

    assert ask_after(0) == "authorization_pending"
    assert ask_after(4) == "slow_down"
    assert ask_after(9) == "slow_down"
    assert ask_after(15) == "authorization_pending"
    assert ask_after(-3600) == "authorization_pending"  # a clock that was put back
    assert ask_after(4600) == "expired_token"


def test_a_program_is_refused(desk: Desk, browser: Browser) -> None:
    codes = start_device(desk)
    browser.open(codes["verification_uri_complete"].removeprefix("http://127.0.0.1:8321"))
    browser.send("/device", decision="deny")
    assert "Refused" in browser.text
    assert ask_token(desk, codes["device_code"]).json()["error"] == "access_denied"
    browser.open(f"/device?user_code={codes['user_code']}")
    assert "no program shows this code" in browser.text
    assert ("root", "login:device", "device icefloe on laptop", False) in desk.audited()


def test_a_person_who_is_disabled_after_the_approval_gets_no_token(
    desk: Desk, browser: Browser
) -> None:
    codes = start_device(desk)
    browser.open(f"/device?user_code={codes['user_code']}")
    browser.send("/device", decision="approve")
    with desk.service.database.writing() as connection:
        accounts.disable_person(connection, "root", desk.now)
    assert ask_token(desk, codes["device_code"]).json()["error"] == "access_denied"


def test_nobody_approves_without_a_login(desk: Desk) -> None:
    codes = start_device(desk)
    stranger = new_browser(desk)
    response = stranger.open(f"/device?user_code={codes['user_code']}")
    assert response.url.path == "/login"
    assert f"user_code={codes['user_code']}" in stranger.text
    stranger.send("/device", user_code=codes["user_code"], decision="approve")
    assert ask_token(desk, codes["device_code"]).json()["error"] == "authorization_pending"


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({}, "invalid_request"),
        ({"client_id": "x" * 101}, "invalid_request"),
        ({"client_id": "a\nb"}, "invalid_request"),
        ({"client_id": "x", "scope": "everything"}, "invalid_scope"),
        ({"client_id": "x", "scope": "read a/b/c"}, "invalid_scope"),
    ],
)
def test_odd_requests_for_codes(desk: Desk, fields: dict[str, str], error: str) -> None:
    response = desk.client.post("/api/v1/device/code", data=fields)
    assert (response.status_code, response.json()["error"]) == (400, error)


def test_odd_requests_for_tokens(desk: Desk) -> None:
    ask = desk.client.post
    data = {"grant_type": "password", "device_code": "x"}
    response = ask("/api/v1/device/token", data=data)
    assert response.json()["error"] == "unsupported_grant_type"
    response = ask("/api/v1/device/token", data={"grant_type": GRANT_TYPE})
    assert response.json()["error"] == "invalid_request"
    assert ask_token(desk, "unknown").json()["error"] == "expired_token"
    assert ask("/api/v1/device/token", json={}).json()["error"] == "unsupported_grant_type"


def test_a_client_cannot_put_markup_on_the_page(desk: Desk, browser: Browser) -> None:
    data = {"client_id": "<img src=x onerror=alert(1)>"}
    codes = desk.client.post("/api/v1/device/code", data=data).json()
    browser.open(f"/device?user_code={codes['user_code']}")
    assert "&lt;img src=x" in browser.text
    assert "<img" not in browser.text
