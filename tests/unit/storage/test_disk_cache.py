"""A cache on a local disk: its bound, its checksums, its sharing, and what goes into it."""

import os
import random
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import icefloe
from icefloe.errors import InvalidInputError
from icefloe.storage import disk_cache
from icefloe.storage.disk_cache import DiskCache, cache_of
from icefloe.storage.specs import LocalSpec, gcs_spec, http_spec, s3_spec

HEADER_BYTES = 16


def entries(path: Path) -> list[Path]:
    return [entry for entry in path.glob("??/*") if not entry.name.startswith(".new-")]


def stored_bytes(path: Path) -> int:
    return sum(entry.stat().st_size for entry in entries(path))


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
    oldest = next(n for n in range(10) if cache._path_of(key(n)) == names[0])
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
        lambda stored: stored[:20] + bytes(len(stored) - 20),  # what a loss of power may leave
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
    assert list(tmp_path.glob("??/*")) == []
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
    limit = 50 * 2016
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


def test_leftovers_of_a_crash_are_deleted_when_they_are_old(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path)
    cache.keep(b"a", b"bytes")
    [entry] = entries(tmp_path)
    old, new = entry.with_name(".new-old"), entry.with_name(".new-new")
    for leftover in (old, new):
        leftover.write_bytes(b"half")
    os.utime(old, (1, 1))
    cache.clear()
    assert not old.exists()
    assert new.exists()  # its writer may still be at it


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
