"""Storage requests and bytes of common work, counted on the wire: figures without noise."""

import http.client
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final
from urllib.parse import urlsplit

import numpy as np
import zarr

from bench.engine_commits import _start, _tiny_commit
from bench.engine_location import Location
from bench.engine_rows import Scale
from tests.support.proxy import Exchange

_MARK: Final = "/--mark--/"
OPERATIONS: Final = {
    "open": "open",
    "first chunk": "open + first chunk of a coordinate",
    "commit": "one-chunk write + commit",
    "second commit": "the same again, same repository object",
    "tag": "tag",
    "ancestry": "ancestry of 1,000",
}


@dataclass(frozen=True, slots=True)
class Traffic:
    """The storage requests of an operation."""

    requests: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    methods: tuple[str, ...] = ()

    def with_exchange(self, exchange: Exchange) -> "Traffic":
        return Traffic(
            self.requests + 1,
            self.bytes_in + exchange.bytes_in,
            self.bytes_out + exchange.bytes_out,
            (*self.methods, exchange.method),
        )


def prepare(lib: ModuleType, location: Location, scale: Scale) -> Mapping[str, float]:
    """Write what the operations work on."""
    session = location.below("data").create(lib).writable_session("main")
    root = zarr.group(session.store)
    root.create_array("time", shape=(1000,), chunks=(1000,), dtype="f8")[:] = np.arange(1000)
    root.create_array("field", shape=(100, 100), chunks=(10, 10), dtype="f4")[:] = 1.5
    session.commit("write")
    repo = _start(lib, location.below("history"))
    for number in range(scale.of(1000, 50)):
        _tiny_commit(repo, number)
    return {}


def _mark(location: Location, name: str) -> None:
    """Mark the beginning of an operation for the proxy, which does not count unknown names."""
    assert location.url is not None
    connection = http.client.HTTPConnection(urlsplit(location.url).netloc)
    connection.request("GET", _MARK + name.replace(" ", "-"))
    connection.getresponse().read()  # "not found", but the proxy has seen it
    connection.close()


def operate(lib: ModuleType, location: Location, _: Scale) -> Mapping[str, float]:
    """Do all operations, through a proxy that counts, with a mark before each."""
    data, history = location.below("data"), location.below("history")
    _mark(location, "open")
    data.open(lib)
    _mark(location, "first chunk")
    store = data.open(lib).readonly_session("main").store
    array: Any = zarr.open_array(store, path="time", mode="r")
    assert array[:][1] == 1
    _mark(location, "nothing to count")
    repo = data.open(lib)
    for name in ("commit", "second commit"):
        _mark(location, name)
        session = repo.writable_session("main")
        array = zarr.open_array(session.store, path="field")
        array[:10, :10] = np.random.default_rng(1).normal(size=(10, 10))
        new = session.commit("one chunk")
    _mark(location, "tag")
    repo.create_tag("v1", new)
    _mark(location, "nothing to count")
    repo = history.open(lib)
    _mark(location, "ancestry")
    assert len(list(repo.ancestry(branch="main"))) > 50
    _mark(location, "end")
    return {}


def counted(exchanges: list[Exchange]) -> dict[str, Traffic]:
    """Split what the proxy saw at the marks."""
    names = {name.replace(" ", "-"): name for name in OPERATIONS}
    found = dict.fromkeys(OPERATIONS, Traffic())
    at: str | None = None
    for exchange in exchanges:
        if _MARK in exchange.path:
            at = names.get(exchange.path.rpartition("/")[2])
        elif at is not None:
            found[at] = found[at].with_exchange(exchange)
    return found
