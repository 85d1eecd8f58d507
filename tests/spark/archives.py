"""What the tests of Spark jobs share: stored repositories over archives, and what must hold."""

from pathlib import Path

import numpy as np
from numpy.testing import assert_array_equal

import icefloe
from examples.archives import Archive
from icefloe.effects import run_blocking
from icefloe.pipeline.files.options import CombineOptions
from icefloe.testing.invariants import InvariantChecker
from tests.pipeline.repositories import opened, repository_for

TIME = CombineOptions(("time",))


def stored_repository(tmp_path: Path, *folders: Path) -> icefloe.Repository:
    """Make a repository on disk that may refer to files in `data`, or in the given folders."""
    storage = icefloe.local_filesystem_storage(str(tmp_path / "repository"))
    return repository_for(*(folders or (tmp_path / "data",)), storage=storage)


def assert_sound(repository: icefloe.Repository, *, allow_garbage: bool = False) -> None:
    """Check everything that is stored, and that no job left anything."""
    run_blocking(InvariantChecker().check(repository._context.backend))
    assert not repository.storage.list_objects(prefix="icefloe")
    used = {
        file.id
        for version in repository.ancestry(branch="main")
        for file in repository.list_manifest_files(version.id)
    }
    stored = {key for key, _ in repository.storage.list_objects(prefix="manifests")}
    assert used <= stored
    assert allow_garbage or stored == used


def assert_complete(session: icefloe.Session, archive: Archive, group: str | None = None) -> None:
    """Compare all values with those that were written into the files."""
    found = opened(session, group)
    every = range(archive.files)
    assert_array_equal(
        found.temperature.values, np.concatenate([archive.expected_temperature(n) for n in every])
    )
    assert_array_equal(
        found.pressure.values, np.concatenate([archive.expected_pressure(n) for n in every])
    )
    hours = np.arange(archive.files * archive.steps) * np.timedelta64(1, "h")
    assert_array_equal(found.time.values, np.datetime64("2000-01-01") + hours)
