"""Whatever is lost or torn, together: repair loses nothing more, comes to an end, and tells."""

from functools import cache
from typing import Any

import numpy as np
import zarr
from hypothesis import given, note, settings
from hypothesis import strategies as st

import icefloe
from icefloe.effects import run_blocking
from icefloe.errors import RepositoryNotFoundError
from icefloe.maintenance.repair.repair_log import RepairRules
from icefloe.maintenance.repair.run import repair
from icefloe.storage import Storage
from tests.property.reachable import stored
from tests.support.checking import check_repository_blocking

RULES = RepairRules(
    recover_versions=True,
    drop_lost_versions=True,
    drop_lost_references=True,
    drop_damaged_versions=True,
    rebuild_logs=True,
)
FILL = 255


@cache
def whole(spec: int) -> dict[str, bytes]:
    """Versions in which each chunk only ever grows, on two branches."""
    repository = icefloe.Repository.create(
        icefloe.in_memory_storage(),
        icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0),
        spec_version=spec,
    )
    with repository.transaction("main", message="arrays") as store:
        for name in ("a", "g/b"):
            zarr.create_array(
                store, name=name, shape=6, chunks=2, dtype="u1", fill_value=FILL, compressors=None
            )
    for number in range(3):
        with repository.transaction("main", message=f"no. {number}") as store:
            _array(store, "a")[2 * number : 2 * number + 2] = number
            _array(store, "g/b")[:] = number
        if number == 1:
            repository.create_branch("other", repository.lookup_branch("main"))
            repository.create_tag("v1", repository.lookup_branch("main"))
    with repository.transaction("other", message="aside") as store:
        _array(store, "a")[0] = 7
    return stored(repository.storage.open())


def _array(store: Any, path: str) -> Any:
    return zarr.open_array(store, path=path)


HARM = st.tuples(st.integers(0, 10_000), st.sampled_from(["lost", "cut", "garbled"]))


def broken(spec: int, harms: list[tuple[int, str]]) -> dict[str, bytes]:
    files = dict(whole(spec))
    for place, how in harms:
        key = sorted(files)[place % len(files)]
        note(f"{how}: {key}")
        data = files.pop(key)
        if how == "cut":
            files[key] = data[: len(data) // 2]
        elif how == "garbled":
            files[key] = bytes(byte ^ 0x55 for byte in data)
    return files


def storage_with(files: dict[str, bytes]) -> Storage:
    storage = icefloe.in_memory_storage()
    for key, data in files.items():
        run_blocking(storage.open().put(key, data))
    return storage


@given(st.sampled_from([1, 2]), st.lists(HARM, min_size=1, max_size=4))
@settings(max_examples=25)
def test_repair_of_several_damages(spec: int, harms: list[tuple[int, str]]) -> None:
    files = broken(spec, harms)
    storage = storage_with(files)
    try:
        outcome = run_blocking(repair(storage, RULES, dry_run=False))
    except RepositoryNotFoundError:
        assert not any(key in files for key in ("repo", "refs/branch.main/ref.json"))
        return
    for step in outcome.steps:
        note(step.message)
    now = stored(storage.open())
    kept = {data for key, data in now.items() if key.startswith("overwritten/")}
    for key, data in files.items():
        assert now[key] == data or data in kept or key.startswith("refs/"), key
    again = run_blocking(repair(storage, RULES, dry_run=False))
    assert again.steps == (), again.steps
    check_values(storage)
    if not outcome.after.damages:
        assert icefloe.Repository.open(storage).verify().is_healthy
        check_repository_blocking(storage.open())


def check_values(storage: Storage) -> None:
    """What main reads is what some version held there, or nothing."""
    repository = icefloe.Repository.open(storage)
    session = repository.readonly_session("main")
    try:
        root = zarr.open_group(session.store, mode="r")
        found: dict[str, Any] = {name: root[name] for name in ("a", "g/b") if name in root}
    except FileNotFoundError:
        return  # back to the first version
    for array in found.values():
        values = array[:]
        # Garbled chunks are as long as before: nothing tells that they are not what was written.
        allowed = {0, 1, 2, 7, FILL, 0x55, 0x54, 0x57, 0x52}
        assert {*np.unique(values).tolist()} <= allowed
