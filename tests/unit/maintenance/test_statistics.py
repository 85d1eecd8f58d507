"""What chunks take: by hand where it is easy, against each single chunk where it is not."""

from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import icefloe
from icefloe import walk
from icefloe.effects import run_blocking
from icefloe.format.chunk_table import ChunkKind
from icefloe.format.layout import MANIFESTS_PREFIX
from icefloe.format.manifest import ManifestFile
from icefloe.maintenance.statistics import OWN_CHUNKS
from tests.faults.sessions import BIG, GROUP, array_document, put
from tests.property.reachable import needed_by_refs, stored
from tests.property.test_maintenance import Random, histories

SPECS = pytest.mark.parametrize("spec", [1, 2])


def repository(spec: int = 2, storage: icefloe.Storage | None = None) -> icefloe.Repository:
    config = icefloe.RepositoryConfig.default()
    store = icefloe.s3_store(region="us-east-1")
    for prefix in ("s3://bucket/", "s3://bucket/deep/"):
        config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(prefix, store))
    storage = icefloe.in_memory_storage() if storage is None else storage
    repo = icefloe.Repository.create(storage, config, spec_version=spec)
    session = repo.writable_session("main")
    run_blocking(put(session, "zarr.json", GROUP))
    for name in "ab":
        run_blocking(put(session, f"{name}/zarr.json", array_document()))
    session.commit("arrays")
    return repo


def write(repo: icefloe.Repository, files: dict[str, bytes], **options: Any) -> str:
    session = repo.writable_session("main", **options)
    for key, data in files.items():
        run_blocking(put(session, key, data))
    return session.commit("more")


def link(repo: icefloe.Repository, places: dict[str, tuple[str, int, int]]) -> str:
    session = repo.writable_session("main")
    for key, (location, offset, length) in places.items():
        session.store.set_virtual_ref(
            key, location, offset=offset, length=length, validate_container=False
        )
    return session.commit("linked")


@SPECS
def test_a_chunk_counts_once_in_all_versions(spec: int) -> None:
    repo = repository(spec)
    write(repo, {"a/c/0": b"x" * BIG})
    write(repo, {"a/c/1": b"x" * BIG})
    write(repo, {"b/c/0": b"y" * 10})
    repo.create_tag("tag", repo.lookup_branch("main"))
    stats = repo.chunk_storage_stats()
    assert (stats.native_bytes, stats.native_chunks) == (2 * BIG, 2)
    assert (stats.inlined_bytes, stats.inlined_chunks) == (10, 1)
    assert stats.virtual_bytes == 0
    assert stats.packed_objects == 0


def test_versions_say_what_they_added() -> None:
    repo = repository()
    first = write(repo, {"a/c/0": b"x" * BIG})
    second = write(repo, {"a/c/1": b"x" * (BIG + 1)})
    rows = repo.storage_use()
    assert [row.native_bytes for row in rows] == [0, 0, BIG, BIG + 1]
    assert [row.place for row in rows][2:] == [first, second]


def test_arrays_are_named_by_where_they_are_now() -> None:
    repo = repository()
    write(repo, {"a/c/0": b"x" * BIG, "b/c/0": b"y" * (2 * BIG)})
    session = repo.rearrange_session("main")
    session.move("/a", "/moved")
    session.commit("moved")
    rows = {row.place: row.native_bytes for row in repo.storage_use("array")}
    assert rows == {"/b": 2 * BIG, "/moved": BIG}


def test_containers_take_what_lies_in_them() -> None:
    repo = repository()
    write(repo, {"a/c/0": b"x" * BIG})
    link(
        repo,
        {
            "a/c/1": ("s3://bucket/x", 0, 5),
            "a/c/2": ("s3://bucket/deep/x", 0, 7),
            "a/c/3": ("s3://bucket/deep/x", 0, 7),  # the same bytes once more
            "b/c/0": ("s3://bucket/deep/x", 7, 7),
            "b/c/1": ("s3://elsewhere/x", 0, 9),
        },
    )
    rows = {row.place: row.total_bytes for row in repo.storage_use("container")}
    assert rows.pop(OWN_CHUNKS) == BIG
    assert rows.pop("s3://bucket/") == 5
    assert rows.pop("s3://bucket/deep/") == 14
    assert list(rows.values()) == [9]
    stats = repo.chunk_storage_stats()
    assert (stats.virtual_bytes, stats.virtual_chunks) == (28, 4)


def test_chunks_that_share_an_object() -> None:
    repo = repository()
    write(repo, {f"a/c/{n}": b"x" * BIG for n in range(5)}, packing=True)
    write(repo, {"b/c/0": b"y" * BIG})
    stats = repo.chunk_storage_stats()
    assert stats.native_bytes == 6 * BIG
    assert (stats.packed_objects, stats.packed_chunks, stats.packed_bytes) == (1, 5, 5 * BIG)


def test_small_limits_change_nothing() -> None:
    repo = repository()
    for number in range(6):
        write(repo, {f"a/c/{number}": bytes([number]) * BIG})
    stats = repo.chunk_storage_stats(
        max_snapshots_in_memory=1,
        max_compressed_manifest_mem_bytes=1,
        max_decoded_manifest_mem_bytes=1,
        max_concurrent_manifest_fetches=1,
    )
    assert stats == repo.chunk_storage_stats()
    with pytest.raises(icefloe.InvalidInputError, match="max_snapshots_in_memory"):
        repo.chunk_storage_stats(max_snapshots_in_memory=0)


def test_threads_for_local_manifests_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = repository(storage=icefloe.local_filesystem_storage(str(tmp_path)))
    for number in range(6):
        write(repo, {f"a/c/{number}": bytes([number]) * BIG, f"b/c/{number}": b"small"})
    stats, uses = repo.chunk_storage_stats(), [*repo.storage_use()]
    monkeypatch.setattr(walk.history, "_MANY_REFS", 0)
    assert repo.chunk_storage_stats() == stats
    assert [*repo.storage_use()] == uses


def test_progress_counts_manifests() -> None:
    repo = repository()
    for number in range(3):
        write(repo, {f"a/c/{number}": bytes([number]) * BIG})
    told: list[tuple[int, int]] = []
    repo.chunk_storage_stats(
        max_concurrent_manifest_fetches=1, on_progress=lambda *each: told.append(each)
    )
    assert told == [(1, 3), (2, 3), (3, 3)]
    told.clear()
    repo.storage_use("array", on_progress=lambda *each: told.append(each))
    assert told == [(3, 3)]
    told.clear()
    repo.garbage_collect(datetime.now(UTC), on_progress=lambda *each: told.append(each))
    assert told[-1] == (3, 3)


def test_the_old_name_says_that_it_is_old() -> None:
    repo = repository()
    write(repo, {"a/c/0": b"x" * BIG})
    with pytest.warns(DeprecationWarning, match="chunk_storage_stats"):
        assert repo.total_chunks_storage() == BIG


def test_what_to_group_by_is_checked() -> None:
    with pytest.raises(icefloe.InvalidInputError, match="'array'"):
        repository().storage_use("planet")  # type: ignore[arg-type]


@SPECS
@settings(max_examples=25)
@given(steps=histories, packs=st.booleans())
def test_against_each_single_chunk(spec: int, steps: list[tuple[Any, ...]], packs: bool) -> None:
    history = Random(spec, packs)
    for step in steps:
        history.do(step)
    files = stored(history.storage.open())
    seen: dict[int, set[tuple[Any, ...]]] = defaultdict(set)
    for key in needed_by_refs(files):
        if key.startswith(MANIFESTS_PREFIX):
            for node, table in ManifestFile(files[key]).tables().items():
                for row in range(len(table)):
                    ref: Any = table.ref(row)
                    kind = int(table.kinds[row])
                    if kind == ChunkKind.INLINE:
                        seen[kind].add((key, node, row, len(ref.data)))
                    else:
                        target = ref.id if kind == ChunkKind.NATIVE else ref.location
                        seen[kind].add((target, ref.offset, ref.length))
    sums = {kind: sum(one[-1] for one in seen[kind]) for kind in ChunkKind}
    stats = history.repo.chunk_storage_stats()
    assert stats.native_bytes == sums[ChunkKind.NATIVE]
    assert stats.virtual_bytes == sums[ChunkKind.VIRTUAL]
    assert stats.inlined_bytes == sums[ChunkKind.INLINE]
    assert stats.native_chunks == len(seen[ChunkKind.NATIVE])
    by_version = history.repo.storage_use()
    assert sum(row.total_bytes for row in by_version) == stats.total_bytes()
    by_container = history.repo.storage_use("container")
    assert sum(row.total_bytes for row in by_container) == stats.total_bytes()
