"""What may be said about a web server by somebody who is not trusted.

The options and headers of a container are part of the repository, so its authors choose
them. Options that would change where requests go, or how well they are protected, are refused,
and so are headers that belong to the protocol: a `Host` of their own, say, would ask the server
for another site than the one that the reader authorised.
"""

import ipaddress
import re
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import urlsplit

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.storage.specs import (
    GuardedHttpSpec,
    check_web_url,
    checked_headers,
    checked_texts,
    without_secrets,
)

_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\.?|\[[0-9A-Fa-f:.]+\]")
_PATH: Final = re.compile(r"[!-\[\]-~]*")
_TUNING: Final = frozenset(
    {
        "default_content_type",
        "http1_only",
        "http2_keep_alive_interval",
        "http2_keep_alive_timeout",
        "http2_keep_alive_while_idle",
        "http2_only",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "randomize_addresses",
    }
)
"""Options of other clients that say how to fetch, not what: this one fetches in its own way."""

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
_SECONDS: Final = {
    **dict.fromkeys(("ns", "nsec", "nanos"), 1e-9),
    **dict.fromkeys(("us", "usec", "micros"), 1e-6),
    **dict.fromkeys(("ms", "msec", "millis"), 1e-3),
    **dict.fromkeys(("", "s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
}


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
        _checked(checked_headers(headers)),
        _seconds(options, "connect_timeout"),
        _seconds(options, "timeout"),
        checked_headers({"User-Agent": options.get("user_agent", "")})["User-Agent"] or None,
    )


def plain_host(host: str) -> str:
    """Write a host in the one form in which hosts are compared.

    >>> plain_host("[0:0::1]"), plain_host("LocalHost")
    ('::1', 'localhost')
    """
    bare = host.removeprefix("[").removesuffix("]")
    try:
        return str(ipaddress.ip_address(bare))
    except ValueError:
        return bare.lower().removesuffix(".")


def _check_options(options: Mapping[str, str], scheme: str) -> None:
    allowed = {"allow_http", "connect_timeout", "timeout", "user_agent"} | _TUNING
    if unknown := sorted(options.keys() - allowed):
        raise _unfit(
            f"the options {', '.join(unknown)} are not followed for virtual chunks on a web"
            " server, as they could lead requests elsewhere: remove them from the container"
        )
    if scheme == "http" and options.get("allow_http", "").strip().lower() in _FALSE:
        raise _unfit("the container says allow_http=false, but its address is not encrypted")


def _checked(headers: dict[str, str]) -> dict[str, str]:
    for name in headers:
        lower = name.lower()
        if lower in _OF_PROTOCOL or lower.startswith(_OF_PROTOCOL_PREFIXES):
            raise _unfit(
                f"the header {name!r} is not sent for virtual chunks on a web server, as it is part"
                " of the protocol: remove it from the container"
            )
    return headers


def _seconds(options: Mapping[str, str], name: str) -> float | None:
    """Read a duration such as `30s` or `1m 30s`."""
    text = options.get(name)
    if text is None:
        return None
    total, position = 0.0, 0
    while match := _DURATION.match(text, position):
        if match.group(2) not in _SECONDS or len(match.group(1)) > _MOST_DIGITS:
            break
        total += int(match.group(1)) * _SECONDS[match.group(2)]
        position = match.end()
    if text[position:].strip() or not 0 < total < float("inf"):
        raise _unfit(f"{name}={text!r} is no duration: write it like 30s")
    return total


def _unfit(message: str) -> InvalidInputError:
    return InvalidInputError(message, ErrorKind.STORAGE_CONFIG)
