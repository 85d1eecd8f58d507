"""Network addresses that may be reached at the request of untrusted people.

Behind a name that looks harmless there may be a service of the reader's own network, or of the
reader's own machine: a router, a database, the metadata service of a cloud, which hands out
credentials. So what is looked at is the address, after the name was resolved, and the connection
goes to that very address: a name server that answers differently the next time gains nothing.
"""

import ipaddress
import socket
from collections.abc import Callable, Collection
from enum import IntEnum
from typing import Final

from icefloe.errors import ErrorKind, InvalidInputError

type Address = ipaddress.IPv4Address | ipaddress.IPv6Address
type Resolver = Callable[[str, int], list[tuple[str, int]]]
"""Gives the addresses of a host, with the port."""


class Reach(IntEnum):
    """The reachability of an address; a larger number is more dangerous."""

    PUBLIC = 0
    """Anybody on the internet."""
    PRIVATE = 1
    """Only machines of the same network."""
    METADATA = 2
    """Only the machine itself: a service of its cloud there hands out its credentials."""


_METADATA_NETWORKS: Final = tuple(
    ipaddress.ip_network(network)
    for network in (
        "169.254.0.0/16",  # most clouds; containers (.170.2) and pods (.170.23) on AWS
        "fe80::/10",
        "fd00:ec2::/32",  # AWS: machines (::254), pods (::23)
        "fd20:ce::254/128",  # Google
        "168.63.129.16/32",  # Azure; looks public
        "100.100.100.200/32",  # Alibaba
        "192.0.0.192/32",  # Oracle
    )
)
_MAPPED: Final = ipaddress.IPv6Network("::ffff:0:0/96")
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_LOCAL_NAT64: Final = ipaddress.IPv6Network("64:ff9b:1::/48")
_SIX_TO_FOUR: Final = ipaddress.IPv6Network("2002::/16")
_TEREDO: Final = ipaddress.IPv6Network("2001::/32")
_COMPATIBLE: Final = ipaddress.IPv6Network("::/96")
_LOWEST_COMPATIBLE: Final = 1 << 24
"""Below it are `::` and `::1`, and embedded addresses that name no machine (0.0.0.0/8)."""


def resolve(host: str, port: int) -> list[tuple[str, int]]:
    """Ask the system for the addresses of a host, in the order in which to try them."""
    records = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys((str(address[0]), port) for *_, address in records))


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


def parse_host(host: str) -> Address | None:
    """Read a host that is an address as clients do: also as one number, or in hexadecimal.

    >>> parse_host("0xa9fea9fe"), parse_host("[::1]"), parse_host("data.example")
    (IPv4Address('169.254.169.254'), IPv6Address('::1'), None)
    """
    bare = host.removeprefix("[").removesuffix("]").partition("%")[0]
    try:
        return ipaddress.ip_address(bare)
    except ValueError:
        pass
    try:
        return ipaddress.IPv4Address(socket.inet_aton(bare))
    except (OSError, ValueError):
        return None


def reach_of(address: Address) -> Reach:
    """Classify an address; an IPv6 address that stands for an IPv4 address counts as that one.

    >>> reach_of(ipaddress.ip_address("64:ff9b::169.254.169.254"))
    <Reach.METADATA: 2>
    >>> reach_of(ipaddress.ip_address("::ffff:9.9.9.9"))
    <Reach.PUBLIC: 0>
    """
    if any(address in network for network in _METADATA_NETWORKS):
        return Reach.METADATA
    embedded = _embedded(address)
    own = Reach.PUBLIC if embedded and _is_translation(address) else _own_reach(address)
    return max((own, *(reach_of(inner) for inner in embedded)))


def is_public(address: str) -> bool:
    """Return whether an address is one that anybody on the internet could reach.

    >>> is_public("9.9.9.9"), is_public("169.254.169.254"), is_public("::ffff:127.0.0.1")
    (True, False, False)
    """
    parsed = parse_host(address)
    return parsed is not None and reach_of(parsed) is Reach.PUBLIC


def is_metadata(host: str) -> bool:
    """Return whether a host, written as an address, is where clouds tell machines credentials.

    >>> is_metadata("2852039166"), is_metadata("fd00:ec2::23"), is_metadata("10.0.0.1")
    (True, True, False)
    """
    parsed = parse_host(host)
    return parsed is not None and reach_of(parsed) is Reach.METADATA


def _own_reach(address: Address) -> Reach:
    """Classify an address without regard to addresses that it embeds."""
    is_site_local = isinstance(address, ipaddress.IPv6Address) and address.is_site_local
    is_open = address.is_global and not (
        address.is_multicast or address.is_reserved or is_site_local or address in _LOCAL_NAT64
    )
    return Reach.PUBLIC if is_open else Reach.PRIVATE


def _is_translation(address: Address) -> bool:
    """Return whether connecting to an address is connecting to the IPv4 address in it."""
    return any(address in network for network in (_MAPPED, _NAT64, _SIX_TO_FOUR))


def _embedded(address: Address) -> list[ipaddress.IPv4Address]:
    """Find the IPv4 addresses that an IPv6 address may stand for."""
    number = int(address)
    if isinstance(address, ipaddress.IPv4Address):
        shifts: tuple[int, ...] = ()
    elif address in _MAPPED or address in _NAT64:
        shifts = (0,)
    elif address in _COMPATIBLE:
        shifts = (0,) if number >= _LOWEST_COMPATIBLE else ()
    elif address in _SIX_TO_FOUR:
        shifts = (80,)
    elif address in _TEREDO:
        number ^= 0xFFFFFFFF  # the client is written with all its bits turned over
        shifts = (0, 64)
    elif address in _LOCAL_NAT64:
        return [ipaddress.IPv4Address(inner) for inner in _in_local_nat64(number)]
    else:
        shifts = ()
    return [ipaddress.IPv4Address((number >> shift) & 0xFFFFFFFF) for shift in shifts]


def _in_local_nat64(number: int) -> list[int]:
    """Take out the IPv4 addresses at all places that RFC 6052 allows; bits 64 to 71 are skipped."""
    without_gap = (number >> 64 << 56) | (number & ((1 << 56) - 1))
    return [number & 0xFFFFFFFF, *((without_gap >> shift) & 0xFFFFFFFF for shift in (40, 32, 24))]


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

    def _allowed(self, host: str, addresses: list[tuple[str, int]]) -> list[tuple[str, int]]:
        harmless = [pair for pair in addresses if not is_metadata(pair[0])]
        if addresses and not harmless:
            raise InvalidInputError(
                f"{host!r} is at {addresses[0][0]}, where clouds tell machines their credentials:"
                " nothing is read from there, even if the reader authorises it. Record the chunks"
                " at the address of the server that has them",
                ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER,
                host=host,
            )
        if self._allow_private or plain_host(host) in self._private_hosts:
            return harmless
        allowed = [pair for pair in harmless if self._allows(pair[0])]
        if addresses and not allowed:
            raise InvalidInputError(
                f"{host!r} is at {addresses[0][0]}, which is not a public address: a repository"
                " could"
                " be used to reach into your own network. If it may be read, authorise it with"
                " icefloe.credentials.Credentials.HttpAccess(allow_private=True); if it is the"
                " endpoint of a bucket, pass its container yourself when you open the repository",
                ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER,
                host=host,
            )
        return allowed
