"""Requests to a service: one core for callers that block and callers that await.

Errors of the service become the errors of this package, by one table.
"""

import atexit
import os
import secrets as random
from collections.abc import Mapping, Sequence
from functools import cache
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec

from icefloe.catalog.logins import TokenSource
from icefloe.catalog.wire import MissingGrant, Problem
from icefloe.effects import offload_waiting, sleep
from icefloe.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    ConflictError,
    ErrorKind,
    IcefloeError,
    InvalidInputError,
    NotFoundError,
    NotLoggedInError,
    RepositoryNotFoundError,
    ServiceError,
)
from icefloe.version import VERSION

if TYPE_CHECKING:
    import httpx2 as httpx

ERROR_OF: Final[Mapping[str, type[IcefloeError]]] = {
    ErrorKind.NOT_LOGGED_IN: NotLoggedInError,
    ErrorKind.ACCESS_DENIED: AccessDeniedError,
    ErrorKind.VIRTUAL_ACCESS_REQUIRED: AccessDeniedError,
    ErrorKind.ENTRY_NOT_FOUND: NotFoundError,
    ErrorKind.REPOSITORY_NOT_FOUND: RepositoryNotFoundError,
    ErrorKind.ENTRY_ALREADY_EXISTS: AlreadyExistsError,
    ErrorKind.ENTRY_CHANGED: ConflictError,
    ErrorKind.ENTRY_IN_USE: ConflictError,
    ErrorKind.INVALID_REQUEST: InvalidInputError,
    ErrorKind.INVALID_CONFIG: InvalidInputError,
    ErrorKind.TOO_MANY_REQUESTS: ServiceError,
    ErrorKind.SERVICE_UNAVAILABLE: ServiceError,
}
"""The class of an error, by the code that the service answers with."""

_ERROR_OF_STATUS: Final[Mapping[int, type[IcefloeError]]] = {
    400: InvalidInputError,
    401: NotLoggedInError,
    403: AccessDeniedError,
    404: NotFoundError,
    409: ConflictError,
    412: ConflictError,
    413: InvalidInputError,
    422: InvalidInputError,
}
"""The same for codes that are not in the table, by status; all others are `ServiceError`."""

REASONS: Final = {
    "no_policy": "no policy shares it",
    "wrong_scope": "a policy shares it with others only",
    "bucket_unknown": "no organisation has registered this bucket",
    "bucket_unproven": "the service has not proved yet that the bucket is its owner's",
    "embargoed": "it is under embargo",
    "not_scoped": "credentials for it would reach more than its folder",
    "forbidden_scheme": "data of this kind is never read through a service",
    "invalid": "its address is not valid",
}
"""Why a container may not be read, in words."""
_RETRYABLE: Final = frozenset({429, 502, 503, 504})
_ATTEMPTS: Final = 4
_FIRST_PAUSE_SECONDS: Final = 0.2
_LONGEST_PAUSE_SECONDS: Final = 20.0
_TIMEOUT_SECONDS: Final = 60.0


class Transport:
    """Sends requests to one service, with the token of one login."""

    def __init__(self, service: str, tokens: TokenSource) -> None:
        self.service: Final = service
        self.tokens: Final = tokens
        self.requests = 0
        """How many requests were sent."""

    async def call[T](
        self,
        kind: type[T],
        method: str,
        path: str,
        body: object = None,
        *,
        params: Mapping[str, Any] | None = None,
        if_version: int | None = None,
        is_repeatable: bool | None = None,
    ) -> T:
        """Send a request with the token of the login, and return what the service answers.

        A request that is repeatable is sent again after a failure that may pass: reading requests
        are, unless the caller says otherwise.
        """
        headers = {} if if_version is None else {"if-match": f'"{if_version}"'}
        may_repeat = method == "GET" if is_repeatable is None else is_repeatable
        response = await self._with_token(
            method, path, body, params, headers, may_repeat=may_repeat
        )
        return self._answer(kind, response)

    async def create[T](self, kind: type[T], path: str, body: object) -> T:
        """Send a request that creates something, and return what the service answers.

        It carries a key of its own. So it is sent again after a failure that may pass, and the
        service creates one thing.
        """
        headers = {"idempotency-key": random.token_urlsafe(24)}
        response = await self._with_token("POST", path, body, None, headers, may_repeat=True)
        return self._answer(kind, response)

    async def fetch(self, path: str, accept: str, params: Sequence[tuple[str, str]]) -> bytes:
        """Return the bytes that the service answers a reading request with, in a media type."""
        headers = {"accept": accept}
        response = await self._with_token("GET", path, None, params, headers, may_repeat=True)
        if response.is_success:
            return response.content
        raise self._error(response)

    async def call_openly(self, path: str, form: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
        """Send a form without a token, as those do who are about to log in."""
        response = await self._send("POST", path, {}, {"data": dict(form)})
        if response.status_code >= 500:
            raise self._error(response)
        return response.status_code, self._decoded(dict[str, Any], response.content)

    async def _with_token(
        self,
        method: str,
        path: str,
        body: object,
        params: Mapping[str, Any] | Sequence[tuple[str, str]] | None,
        headers: dict[str, str],
        *,
        may_repeat: bool,
    ) -> "httpx.Response":
        options: dict[str, Any] = {"params": params}
        if body is not None:
            options["content"] = msgspec.json.encode(body)
            headers["content-type"] = "application/json"
        pause, is_renewed = _FIRST_PAUSE_SECONDS, False
        for attempt in range(_ATTEMPTS):
            is_last = attempt == _ATTEMPTS - 1 or not may_repeat
            try:
                response = await self._send(method, path, headers, options, needs_token=True)
            except ServiceError as error:
                if is_last or not error.retryable:
                    raise
                retry_after = None
            else:
                if response.status_code == 401 and not is_renewed and self.tokens.renew():
                    is_renewed = True
                    continue
                retry_after = response.headers.get("retry-after")
                # Another request with the same key may still be running.
                is_running = response.status_code == 409 and retry_after is not None
                if is_last or not (is_running or response.status_code in _RETRYABLE):
                    return response
            await sleep(min(_pause_of(retry_after, pause), _LONGEST_PAUSE_SECONDS))
            pause *= 2
        return response

    async def _send(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        options: Mapping[str, Any],
        *,
        needs_token: bool = False,
    ) -> "httpx.Response":
        if needs_token and await offload_waiting(self.tokens.get) is None:
            problem = f"you are not logged in at {self.service}"
            raise NotLoggedInError(f"{problem}: run `icefloe login {self.service}`")
        self.requests += 1
        url = f"{self.service}/api/v1{path}"

        def send() -> "httpx.Response | str":
            import httpx2 as httpx

            # The header is made here, so that no frame of ours has the token in a variable.
            sent = dict(headers)
            if needs_token and (token := self.tokens.get()) is not None:
                sent["authorization"] = f"Bearer {token.reveal()}"
            try:
                return _connections().request(method, url, headers=sent, **options)
            except httpx.HTTPError as error:
                return type(error).__name__

        result = await offload_waiting(send)
        if isinstance(result, str):
            # Raised out here, the error has no traceback through frames that know the token.
            problem = f"the service {self.service} cannot be reached ({result})"
            raise ServiceError(f"{problem}: check the address and the network", retryable=True)
        return result

    def _answer[T](self, kind: type[T], response: "httpx.Response") -> T:
        if response.is_success:
            return self._decoded(kind, response.content)
        raise self._error(response)

    def _decoded[T](self, kind: type[T], content: bytes) -> T:
        try:
            return msgspec.json.decode(content or b"null", type=kind)
        except msgspec.MsgspecError:
            self.fail_to_understand()

    def fail_to_understand(self) -> NoReturn:
        """Raise the error for an answer that is not of the expected form."""
        problem = f"{self.service} answered in a form that this client does not understand"
        raise ServiceError(f"{problem}: is it a service of Icefloe, and of a similar version?")

    def _error(self, response: "httpx.Response") -> IcefloeError:
        try:
            problem = msgspec.json.decode(response.content, type=Problem)
        except msgspec.MsgspecError:
            text = f"{self.service} answered with status {response.status_code}"
            problem = Problem("", text, response.headers.get("x-request-id", ""))
        return error_of(problem, response.status_code)


@cache
def _connections() -> "httpx.Client":
    """Return the connections of this process to all services."""
    import httpx2 as httpx

    # No redirects: a token must not follow them to another host. No cookies: a token says it all.
    connections = httpx.Client(
        timeout=_TIMEOUT_SECONDS,
        follow_redirects=False,
        headers={"user-agent": f"icefloe/{VERSION}", "accept": "application/json"},
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
    )
    atexit.register(connections.close)
    return connections


if hasattr(os, "register_at_fork"):
    # A child must not talk over the connections of its parent.
    os.register_at_fork(after_in_child=_connections.cache_clear)


def _pause_of(retry_after: str | None, usual_seconds: float) -> float:
    """Return how long to wait: what the service asks for, or a part of the usual pause."""
    if retry_after is not None and retry_after.isdecimal():
        return float(retry_after)
    return usual_seconds * (0.5 + random.randbelow(1000) / 2000)


def error_of(problem: Problem, status: int) -> IcefloeError:
    """Return the error that an answer of the service stands for."""
    kind = ERROR_OF.get(problem.code) or _ERROR_OF_STATUS.get(status, ServiceError)
    code = problem.code or None
    context = {"request_id": problem.request_id} if problem.request_id else {}
    if issubclass(kind, AccessDeniedError):
        text = access_text(problem.message, problem.missing)
        return kind(text, code, missing=problem.missing, **context)
    if issubclass(kind, ServiceError):
        return kind(problem.message, code, retryable=status in _RETRYABLE, **context)
    if issubclass(kind, ConflictError):
        return kind(message=problem.message, kind=code, **context)
    return kind(problem.message, code, **context)


def access_text(message: str, missing: tuple[MissingGrant, ...]) -> str:
    """Return in sentences what is missing, why, and who can change that."""
    if not missing:
        return message
    sentences = [message.partition("\n")[0]]
    for grant in missing:
        reason = REASONS.get(grant.reason, grant.reason)
        who = grant.who[:1].upper() + grant.who[1:]
        sentence = f"- {grant.container}: {reason}. {who} can change that: {grant.what_to_do}."
        if grant.url:
            sentence += f" The page for that is {grant.url}"
        sentences.append(sentence)
    return "\n".join(sentences)
