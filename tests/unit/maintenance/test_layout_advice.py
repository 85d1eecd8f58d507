"""What is foreseen about manifests is what happens: requests are counted, bytes are close."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import numpy as np
import pytest

from icefloe.config import (
    ManifestConfig,
    ManifestPreloadCondition,
    ManifestPreloadConfig,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
    RepositoryConfig,
)
from icefloe.effects import run_blocking
from icefloe.format.chunk_table import ChunkTable
from icefloe.format.ids import NodeId, SnapshotId
from icefloe.format.transaction_log import TransactionLog
from icefloe.maintenance.layout.advice import (
    Cost,
    Costs,
    Growth,
    ManifestAdvice,
    advise,
    growths,
    growths_in,
)
from icefloe.maintenance.layout.rewriting import rewrite_manifests
from icefloe.maintenance.layout.survey import survey
from icefloe.repo import lifecycle
from icefloe.repo.context import RepoContext
from icefloe.storage import Storage
from icefloe.testing.faulty import FaultyBackend
from icefloe.testing.schedules import WrappedStorage
from icefloe.transactions import chunks, nodes
from icefloe.transactions.commit import commit
from icefloe.transactions.session import SessionMode, SessionState, open_session
from tests.support.sides import array_json

UNSPLIT = ManifestConfig(
    splitting=ManifestSplittingConfig.from_dict(
        {ManifestSplitCondition.AnyArray(): {ManifestSplitDimCondition.Any(): 2**32 - 1}}
    )
)
RANDOM = np.random.default_rng(7)
NO_PRELOAD = RepositoryConfig(
    manifest=ManifestConfig(
        preload=ManifestPreloadConfig(preload_if=ManifestPreloadCondition.false())
    )
)


def document(shape: tuple[int, ...], names: tuple[str, ...]) -> bytes:
    return json.dumps(json.loads(array_json(shape)) | {"dimension_names": names}).encode()


def block(*ranges: range) -> ChunkTable:
    """Give references to chunk objects that nobody reads, for a block of chunks."""
    grid = np.meshgrid(*map(np.asarray, ranges), indexing="ij")
    coordinates = np.stack([axis.ravel() for axis in grid], axis=1).astype(np.uint32)
    count = len(coordinates)
    ids = RANDOM.integers(0, 256, (count, 12)).astype(np.uint8)
    return ChunkTable.native(coordinates, ids, np.full(count, 1000, np.uint64))


async def session_on(context: RepoContext) -> SessionState:
    tip = await context.ledger.branch_tip("main")
    return await open_session(context, tip, SessionMode.writable, branch="main")


@dataclass(frozen=True)
class Dataset:
    """A made-up repository, and the work that the costs are about."""

    config: RepositoryConfig | None
    large: tuple[tuple[int, ...], tuple[str, ...]]
    """Shape and dimensions of the large array; of one chunk each."""
    axis: int
    """The axis that it grows along, a step at a time."""
    coordinates: dict[str, int]
    """Numbers of chunks."""

    async def create(self) -> Storage:
        storage = Storage.new_in_memory()
        context = await lifecycle.create(storage, self.config)
        session = await session_on(context)
        shape, names = self.large
        nodes.put_metadata(session, "/large", document(shape, names))
        for name, count in self.coordinates.items():
            nodes.put_metadata(session, f"/{name}", document((count,), (name,)))
            chunks.put_refs(session, nodes.require_array(session, f"/{name}"), block(range(count)))
        first = [range(count) for count in shape]
        first[self.axis] = range(shape[self.axis] - 3)
        chunks.put_refs(session, nodes.require_array(session, "/large"), block(*first))
        await commit(session, "create")
        for step in range(shape[self.axis] - 3, shape[self.axis]):
            session = await session_on(context)
            self.extend(session, step)
            await commit(session, f"step {step}")
        return storage

    def extend(self, session: SessionState, step: int) -> None:
        new = [range(count) for count in self.large[0]]
        new[self.axis] = range(step, step + 1)
        chunks.put_refs(session, nodes.require_array(session, "/large"), block(*new))

    # -- the work --------------------------------------------------------------------------

    async def read_first(self, session: SessionState) -> None:
        node = nodes.require_array(session, "/large")
        assert await chunks.find_ref(session, node, (0,) * len(self.large[0])) is not None

    async def read_coordinates(self, session: SessionState) -> None:
        for name in self.coordinates:
            node = nodes.require_array(session, f"/{name}")
            assert await chunks.find_ref(session, node, (0,)) is not None

    async def append(self, session: SessionState) -> None:
        shape, names = self.large
        step = shape[self.axis]
        grown = (*shape[: self.axis], step + 1, *shape[self.axis + 1 :])
        nodes.put_metadata(session, "/large", document(grown, names))
        self.extend(session, step)
        await commit(session, "append")

    async def change(self, session: SessionState) -> None:
        index = (0,) * len(self.large[0])
        await chunks.write_chunk(session, nodes.require_array(session, "/large"), index, b"new")
        await commit(session, "change")


type Work = Callable[[SessionState], Awaitable[None]]


async def counted(storage: Storage, config: RepositoryConfig, work: Work) -> Cost:
    """Do some work in a process that knows nothing yet, and count what happens to manifests."""
    twin = Storage.new_in_memory()
    for key, _ in storage.list_objects():
        await twin.open().put(key, (await storage.open().get(key)).data)
    wrapped = WrappedStorage(twin, FaultyBackend)
    await work(await session_on(await lifecycle.open_(wrapped, NO_PRELOAD.merge(config))))
    backend = wrapped.backend
    assert isinstance(backend, FaultyBackend)
    sizes = dict(twin.list_objects())
    touched = [step for step in backend.trace if step.key.startswith("manifests/")]
    fetched = [sizes[step.key] for step in touched if step.operation != "put"]
    written = [sizes[step.key] for step in touched if step.operation == "put"]
    return Cost(len(fetched), sum(fetched), len(written), sum(written))


async def check(dataset: Dataset, storage: Storage, costs: Costs, config: RepositoryConfig) -> None:
    """Compare what was foreseen with what happens."""
    works: dict[str, Work] = {
        "first_read": dataset.read_first,
        "coordinates": dataset.read_coordinates,
        "append": dataset.append,
        "change": dataset.change,
    }
    for name, work in works.items():
        foreseen: Cost = getattr(costs, name)
        found = await counted(storage, config, work)
        assert (foreseen.fetched, foreseen.written) == (found.fetched, found.written), name
        for one, other in (
            (foreseen.bytes_in, found.bytes_in),
            (foreseen.bytes_out, found.bytes_out),
        ):
            assert other / 1.5 - 300 <= one <= other * 1.5 + 300, (name, foreseen, found)


async def advice_for(storage: Storage) -> ManifestAdvice:
    context = await lifecycle.open_(storage)
    tip = await context.ledger.branch_tip("main")
    arrays = await survey(context, await context.assets.load_snapshot(tip))
    return advise(arrays, await growths(context, tip), context.config)


COORDINATES = {"t": 5, "y": 20, "x": 30}
DATASETS = {
    "one manifest for each array, as the reference does": Dataset(
        RepositoryConfig(manifest=UNSPLIT), ((200, 300), ("t", "y")), 0, COORDINATES
    ),
    "nothing configured": Dataset(None, ((200, 300), ("t", "y")), 0, COORDINATES),
    "split by default along another axis than it grows": Dataset(
        None, ((200, 300), ("t", "y")), 1, COORDINATES
    ),
    "many coordinates": Dataset(
        None, ((200, 300), ("t", "c0")), 0, {f"c{number}": 90 for number in range(60)}
    ),
    "too large a step": Dataset(
        RepositoryConfig(manifest=UNSPLIT), ((4, 40_000), ("t", "y")), 0, COORDINATES
    ),
    "all small": Dataset(None, ((40, 3), ("t", "y")), 0, COORDINATES),
}


@pytest.mark.parametrize("dataset", DATASETS.values(), ids=DATASETS)
def test_costs_are_foreseen(dataset: Dataset) -> None:
    async def play() -> None:
        storage = await dataset.create()
        advice = await advice_for(storage)
        await check(dataset, storage, advice.now, RepositoryConfig())
        context = await lifecycle.open_(storage, advice.config)
        await rewrite_manifests(context, "as proposed", branch="main")
        await check(dataset, storage, advice.proposed, advice.config)
        assert advice.proposed.seconds <= advice.now.seconds * 1.1

    run_blocking(play())


def test_growth_along_an_unusual_axis_is_noticed() -> None:
    name = "split by default along another axis than it grows"

    async def play() -> None:
        advice = await advice_for(await DATASETS[name].create())
        assert advice.growing == {"/large": Growth(1, 200)}
        assert advice.proposed.append.bytes_out < advice.now.append.bytes_out / 2
        assert any("grows along y" in reason for reason in advice.reasons)

    run_blocking(play())


def test_what_is_good_is_left_alone() -> None:
    async def play() -> None:
        for name in ("nothing configured", "all small"):
            advice = await advice_for(await DATASETS[name].create())
            assert advice.config == RepositoryConfig(), name
            assert advice.reasons == ()
            assert not advice.is_worth_a_rewrite

    run_blocking(play())


def test_many_coordinates_share_fewer_manifests() -> None:
    async def play() -> None:
        advice = await advice_for(await DATASETS["many coordinates"].create())
        assert advice.config.chunk_manifests is not None
        assert advice.now.coordinates.fetched == 60
        assert advice.proposed.coordinates.fetched <= 6

    run_blocking(play())


def test_no_references_no_advice() -> None:
    config = run_blocking(lifecycle.create(Storage.new_in_memory())).config
    assert advise([], {}, config) == ManifestAdvice()


def log_of(**chunk_blocks: ChunkTable) -> TransactionLog:
    updated = {NodeId(name.ljust(8).encode()): t.coordinates for name, t in chunk_blocks.items()}
    return TransactionLog(SnapshotId.random(), updated_chunks=updated)


def test_growth_is_what_commits_have_in_common() -> None:
    logs = [
        log_of(a=block(range(10), range(4)), b=block(range(3)), c=block(range(2))),
        log_of(a=block(range(10, 12), range(4)), b=block(range(1, 4))),
        log_of(a=block(range(12, 13), range(4))),
        log_of(a=block(range(13, 15), range(4))),
    ]
    assert growths_in(logs) == {NodeId(b"a       "): Growth(0, 8)}
