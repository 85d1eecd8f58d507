"""Objects on a web server that is not trusted, nor is the person who named it.

Of each answer only the bytes that were asked for are read, and only after it was checked that
they are those: the same range, of an object that is long enough, as they are (not compressed).
See `icefloe.storage.web_client` for what else is guarded.

The options and headers of a container are part of the repository, so its authors choose
them. Options that would change where requests go, or how well they are protected, are refused,
and so are headers that belong to the protocol: a `Host` of their own, say, would ask the server
for another site than the one that the reader authorised.
"""

import http.client
import re
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final
from urllib.parse import quote, urlsplit

from icefloe import effects
from icefloe.config import EffectiveStorageSettings
from icefloe.errors import (
    ErrorKind,
    IcefloeError,
    InvalidInputError,
    ObjectNotFoundError,
    StorageError,
)
from icefloe.storage.addresses import AddressGuard, plain_host
from icefloe.storage.keys import check_key, check_order, cut_range, merge_ranges, range_past_end
from icefloe.storage.obstore_errors import refusal
from icefloe.storage.port import UNKNOWN_TIME, Buffer, ByteRange, Fetched, ObjectInfo, Version
from icefloe.storage.specs import (
    TUNING_OPTIONS,
    GuardedHttpSpec,
    check_web_url,
    checked_headers,
    checked_texts,
    without_secrets,
)
from icefloe.storage.web_client import Answer, Origin, WebClient, WebTimeouts

_KEPT_IN_PATHS: Final = "/!$&'()*+,;=:@~"
_CONTENT_RANGE: Final = re.compile(r"bytes ([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19})")
_NUMBER: Final = re.compile(r"[0-9]{1,19}")
_MERGE_GAP_BYTES: Final = 1 << 16
_MOST_SKIPPED_BYTES: Final = 1 << 26
"""How much to read in vain from a server that does not know ranges."""
_CONNECT_SECONDS: Final = 10.0
_STALL_SECONDS: Final = 60.0
_SLOWEST_BYTES_PER_SECOND: Final = 1 << 14
"""A server that goes on more slowly than that holds up its readers on purpose."""

_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\.?|\[[0-9A-Fa-f:.]+\]")
_PATH: Final = re.compile(r"[!-\[\]-~]*")

_OF_PROTOCOL: Final = frozenset(
    {
        "accept-encoding",
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "range",
        "te",  # codespell:ignore te
        "trailer",
        "transfer-encoding",
        "upgrade",
        "user-agent",
    }
)
_OF_PROTOCOL_PREFIXES: Final = ("if-", "proxy-", "x-forwarded-", "x-http-method")
_FALSE: Final = frozenset({"0", "false", "off", "no", "n"})
_DURATION: Final = re.compile(r"\s*([0-9]+)\s*([a-z]*)")
_MOST_DIGITS: Final = 18
_UNIT_SECONDS: Final = {
    **dict.fromkeys(("ns", "nsec", "nanos"), 1e-9),
    **dict.fromkeys(("us", "usec", "micros"), 1e-6),
    **dict.fromkeys(("ms", "msec", "millis"), 1e-3),
    **dict.fromkeys(("", "s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
}


class GuardedHttpReader:
    """One attempt at each read."""

    def __init__(
        self,
        spec: GuardedHttpSpec,
        settings: EffectiveStorageSettings,
        agent: str,
        guard: AddressGuard | None = None,
    ) -> None:
        """Prepare to read; `guard` stands in for the one that the description asks for."""
        self._origin = Origin.of(spec.url)
        self._base = urlsplit(spec.url).path
        self._part_bytes = settings.concurrency.ideal_concurrent_request_size
        self._concurrency = settings.concurrency.max_concurrent_requests_for_object
        self._client = WebClient(
            self._origin,
            guard
            or AddressGuard(allow_private=spec.allow_private, private_hosts=spec.private_hosts),
            _timeouts(spec, settings),
            {**spec.headers, "User-Agent": spec.user_agent or agent},
        )

    async def get(self, key: str, byte_range: ByteRange | None = None) -> Fetched:
        """Read an object, or one range of it."""
        check_key(key)
        if byte_range is None:
            return await effects.offload_waiting(lambda: self._get_whole(key))
        check_order(key, byte_range)
        if byte_range[0] == byte_range[1]:
            return await self._get_nothing(key, byte_range)
        return await effects.offload_waiting(lambda: self._get_range(key, byte_range))

    async def get_ranges(self, key: str, byte_ranges: Sequence[ByteRange]) -> list[Buffer]:
        """Read several ranges; those near each other come in one request."""
        check_key(key)
        for byte_range in byte_ranges:
            check_order(key, byte_range)
        if not any(start < end for start, end in byte_ranges):
            for byte_range in byte_ranges or ((0, 0),):
                await self._get_nothing(key, byte_range)
            return [b""] * len(byte_ranges)
        windows = merge_ranges(byte_ranges, gap=_MERGE_GAP_BYTES, limit=self._part_bytes)

        async def fetch(window: ByteRange) -> Fetched:
            return await effects.offload_waiting(lambda: self._get_range(key, window))

        fetched = await effects.map_concurrently(fetch, windows, limit=self._concurrency)
        if any(part.info != fetched[0].info for part in fetched):
            raise StorageError(f"{key!r} was replaced while it was read", retryable=True, key=key)
        size = fetched[0].info.size_bytes
        for byte_range in byte_ranges:
            if byte_range[1] > size:  # an empty one, which was not asked for
                raise range_past_end(key, byte_range, size)
        views = [memoryview(part.data) for part in fetched]
        return [cut_range(windows, views, byte_range) for byte_range in byte_ranges]

    async def head(self, key: str) -> Fetched:
        """Look at an object."""
        check_key(key)
        return await effects.offload_waiting(lambda: self._head(key))

    async def _get_nothing(self, key: str, byte_range: ByteRange) -> Fetched:
        """Answer for an empty range, which HTTP cannot ask for."""
        head = await self.head(key)
        if byte_range[1] > head.info.size_bytes:
            raise range_past_end(key, byte_range, head.info.size_bytes)
        return head

    def _head(self, key: str) -> Fetched:
        with self._ask("HEAD", key, "look at", {}, 0) as answer:
            _check_status(answer, "look at", key)
            return Fetched(b"", _info(answer, key, _length(answer, key)))

    def _get_whole(self, key: str) -> Fetched:
        # How long that may take depends on how long it is, so that is asked first.
        size = self._head(key).info.size_bytes
        with self._ask("GET", key, "read", {}, size) as answer:
            _check_status(answer, "read", key)
            _check_unencoded(answer, key)
            if (length := _length(answer, key)) != size:
                raise StorageError(f"{key!r} changed while it was read", retryable=True, key=key)
            return Fetched(answer.read(length), _info(answer, key, length))

    def _get_range(self, key: str, byte_range: ByteRange) -> Fetched:
        start, end = byte_range
        headers = {"Range": f"bytes={start}-{end - 1}"}
        with self._ask("GET", key, "read", headers, end - start) as answer:
            if answer.status == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
                raise range_past_end(key, byte_range)
            _check_status(answer, "read", key)
            _check_unencoded(answer, key)
            if answer.status == http.client.PARTIAL_CONTENT:
                size = _check_partial(answer, key, byte_range)
            else:
                size = _skip_to(answer, key, byte_range)
            return Fetched(answer.read(end - start), _info(answer, key, size))

    @contextmanager
    def _ask(
        self, method: str, key: str, verb: str, headers: Mapping[str, str], length: int
    ) -> Iterator[Answer]:
        target = f"{self._base}/{quote(key, safe=_KEPT_IN_PATHS)}"
        try:
            with self._client.ask(method, target, headers, length) as answer:
                yield answer
        except IcefloeError:
            raise
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._failure(error, verb, key) from None

    def _failure(self, error: Exception, verb: str, key: str) -> StorageError:
        """Describe why there is no answer; what the server wrote is left out."""
        what = f"cannot {verb} {key!r} at {self._origin.scheme}://{self._origin}"
        match error:
            case ssl.SSLCertVerificationError():
                reason, is_passing = f"its certificate is not valid ({error.verify_message})", False
            case socket.gaierror():
                reason, is_passing = "its name is not known", error.errno == socket.EAI_AGAIN
            case TimeoutError():
                reason, is_passing = "it takes too long to answer", True
            case _:
                reason, is_passing = f"no usable answer ({type(error).__name__})", True
        return StorageError(
            f"{what}: {reason}", ErrorKind.OBJECT_STORE, retryable=is_passing, key=key
        )


def _timeouts(spec: GuardedHttpSpec, settings: EffectiveStorageSettings) -> WebTimeouts:
    timeouts = settings.timeouts
    whole_ms = timeouts.operation_attempt_timeout_ms or timeouts.operation_timeout_ms
    return WebTimeouts(
        _shorter(_seconds(timeouts.connect_timeout_ms, _CONNECT_SECONDS), spec.connect_seconds),
        _seconds(timeouts.read_timeout_ms, _STALL_SECONDS),
        _whole_seconds(whole_ms, spec.whole_seconds),
    )


def _whole_seconds(whole_ms: int | None, most: float | None) -> Callable[[int], float]:
    def seconds(length: int) -> float:
        enough = _STALL_SECONDS + length / _SLOWEST_BYTES_PER_SECOND
        return _shorter(_seconds(whole_ms, enough), most)

    return seconds


def _seconds(given_ms: int | None, otherwise: float) -> float:
    return otherwise if given_ms is None else given_ms / 1000


def _shorter(seconds: float, most: float | None) -> float:
    return seconds if most is None else min(seconds, most)


def _check_status(answer: Answer, verb: str, key: str) -> None:
    status = answer.status
    if status in {http.client.OK, http.client.PARTIAL_CONTENT}:
        return
    if status in {http.client.NOT_FOUND, http.client.GONE}:
        raise ObjectNotFoundError(f"no object {key!r} (status {status})", key=key)
    raise refusal(status, f"cannot {verb} {key!r}", key, f" (status {status})")


def _check_unencoded(answer: Answer, key: str) -> None:
    if (answer.header("Content-Encoding") or "identity").lower() != "identity":
        raise _unusable(key, "compressed it, though asked not to, so that its bytes are unknown")


def _check_partial(answer: Answer, key: str, byte_range: ByteRange) -> int:
    """Make sure that a partial answer is the part that was asked for; give the size of all."""
    match = _CONTENT_RANGE.fullmatch(answer.header("Content-Range") or "")
    if match is None:
        raise _unusable(key, "does not say which part of it it sent")
    first, last, size = (int(text) for text in match.groups())
    start, end = byte_range
    if first == start and last + 1 == size < end:
        raise range_past_end(key, byte_range, size)
    if (first, last + 1) != byte_range or size < end:
        raise _unusable(key, f"sent bytes {first} to {last + 1}, though {start} to {end} were due")
    if answer.header("Content-Length") not in {None, str(end - start)}:
        raise _unusable(key, "sent another number of bytes than it said")
    return size


def _skip_to(answer: Answer, key: str, byte_range: ByteRange) -> int:
    """Pass over what precedes a range, if the server sends all; give the size of all."""
    size = _length(answer, key)
    if byte_range[1] > size:
        raise range_past_end(key, byte_range, size)
    if byte_range[0] > _MOST_SKIPPED_BYTES:
        raise _unusable(key, "can only send it from its beginning, which is too far away")
    answer.skip(byte_range[0])
    return size


def _length(answer: Answer, key: str) -> int:
    text = answer.header("Content-Length") or ""
    if not _NUMBER.fullmatch(text):
        raise _unusable(key, "does not say how long it is")
    return int(text)


def _info(answer: Answer, key: str, size: int) -> ObjectInfo:
    version = Version(etag=answer.header("ETag"))
    modified = _modified(answer.header("Last-Modified"))
    return ObjectInfo(key, size, modified, version, modified > UNKNOWN_TIME)


def _modified(text: str | None) -> datetime:
    """Read a time; what is missing, malformed or before 1970 is unknown."""
    try:
        told = parsedate_to_datetime(text or "")
    except (ValueError, OverflowError):
        return UNKNOWN_TIME
    return max(told if told.tzinfo is not None else told.replace(tzinfo=UTC), UNKNOWN_TIME)


def _unusable(key: str, reason: str) -> StorageError:
    return StorageError(
        f"cannot read {key!r}: the server {reason}", ErrorKind.OBJECT_STORE, key=key
    )


def guarded_http_spec(
    url: str,
    config: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    *,
    private_hosts: Iterable[str] = (),
    allow_private: bool = False,
) -> GuardedHttpSpec:
    """Check a description of a web server that comes from somebody not trusted.

    Args:
        url: scheme and host, perhaps with a port and a path, of what may be read.
        config: options of the client, by the names that `http_storage` has for them.
        headers: sent with each request.
        private_hosts: hosts that the reader authorised by address (or as `localhost`) and which
            may therefore have an address that is not public.
        allow_private: whether the reader allowed such addresses altogether.

    >>> guarded_http_spec("http://127.0.0.1:8000/", private_hosts=["127.0.0.1"]).place
    'http://127.0.0.1:8000'
    """
    check_web_url(url, allow_http=True)
    parts = urlsplit(url)
    host = parts.netloc.removesuffix(f":{parts.port}").removesuffix(":")
    if not _HOST.fullmatch(host):
        raise _unfit(
            f"{without_secrets(url)!r} cannot be read: expected a plain host name or address, with"
            " neither user nor letters beyond ASCII (write such names in their xn-- form)"
        )
    if parts.query or parts.fragment or not _PATH.fullmatch(parts.path):
        raise _unfit(f"{without_secrets(url)!r} cannot be the root of a web storage")
    options = checked_texts(config)
    _check_options(options, parts.scheme)
    return GuardedHttpSpec(
        url.rstrip("/"),
        frozenset(plain_host(private_host) for private_host in private_hosts),
        allow_private,
        _checked_server_headers(checked_headers(headers)),
        _duration_seconds(options, "connect_timeout"),
        _duration_seconds(options, "timeout"),
        checked_headers({"User-Agent": options.get("user_agent", "")})["User-Agent"] or None,
    )


def _check_options(options: Mapping[str, str], scheme: str) -> None:
    # How other clients fetch does not matter: this one fetches in its own way.
    own = {"allow_http", "connect_timeout", "randomize_addresses", "timeout", "user_agent"}
    allowed = own | TUNING_OPTIONS
    if unknown := sorted(options.keys() - allowed):
        raise _unfit(
            f"the options {', '.join(unknown)} are not followed for virtual chunks on a web"
            " server, as they could lead requests elsewhere: remove them from the container"
        )
    if scheme == "http" and options.get("allow_http", "").strip().lower() in _FALSE:
        raise _unfit("the container says allow_http=false, but its address is not encrypted")


def _checked_server_headers(headers: dict[str, str]) -> dict[str, str]:
    for name in headers:
        lower = name.lower()
        if lower in _OF_PROTOCOL or lower.startswith(_OF_PROTOCOL_PREFIXES):
            raise _unfit(
                f"the header {name!r} is not sent for virtual chunks on a web server, as it is part"
                " of the protocol: remove it from the container"
            )
    return headers


def _duration_seconds(options: Mapping[str, str], name: str) -> float | None:
    """Read a duration such as `30s` or `1m 30s`."""
    text = options.get(name)
    if text is None:
        return None
    total, position = 0.0, 0
    while match := _DURATION.match(text, position):
        if match.group(2) not in _UNIT_SECONDS or len(match.group(1)) > _MOST_DIGITS:
            break
        total += int(match.group(1)) * _UNIT_SECONDS[match.group(2)]
        position = match.end()
    if text[position:].strip() or not 0 < total < float("inf"):
        raise _unfit(f"{name}={text!r} is no duration: write it like 30s")
    return total


def _unfit(message: str) -> InvalidInputError:
    return InvalidInputError(message, ErrorKind.STORAGE_CONFIG)
