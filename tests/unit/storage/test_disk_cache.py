"""A cache on a local disk: its bound, its checksums, its sharing, and what goes into it."""

import os
import random
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import icefloe
from icefloe.errors import InvalidInputError
from icefloe.storage import disk_cache
from icefloe.storage.disk_cache import DiskCache, cache_of
from icefloe.storage.specs import LocalSpec, gcs_spec, http_spec, s3_spec

HEADER_BYTES = 48


def entries(path: Path) -> list[Path]:
    return list(path.glob("[0-9a-f][0-9a-f]/*"))


def stored_bytes(path: Path) -> int:
    return sum(entry.stat().st_size for entry in entries(path))


def path_of(cache: DiskCache, key: bytes) -> Path:
    return cache._path_of(disk_cache._name_of(key))


def key(number: int) -> bytes:
    return f"key {number}".encode()


def content(number: int, size: int = 1000) -> bytes:
    return random.Random(number).randbytes(size)


def test_entries_outlive_the_object_that_made_them(tmp_path: Path) -> None:
    DiskCache(tmp_path / "c").keep(b"a", memoryview(b"some bytes")[5:])
    other = DiskCache(tmp_path / "c")
    found = other.find(b"a")
    assert found is not None
    assert bytes(found) == b"bytes"
    assert other.find(b"b") is None
    assert (other.statistics.hits, other.statistics.misses) == (1, 1)
    assert other.statistics.hit_bytes == 5
    assert other.used_bytes == 5 + HEADER_BYTES
    assert "1 hits, 1 misses" in repr(other)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3000)), max_size=60), st.data())
def test_it_never_returns_other_bytes_and_never_outgrows_its_limit(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int]], data: st.DataObject
) -> None:
    limit = data.draw(st.integers(1, 20_000))
    cache = DiskCache(tmp_path_factory.mktemp("cache"), limit)
    model: dict[int, bytes] = {}
    for number, size in steps:
        model.setdefault(number, content(number, size))
        cache.keep(key(number), model[number])
        assert stored_bytes(cache.path) <= cache.used_bytes <= limit
        wanted = data.draw(st.integers(0, 30))
        found = cache.find(key(wanted))
        assert found is None or bytes(found) == model[wanted]
    cache.clear()
    assert entries(cache.path) == []
    assert cache.used_bytes == 0


def test_what_was_used_least_recently_goes_first(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 10 * (1000 + HEADER_BYTES))
    for number in range(10):
        cache.keep(key(number), content(number))
    for number, entry in enumerate(entries(tmp_path)):
        os.utime(entry, (number, number))
    names = sorted(entries(tmp_path), key=lambda entry: entry.stat().st_mtime)
    oldest = next(n for n in range(10) if path_of(cache, key(n)) == names[0])
    assert cache.find(key(oldest)) is not None  # which makes it the newest
    cache.keep(key(10), content(10))
    assert cache.find(key(oldest)) is not None
    assert cache.find(key(10)) is not None
    assert not names[1].exists()


@pytest.mark.parametrize(
    "damage",
    [
        lambda stored: b"",
        lambda stored: stored[:10],
        lambda stored: stored[:-1],
        lambda stored: stored + b"\0",
        lambda stored: stored[:50] + bytes(len(stored) - 50),  # what a loss of power may leave
        lambda stored: bytes(len(stored)),
    ],
)
def test_a_damaged_entry_is_a_miss_and_is_deleted(tmp_path: Path, damage: object) -> None:
    cache = DiskCache(tmp_path)
    cache.keep(b"a", content(1))
    [entry] = entries(tmp_path)
    entry.write_bytes(damage(entry.read_bytes()))  # type: ignore[operator]
    assert cache.find(b"a") is None
    assert cache.statistics.damaged == 1
    assert not entry.exists()
    cache.keep(b"a", content(1))
    assert bytes(cache.find(b"a") or b"") == content(1)


@pytest.mark.parametrize("counter", [b"", b"abc", struct.pack("<Q", 0), struct.pack("<Q", 2**63)])
def test_a_false_counter_is_corrected(tmp_path: Path, counter: bytes) -> None:
    limit = 20 * (1000 + HEADER_BYTES)
    cache = DiskCache(tmp_path, limit)
    for number in range(10):
        cache.keep(key(number), content(number))
    (tmp_path / "used").write_bytes(counter)
    for number in range(10, 40):
        cache.keep(key(number), content(number))
    assert cache.find(key(39)) is not None
    if counter != struct.pack("<Q", 0):  # nobody can know that this is wrong before a sweep
        assert stored_bytes(tmp_path) <= cache.used_bytes <= limit
    cache.clear()
    assert cache.used_bytes == 0


def test_a_disk_that_refuses_writes_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = DiskCache(tmp_path)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk_cache, "_write_all", full)
    cache.keep(b"a", b"bytes")
    monkeypatch.undo()
    assert cache.statistics.failed == 1
    assert entries(tmp_path) == []
    assert list((tmp_path / "unfinished").iterdir()) == []
    assert cache.find(b"a") is None


def test_an_object_that_would_fill_the_cache_is_not_kept(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 4000)
    cache.keep(b"large", bytes(1001))
    assert entries(tmp_path) == []


_WORKER = """
import random, sys
from icefloe.storage.disk_cache import DiskCache
cache = DiskCache(sys.argv[1], int(sys.argv[2]))
chosen = random.Random(int(sys.argv[3]))
print("ready", flush=True)
while True:
    number = chosen.randrange(200)
    data = random.Random(number).randbytes(2000)
    found = cache.find(f"key {number}".encode())
    if found is not None and bytes(found) != data:
        print("false", flush=True)
        break
    cache.keep(f"key {number}".encode(), data)
"""


@pytest.mark.slow
def test_processes_share_a_folder_and_may_be_killed_at_any_moment(tmp_path: Path) -> None:
    limit = 50 * (2000 + HEADER_BYTES)
    arguments = [sys.executable, "-c", _WORKER, str(tmp_path), str(limit)]
    for round_ in range(2):
        workers = [
            subprocess.Popen(
                [*arguments, str(10 * round_ + number)], stdout=subprocess.PIPE, text=True
            )
            for number in range(3)
        ]
        watcher = DiskCache(tmp_path, limit)
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n"
        while watcher.statistics.hits + watcher.statistics.misses < 2_000:
            number = random.randrange(200)
            found = watcher.find(key(number))
            assert found is None or bytes(found) == content(number, 2000)
        for worker in workers:
            worker.send_signal(signal.SIGKILL)
        outputs = [worker.communicate()[0] for worker in workers]
        assert outputs == ["", "", ""]
        assert stored_bytes(tmp_path) <= watcher.used_bytes <= limit
    watcher.clear()
    assert watcher.used_bytes == 0


_HALF_WRITER = """
import os, sys
from icefloe.storage import disk_cache
def half(file, data):
    file.write(memoryview(data)[:10])
    if len(data) > 1000:
        print("half", flush=True)
        sys.stdin.read()
disk_cache._write_all = half
disk_cache.DiskCache(sys.argv[1]).keep(b"a", bytes(100_000))
"""


def test_what_a_killed_process_was_writing_is_deleted_and_not_what_others_write(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-c", _HALF_WRITER, str(tmp_path)]
    writers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    unfinished = tmp_path / "unfinished"
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "half\n"
    DiskCache(tmp_path).clear()
    assert len(list(unfinished.iterdir())) == 2
    writers[0].kill()
    writers[0].communicate()
    cache = DiskCache(tmp_path)
    assert len(list(unfinished.iterdir())) == 1
    assert cache.find(b"a") is None
    writers[1].kill()
    writers[1].communicate()
    cache.clear()
    assert list(unfinished.iterdir()) == []


def test_files_of_others_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    """A folder may turn out to contain something else already."""
    elsewhere = tmp_path.parent / f"{tmp_path.name}-elsewhere"
    elsewhere.mkdir()
    others = [
        tmp_path / "notes.txt",
        tmp_path / "thesis" / "chapter.tex",
        tmp_path / "ab" / "readme",
        tmp_path / "abc" / ("0" * 62),
        tmp_path / "cd" / ("0" * 62) / "folder",
        elsewhere / ("0" * 62),
    ]
    for path in others:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("precious")
        os.utime(path, (1, 1))
    (tmp_path / "ef").symlink_to(elsewhere)
    cache = DiskCache(tmp_path, 20 * (1000 + HEADER_BYTES))
    assert cache.used_bytes == 0
    for number in range(50):
        cache.keep(key(number), content(number))
    cache.clear()
    assert cache.used_bytes == 0
    assert [path.read_text() for path in others] == ["precious"] * len(others)


def test_an_entry_under_another_name_or_of_another_user_is_no_hit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = DiskCache(tmp_path)
    cache.keep(b"a", b"bytes of a")
    path_of(cache, b"b").parent.mkdir(exist_ok=True)
    os.link(path_of(cache, b"a"), path_of(cache, b"b"))
    assert cache.find(b"b") is None
    assert bytes(cache.find(b"a") or b"") == b"bytes of a"
    user = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: user + 1)
    assert cache.find(b"a") is None


@pytest.mark.parametrize("name", ["used", "sweep.lock", "unfinished"])
def test_links_in_place_of_its_own_files_lead_nowhere(tmp_path: Path, name: str) -> None:
    folder, target = tmp_path / "cache", tmp_path / "target"
    cache = DiskCache(folder, 4 * (1000 + HEADER_BYTES))
    target.write_text("precious")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(target)
    for number in range(20):
        cache.keep(key(number), content(number))
        found = cache.find(key(number))
        assert found is None or bytes(found) == content(number)
    assert target.read_text() == "precious"


def test_a_folder_may_be_deleted_while_it_is_in_use(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "c")
    cache.keep(b"a", b"bytes")
    shutil.rmtree(tmp_path / "c")
    assert cache.find(b"a") is None
    assert "none of" in repr(cache)
    cache.keep(b"a", b"bytes")
    assert bytes(cache.find(b"a") or b"") == b"bytes"
    assert (tmp_path / "c").stat().st_mode & 0o077 == 0
    assert cache.statistics.failed == 0


def test_processes_that_keep_the_same_entry_count_it_once(tmp_path: Path) -> None:
    cache, other = DiskCache(tmp_path), DiskCache(tmp_path)
    path = path_of(cache, b"a")

    def write_first(file: Any, data: Any) -> None:
        write_all(file, data)
        if not path.exists():
            monkeypatch.undo()
            other.keep(b"a", b"bytes")

    write_all = disk_cache._write_all
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(disk_cache, "_write_all", write_first)
        cache.keep(b"a", b"bytes")
    assert cache.used_bytes == 5 + HEADER_BYTES
    assert (cache.statistics.stored, other.statistics.stored) == (0, 1)


def test_folders_that_others_can_write_to_are_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(InvalidInputError, match="chmod go-w"):
        DiskCache(shared)
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(InvalidInputError, match="cannot be a cache"):
        DiskCache(file)
    assert DiskCache(tmp_path / "new" / "folder").path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("size", [0, -1, "0", "much", "1 PB"])
def test_sizes_that_are_none_are_refused(tmp_path: Path, size: int | str) -> None:
    with pytest.raises(InvalidInputError, match="size of a cache"):
        DiskCache(tmp_path, size)


def test_the_environment_chooses_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ICEFLOE_CACHE", raising=False)
    assert icefloe.current_cache() is None
    monkeypatch.setenv("ICEFLOE_CACHE", str(tmp_path / "a"))
    monkeypatch.setenv("ICEFLOE_CACHE_SIZE", "2 GB")
    chosen = icefloe.current_cache()
    assert chosen is not None
    assert (chosen.path, chosen.size_bytes) == (tmp_path / "a", 2 << 30)
    assert icefloe.current_cache() is chosen
    with icefloe.cache(tmp_path / "b") as inner:
        assert icefloe.current_cache() is inner
    assert icefloe.current_cache() is chosen


def test_each_storage_has_its_own_entries_and_near_ones_have_none(tmp_path: Path) -> None:
    from icefloe.config import S3Options

    def bucket(name: str = "bucket", url: str | None = None, user: str = "a") -> object:
        keys = icefloe.s3_static_credentials(access_key_id=user, secret_access_key="secret")
        return s3_spec(S3Options(endpoint_url=url), name, "prefix", keys)

    with icefloe.cache(tmp_path):
        specs = [
            bucket(),
            bucket("other"),
            bucket(url="https://elsewhere.example"),
            gcs_spec("bucket", "prefix", None),
            gcs_spec("bucket", "prefix", None, config={"google_base_url": "https://evil.example"}),
            http_spec("https://data.example/prefix"),
        ]
        places = [getattr(cache_of(spec), "place", None) for spec in specs]  # type: ignore[arg-type]
        assert None not in places
        assert len(set(places)) == len(places)
        assert cache_of(bucket(user="b")) == cache_of(bucket(user="a"))  # type: ignore[arg-type]
        assert cache_of(LocalSpec("/data")) is None
