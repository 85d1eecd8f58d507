"""What a session fetches before anybody asks for it, and that nobody suffers from it."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any, cast

import pytest

from icefloe.assets import Assets
from icefloe.config import (
    CachingConfig,
    ChunkManifestsConfig,
    ManifestConfig,
    ManifestPreloadCondition,
    ManifestPreloadConfig,
    ManifestSet,
    ManifestSetPreload,
    RepositoryConfig,
)
from icefloe.effects import is_blocking, run_blocking
from icefloe.format.ids import ManifestId
from icefloe.records import replace
from icefloe.repo import lifecycle
from icefloe.storage import Backend, s3_storage
from icefloe.storage.port import ByteRange, Fetched
from icefloe.transactions import chunks, nodes
from icefloe.transactions.session import SessionMode, SessionState, open_session
from tests.support.sides import Ours

SEPARATE = ChunkManifestsConfig([ManifestSet("default", arrays_per_manifest=1)])
ARRAYS = {"/lat": 2, "/lon": 3, "/t2m": 400, "/time": 10}


@pytest.fixture(params=[1, 2])
def ours(request: pytest.FixtureRequest) -> Ours:
    """Make a repository in which each array has a manifest of its own."""
    ours = Ours(request.param)
    reopen(ours, RepositoryConfig(chunk_manifests=SEPARATE))
    session = ours.begin()
    for path, count in ARRAYS.items():
        ours.array(session, path, count)
        for index in range(count):
            ours.write(session, path, index)
    ours.commit(session)
    return ours


def reopen(ours: Ours, config: RepositoryConfig) -> None:
    """Open the repository again: nothing is in memory."""
    ours.context = run_blocking(lifecycle.reopen(ours.context, config))


def conditions(condition: ManifestPreloadCondition, **limits: int) -> RepositoryConfig:
    preload = ManifestPreloadConfig(preload_if=condition, **limits)
    return RepositoryConfig(manifest=ManifestConfig(preload=preload))


def by_path(*paths: str, **limits: int) -> RepositoryConfig:
    preload = ManifestSetPreload(paths, **limits)
    return RepositoryConfig(chunk_manifests=ChunkManifestsConfig(SEPARATE.sets, preload=preload))


def preloaded(ours: Ours, config: RepositoryConfig) -> list[str]:
    """List the arrays whose manifests are in memory once the session has begun."""
    reopen(ours, config)
    session = ours.at(ours.tip())
    if session.preloading is not None:
        assert session.preloading.wait(60)
    return [path for path in ARRAYS if is_held(session, path)]


def manifest(session: SessionState, path: str) -> ManifestId:
    [ref] = session.tree.manifests(nodes.require_array(session, path))
    return ref.id


def is_held(session: SessionState, path: str) -> bool:
    return session.context.assets.held_manifest(manifest(session, path)) is not None


Condition = ManifestPreloadCondition


@pytest.mark.parametrize(
    ("condition", "limits", "expected"),
    [
        (Condition.true(), {}, ["/lat", "/lon", "/t2m", "/time"]),
        (Condition.false(), {}, []),
        (Condition.name_matches("^l"), {}, ["/lat", "/lon"]),
        (Condition.path_matches("/t"), {}, ["/t2m", "/time"]),
        (Condition.num_refs(None, 10), {}, ["/lat", "/lon"]),
        (Condition.num_refs(3, 11), {}, ["/lon", "/time"]),
        (
            Condition.and_conditions([Condition.path_matches("t"), Condition.num_refs(None, 100)]),
            {},
            ["/lat", "/time"],
        ),
        (
            Condition.or_conditions([Condition.name_matches("lat"), Condition.num_refs(100, None)]),
            {},
            ["/lat", "/t2m"],
        ),
        (Condition.true(), {"max_total_refs": 15}, ["/lat", "/lon", "/time"]),
        (Condition.true(), {"max_arrays_to_scan": 2}, ["/lat", "/lon"]),
        (Condition.true(), {"max_total_refs": 0}, []),
    ],
)
def test_conditions_choose(
    ours: Ours, condition: Condition, limits: dict[str, int], expected: list[str]
) -> None:
    assert preloaded(ours, conditions(condition, **limits)) == expected


@pytest.mark.parametrize(
    ("paths", "limits", "expected"),
    [
        (["/time", "/lat"], {"max_manifests": 10}, ["/lat", "/time"]),
        (["/time", "/lat"], {}, ["/time"]),
        (["/l.*"], {"max_manifests": 10}, ["/lat", "/lon"]),
        ([".*"], {"max_manifests": 10, "max_manifest_size": 9}, ["/lat", "/lon"]),
        (["time"], {"max_manifests": 10}, []),
        ([], {}, []),
    ],
)
def test_paths_choose(
    ours: Ours, paths: list[str], limits: dict[str, int], expected: list[str]
) -> None:
    assert preloaded(ours, by_path(*paths, **limits)) == expected


def test_both_ways_add_up(ours: Ours) -> None:
    one, other = conditions(Condition.name_matches("lat")), by_path("/time")
    assert preloaded(ours, one.merge(other)) == ["/lat", "/time"]


def test_nothing_is_fetched_unasked_on_this_machine(ours: Ours) -> None:
    ours.context = run_blocking(lifecycle.open_(ours.storage))
    assert ours.at(ours.tip()).preloading is None


def test_coordinates_are_fetched_from_afar(ours: Ours) -> None:
    near = run_blocking(lifecycle.open_(ours.storage))
    context = replace(
        near, storage=s3_storage(bucket="far-away", prefix="repo", region="us-east-1")
    )
    tip = run_blocking(context.ledger.branch_tip("main"))
    session = run_blocking(open_session(context, tip, SessionMode.readonly))
    assert session.preloading is not None
    assert session.preloading.wait(60)
    assert [path for path in ARRAYS if is_held(session, path)] == ["/lat", "/lon", "/time"]
    writing = run_blocking(open_session(context, tip, SessionMode.writable, branch="main"))
    assert writing.preloading is None


def test_the_cache_is_never_half_filled_by_it(ours: Ours) -> None:
    small = RepositoryConfig(caching=CachingConfig(num_chunk_refs=100_000))
    wanted = conditions(Condition.true())
    assert preloaded(ours, wanted.merge(small)) == ["/lat", "/lon", "/t2m", "/time"]
    tiny = RepositoryConfig(caching=CachingConfig(num_chunk_refs=12))
    gets = _gets(ours, lambda: preloaded(ours, wanted.merge(tiny)))
    assert gets - _gets(ours, lambda: preloaded(ours, conditions(Condition.false()))) == 2


def _gets(ours: Ours, work: Callable[[], object]) -> int:
    before = ours.storage.request_counts()
    work()
    return (ours.storage.request_counts() - before).get


def test_a_manifest_that_cannot_be_read_is_nobodys_problem(ours: Ours) -> None:
    session = ours.at(ours.tip())
    key = f"manifests/{manifest(session, '/lat')}"
    run_blocking(ours.context.backend.put(key, b"damaged"))
    assert preloaded(ours, conditions(Condition.true())) == []
    reading = ours.at(ours.tip())
    lon = nodes.require_array(reading, "/lon")
    assert run_blocking(chunks.read_chunk(reading, lon, (2,))) == b"x"


def test_a_bad_pattern_is_nobodys_problem(ours: Ours) -> None:
    assert preloaded(ours, conditions(Condition.name_matches("("))) == []


# -- one fetch for all who want a manifest -------------------------------------------------


class HeldBackend:
    """Holds back the requests for manifests until it is told to let them go."""

    def __init__(self, inner: Backend) -> None:
        self.asked, self.go_on = Event(), Event()
        self.requests: list[str] = []
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def get(self, key: str, byte_range: ByteRange | None = None) -> Fetched:
        if key.startswith("manifests/"):
            self.requests.append(key)
            self.asked.set()
            while not self.go_on.is_set():
                if is_blocking():
                    self.go_on.wait(60)
                else:
                    await asyncio.sleep(0)
        return await self._inner.get(key, byte_range)


def hold_back(ours: Ours, config: RepositoryConfig) -> HeldBackend:
    reopen(ours, config)
    context = ours.context
    held = HeldBackend(context.backend)
    assets = Assets(cast("Backend", held), context.config, context.spec_version)
    ours.context = replace(context, assets=assets)
    return held


def test_sessions_begin_before_anything_is_fetched(ours: Ours) -> None:
    held = hold_back(ours, conditions(Condition.name_matches("^time$")))
    session = ours.at(ours.tip())
    assert session.preloading is not None
    assert held.asked.wait(60)
    assert not session.preloading.is_over
    held.go_on.set()
    assert session.preloading.wait(60)


def test_a_reader_waits_for_what_is_on_its_way(ours: Ours) -> None:
    held = hold_back(ours, conditions(Condition.name_matches("^time$")))
    session = ours.at(ours.tip())
    assert held.asked.wait(60)

    async def read() -> bytes | None:
        reading = asyncio.create_task(
            chunks.read_chunk(session, nodes.require_array(session, "/time"), (3,))
        )
        await asyncio.sleep(0)
        assert not reading.done()
        held.go_on.set()
        found = await reading
        return None if found is None else bytes(found)

    assert asyncio.run(read()) == b"x"
    assert len(held.requests) == 1


def test_what_a_reader_fetches_is_not_fetched_ahead(ours: Ours) -> None:
    wanted = manifest(ours.at(ours.tip()), "/time")
    held = hold_back(ours, conditions(Condition.name_matches("^time$")))

    async def read() -> None:
        loading = asyncio.create_task(ours.context.assets.load_manifest(wanted))
        await asyncio.to_thread(held.asked.wait, 60)
        session = ours.at(ours.tip())
        assert session.preloading is not None
        assert session.preloading.wait(60)
        held.go_on.set()
        await loading

    asyncio.run(read())
    assert len(held.requests) == 1


def test_many_readers_cause_one_request(ours: Ours) -> None:
    held = hold_back(ours, conditions(Condition.false()))
    session = ours.at(ours.tip())
    node = nodes.require_array(session, "/time")

    async def read() -> list[Any]:
        readers = [asyncio.create_task(chunks.read_chunk(session, node, (n,))) for n in range(10)]
        await asyncio.to_thread(held.asked.wait, 60)
        held.go_on.set()
        return await asyncio.gather(*readers)

    assert asyncio.run(read()) == [b"x"] * 10
    with ThreadPoolExecutor(4) as pool:
        again = pool.map(lambda n: run_blocking(chunks.read_chunk(session, node, (n,))), range(10))
        assert list(again) == [b"x"] * 10
    assert len(held.requests) == 1
