"""Logging in with an identity provider, a real one on the loopback interface."""

import base64
import hmac
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2 as httpx
import pytest
from fastapi.testclient import TestClient
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, RSAKey
from oidc_provider_mock import User, run_server_in_thread

from icefloe.catalog.model import Person
from icefloe.errors import AccessDeniedError
from icefloe.service import login, oidc
from icefloe.service.database import accounts, rows, tables
from icefloe.service.login import Invitation
from icefloe.service.settings import OidcSettings, Settings
from tests.support.browser import Browser
from tests.support.desk import Desk


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    people = (
        User(sub="s-1", claims={"preferred_username": "Ada.L", "name": "Ada", "email": "a@x.org"}),
        User(sub="s-2", claims={"email": "ada.l@other.org"}),
    )
    with run_server_in_thread(user_claims=people) as server:
        yield f"http://localhost:{server.server_port}"


def make_desk(folder: Path, issuer: str, *, creates_people: bool = True) -> Desk:
    provider = OidcSettings(issuer, "icefloe", name="The Lab", creates_people=creates_people)
    # The provider's clock is the machine's.
    return Desk(Settings(folder=folder, oidc=provider), now=datetime.now(UTC))


@pytest.fixture
def desk(tmp_path: Path, issuer: str) -> Iterator[Desk]:
    desk = make_desk(tmp_path, issuer)
    with desk.client:
        yield desk


def new_browser(desk: Desk) -> Browser:
    return Browser(TestClient(desk.client.app, follow_redirects=False))


def leave(browser: Browser, path: str = "/login/provider") -> str:
    """Return the URL at the provider that a page leads to."""
    return str(browser.open(path).headers["location"])


def approve(url: str, subject: str = "s-1") -> str:
    """Log in at the provider, and return the path by which it sends the browser back."""
    target = urlsplit(httpx.post(url, data={"sub": subject}).headers["location"])
    return f"{target.path}?{target.query}"


def person_of(browser: Browser) -> Any:
    return browser.client.get("/api/v1/me").json()


def test_a_login_with_the_provider(desk: Desk) -> None:
    browser = new_browser(desk)
    assert "Log in with The Lab" in browser.open("/login").text
    url = leave(browser, "/login/provider?next=/device")
    query = parse_qs(urlsplit(url).query)
    assert query["code_challenge_method"] == ["S256"]
    assert {"state", "nonce", "code_challenge"} <= query.keys()
    response = browser.open(approve(url))
    assert response.headers["location"] == "/device"
    me = person_of(browser)
    assert (me["person"], me["display_name"], me["operator"]) == ("ada.l", "Ada", False)
    again = new_browser(desk)
    again.open(approve(leave(again)))
    assert person_of(again)["person"] == "ada.l"
    other = new_browser(desk)
    other.open(approve(leave(other), "s-2"))
    assert person_of(other)["person"] == "ada.l-2"  # never the account of the same e-mail
    assert ("ada.l", "login:join", "by provider", True) in desk.audited()


def test_an_answer_counts_once_and_in_its_own_browser(desk: Desk) -> None:
    victim, thief = new_browser(desk), new_browser(desk)
    thief.open("/login")
    path = approve(leave(victim))
    assert thief.open(path).status_code == 403
    assert victim.open(path).status_code == 403  # the state is used up
    path = approve(leave(victim))
    assert victim.open(path).status_code == 303
    assert victim.open(path).status_code == 403
    changed = approve(leave(victim)).replace("code=", "code=x")
    assert victim.open(changed).status_code == 403


def test_the_first_operator_and_invitations_by_provider(tmp_path: Path, issuer: str) -> None:
    desk = make_desk(tmp_path, issuer, creates_people=False)
    with desk.client:
        stranger = new_browser(desk)
        response = stranger.open(approve(leave(stranger)))
        assert (response.status_code, "ask for an invitation" in response.text) == (403, True)
        link = (login.create_first_link(desk.service) or "").rpartition("/")[2]
        browser = new_browser(desk)
        assert "Continue with The Lab" in browser.open(f"/join/{link}").text
        url = leave(browser, f"/login/provider?link={link}")
        with desk.service.database.reading() as connection:
            stored = str(connection.execute(tables.logins.select()).all())
        assert link not in stored
        browser.open(approve(url))
        assert person_of(browser)["operator"]
        assert browser.open(f"/join/{link}").status_code == 404
        with desk.service.database.writing() as connection:
            invitation = Invitation(person="grace")
            made = login.create_link(desk.service, connection, invitation, desk.now)
        guest = new_browser(desk)
        guest.open(approve(leave(guest, f"/login/provider?link={made[-43:]}"), "s-2"))
        assert person_of(guest)["person"] == "grace"
        with desk.service.database.writing() as connection:
            accounts.disable_person(connection, "grace", desk.now)
        assert guest.open(approve(leave(guest), "s-2")).status_code == 403


def test_a_provider_that_is_away(tmp_path: Path) -> None:
    desk = make_desk(tmp_path, "http://localhost:1")
    with desk.client:
        assert new_browser(desk).open("/login/provider").status_code == 503
        assert new_browser(desk).open("/login").status_code == 200
        with desk.service.database.reading() as connection:
            assert rows.find_all(connection, tables.people, Person) == []


# Forged tokens

SETTINGS = OidcSettings("https://login.example.org", "icefloe")
RSA = RSAKey.generate_key(2048, parameters={"kid": "a"})
PUBLIC = KeySet([RSA]).as_dict(private=False)
NOW = int(time.time())
CLAIMS = {
    "iss": SETTINGS.issuer,
    "aud": "icefloe",
    "sub": "s-1",
    "iat": NOW,
    "exp": NOW + 60,
    "nonce": "n",
}


def check(token: str) -> dict[str, Any]:
    return oidc.check_identity(token, PUBLIC, SETTINGS, "n", NOW)


def sign(claims: dict[str, Any], key: Any = RSA, algorithm: str = "RS256") -> str:
    header = {"alg": algorithm, "kid": "a"}
    return jwt.encode(header, claims, key, algorithms=[algorithm])


def test_a_right_token_is_accepted() -> None:
    assert check(sign(CLAIMS))["sub"] == "s-1"
    audience = {"aud": ["icefloe", "other"], "azp": "icefloe"}
    assert check(sign(CLAIMS | audience))["sub"] == "s-1"


@pytest.mark.parametrize(
    "change",
    [
        {"iss": "https://evil.example.org"},
        {"iss": None},
        {"aud": "other"},
        {"aud": None},
        {"aud": []},
        {"aud": ["icefloe", "other"], "azp": "other"},
        {"aud": ["icefloe", "other"]},
        {"exp": NOW - 61},
        {"exp": None},
        {"iat": NOW + 3600},
        {"nonce": "other"},
        {"nonce": None},
        {"sub": None},
        {"sub": ""},
        {"sub": 7},
    ],
)
def test_a_token_with_a_wrong_claim_is_refused(change: dict[str, Any]) -> None:
    claims = {name: value for name, value in (CLAIMS | change).items() if value is not None}
    with pytest.raises(AccessDeniedError):
        check(sign(claims))


def unsigned(header: dict[str, Any], signature: bytes = b"") -> str:
    parts = (json.dumps(header).encode(), json.dumps(CLAIMS).encode(), signature)
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


def shared_secret(key: bytes) -> str:
    """Return a token that is signed with the bytes of a public key."""
    signed = unsigned({"alg": "HS256", "kid": "a"}).rpartition(".")[0]
    code = hmac.digest(key, signed.encode(), "sha256")
    return f"{signed}.{base64.urlsafe_b64encode(code).rstrip(b'=').decode()}"


def test_confused_tokens_are_refused() -> None:
    public_pem = RSA.as_pem(private=False)
    own = RSAKey.generate_key(2048, parameters={"kid": "b"})
    tokens = {
        "no algorithm": unsigned({"alg": "none"}),
        "no algorithm, with the key": unsigned({"alg": "None", "kid": "a"}),
        "the public key as a shared secret": shared_secret(public_pem),
        "another key": sign(CLAIMS, RSAKey.generate_key(2048)),
        "another kind of key": sign(CLAIMS, ECKey.generate_key("P-256"), "ES256"),
        "another algorithm": sign(CLAIMS, RSA, "RS512"),
        "its own key in the header": jwt.encode(
            {"alg": "RS256", "jwk": own.as_dict(private=False)}, CLAIMS, own
        ),
        "an unknown key": jwt.encode({"alg": "RS256", "kid": "b"}, CLAIMS, own),
        "nothing": "",
        "no token": "a.b.c",
        "a changed claim": sign(CLAIMS)[:-4] + "AAAA",
    }
    for name, token in tokens.items():
        refusal = None
        try:
            check(token)
        except AccessDeniedError as error:
            refusal = error
        assert refusal is not None, name


@pytest.mark.parametrize("keys", [{}, {"keys": []}, {"keys": [{"kty": "oct", "k": "AAAA"}]}, []])
def test_no_key_of_the_provider_means_no_login(keys: Any) -> None:
    with pytest.raises(AccessDeniedError):
        oidc.check_identity(sign(CLAIMS), keys, SETTINGS, "n", NOW)
