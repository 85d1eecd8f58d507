"""Names of services and of their repositories, as people write them and as programs pass them on.

==================================== =============================================
written                              meaning
==================================== =============================================
`icefloe://host/org/name`            `org/name` of the service at `https://host`
`icefloe://127.0.0.1:8321/org/name`  the same at `http://127.0.0.1:8321`: loopback
                                     addresses, and only those, need no encryption
`org/name`                           a repository of the service of the last login
==================================== =============================================
"""

import ipaddress
import re
from typing import Final
from urllib.parse import SplitResult, urlsplit

from icefloe.catalog.model import ORGANISATION_NAME, REPOSITORY_NAME
from icefloe.catalog.wire import Access
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.records import Record

_SCHEME: Final = "icefloe"
_HOST: Final = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?|\[[0-9a-f:.]+\]")
_ORGANISATION: Final = re.compile(ORGANISATION_NAME)
_REPOSITORY: Final = re.compile(REPOSITORY_NAME)


class Handle(Record):
    """The names that another process needs to open a repository itself: no secret is part of it."""

    service: str
    repository: str
    """As `org/name`."""
    access: Access = Access.READ
    token_command: tuple[str, ...] | None = None
    """A command that prints a token, for processes that have no other one."""
    token_id: str | None = None
    """The public part of the token that this process was given; None if it was looked up."""

    @property
    def path(self) -> str:
        """The path of the repository in the API."""
        return f"/repos/{self.repository}"


def is_service_url(text: object) -> bool:
    """Return whether a text is the URL of a repository of a service.

    >>> is_service_url("icefloe://data.example.org/lab/sst"), is_service_url("s3://bucket/sst")
    (True, False)
    """
    return isinstance(text, str) and text.lower().startswith(f"{_SCHEME}://")


def is_repository_name(text: str) -> bool:
    """Return whether a text is like `org/name`.

    >>> is_repository_name("lab/sst"), is_repository_name("./lab/sst"), is_repository_name("Lab/x")
    (True, False, False)
    """
    organisation, slash, name = text.partition("/")
    return bool(slash and _ORGANISATION.match(organisation) and _REPOSITORY.match(name))


def checked_name(text: str) -> str:
    """Return the name of a repository; raise `InvalidInputError` unless it is like `org/name`."""
    if not is_repository_name(text):
        problem = f"{text!r} is no name of a repository: write it like some-org/some-repo"
        raise InvalidInputError(problem, ErrorKind.INVALID_REQUEST)
    return text


def parse_service_url(url: str) -> tuple[str, str]:
    """Return the service and the name of the repository that a URL stands for.

    >>> parse_service_url("icefloe://data.example.org/lab/sst")
    ('https://data.example.org', 'lab/sst')
    """
    parts = _split(url)
    name = parts.path.removeprefix("/").removesuffix("/")
    is_whole = is_service_url(url) and is_repository_name(name)
    if not is_whole or parts.query or parts.fragment:
        problem = "this is no URL of a repository: write it like icefloe://host/some-org/some-repo"
        raise InvalidInputError(problem, ErrorKind.CANNOT_PARSE_URL)
    host, _ = _host_and_port(parts)
    return _origin("http" if _is_loopback(host) else "https", parts), name


def repository_url(service: str, repository: str) -> str:
    """Return the URL of a repository of a service.

    >>> repository_url("https://data.example.org", "lab/sst")
    'icefloe://data.example.org/lab/sst'
    """
    return f"{_SCHEME}://{service.partition('://')[2]}/{repository}"


def service_origin(url: str) -> str:
    """Return the address of a service in the one form in which addresses are compared.

    Raise `InvalidInputError` for one that would send tokens unencrypted over a network.

    >>> service_origin("https://Data.Example.org:443/")
    'https://data.example.org'
    """
    parts = _split(url)
    if parts.scheme not in {"http", "https"} or parts.path not in {"", "/"} or parts.query:
        problem = "this is no address of a service: write it like https://data.example.org"
        raise InvalidInputError(problem, ErrorKind.CANNOT_PARSE_URL)
    return _origin(parts.scheme, parts)


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:  # whose text may repeat a password
        problem = "a URL is malformed: write it like https://data.example.org"
        raise InvalidInputError(problem, ErrorKind.CANNOT_PARSE_URL) from None


def _origin(scheme: str, parts: SplitResult) -> str:
    host, port = _host_and_port(parts)
    if scheme == "http" and not _is_loopback(host):
        problem = f"tokens are not sent to {host} without encryption: use https"
        raise InvalidInputError(problem, ErrorKind.CANNOT_PARSE_URL)
    is_usual = port in {None, 443 if scheme == "https" else 80}
    return f"{scheme}://{host}" if is_usual else f"{scheme}://{host}:{port}"


def _host_and_port(parts: SplitResult) -> tuple[str, int | None]:
    host = (parts.hostname or "").lower()
    host = f"[{host}]" if ":" in host else host
    try:
        port = parts.port
    except ValueError:
        host, port = "", None
    if "@" in parts.netloc or not _HOST.fullmatch(host):
        problem = "the address of a service is a host, perhaps with a port, and nothing else"
        raise InvalidInputError(problem, ErrorKind.CANNOT_PARSE_URL)
    return host, port


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
