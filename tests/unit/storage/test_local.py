import asyncio
import os
import stat
import time
from collections.abc import Coroutine
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from icefloe.effects import run_blocking
from icefloe.errors import InvalidInputError, ObjectNotFoundError, StorageError
from icefloe.storage import local
from icefloe.storage.directory import open_directory, open_draft
from icefloe.storage.local import LocalBackend
from icefloe.storage.locks import hold_lock
from icefloe.testing.storage_suite import infos_of, keys_of


@pytest.fixture
def backend(tmp_path: Path) -> LocalBackend:
    return LocalBackend(str(tmp_path))


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def put(backend: LocalBackend, key: str, data: bytes = b"x") -> None:
    run_blocking(backend.put(key, data))


def test_names_on_disk_are_those_of_the_reference(backend: LocalBackend, tmp_path: Path) -> None:
    put(backend, "refs/branch.ñ 100%/ref.json")
    assert (tmp_path / "refs" / "branch.%C3%B1 100%25" / "ref.json").read_bytes() == b"x"
    assert run_blocking(keys_of(backend)) == ["refs/branch.ñ 100%/ref.json"]


def test_listing_passes_over_unfinished_writes_and_foreign_names(
    backend: LocalBackend, tmp_path: Path
) -> None:
    put(backend, "chunks/A")
    (tmp_path / "chunks" / "B#1").write_bytes(b"half")
    (tmp_path / "chunks" / "#0").write_bytes(b"")
    (tmp_path / "notes~").write_bytes(b"no key is stored under this name")
    assert run_blocking(keys_of(backend)) == ["chunks/A"]


def test_listing_does_not_enter_other_prefixes(backend: LocalBackend, tmp_path: Path) -> None:
    put(backend, "a/b/c")
    put(backend, "ab")
    put(backend, "b/c")
    (tmp_path / "b").chmod(0)
    try:
        assert run_blocking(keys_of(backend, "a")) == ["a/b/c", "ab"]
        assert run_blocking(keys_of(backend, "a/")) == ["a/b/c"]
        assert run_blocking(keys_of(backend, "a/b/c")) == ["a/b/c"]
    finally:
        (tmp_path / "b").chmod(0o755)


def test_large_ranges_are_read_in_pieces_into_one_buffer(
    backend: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = bytes(range(256)) * 4
    run_blocking(backend.put("a/big", data))
    monkeypatch.setattr(local, "_MOST_AT_ONCE", 100)
    preadv = os.preadv
    lengths = list[int]()

    def short_read(handle: int, buffers: list[memoryview], start: int) -> int:
        lengths.append(len(buffers[0]))
        return preadv(handle, [buffers[0][:300]], start)

    monkeypatch.setattr(os, "preadv", short_read)
    assert run_blocking(backend.get("a/big")).data == data
    assert lengths == [1024, 724, 424, 124]
    [part] = run_blocking(backend.get_ranges("a/big", [(10, 1000)]))
    assert part == data[10:1000]
    monkeypatch.setattr(os, "preadv", lambda *_: 0)
    with pytest.raises(StorageError, match="ended after 10 bytes"):
        run_blocking(backend.get("a/big", (10, 500)))


def test_cycles_of_links_end(backend: LocalBackend, tmp_path: Path) -> None:
    put(backend, "a/object")
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    listed = run_blocking(keys_of(backend))
    assert "a/object" in listed
    assert len(listed) < 10


def test_reading_follows_links(backend: LocalBackend, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    target.write_bytes(b"content")
    (tmp_path / "link").symlink_to(target)
    assert bytes(run_blocking(backend.get("link")).data) == b"content"
    assert "link" in run_blocking(infos_of(backend))


def test_writing_and_deleting_do_not_follow_links(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    root.mkdir()
    (outside / "victim").write_bytes(b"precious")
    (root / "chunks").symlink_to(outside)
    (root / "object").symlink_to(outside / "victim")
    backend = LocalBackend(str(root))
    with pytest.raises(InvalidInputError, match="symbolic link"):
        put(backend, "chunks/new")
    report = run_blocking(backend.delete_many(["chunks/victim"]))
    assert list(report.failures) == ["chunks/victim"]
    put(backend, "object", b"replaces the link")
    assert names_in(outside) == ["victim"]
    assert (outside / "victim").read_bytes() == b"precious"
    assert not (root / "object").is_symlink()


def test_the_root_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    put(LocalBackend(str(tmp_path / "link")), "a/b")
    assert (tmp_path / "real" / "a" / "b").exists()


def test_versions_never_repeat(backend: LocalBackend) -> None:
    """Although inodes are used again and the clock of the kernel is coarse."""
    seen = set()
    version = run_blocking(backend.put("object", b"same"))
    for number in range(300):
        seen.add(version)
        match number % 3:
            case 0:
                version = run_blocking(backend.put("object", b"same", if_version=version))
            case 1:
                version = run_blocking(backend.put("object", b"same"))
            case _:
                run_blocking(backend.delete_many(["object"]))
                version = run_blocking(backend.put("object", b"same"))
    assert len(seen) == 300


def replaced_from(backend: LocalBackend, path: Path, modified_ns: int) -> int:
    """Replace a file that has a time; return the time of the replacement."""
    put(backend, path.name)
    os.utime(path, ns=(modified_ns, modified_ns))
    before = run_blocking(backend.head(path.name)).info.version
    after = run_blocking(backend.put(path.name, b"y", if_version=before))
    assert before != after == run_blocking(backend.head(path.name)).info.version
    return path.stat().st_mtime_ns


def test_a_replacement_is_later_than_a_file_of_the_future(
    backend: LocalBackend, tmp_path: Path
) -> None:
    future_ns = time.time_ns() + 3600 * 10**9
    later_ns = replaced_from(backend, tmp_path / "object", future_ns)
    # No file system that is worth the name has coarser times than two seconds.
    assert future_ns < later_ns <= future_ns + 3 * 10**9


def test_a_file_of_the_far_future_is_not_followed(backend: LocalBackend, tmp_path: Path) -> None:
    future_ns = 2_100_000_000_000_000_000  # not all file systems go beyond 2038
    later_ns = replaced_from(backend, tmp_path / "object", future_ns)
    later_ns = replaced_from(backend, tmp_path / "other", later_ns)
    assert later_ns < future_ns


def test_files_have_the_time_of_the_file_system(
    backend: LocalBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the clock of the process says, and however a file is written."""
    exact_ns = time.time_ns
    for hours in (-1, 1):
        monkeypatch.setattr(time, "time_ns", lambda off=hours: exact_ns() + off * 3600 * 10**9)
        (tmp_path / "plain").write_bytes(b"")
        put(backend, "folder/new")
        version = run_blocking(backend.put("folder/absent", b"x", if_absent=True))
        run_blocking(backend.put("folder/absent", b"y", if_version=version))
        put(backend, "folder/absent", b"z")
        put(backend, "folder/long", bytes(300_000))
        (tmp_path / "last").write_bytes(b"")
        first, last = ((tmp_path / name).stat().st_mtime_ns for name in ("plain", "last"))
        for name in ("new", "absent", "long"):
            modified_ns = (tmp_path / "folder" / name).stat().st_mtime_ns
            assert first <= modified_ns <= last + 10**9, name
        run_blocking(backend.delete_many(["folder/absent", "folder/new", "folder/long"]))


@pytest.mark.parametrize("hours", [-1, 1])
def test_versions_never_repeat_with_a_wrong_clock(
    backend: LocalBackend, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    exact_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: exact_ns() + hours * 3600 * 10**9)
    test_versions_never_repeat(backend)


def test_what_is_no_file_is_absent(backend: LocalBackend, tmp_path: Path) -> None:
    put(backend, "folder/object")
    os.mkfifo(tmp_path / "pipe")
    for key in ("folder", "pipe", "folder/object/below"):
        with pytest.raises(ObjectNotFoundError):
            run_blocking(backend.get(key))
        with pytest.raises(ObjectNotFoundError):
            run_blocking(backend.head(key))
    assert run_blocking(keys_of(backend)) == ["folder/object"]


def test_an_object_in_the_way_is_a_clear_error(backend: LocalBackend) -> None:
    put(backend, "a")
    with pytest.raises(StorageError, match="cannot write 'a/b'"):
        put(backend, "a/b")


def test_files_obey_the_umask(backend: LocalBackend, tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        put(backend, "object")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "object").stat().st_mode) == 0o640


def test_a_failed_write_leaves_nothing(backend: LocalBackend, tmp_path: Path) -> None:
    put(backend, "object")
    with pytest.raises(TypeError):
        run_blocking(backend.put("object", "text"))  # type: ignore[arg-type]
    stale = run_blocking(backend.head("object")).info.version
    put(backend, "object")
    with pytest.raises(StorageError):
        run_blocking(backend.put("object", b"z", if_version=stale))
    assert names_in(tmp_path) == ["#0", "object"]


class TestWithoutNamelessFiles:
    """What file systems without `O_TMPFILE` get."""

    def test_new_name(self, tmp_path: Path) -> None:
        parent = open_directory(str(tmp_path), "")
        draft = open_draft(parent, "object", nameless=False)
        draft.write(memoryview(b"content"))
        (temporary,) = names_in(tmp_path)
        assert temporary.startswith("object#")
        assert draft.publish_new()
        draft.close()
        assert names_in(tmp_path) == ["object"]
        os.close(parent)

    def test_taken_name(self, tmp_path: Path) -> None:
        (tmp_path / "object").write_bytes(b"old")
        parent = open_directory(str(tmp_path), "")
        draft = open_draft(parent, "object", nameless=False)
        draft.write(memoryview(b"new"))
        assert not draft.publish_new()
        assert (tmp_path / "object").read_bytes() == b"old"
        draft.publish_over()
        draft.close()
        assert (tmp_path / "object").read_bytes() == b"new"
        assert names_in(tmp_path) == ["object"]
        os.close(parent)

    def test_given_up(self, tmp_path: Path) -> None:
        parent = open_directory(str(tmp_path), "")
        draft = open_draft(parent, "object", nameless=False)
        draft.write(memoryview(b"content"))
        draft.close()
        assert names_in(tmp_path) == []
        os.close(parent)


def test_what_a_dead_process_left_is_used_up(backend: LocalBackend, tmp_path: Path) -> None:
    version = run_blocking(backend.put("repo", b"1"))
    (tmp_path / "repo#0").write_bytes(b"left by a process that died before its rename")
    run_blocking(backend.put("repo", b"2", if_version=version))
    assert (tmp_path / "repo").read_bytes() == b"2"
    assert names_in(tmp_path) == ["#0", "repo"]


@pytest.mark.parametrize("has_condition", [False, True])
def test_waiting_for_a_lock_does_not_stop_the_event_loop(
    backend: LocalBackend, tmp_path: Path, has_condition: bool
) -> None:
    version = run_blocking(backend.put("object", b"1"))

    async def scenario() -> None:
        parent = open_directory(str(tmp_path), "")
        with hold_lock(parent):
            condition = version if has_condition else None
            waiting = asyncio.create_task(backend.put("object", b"2", if_version=condition))
            for _ in range(20):
                await asyncio.sleep(0.005)  # a blocked loop would hang here for ever
            assert not waiting.done()
        await waiting
        os.close(parent)

    asyncio.run(scenario())
    assert (tmp_path / "object").read_bytes() == b"2"


@pytest.mark.parametrize("durable", [False, True])
def test_a_copy_under_a_new_name_shares_the_file_until_the_source_is_replaced(
    tmp_path: Path, durable: bool
) -> None:
    backend = LocalBackend(str(tmp_path), durable=durable)
    first = run_blocking(backend.put("repo", b"old"))
    run_blocking(backend.copy("repo", "overwritten/one", if_version=first))
    assert (tmp_path / "repo").samefile(tmp_path / "overwritten" / "one")
    run_blocking(backend.put("repo", b"new", if_version=first))
    run_blocking(backend.copy("repo", "overwritten/one"))
    assert not (tmp_path / "repo").samefile(tmp_path / "overwritten" / "one")
    assert (tmp_path / "overwritten" / "one").read_bytes() == b"new"
    assert run_blocking(backend.delete_many(["repo"])).deleted == 1
    assert bytes(run_blocking(backend.get("overwritten/one")).data) == b"new"


def test_a_copy_through_a_link_to_another_file_system_holds_the_bytes(tmp_path: Path) -> None:
    backend = LocalBackend(str(tmp_path))
    elsewhere = Path("/dev/shm")
    if not elsewhere.is_dir() or elsewhere.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second file system")
    with NamedTemporaryFile(dir=elsewhere) as outside:
        outside.write(b"far away")
        outside.flush()
        (tmp_path / "linked").symlink_to(outside.name)
        run_blocking(backend.copy("linked", "here"))
    assert (tmp_path / "here").read_bytes() == b"far away"


async def one_range(backend: LocalBackend, key: str, byte_range: tuple[int, int]) -> list[bytes]:
    return [bytes((await backend.get(key, byte_range)).data)]


def outcome(read: Coroutine[Any, Any, object]) -> object:
    try:
        return run_blocking(read)
    except InvalidInputError as refused:
        return str(refused)


class TestShortWays:
    """Small reads and writes take fewer calls, and do the same."""

    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.binary(max_size=40), st.integers(-2, 45), st.integers(-2, 45))
    def test_one_range_is_what_get_gives(
        self, backend: LocalBackend, data: bytes, start: int, end: int
    ) -> None:
        run_blocking(backend.put("object", data))
        assert outcome(backend.get_ranges("object", [(start, end)])) == outcome(
            one_range(backend, "object", (start, end))
        )

    @pytest.mark.parametrize("key", ["missing", "folder", "pipe", "folder/file/below"])
    def test_what_is_no_object_is_missing(
        self, backend: LocalBackend, tmp_path: Path, key: str
    ) -> None:
        put(backend, "folder/file")
        os.mkfifo(tmp_path / "pipe")
        for read in (backend.get(key, (0, 1)), backend.get_ranges(key, [(0, 1)])):
            with pytest.raises(ObjectNotFoundError):
                run_blocking(read)

    @pytest.mark.parametrize("key", ["object", "chunks/object", "a/b/object"])
    @pytest.mark.parametrize("is_taken", [False, True])
    def test_writes_give_the_version_that_is_there(
        self, tmp_path: Path, key: str, *, is_taken: bool
    ) -> None:
        for root, durable in (("short", False), ("long", True)):  # only one may be short
            backend = LocalBackend(str(tmp_path / root), durable=durable)
            put(backend, key.replace("object", "other"))
            before = run_blocking(backend.put(key, b"old")) if is_taken else None
            version = run_blocking(backend.put(key, b"new"))
            fetched = run_blocking(backend.get(key))
            assert (fetched.data, fetched.info.version) == (b"new", version)
            assert version != before
        folder = Path(key).parent
        assert names_in(tmp_path / "short" / folder) == names_in(tmp_path / "long" / folder)
        assert stat.S_IMODE((tmp_path / "short" / key).stat().st_mode) == stat.S_IMODE(
            (tmp_path / "long" / key).stat().st_mode
        )
