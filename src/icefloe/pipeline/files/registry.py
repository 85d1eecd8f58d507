"""How parsers get at files: clients by URL, opened when they are needed, once per process."""

import os
from typing import Any, Final

from icefloe.pipeline.files.access import SourceAccess
from icefloe.storage.foreign_clients import open_foreign_client
from icefloe.storage.specs import LocalSpec


class Registry:
    """What parsers ask for the client that reads a URL; opened when first asked for."""

    def __init__(self, access: SourceAccess) -> None:
        self._access = access
        self._clients: dict[str, Any] = {}

    def resolve(self, url: str) -> tuple[Any, str]:
        """Give a client, and the path in it."""
        place = self._access.place(url)
        if place.root not in self._clients:
            self._clients[place.root] = open_foreign_client(place.storage)
        return self._clients[place.root], place.key

    def local_path(self, url: str) -> str | None:
        """Give the path of a local file."""
        place = self._access.place(url)
        spec = place.storage.spec
        return os.path.join(spec.path, place.key) if isinstance(spec, LocalSpec) else None  # noqa: PTH118


_registries: Final[dict[tuple[int, int], tuple[SourceAccess, Registry]]] = {}
_MOST_REGISTRIES: Final = 8


def registry_for(access: SourceAccess) -> Registry:
    """Give one registry for each process and way of access; forked children make their own."""
    key = (os.getpid(), id(access))
    if key not in _registries:
        while len(_registries) >= _MOST_REGISTRIES:
            del _registries[next(iter(_registries))]
        _registries[key] = (access, Registry(access))  # kept, so that the id stays its own
    return _registries[key][1]


class WatchedReader:
    """A file-like object that remembers why a read failed."""

    def __init__(self, reader: Any, failures: list[Exception]) -> None:
        self._reader = reader
        self._failures = failures

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._reader, name)
        if not callable(found):
            return found

        def watched(*given: Any, **named: Any) -> Any:
            try:
                return found(*given, **named)
            except Exception as error:
                self._failures.append(error)
                raise

        return watched
