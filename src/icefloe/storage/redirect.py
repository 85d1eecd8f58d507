"""A storage found by following HTTP redirections.

Servers along the way are not trusted, so they are asked through the guarded client
(`icefloe.storage.web_client`). Only a few schemes of remote storages may be reached
(never local files), an encrypted address may not lead to an unencrypted one, the number of
steps is bounded, and requests to the storage found are anonymous unless the user said that
credentials of the environment may be used there. Even then these go to the platforms' own
servers only, or to endpoints that the user named: never to one that a server along the way
chose.
"""

import http.client
import re
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import timedelta
from typing import Any, Final
from urllib.parse import parse_qsl, urljoin, urlsplit

from icefloe import effects
from icefloe.errors import ErrorKind, InvalidInputError, StorageError
from icefloe.storage.addresses import AddressGuard
from icefloe.storage.capabilities import sign_reads
from icefloe.storage.port import Backend, ObjectInfo
from icefloe.storage.retrying import Attempts
from icefloe.storage.specs import RedirectSpec, Spec, without_secrets
from icefloe.storage.urls import WEB_STORAGE_SCHEMES, spec_from_url
from icefloe.storage.web_client import REDIRECTIONS, Origin, WebClient, WebTimeouts
from icefloe.storage.wrapper import BackendWrapper, Verb

MOST_STEPS: Final = 10
_TARGETS: Final = frozenset({"s3", "gs", "gcs", "az", "r2", "tigris"}) | WEB_STORAGE_SCHEMES
_TIMEOUTS: Final = WebTimeouts(30.0, 30.0, lambda _: 60.0)
_GUARD: Final = AddressGuard(allow_private=True)
"""Servers of an own network may redirect to each other; what metadata services tell is secret."""
_NAMES: Final = frozenset({"region", "account_id"})
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def resolve(spec: RedirectSpec, user_agent: str) -> Spec:
    """Follow redirections until one names a storage."""
    url = spec.url
    for _ in range(MOST_STEPS + 1):
        target = _next_location(url, user_agent)
        scheme = urlsplit(target).scheme.lower()
        if scheme in _TARGETS:
            _check_names(spec, target)
            _check_endpoint(spec, target)
            try:
                return spec_from_url(target, anonymous=not spec.from_env)
            except (InvalidInputError, StorageError) as error:
                raise _bad(spec.url, f"it leads to a malformed address: {error}") from None
        if scheme not in {"http", "https"}:
            raise _bad(spec.url, f"it leads to a {scheme!r} address, which is not allowed")
        if scheme == "http" and urlsplit(url).scheme.lower() == "https":
            raise _bad(spec.url, "an encrypted address led to an unencrypted one")
        url = target
    raise _bad(spec.url, f"it led nowhere in {MOST_STEPS} steps")


def _check_names(spec: RedirectSpec, target: str) -> None:
    """Refuse names that are no such thing: in the address of a platform they lead elsewhere.

    They become parts of a host name, so that a region such as `x@host/#` would be one of a server
    that has nothing to do with the platform, and be sent signed requests.
    """
    parts = urlsplit(target)
    if parts.scheme.lower() in WEB_STORAGE_SCHEMES:
        return
    named = [(name, value) for name, value in parse_qsl(parts.query) if name in _NAMES]
    for what, name in [("bucket or account", parts.netloc), *named]:
        if not _NAME.fullmatch(name):
            raise _bad(spec.url, f"it leads to a {what} whose name is malformed")


def _check_endpoint(spec: RedirectSpec, target: str) -> None:
    """Refuse to send credentials to an endpoint that nobody but a server along the way chose."""
    if not spec.from_env:
        return
    for name, value in parse_qsl(urlsplit(target).query):
        if name == "endpoint_url" and value not in spec.trusted_endpoints:
            raise _bad(
                spec.url,
                f"it names the endpoint {without_secrets(value)!r}, to which your credentials"
                " would be sent: if you trust it, pass it in trusted_endpoints, else open"
                " without from_env",
            )


def _next_location(url: str, user_agent: str) -> str:
    """Ask a server, and return the address it sends us to."""
    parts = urlsplit(url)
    path = f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}"
    try:
        client = WebClient(Origin.of(url), _GUARD, _TIMEOUTS, {"User-Agent": user_agent})
        status, location = client.ask_for_location(path)
    except InvalidInputError:
        raise _bad(url, "it is a service that hands out the credentials of a machine") from None
    except (OSError, http.client.HTTPException) as error:
        raise StorageError(
            f"the redirecting server {parts.hostname} does not answer: {type(error).__name__}",
            ErrorKind.BAD_REDIRECT,
            retryable=True,
        ) from error
    except ValueError:
        raise _bad(url, "it is malformed") from None
    if status >= 500:
        text = f"the redirecting server {parts.hostname} failed with status {status}"
        raise StorageError(text, ErrorKind.BAD_REDIRECT, retryable=True)
    if status not in REDIRECTIONS or not location:
        raise _bad(url, f"the answer has status {status} and is no redirection")
    try:
        target = urljoin(url, location)
        urlsplit(target)
    except ValueError:
        raise _bad(url, "the address it leads to is malformed") from None
    return target


def _bad(url: str, reason: str) -> StorageError:
    text = f"{without_secrets(url)!r} does not lead to a storage: {reason}"
    return StorageError(text, ErrorKind.BAD_REDIRECT)


class RedirectBackend(BackendWrapper):
    """Finds the real storage at the first request, then sends everything on to it."""

    def __init__(self, find: Callable[[], Backend], attempts: Callable[[], Attempts]) -> None:
        self._find = find
        self._attempts = attempts
        self._target: Backend | None = None

    async def around(self, verb: Verb, *arguments: Any, **options: Any) -> Any:
        """Send a request to the storage that was found."""
        target = self._target or await self._find_target()
        return await getattr(target, verb)(*arguments, **options)

    async def list(self, prefix: str = "") -> AsyncIterator[list[ObjectInfo]]:
        """Walk the objects of the storage that was found."""
        target = self._target or await self._find_target()
        async for batch in target.list(prefix):
            yield batch

    async def sign_reads(self, keys: Sequence[str], lifetime: timedelta) -> Sequence[str] | None:
        """Return signed addresses of objects of the storage that was found."""
        return await sign_reads(self._target or await self._find_target(), keys, lifetime)

    async def _find_target(self) -> Backend:
        # Two callers may both look; they find the same.
        self._target = await self._attempts().repeat(lambda: effects.offload(self._find))
        return self._target
