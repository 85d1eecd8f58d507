"""Files that may be read, and those that no link must lead to."""

import os
import pickle
import socket
import threading
from collections.abc import Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from icefloe.effects import run_blocking
from icefloe.errors import (
    ErrorKind,
    IcefloeError,
    InvalidInputError,
    ObjectNotFoundError,
    ReadOnlyError,
    StorageError,
)
from icefloe.storage import Storage
from icefloe.storage.port import Backend
from icefloe.storage.specs import LocalSpec
from icefloe.testing.storage_suite import StorageConformance, driven, keys_of

PUBLIC = b"for everybody"
SECRET = b"for nobody..."  # as long as the other


def confined(*places: Path | str) -> Backend:
    spec = LocalSpec("/", encodes_keys=False, confined_to=tuple(map(str, places)))
    return Storage(spec).open()


def key_of(path: Path) -> str:
    return str(path).removeprefix("/")


def read_each_way(backend: Backend, path: Path) -> Iterator[bytes | int]:
    """Read a file in all the ways there are."""
    key, size = key_of(path), len(PUBLIC)
    yield bytes(run_blocking(backend.get(key)).data)
    yield bytes(run_blocking(backend.get(key, (0, size))).data)
    yield bytes(run_blocking(backend.get_ranges(key, [(0, size)]))[0])
    yield b"".join(map(bytes, run_blocking(backend.get_ranges(key, [(0, 3), (3, size)]))))
    yield run_blocking(backend.head(key)).info.size_bytes


def assert_refused(backend: Backend, path: Path) -> None:
    key = key_of(path)
    ways: list[Coroutine[Any, Any, object]] = [
        backend.get(key),
        backend.get(key, (0, 1)),
        backend.get_ranges(key, [(0, 1)]),
        backend.get_ranges(key, [(0, 1), (3, 4)]),
        backend.head(key),
    ]
    for way in ways:
        with pytest.raises(InvalidInputError) as caught:
            run_blocking(way)
        assert caught.value.kind == ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER


@pytest.fixture
def open_folder(tmp_path: Path) -> Path:
    folder = tmp_path.resolve() / "open"
    (folder / "below").mkdir(parents=True)
    (folder / "file").write_bytes(PUBLIC)
    (folder / "below" / "file").write_bytes(PUBLIC)
    return folder


@pytest.fixture
def secret_file(open_folder: Path) -> Path:
    folder = open_folder.parent / "secret"
    folder.mkdir()
    (folder / "file").write_bytes(SECRET)
    return folder / "file"


def test_files_of_allowed_directories_are_read(open_folder: Path) -> None:
    for path in (open_folder / "file", open_folder / "below" / "file"):
        for place in (str(open_folder), f"{open_folder}/", "/"):
            assert [*read_each_way(confined(place), path)] == [PUBLIC] * 4 + [len(PUBLIC)]


def test_single_file_may_be_allowed(open_folder: Path) -> None:
    backend = confined(open_folder / "file")
    assert bytes(run_blocking(backend.get(key_of(open_folder / "file"))).data) == PUBLIC
    assert_refused(backend, open_folder / "below" / "file")


def test_nothing_else_is_read(open_folder: Path, secret_file: Path) -> None:
    assert_refused(confined(open_folder), secret_file)
    assert_refused(confined(), open_folder / "file")
    (neighbour := open_folder.with_name("open-but-not-quite")).mkdir()
    (neighbour / "file").write_bytes(SECRET)
    assert_refused(confined(open_folder), neighbour / "file")


def test_what_is_not_allowed_is_not_even_looked_for(open_folder: Path) -> None:
    """Whether a file exists elsewhere is nobody's business."""
    assert_refused(confined(open_folder), open_folder.parent / "absent")


def test_link_to_a_file_outside_is_not_followed(open_folder: Path, secret_file: Path) -> None:
    (open_folder / "link").symlink_to(secret_file)
    (open_folder / "relative").symlink_to("../secret/file")
    (open_folder / "twice").symlink_to("link")
    for name in ("link", "relative", "twice"):
        assert_refused(confined(open_folder), open_folder / name)


def test_link_to_a_directory_outside_is_not_followed(open_folder: Path, secret_file: Path) -> None:
    (open_folder / "folder").symlink_to(secret_file.parent)
    (open_folder / "root").symlink_to("/")
    assert_refused(confined(open_folder), open_folder / "folder" / "file")
    assert_refused(confined(open_folder), open_folder / "root" / key_of(secret_file))
    assert_refused(confined(open_folder), open_folder / "root" / "proc" / "self" / "environ")


def test_link_in_place_of_an_allowed_file(open_folder: Path, secret_file: Path) -> None:
    """What was allowed is what the path leads to: that is the reader's own word."""
    link = open_folder / "link"
    link.symlink_to(secret_file)
    assert bytes(run_blocking(confined(link).get(key_of(link))).data) == SECRET


def test_links_inside_are_followed(open_folder: Path) -> None:
    (open_folder / "link").symlink_to("below/file")
    (open_folder / "folder").symlink_to(open_folder / "below")
    for path in (open_folder / "link", open_folder / "folder" / "file"):
        assert [*read_each_way(confined(open_folder), path)] == [PUBLIC] * 4 + [len(PUBLIC)]


def test_links_between_allowed_places_are_followed(open_folder: Path, secret_file: Path) -> None:
    (open_folder / "link").symlink_to(secret_file)
    backend = confined(open_folder, secret_file.parent)
    assert bytes(run_blocking(backend.get(key_of(open_folder / "link"))).data) == SECRET


def test_allowed_directory_may_itself_be_behind_a_link(open_folder: Path) -> None:
    alias = open_folder.with_name("alias")
    alias.symlink_to(open_folder)
    backend = confined(alias)
    assert [*read_each_way(backend, alias / "below" / "file")] == [PUBLIC] * 4 + [len(PUBLIC)]
    other = open_folder.with_name("other")
    other.mkdir()
    (other / "file").write_bytes(SECRET)
    alias.unlink()
    alias.symlink_to(other)  # where it leads may change: it is the reader's
    assert bytes(run_blocking(backend.get(key_of(alias / "file"))).data) == SECRET


def test_exchanging_a_file_for_a_link_does_not_help(open_folder: Path, secret_file: Path) -> None:
    """However the exchanges fall between the steps of a read, the secret is never read."""
    target, link = open_folder / "target", open_folder / "prepared-link"
    is_over = threading.Event()

    def exchange() -> None:
        while not is_over.is_set():
            plain = open_folder / "prepared-file"
            plain.write_bytes(PUBLIC)
            plain.replace(target)
            link.symlink_to(secret_file)
            link.replace(target)

    target.write_bytes(PUBLIC)
    backend, key = confined(open_folder), key_of(target)
    attacker = threading.Thread(target=exchange)
    attacker.start()
    outcomes: set[bytes] = set()
    tries = 0
    try:
        while tries < 1000 or len(outcomes) < 2:
            tries += 1
            try:
                outcomes.add(bytes(run_blocking(backend.get(key)).data))
            except InvalidInputError as error:
                outcomes.add(str(error.kind).encode())
    finally:
        is_over.set()
        attacker.join()
    refused = ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER.encode()
    assert outcomes == {PUBLIC, refused}  # both happened, and nothing else


def test_exchanging_a_directory_for_a_link_does_not_help(
    open_folder: Path, secret_file: Path
) -> None:
    folder, aside, link = open_folder / "folder", open_folder / "aside", open_folder / "link"
    is_over = threading.Event()

    def exchange() -> None:
        while not is_over.is_set():
            folder.rename(aside)
            link.symlink_to(secret_file.parent)
            link.rename(folder)
            folder.unlink()
            aside.rename(folder)

    folder.mkdir()
    (folder / "file").write_bytes(PUBLIC)
    backend, key = confined(open_folder), key_of(folder / "file")
    attacker = threading.Thread(target=exchange)
    attacker.start()
    read: set[bytes] = set()
    try:
        for _ in range(1000):
            try:
                read.add(bytes(run_blocking(backend.get(key)).data))
            except IcefloeError as error:
                assert isinstance(error, InvalidInputError | ObjectNotFoundError)  # noqa: PT017
    finally:
        is_over.set()
        attacker.join()
    assert read <= {PUBLIC}


def test_replaced_and_deleted_files(open_folder: Path) -> None:
    """A file that loses its name while it is read is read to its end."""
    path, is_over = open_folder / "file", threading.Event()

    def replace() -> None:
        while not is_over.is_set():
            fresh = open_folder / "fresh"
            fresh.write_bytes(PUBLIC)
            fresh.replace(path)

    replacer = threading.Thread(target=replace)
    replacer.start()
    try:
        for place in (open_folder, path):
            backend = confined(place)
            for _ in range(300):
                assert bytes(run_blocking(backend.get(key_of(path))).data) == PUBLIC
    finally:
        is_over.set()
        replacer.join()


def test_only_regular_files_are_read(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(open_folder / "pipe")
    (open_folder / "device").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as listening:
        monkeypatch.chdir(open_folder)  # the path of a socket must be short
        listening.bind("socket")
    for name in ("pipe", "socket", "below", "absent", "file/below"):
        with pytest.raises(ObjectNotFoundError):
            run_blocking(confined(open_folder).get(key_of(open_folder / name)))
    assert_refused(confined(open_folder), open_folder / "device")
    with pytest.raises(ObjectNotFoundError):
        run_blocking(confined("/").get("dev/zero"))


@pytest.mark.skipif(not hasattr(os, "O_PATH"), reason="this system cannot look without opening")
def test_what_is_refused_takes_no_notice(open_folder: Path, secret_file: Path) -> None:
    """Opening alone may have effects: who waits for a reader at a pipe must not see us."""
    pipe = secret_file.with_name("pipe")
    os.mkfifo(pipe)
    (open_folder / "link").symlink_to(pipe)
    has_seen_us = threading.Event()

    def wait_for_reader() -> None:
        os.close(os.open(pipe, os.O_WRONLY))
        has_seen_us.set()

    waiting = threading.Thread(target=wait_for_reader)
    waiting.start()
    try:
        for _ in range(200):
            assert_refused(confined(open_folder), open_folder / "link")
        assert not has_seen_us.is_set()
    finally:
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        waiting.join()
        os.close(reader)


def handles_on_the_way_to(folder: Path) -> list[str]:
    """List what of a folder and of all above it is open; others of this process open the rest."""
    found = []
    for handle in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # it was the one of the listing
            place = handle.readlink()
            if folder.is_relative_to(place) or place.is_relative_to(folder):
                found.append(str(place))
    return sorted(found)


def test_handles_are_closed(open_folder: Path, secret_file: Path) -> None:
    (open_folder / "link").symlink_to(secret_file)
    folder = open_folder.parent
    before = handles_on_the_way_to(folder)
    with (open_folder / "file").open():
        assert len(handles_on_the_way_to(folder)) == len(before) + 1
    for _ in range(5):
        [*read_each_way(confined(open_folder), open_folder / "file")]
        assert_refused(confined(open_folder), open_folder / "link")
        with pytest.raises(ObjectNotFoundError):
            run_blocking(confined(open_folder).head(key_of(open_folder / "below")))
    assert handles_on_the_way_to(folder) == before


def test_error_says_what_to_authorise(open_folder: Path, secret_file: Path) -> None:
    (open_folder / "link").symlink_to(secret_file)
    with pytest.raises(InvalidInputError) as caught:
        run_blocking(confined(open_folder).get(key_of(open_folder / "link")))
    assert f"'file://{secret_file.parent}/': icefloe.credentials" in str(caught.value)
    assert str(secret_file) in str(caught.value)


class TestBothWays:
    drive = StorageConformance.drive

    @driven
    async def test_confinement_holds_on_a_loop_too(
        self, open_folder: Path, secret_file: Path
    ) -> None:
        (open_folder / "link").symlink_to(secret_file)
        backend = confined(open_folder)
        assert bytes((await backend.get(key_of(open_folder / "file"))).data) == PUBLIC
        with pytest.raises(InvalidInputError):
            await backend.get(key_of(open_folder / "link"))

    @driven
    async def test_nothing_is_written_or_listed(self, open_folder: Path) -> None:
        backend, key = confined(open_folder), key_of(open_folder / "new")
        with pytest.raises(ReadOnlyError):
            await backend.put(key, b"x")
        with pytest.raises(ReadOnlyError):
            await backend.copy(key_of(open_folder / "file"), key)
        with pytest.raises(ReadOnlyError):
            await backend.delete_many([key_of(open_folder / "file")])
        with pytest.raises(StorageError):
            await keys_of(backend)
        assert sorted(os.listdir(open_folder)) == ["below", "file"]  # noqa: PTH208


def test_confinement_travels(open_folder: Path, secret_file: Path) -> None:
    (open_folder / "link").symlink_to(secret_file)
    storage = Storage(LocalSpec("/", encodes_keys=False, confined_to=(str(open_folder),)))
    arrived = pickle.loads(pickle.dumps(storage))
    assert arrived == storage
    assert_refused(arrived.open(), open_folder / "link")
