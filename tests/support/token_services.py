"""Token services of clouds that no emulator offers: they check the document that is sent.

`google_cloud` exchanges tokens as Google's STS does, and stands before a store whose requests it
lets pass only as far as the exchanged boundary says. `cloudflare` makes temporary credentials of
R2, by a role of a real STS that is cut down to what the document says. `microsoft_login` issues
tokens for Azurite. A document that is not exactly of the documented form is answered with 400.
"""

import base64
import http.client
import json
import re
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, cast
from urllib.parse import parse_qsl, unquote, urlsplit

import botocore.session

from tests.support.loopback import LoopbackHandler, LoopbackServer, serving
from tests.support.servers import VENDOR, S3Endpoint

_NAME: Final = r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"
_PREFIX: Final = r"(?:[A-Za-z0-9._=,:@+~-]+/)+"
_EXPRESSION: Final = re.compile(
    rf"resource\.name\.startsWith\('projects/_/buckets/({_NAME})/objects/({_PREFIX})'\)"
    r"( \|\| api\.getAttribute\('storage\.googleapis\.com/objectListPrefix', ''\)"
    rf"\.startsWith\('({_PREFIX})'\))?"
)
_ROLES: Final = {
    "inRole:roles/storage.legacyObjectReader": frozenset({"get"}),
    "inRole:roles/storage.objectViewer": frozenset({"get", "list"}),
    "inRole:roles/storage.objectUser": frozenset({"get", "list", "write"}),
}


class _TokenServer(LoopbackServer):
    """A server that keeps the documents it was sent."""

    def __init__(self, handler: type[LoopbackHandler]) -> None:
        super().__init__(handler)
        self.documents: list[dict[str, Any]] = []
        self._lock = threading.Lock()

    def keep(self, document: dict[str, Any]) -> None:
        """Keep a document."""
        with self._lock:
            self.documents.append(document)


class _TokenHandler(LoopbackHandler):
    def answer_json(self, value: object, status: int = HTTPStatus.OK) -> None:
        self.answer(status, json.dumps(value).encode(), {"Content-Type": "application/json"})


# Google


@dataclass(frozen=True, slots=True)
class _Rule:
    bucket: str
    prefix: str
    allowed: frozenset[str]
    lists: bool

    def allows(self, method: str, bucket: str, key: str, query: dict[str, str]) -> bool:
        """Return whether a request is what the rule is about."""
        if bucket != self.bucket:
            return False
        if not key:
            prefix = query.get("prefix", "")
            return "list" in self.allowed and self.lists and prefix.startswith(self.prefix)
        right = "get" if method in {"GET", "HEAD"} else "write"
        return right in self.allowed and key.startswith(self.prefix)


class GoogleCloud(_TokenServer):
    """Google's token services, and a store behind them."""

    def __init__(self, upstream: str) -> None:
        super().__init__(_GoogleHandler)
        self.upstream = urlsplit(upstream).netloc
        self.login_token = secrets.token_hex(16)
        self.boundaries: dict[str, list[_Rule]] = {}

    def end_tokens(self) -> None:
        """Let all tokens be past their end."""
        self.boundaries.clear()


@contextmanager
def google_cloud(upstream: str) -> Iterator[GoogleCloud]:
    """Run Google's token services before a store."""
    with serving(GoogleCloud(upstream)) as server:
        yield server


class _GoogleHandler(_TokenHandler):
    @property
    def cloud(self) -> GoogleCloud:
        return cast("GoogleCloud", self.server)

    def respond(self) -> None:
        body = self.read_body()
        match self.path:
            case "/token":
                self._sign_in(dict(parse_qsl(body.decode())))
            case "/v1/token":
                self._exchange(dict(parse_qsl(body.decode())))
            case _:
                self._pass_on(body)

    def _sign_in(self, form: dict[str, str]) -> None:
        header, claims, signature = form.get("assertion", "..").split(".")
        if (
            form.get("grant_type") != "urn:ietf:params:oauth:grant-type:jwt-bearer"
            or _decoded(header) != {"alg": "RS256", "typ": "JWT"}
            or _decoded(claims).get("aud") != "https://oauth2.googleapis.com/token"
            or not signature
        ):
            self.answer_json({"error": "invalid_grant"}, HTTPStatus.BAD_REQUEST)
            return
        self.answer_json({"access_token": self.cloud.login_token, "expires_in": 3599})

    def _exchange(self, form: dict[str, str]) -> None:
        token_type = "urn:ietf:params:oauth:token-type:access_token"
        expected = {
            "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
            "requested_token_type": token_type,
            "subject_token_type": token_type,
            "subject_token": self.cloud.login_token,
        }
        options = json.loads(form.pop("options", "{}"))
        boundary = _parse_boundary(options)
        if form != expected or boundary is None:
            self.answer_json({"error": "invalid_request"}, HTTPStatus.BAD_REQUEST)
            return
        self.cloud.keep(options)
        token = secrets.token_hex(16)
        self.cloud.boundaries[token] = boundary
        self.answer_json(
            {"access_token": token, "issued_token_type": token_type, "expires_in": 3500}
        )

    def _pass_on(self, body: bytes) -> None:
        """Forward a request to the store if its token allows it."""
        scheme, _, token = (self.headers.get("Authorization") or "").partition(" ")
        boundary = self.cloud.boundaries.get(token)
        if scheme != "Bearer" or boundary is None:
            self.answer(HTTPStatus.UNAUTHORIZED)
            return
        url = urlsplit(self.path)
        bucket, _, key = unquote(url.path).removeprefix("/").partition("/")
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        if not any(rule.allows(self.command, bucket, key, query) for rule in boundary):
            self.answer(HTTPStatus.FORBIDDEN)
            return
        connection = http.client.HTTPConnection(self.cloud.upstream, timeout=30)
        try:
            kept = {n: v for n, v in self.headers.items() if n.lower() != "transfer-encoding"}
            connection.request(
                self.command, self.path, body or None, kept | {"Content-Length": str(len(body))}
            )
            response = connection.getresponse()
            headers = {n: v for n, v in response.getheaders() if n.lower() != "content-length"}
            content = response.read()
            if self.command == "HEAD":
                self.send_response(response.status)
                for name, value in response.getheaders():
                    self.send_header(name, value)
                self.end_headers()
            else:
                self.answer(response.status, content, headers)
        finally:
            connection.close()


def _parse_boundary(options: Any) -> list[_Rule] | None:
    """Read a boundary of the documented form; None for any other."""
    match options:
        case {"accessBoundary": {"accessBoundaryRules": [*given]}} if (
            options.keys() == {"accessBoundary"} and 1 <= len(given) <= 10
        ):
            rules = [_parse_rule(rule) for rule in given]
            known = [rule for rule in rules if rule is not None]
            return known if len(known) == len(rules) else None
    return None


def _parse_rule(rule: Any) -> _Rule | None:
    match rule:
        case {
            "availableResource": str(resource),
            "availablePermissions": [str(role)],
        } if role in _ROLES:
            pass
        case _:
            return None
    bucket = resource.removeprefix("//storage.googleapis.com/projects/_/buckets/")
    condition = rule.get("availabilityCondition")
    if condition is None:
        return _Rule(bucket, "", _ROLES[role], lists=True)
    parsed = _EXPRESSION.fullmatch(condition["expression"])
    if parsed is None or parsed[1] != bucket or parsed[4] not in {None, parsed[2]}:
        return None
    return _Rule(bucket, parsed[2], _ROLES[role], lists=parsed[4] is not None)


# Cloudflare


class Cloudflare(_TokenServer):
    """The API that makes temporary credentials of R2."""

    def __init__(self, store: S3Endpoint, api_token: str, account: str) -> None:
        super().__init__(_CloudflareHandler)
        self.api_token = api_token
        self.path = f"/client/v4/accounts/{account}/r2/temp-access-credentials"
        self.sts = botocore.session.get_session().create_client(
            "sts",
            region_name=store.region,
            endpoint_url=store.url,
            aws_access_key_id=VENDOR["access_key_id"],
            aws_secret_access_key=VENDOR["secret_access_key"],
        )


@contextmanager
def cloudflare(store: S3Endpoint, *, api_token: str, account: str) -> Iterator[Cloudflare]:
    """Run the API, for buckets of a store with an STS."""
    with serving(Cloudflare(store, api_token, account)) as server:
        yield server


class _CloudflareHandler(_TokenHandler):
    def respond(self) -> None:
        server = cast("Cloudflare", self.server)
        document = json.loads(self.read_body() or b"{}")
        if self.headers.get("Authorization") != f"Bearer {server.api_token}":
            self.answer_json({"success": False}, HTTPStatus.FORBIDDEN)
            return
        policy = _policy_of_document(document)
        if (self.command, self.path) != ("POST", server.path) or policy is None:
            self.answer_json({"success": False}, HTTPStatus.BAD_REQUEST)
            return
        server.keep(document)
        made = server.sts.assume_role(
            RoleArn=VENDOR["role"],
            RoleSessionName="r2",
            Policy=json.dumps(policy),
            DurationSeconds=document["ttlSeconds"],
        )["Credentials"]
        result = {
            "accessKeyId": made["AccessKeyId"],
            "secretAccessKey": made["SecretAccessKey"],
            "sessionToken": made["SessionToken"],
        }
        self.answer_json({"success": True, "errors": [], "messages": [], "result": result})


def _policy_of_document(document: dict[str, Any]) -> dict[str, Any] | None:
    """Return what a request for credentials allows, as a policy; None for an unknown form."""
    required = {"bucket", "parentAccessKeyId", "permission", "ttlSeconds"}
    permissions = {
        "object-read-only": ["s3:GetObject"],
        "object-read-write": [
            "s3:GetObject",
            "s3:PutObject",
            "s3:DeleteObject",
            "s3:AbortMultipartUpload",
            "s3:ListMultipartUploadParts",
        ],
    }
    prefixes = document.get("prefixes", [""])
    is_known = (
        document.keys() - {"prefixes"} == required
        and document["parentAccessKeyId"] == "parent-key"
        and document["permission"] in permissions
        and re.fullmatch(_NAME, document["bucket"])
        and 900 <= document["ttlSeconds"] <= 604_800
        and all(re.fullmatch(f"({_PREFIX})?", prefix) for prefix in prefixes)
    )
    if not is_known:
        return None
    arn = f"arn:aws:s3:::{document['bucket']}"
    return {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Action": permissions[document["permission"]],
                "Resource": [f"{arn}/{prefix}*" for prefix in prefixes],
            },
            {
                "Effect": "Allow",
                "Action": ["s3:ListBucket"],
                "Resource": [arn],
                "Condition": {"StringLike": {"s3:prefix": [f"{p}*" for p in prefixes]}},
            },
        ],
    }


# Microsoft

MICROSOFT_ASSERTION: Final = "header.claims.signature"


@contextmanager
def microsoft_login() -> Iterator[_TokenServer]:
    """Run a login service whose tokens Azurite accepts with `--oauth basic`.

    It knows an application by its secret, and trusts the token `MICROSOFT_ASSERTION` of another
    issuer.
    """
    with serving(_TokenServer(_MicrosoftHandler)) as server:
        yield server


class _MicrosoftHandler(_TokenHandler):
    def respond(self) -> None:
        form = dict(parse_qsl(self.read_body().decode()))
        cast("_TokenServer", self.server).keep(form)
        expected = {
            "grant_type": "client_credentials",
            "client_id": "app",
            "scope": "https://storage.azure.com/.default",
        }
        if "client_assertion" in form:
            expected["client_assertion_type"] = (
                "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
            )
            expected["client_assertion"] = MICROSOFT_ASSERTION
        else:
            expected["client_secret"] = "app-secret"
        if self.path != "/tenant/oauth2/v2.0/token" or form != expected:
            self.answer_json({"error": "invalid_client"}, HTTPStatus.BAD_REQUEST)
            return
        now = int(time.time())
        claims = {
            "aud": "https://storage.azure.com",
            "iss": "https://sts.windows.net/ab1f708d-50f6-404c-a006-d71b2ac7a606/",
            "iat": now - 60,
            "nbf": now - 60,
            "exp": now + 3600,
            "oid": "23657296-5cd5-45b0-a809-d972a7f4dfe1",
            "tid": "dd0d0df1-06c3-436c-8034-4b9a153097ce",
        }
        token = f"{_encoded({'alg': 'none', 'typ': 'JWT'})}.{_encoded(claims)}.c2lnbmVk"
        self.answer_json({"token_type": "Bearer", "access_token": token, "expires_in": 3599})


def _encoded(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def _decoded(text: str) -> Any:
    return json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
