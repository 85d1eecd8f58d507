"""Virtual chunks of one object on S3: read in order, at random, and by many at once."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any, Final

import numpy as np
import obstore
import zarr
from obstore.store import S3Store
from zarr.core.buffer import default_buffer_prototype

from bench.engine_location import Location, seconds_of
from bench.engine_rows import Group, Row, Scale
from tests.support.proxy import cutting_proxy

CHUNK_BYTES: Final = 100_000
HERD: Final = 64


class Counted:
    """Hands out credentials, and counts how often; pickles by its name."""

    location: Location
    lib: ModuleType
    refreshes = 0

    @classmethod
    def credentials(cls) -> Any:
        cls.refreshes += 1
        return cls.lib.S3StaticCredentials(
            access_key_id=cls.location.access_key_id,
            secret_access_key=cls.location.secret_access_key,
            expires_after=datetime.now(UTC) + timedelta(hours=1),
        )


def refresh() -> Any:
    """Return fresh credentials: a function, as the reference sends it around by its name."""
    return Counted.credentials()


def _prefix(location: Location) -> str:
    return f"s3://{location.bucket}/{location.path}/files/"


def _config(lib: ModuleType, location: Location, url: str | None) -> Any:
    config = lib.RepositoryConfig.default()
    store = lib.s3_store(
        region="us-east-1",
        endpoint_url=url or location.url,
        allow_http=True,
        s3_compatible=True,
        force_path_style=True,
    )
    config.set_virtual_chunk_container(lib.VirtualChunkContainer(_prefix(location), store))
    return config


def _upload(location: Location, chunks: int) -> None:
    store = S3Store(
        location.bucket,
        endpoint=location.url,
        region="us-east-1",
        access_key_id=location.access_key_id,
        secret_access_key=location.secret_access_key,
        client_options={"allow_http": True},
    )
    data = np.random.default_rng(5).integers(0, 256, chunks * CHUNK_BYTES, np.uint8)
    data[::CHUNK_BYTES] = np.arange(chunks) % 251
    obstore.put(store, f"{location.path}/files/one.nc", data.tobytes())


def _prepare(lib: ModuleType, location: Location, chunks: int) -> None:
    _upload(location, chunks)
    repo = location.below("repo").create(lib, config=_config(lib, location, None))
    session = repo.writable_session("main")
    zarr.create_array(
        session.store,
        name="a",
        shape=(chunks * CHUNK_BYTES,),
        chunks=(CHUNK_BYTES,),
        dtype="u1",
        compressors=None,
    )
    offsets = np.arange(chunks, dtype=np.uint64) * CHUNK_BYTES
    session.store.set_virtual_refs_arr(
        "a",
        (chunks,),
        [f"{_prefix(location)}one.nc"] * chunks,
        offsets,
        np.full(chunks, CHUNK_BYTES, np.uint64),
    )
    session.commit("virtual")


def _open(lib: ModuleType, location: Location, url: str | None = None, access: Any = None) -> Any:
    """Open a session whose virtual chunks are read from a URL, a proxy perhaps."""
    static = lib.s3_static_credentials(
        access_key_id=location.access_key_id, secret_access_key=location.secret_access_key
    )
    authorized = lib.containers_credentials({_prefix(location): access or static})
    repo = lib.Repository.open(
        location.below("repo").storage(lib),
        config=_config(lib, location, url),
        authorize_virtual_chunk_access=authorized,
    )
    return repo.readonly_session("main")


def _array(session: Any) -> Any:
    return zarr.open_array(session.store, path="a", mode="r")


def _read_whole(session: Any, order: list[int]) -> None:
    values = _array(session)[:]
    assert values[::CHUNK_BYTES].tolist() == [each % 251 for each in sorted(order)]


def _read_each(session: Any, order: list[int]) -> None:
    array = _array(session)
    for each in order:
        assert array[each * CHUNK_BYTES : (each + 1) * CHUNK_BYTES][0] == each % 251


@contextmanager
def _counting(location: Location) -> Iterator[Any]:
    assert location.url is not None
    with cutting_proxy(location.url) as proxy:
        yield proxy


def reading(lib: ModuleType, location: Location, scale: Scale) -> Mapping[str, float]:
    """Time reads directly, then count requests of the same reads through a proxy."""
    chunks = scale.of(2_000, 100)
    _prepare(lib, location, chunks)
    ordered = list(range(chunks))
    shuffled = np.random.default_rng(3).permutation(chunks).tolist()
    work = {
        "whole": (_read_whole, ordered),
        "each": (_read_each, ordered),
        "random": (_read_each, shuffled),
    }
    figures = dict[str, float]()
    for name, (read, order) in work.items():
        session = _open(lib, location)
        figures[name] = seconds_of(lambda: read(session, order))  # noqa: B023 - called at once
        with _counting(location) as proxy:
            read(_open(lib, location, proxy.url), order)
            asked = [one for one in proxy.exchanges if "/files/" in one.path]
            figures[f"{name} requests"] = len(asked)
            figures[f"{name} bytes"] = sum(one.bytes_in for one in asked)
    return figures


def herd(lib: ModuleType, location: Location, _: Scale) -> Mapping[str, float]:
    """Start many first reads at once, with credentials that have to be asked for."""
    _prepare(lib, location, HERD)
    Counted.location, Counted.lib, Counted.refreshes = location, lib, 0
    session = _open(lib, location, access=lib.s3_refreshable_credentials(refresh))
    before, store = Counted.refreshes, session.store

    async def read_all() -> None:
        prototype = default_buffer_prototype()
        reads = (store.get(f"a/c/{each}", prototype) for each in range(HERD))
        assert all(found is not None for found in await asyncio.gather(*reads))

    figures = {
        "seconds": seconds_of(lambda: asyncio.run(read_all())),
        "refreshes": Counted.refreshes - before,
    }
    if lib.__name__ != "icechunk":
        figures["clients"] = session._session.context.virtual.clients_opened  # noqa: SLF001
    return figures


GROUPS: Final = {
    "read": Group(
        reading,
        (
            Row("whole", "2,000 virtual chunks of 100 KB, the whole array", 0.5),
            Row("whole requests", "- requests", 0.1, "count"),
            Row("whole bytes", "- bytes", unit="bytes"),
            Row("each", "the same, one after the other", 0.5),
            Row("each requests", "- requests", 0.1, "count"),
            Row("each bytes", "- bytes", unit="bytes"),
            Row("random", "the same, at random", 1.0),
            Row("random requests", "- requests", 1.0, "count"),
            Row("random bytes", "- bytes", 1.05, "bytes"),
        ),
        on_s3=True,
        rounds=2,
    ),
    "herd": Group(
        herd,
        (
            Row("seconds", "64 first reads at once"),
            Row("refreshes", "- refreshes of credentials", unit="count", at_most=1),
            Row("clients", "- clients", unit="count", at_most=1),
        ),
        on_s3=True,
        rounds=2,
    ),
}
