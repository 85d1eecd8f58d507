"""A service in this process, with people, and a way to ask it in their names."""

from datetime import UTC, datetime, timedelta
from typing import Any

from fastapi.testclient import TestClient

from icefloe.catalog.model import Person, Token, TokenScope
from icefloe.catalog.tokens import new_token, token_id
from icefloe.service.database import accounts, audit
from icefloe.service.pages.site import create_site
from icefloe.service.runtime import Service
from icefloe.service.settings import Settings

START = datetime(2026, 1, 1, tzinfo=UTC)


class Desk:
    """A service with people, and a way to ask it in their names."""

    def __init__(self, settings: Settings, now: datetime = START) -> None:
        self.now = now
        self.service = Service(settings, clock=lambda: self.now)
        self.client = TestClient(create_site(self.service), raise_server_exceptions=False)
        self.tokens: dict[str, str] = {}

    def add_person(self, person: Person) -> None:
        with self.service.database.writing() as connection:
            accounts.create_person(connection, person, self.now)
        self.tokens[person.name] = self.add_token(person.name)

    def add_token(self, person: str, scope: TokenScope | None = None, days: int = 300) -> str:
        secret = new_token()
        end = self.now + timedelta(days=days)
        token = Token(token_id(secret), "test", person, scope or TokenScope(), self.now, end)
        with self.service.database.writing() as connection:
            accounts.create_token(connection, token, self.service.digest(secret))
        return secret

    def ask(
        self, person: str | None, method: str, path: str, body: object = None, **options: Any
    ) -> Any:
        headers = options.pop("headers", {})
        if person is not None:
            headers["authorization"] = f"Bearer {self.tokens.get(person, person)}"
        return self.client.request(
            method, f"/api/v1{path}", json=body, headers=headers, params=options
        )

    def audited(self) -> list[tuple[str, str, str, bool]]:
        with self.service.database.reading() as connection:
            audit.verify(connection, self.service.keys.audit)
            entries = audit.read(connection)
        return [(e.person, e.action, e.resource, e.allowed) for e in reversed(entries)]
