"""Logging in with an identity provider: OpenID Connect, by a code with PKCE.

What the provider sends is believed only if the configured issuer signed it with one of its own
keys, by an algorithm of a fixed list, for this service and for this very login.
"""

import base64
import hashlib
import hmac
import os
import re
import secrets as random
from datetime import timedelta
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import httpx2 as httpx
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet
from sqlalchemy import Connection, select

from icefloe.catalog.model import Person
from icefloe.errors import AccessDeniedError, ErrorKind, InvalidInputError, ServiceError
from icefloe.records import Record
from icefloe.service import login
from icefloe.service.database import logins, rows, tables
from icefloe.service.database.logins import Login, LoginKind
from icefloe.service.database.vault import decrypt, encrypt
from icefloe.service.login import Invitation, digest_of
from icefloe.service.runtime import Service
from icefloe.service.settings import OidcSettings

ALGORITHMS: Final = ("RS256", "ES256")
CALLBACK: Final = "/login/provider/callback"
_LINK_CONTEXT: Final = b"link of a login by provider"
_LIFETIME: Final = timedelta(minutes=15)
_LEEWAY_SECONDS: Final = 60
_TIMEOUT_SECONDS: Final = 10.0
_MOST_BYTES: Final = 1024 * 1024


class Arrival(Record):
    """Somebody whom the provider sent back."""

    person: str
    next: str


def start(service: Service, browser: str, target: str, link: str | None = None) -> str:
    """Return the URL at the provider to send a browser to.

    `browser` is the content of its cookie: the answer counts in the same browser only. `link` is
    the secret of an invitation that the login accepts.
    """
    settings = _settings(service)
    state, now = random.token_urlsafe(32), service.clock()
    details = {"browser": _derived(service, "browser", browser), "next": target}
    if link is not None:  # the database contains no link that works
        sealed = encrypt(service.keys.answers, link.encode(), _LINK_CONTEXT)
        details["link"] = base64.b64encode(sealed).decode()
    row = Login(LoginKind.PROVIDER, now, now + _LIFETIME, details=details)
    with _client() as client:
        endpoint = _discover(client, settings)["authorization_endpoint"]
    with service.database.writing() as connection:
        logins.add(connection, digest_of(service, LoginKind.PROVIDER, state), row)
    verifier = _derived(service, "pkce", state)
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest())
    query = {
        "response_type": "code",
        "client_id": settings.client_id,
        "redirect_uri": _callback(service),
        "scope": " ".join(settings.scopes),
        "state": state,
        "nonce": _derived(service, "nonce", state),
        "code_challenge": challenge.rstrip(b"=").decode(),
        "code_challenge_method": "S256",
    }
    return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(query)}"


def finish(service: Service, browser: str, code: str, state: str, request_id: str) -> Arrival:
    """Exchange the code of the provider for an identity, and return whose account it is."""
    settings = _settings(service)
    digest = digest_of(service, LoginKind.PROVIDER, state)
    with service.database.writing() as connection:
        row = logins.find(connection, LoginKind.PROVIDER, digest, service.clock())
        logins.remove(connection, digest)  # a state works once
    expected = _derived(service, "browser", browser)
    if row is None or not hmac.compare_digest(str(row.details["browser"]), expected):
        raise AccessDeniedError("this login began in another browser, or took too long: try again")
    data = {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": _callback(service),
        "client_id": settings.client_id,
        "code_verifier": _derived(service, "pkce", state),
    }
    secret = _client_secret(settings)
    with _client() as client:
        document = _discover(client, settings)
        if secret:
            client.auth = httpx.BasicAuth(settings.client_id, secret)
        answer = _json(client.post(document["token_endpoint"], data=data), "token")
    with _client() as client:  # without the client's secret
        keys = _json(client.get(document["jwks_uri"]), "keys")
    nonce = _derived(service, "nonce", state)
    claims = check_identity(
        str(answer.get("id_token", "")), keys, settings, nonce, int(service.clock().timestamp())
    )
    link = row.details.get("link")
    if link is not None:
        link = decrypt(service.keys.answers, base64.b64decode(link), _LINK_CONTEXT).decode()
    person = _account(service, settings, claims, link, request_id)
    return Arrival(person, str(row.details["next"]))


def check_identity(
    token: str, keys: Any, settings: OidcSettings, nonce: str, now: int
) -> dict[str, Any]:
    """Return the claims of an identity token; raise `AccessDeniedError` for any doubt."""
    registry = jwt.JWTClaimsRegistry(
        now=now,
        leeway=_LEEWAY_SECONDS,
        iss={"essential": True, "value": settings.issuer},
        aud={"essential": True, "value": settings.client_id},
        sub={"essential": True},
        exp={"essential": True},
        iat={"essential": True},
        nonce={"essential": True, "value": nonce},
    )
    try:
        public = [key for key in keys["keys"] if key.get("kty") in {"RSA", "EC"}]
        decoded = jwt.decode(token, KeySet.import_key_set({"keys": public}), list(ALGORITHMS))
        registry.validate(decoded.claims)
    except (JoseError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = getattr(error, "error", type(error).__name__)
        problem = f"the identity provider's answer is not valid ({reason}): log in again"
        raise AccessDeniedError(problem) from error
    claims: dict[str, Any] = dict(decoded.claims)
    audience = claims["aud"]
    if isinstance(audience, list) and len(audience) > 1 and claims.get("azp") != settings.client_id:
        raise AccessDeniedError("the identity provider's answer is for another application")
    if not isinstance(claims["sub"], str) or not claims["sub"]:
        raise AccessDeniedError("the identity provider names nobody")
    return claims


def _account(
    service: Service,
    settings: OidcSettings,
    claims: dict[str, Any],
    link: str | None,
    request_id: str,
) -> str:
    """Return the account of an identity: by issuer and subject, never by an e-mail address."""
    table, subject = tables.people, claims["sub"]
    with service.database.writing() as connection:
        query = select(table).where(table.c.issuer == settings.issuer, table.c.subject == subject)
        row = connection.execute(query).first()
        if row is not None:
            person = rows.record_of(Person, row)
            if person.disabled:
                raise AccessDeniedError("this account is disabled: ask an operator")
            return person.name
        invitation = Invitation()
        if link is not None:
            invitation = login.require_invitation(service, connection, link)
            if invitation.resets_password:
                problem = "this link sets a password: it does not lead to the identity provider"
                raise InvalidInputError(problem, ErrorKind.INVALID_REQUEST)
            login.end_link(service, connection, link, invitation)
        elif not settings.creates_people:
            raise AccessDeniedError("you have no account here: ask for an invitation")
        name = invitation.person or _free_name(connection, claims)
        shown, email = claims.get("name"), claims.get("email")
        new = login.new_person(
            name,
            shown[:200] if isinstance(shown, str) else "",
            email[:200] if isinstance(email, str) else None,
        )
        now = service.clock()
        login.create_member(
            connection, new, invitation, now, issuer=settings.issuer, subject=subject
        )
        login.record(service, connection, name, "login:join", "by provider", request_id)
    return name


def _free_name(connection: Connection, claims: dict[str, Any]) -> str:
    """Return a name for a new account, from what the provider calls somebody."""
    candidates = (claims.get("preferred_username"), claims.get("email"), claims["sub"])
    wish = next(text for text in candidates if isinstance(text, str) and text)
    plain = re.sub(r"[^a-z0-9._-]+", "-", wish.partition("@")[0].lower())[:50].strip("-._")
    name, number = plain or "person", 1
    while rows.find(connection, tables.people, Person, name=name) is not None:
        number += 1
        name = f"{plain or 'person'}-{number}"
    return name


def _settings(service: Service) -> OidcSettings:
    settings = service.settings.oidc
    if settings is None:
        problem = "this service has no identity provider: log in with a password"
        raise InvalidInputError(problem, ErrorKind.INVALID_REQUEST)
    return settings


def _client_secret(settings: OidcSettings) -> str | None:
    if settings.client_secret_file is not None:
        try:
            return settings.client_secret_file.read_text().strip()
        except OSError as error:
            problem = f"cannot read the client secret in {settings.client_secret_file}"
            raise ServiceError(problem, ErrorKind.SECRET_UNREADABLE) from error
    return os.environ.get(settings.client_secret_variable or "")


def _client() -> httpx.Client:
    return httpx.Client(timeout=_TIMEOUT_SECONDS, follow_redirects=False)


def _discover(client: httpx.Client, settings: OidcSettings) -> dict[str, Any]:
    """Return the provider's own description, which must name the configured issuer."""
    issuer = settings.issuer
    try:
        response = client.get(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
    except httpx.HTTPError as error:
        problem = f"the identity provider {issuer} cannot be reached: try again later"
        raise ServiceError(problem, retryable=True) from error
    document = _json(response, "description")
    if document.get("issuer") != issuer:
        raise ServiceError(f"the identity provider {issuer} describes another issuer")
    for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
        url = document.get(name)
        if not isinstance(url, str) or urlsplit(url).scheme != urlsplit(issuer).scheme:
            raise ServiceError(f"the identity provider {issuer} names no safe {name}")
    return document


def _json(response: httpx.Response, what: str) -> dict[str, Any]:
    """Return the JSON of an answer of the provider."""
    try:
        content = response.json() if len(response.content) <= _MOST_BYTES else None
    except ValueError:
        content = None
    if response.status_code != 200 or not isinstance(content, dict):
        problem = f"the identity provider answered {response.status_code} without a {what}"
        raise AccessDeniedError(f"{problem}: log in again")
    return content


def _callback(service: Service) -> str:
    return service.settings.url.rstrip("/") + CALLBACK


def _derived(service: Service, purpose: str, state: str) -> str:
    """Return a value that only this service can compute of a state."""
    return hmac.digest(
        service.keys.pepper, f"oidc {purpose}:{state}".encode(), hashlib.sha256
    ).hex()
