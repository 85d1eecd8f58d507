"""Requests to stores and token services: only to addresses that are allowed, without redirects.

Organisations name endpoints, so a request must not lead into the network of the service. A name is
resolved here, the address is checked, and the connection goes to this very address: a name server
that answers differently the next time gains nothing. The address is checked for every request.
An endpoint of the operator's list may have a private address. The address of a metadata service
is never reached.
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Collection
from ssl import SSLContext
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2 as httpx

from icefloe.catalog.model import Bucket
from icefloe.errors import AccessDeniedError, ErrorKind, StorageError
from icefloe.storage.addresses import is_metadata, is_public, parse_host, plain_host

# The signer of botocore would log whole requests, session tokens included.
logging.getLogger("botocore.auth").setLevel(logging.WARNING)

_SECONDS: Final = 10.0
_LONGEST_ANSWER: Final = 256 * 1024

type AsyncResolver = Callable[[str, int], Awaitable[list[str]]]


async def resolve(host: str, port: int) -> list[str]:
    """Return the addresses of a host, in the order in which to try them."""
    if (literal := parse_host(host)) is not None:
        return [str(literal)]
    loop = asyncio.get_running_loop()
    records = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in records))


class AddressBook:
    """The hosts that may have a private address, and the check of addresses."""

    def __init__(
        self, allowed_endpoints: Collection[str] = (), resolver: AsyncResolver = resolve
    ) -> None:
        self._private: Final = frozenset(
            (plain_host(parts.hostname or ""), _port(parts.scheme, parts.port))
            for parts in map(urlsplit, allowed_endpoints)
        )
        self._resolver: Final = resolver

    async def address_of(self, host: str, port: int) -> str:
        """Return an address of a host that may be reached; raise `AccessDeniedError` if none is.

        A host with any address that may not be reached is refused as a whole.
        """
        try:
            addresses = await self._resolver(host, port)
        except OSError as error:
            raise StorageError(f"the host {host} has no address", retryable=True) from error
        may_be_private = (plain_host(host), port) in self._private
        for address in addresses:
            if is_metadata(address) or not (may_be_private or is_public(address)):
                problem = f"{host} leads to {address}, which this service does not connect to"
                advice = "its operators can add the endpoint to allowed_endpoints"
                raise AccessDeniedError(f"{problem}: {advice}")
        if not addresses:
            raise StorageError(f"the host {host} has no address", retryable=True)
        return addresses[0]

    async def check(self, bucket: Bucket) -> None:
        """Raise an error if the endpoint of a bucket leads to an address that is not allowed."""
        if bucket.endpoint is not None:
            parts = urlsplit(bucket.endpoint)
            await self.address_of(parts.hostname or "", _port(parts.scheme, parts.port))


class GuardedTransport(httpx.AsyncBaseTransport):
    """Connects to the address that was checked, under the name that was asked for."""

    def __init__(self, book: AddressBook, transport: httpx.AsyncBaseTransport) -> None:
        self._book: Final = book
        self._transport: Final = transport

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request to the address of its host."""
        url = request.url
        address = await self._book.address_of(url.host, _port(url.scheme, url.port))
        if address != url.host:
            request.extensions = dict(request.extensions) | {"sni_hostname": url.host}
            request.url = url.copy_with(host=address)  # the header `Host` keeps the name
        return await self._transport.handle_async_request(request)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._transport.aclose()


def guarded_client(book: AddressBook, trust: SSLContext | None = None) -> httpx.AsyncClient:
    """Return a client with a pool of connections, which follows no redirect and no proxy.

    `trust` says which certificates are good; by default those of well-known authorities.
    """
    limits = httpx.Limits(max_connections=200, max_keepalive_connections=50)
    transport = GuardedTransport(
        book, httpx.AsyncHTTPTransport(limits=limits, verify=trust or True)
    )
    return httpx.AsyncClient(
        transport=transport, timeout=_SECONDS, follow_redirects=False, trust_env=False
    )


async def ask(
    client: httpx.AsyncClient,
    bucket: Bucket,
    who: str,
    method: str,
    url: str,
    *,
    code: str | None = None,
    **options: Any,
) -> httpx.Response:
    """Ask a token service; raise `StorageError` unless it answers with a short 200.

    The text of an answer stays out of errors, as it may repeat anything. The error only says
    whether the text has `code` in it, if that is given.
    """
    name = f"{bucket.organisation}/{bucket.name}"
    try:
        response = await client.request(method, url, follow_redirects=False, **options)
    except httpx.HTTPError as error:
        problem = f"{who} of bucket {name} cannot be reached"
        raise StorageError(problem, ErrorKind.INVALID_CREDENTIALS, retryable=True) from error
    if response.status_code != 200:
        problem = f"{who} of bucket {name} refused: status {response.status_code}"
        is_passing = response.status_code >= 500 or response.status_code == 429
        has_code = code is not None and code.encode() in response.content[:_LONGEST_ANSWER]
        context = {"code": code} if has_code else {}
        raise StorageError(problem, ErrorKind.INVALID_CREDENTIALS, retryable=is_passing, **context)
    if len(response.content) > _LONGEST_ANSWER:
        raise no_credential(bucket, who)
    return response


def no_credential(bucket: Bucket, who: str) -> StorageError:
    """Return the error for an answer without a whole credential."""
    name = f"{bucket.organisation}/{bucket.name}"
    problem = f"{who} of bucket {name} sent no whole credential"
    return StorageError(problem, ErrorKind.INVALID_CREDENTIALS)


def text_field(response: httpx.Response, bucket: Bucket, who: str, *path: str) -> str:
    """Return a text in a JSON answer, by the names that lead to it."""
    try:
        value = response.json()
        for name in path:
            value = value[name]
    except (ValueError, KeyError, TypeError):
        raise no_credential(bucket, who) from None
    if not isinstance(value, str) or not value:
        raise no_credential(bucket, who)
    return value


def _port(scheme: str, port: int | None) -> int:
    return port or (443 if scheme == "https" else 80)
