"""Which prefix is the longest that a location lies below. Pure.

Prefixes are compared piece by piece: `s3://foo` never covers `s3://foo-evil/x`. Of several that
cover a location the one with the most pieces counts; of two that differ only in the name of the
scheme (`gs`, `gcs`) the one written like the location.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from icefloe.config import ObjectStoreConfig, S3Options, VirtualChunkContainer
from icefloe.config.containers import moved_container
from icefloe.config.urls import ALIASES, Prefix, family_of, parse_prefix
from icefloe.engine.virtual.urls import RELATIVE_SCHEME
from icefloe.format.arrow import pc
from icefloe.format.arrow_kernels import mask_of
from icefloe.format.columns import Bools, BytesColumn

_LETTER: Final = r"[A-Za-z0-9_=,:@+!$&'()*;~-]"
_SEGMENT: Final = rf"{_LETTER}({_LETTER}|\.)*"
_PLAIN: Final = rf"^[a-z0-9]+://[a-z0-9._-]+(/{_SEGMENT})+$"
_PLAIN_FILE: Final = rf"^file://(/{_SEGMENT})+$"
"""Locations that are stored as they are written, decode to themselves and have a good key."""

DEFAULT_CONTAINERS: Final = tuple(
    VirtualChunkContainer(f"{scheme}://", store)
    for scheme, store in (
        ("s3", ObjectStoreConfig.S3(S3Options())),
        ("gs", ObjectStoreConfig.Gcs()),
        ("az", ObjectStoreConfig.Azure()),
        ("tigris", ObjectStoreConfig.Tigris(S3Options())),
        ("http", ObjectStoreConfig.Http()),
        ("https", ObjectStoreConfig.Http()),
    )
)
"""Where virtual chunks may be recorded without a word in the configuration.

They declare places and authorise nothing: reading takes the word of the reader. They are not
stored, come after all that is configured, and do not include local files.
"""


def default_containers(
    declared: Iterable[VirtualChunkContainer],
) -> tuple[VirtualChunkContainer, ...]:
    """List the default containers of the platforms for which a repository declares none.

    Whoever declares a bucket says where the chunks on that platform are, and wants to hear of
    those that are elsewhere.
    """
    platforms = set(map(_platform, declared))
    return tuple(
        container for container in DEFAULT_CONTAINERS if _platform(container) not in platforms
    )


def _platform(container: VirtualChunkContainer) -> str:
    """Name the platform of a container by a scheme; encrypted or not, the web is one."""
    family = family_of(parse_prefix(container.url_prefix).scheme)
    return "https" if family == "http" else family


def with_defaults(
    declared: Mapping[str, VirtualChunkContainer],
) -> dict[str, VirtualChunkContainer]:
    """Add the default containers, under each scheme that means the same: others compare texts."""
    shown = dict(declared)
    for container in default_containers(declared.values()):
        scheme = parse_prefix(container.url_prefix).scheme
        for alias in ALIASES.get(scheme, (scheme,)):
            shown[f"{alias}://"] = moved_container(container, f"{alias}://")
    return shown


class PrefixTable[T]:
    """Values by prefix, found by what lies below the prefix."""

    def __init__(self, entries: Iterable[tuple[Prefix, T]] = ()) -> None:
        self._entries = list(entries)
        self._deepest = max((len(prefix.segments) for prefix, _ in self._entries), default=0)
        self._by_pieces: dict[object, list[tuple[Prefix, T]]] = {}
        for prefix, value in self._entries:
            self._by_pieces.setdefault(prefix.pieces, []).append((prefix, value))

    def __len__(self) -> int:
        return len(self._entries)

    def longest(self, place: Prefix) -> tuple[Prefix, T] | None:
        """Find the longest prefix that covers a place, and its value.

        A place that is an object is not covered by a folder of the same name.
        """
        family = family_of(place.scheme)
        most = min(len(place.segments), self._deepest)
        for count in range(most, -1, -1):
            fitting = self._by_pieces.get((family, place.host, place.segments[:count]), ())
            is_itself = count == len(place.segments) and not place.is_folder
            if found := _nearest(fitting, place.scheme, only_objects=is_itself and count > 0):
                return found
        return _nearest(self._by_pieces.get((family, None, ()), ()), place.scheme)

    def covered(self, plain: BytesColumn) -> Bools:
        """Tell for each location that is plain (see `is_plain`) whether a prefix covers it."""
        rows = plain.to_arrow()
        covered = np.zeros(len(plain), np.bool_)
        for prefix, _ in self._entries:
            for text in _texts(prefix):
                covered |= mask_of(pc.starts_with(rows, text.encode()))
                if not prefix.is_folder:
                    itself = BytesColumn.from_strings([text.removesuffix("/")]).to_arrow()[0]
                    covered |= mask_of(pc.equal(rows, itself))
        return covered


def _nearest[T](
    fitting: Iterable[tuple[Prefix, T]], scheme: str, *, only_objects: bool = False
) -> tuple[Prefix, T] | None:
    usable = [each for each in fitting if not (only_objects and each[0].is_folder)]
    return min(usable, key=lambda each: each[0].scheme != scheme, default=None)


def _texts(prefix: Prefix) -> Iterable[str]:
    """Write out what plain locations below a prefix begin with."""
    below = "" if prefix.host is None else "/".join((prefix.host, *prefix.segments, ""))
    family = family_of(prefix.scheme)
    return (f"{scheme}://{below}" for scheme in ALIASES.get(family, (family,)))


def is_plain(locations: BytesColumn) -> Bools:
    """Tell for each location whether its text can be compared as it is."""
    text = locations.to_arrow()
    plain = mask_of(pc.match_substring_regex(text, _PLAIN))
    relative = mask_of(pc.starts_with(text, f"{RELATIVE_SCHEME}://".encode()))
    files = mask_of(pc.match_substring_regex(text, _PLAIN_FILE))
    of_host = mask_of(pc.starts_with(text, b"file:"))
    return (plain & ~relative & ~of_host) | files
