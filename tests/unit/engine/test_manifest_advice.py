"""What is foreseen about manifests is what happens: requests are counted, bytes are close."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from icefloe.config import (
    ChunkManifestsConfig,
    ManifestConfig,
    ManifestPreloadCondition,
    ManifestPreloadConfig,
    ManifestSet,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
    RepositoryConfig,
)
from icefloe.effects import run_blocking
from icefloe.engine import chunks, lifecycle, nodes
from icefloe.engine.commit import commit
from icefloe.engine.context import RepoContext
from icefloe.engine.manifest_advice import Advice, Costs, advise
from icefloe.engine.manifest_costs import Cost, Growth
from icefloe.engine.manifest_history import growths, growths_in
from icefloe.engine.manifest_survey import survey
from icefloe.engine.rewriting import rewrite_manifests
from icefloe.engine.session import SessionMode, SessionState, open_session
from icefloe.format.chunk_table import ChunkTable
from icefloe.format.ids import NodeId, SnapshotId
from icefloe.format.transaction_log import TransactionLog
from icefloe.storage import Storage
from icefloe.testing.faulty import FaultyBackend
from icefloe.testing.schedules import WrappedStorage
from tests.unit.engine.documents import array_document

UNSPLIT = ManifestConfig(
    splitting=ManifestSplittingConfig.from_dict(
        {ManifestSplitCondition.AnyArray(): {ManifestSplitDimCondition.Any(): 2**32 - 1}}
    )
)
NO_PRELOAD = RepositoryConfig(
    manifest=ManifestConfig(
        preload=ManifestPreloadConfig(preload_if=ManifestPreloadCondition.false())
    )
)


def refs(index: tuple[slice | range, ...]) -> ChunkTable:
    """Give references to chunk objects that nobody reads, for a block of chunks."""
    ranges = [np.arange(one.start, one.stop) for one in index]
    grid = np.meshgrid(*ranges, indexing="ij")
    coordinates = np.stack([axis.ravel() for axis in grid], axis=1).astype(np.uint32)
    count = len(coordinates)
    ids = np.random.default_rng(count).integers(0, 256, (count, 12)).astype(np.uint8)
    zeros = np.zeros(count, np.uint64)
    return ChunkTable.native(coordinates, ids, zeros, zeros + np.uint64(1000))
