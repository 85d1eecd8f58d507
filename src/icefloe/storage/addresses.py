"""Which network addresses may be reached on the word of somebody who is not trusted.

Behind a name that looks harmless there may be a service of the reader's own network, or of the
reader's own machine: a router, a database, the metadata service of a cloud, which hands out
credentials. So what is looked at is the address, after the name was resolved, and the connection
goes to that very address: a name server that answers differently the next time gains nothing.
"""

import ipaddress
import socket
from collections.abc import Callable, Collection
from typing import Final

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.storage.guarded_options import plain_host

type Resolver = Callable[[str, int], list[tuple[str, int]]]
"""Gives the addresses of a host, with the port."""

_TRANSLATED: Final = ipaddress.IPv6Network("64:ff9b::/96")
_NOT_PUBLIC: Final = frozenset({ipaddress.IPv4Address("168.63.129.16")})
"""Looks public, but is the service that Azure offers to each of its virtual machines."""


def resolve(host: str, port: int) -> list[tuple[str, int]]:
    """Ask the system for the addresses of a host, in the order in which to try them."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys((str(address[0]), port) for *_, address in found))


def is_public(address: str) -> bool:
    """Tell whether an address is one that anybody on the internet could reach.

    >>> is_public("9.9.9.9"), is_public("169.254.169.254"), is_public("::ffff:127.0.0.1")
    (True, False, False)
    """
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(parsed, ipaddress.IPv6Address):
        if (translated := _translated(parsed)) is not None:
            return is_public(str(translated))
        if parsed.is_site_local:
            return False
    return (
        parsed.is_global
        and not parsed.is_multicast
        and not parsed.is_reserved
        and parsed not in _NOT_PUBLIC
    )


def _translated(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """Find the address of the old kind, if one of the new kind only stands for such a one."""
    if address in _TRANSLATED:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour


class AddressGuard:
    """Opens connections to allowed addresses only."""

    def __init__(
        self,
        *,
        allow_private: bool = False,
        private_hosts: Collection[str] = (),
        resolver: Resolver = resolve,
        allows: Callable[[str], bool] = is_public,
    ) -> None:
        self._allow_private = allow_private
        self._private_hosts = frozenset(private_hosts)
        self._resolver = resolver
        self._allows = allows

    def connect(self, host: str, port: int, seconds: float) -> socket.socket:
        """Connect to a host; `InvalidInputError` if none of its addresses is allowed.

        Failures of the network are an `OSError`.
        """
        failure: OSError | None = None
        for address in self._allowed(host, self._resolver(host, port)):
            try:
                return socket.create_connection(address, seconds)
            except OSError as error:
                failure = failure or error
        raise failure or OSError("the host has no address")

    def _allowed(self, host: str, found: list[tuple[str, int]]) -> list[tuple[str, int]]:
        if self._allow_private or plain_host(host) in self._private_hosts:
            return found
        allowed = [each for each in found if self._allows(each[0])]
        if found and not allowed:
            raise InvalidInputError(
                f"{host!r} is at {found[0][0]}, which is not a public address: a repository could"
                " be used to reach into your own network. If it may be read, authorise it with"
                " icefloe.credentials.Credentials.HttpAccess(allow_private=True); if it is the"
                " endpoint of a bucket, pass its container yourself when you open the repository",
                ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER,
                host=host,
            )
        return allowed
