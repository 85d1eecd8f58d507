"""Small chunks in shared objects: nothing is lost, whatever the storage and threads do."""

import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import pytest

from icefloe.effects import run_blocking
from icefloe.errors import ErrorKind, InvalidInputError, StorageError
from icefloe.format.chunk_table import NativeChunk
from icefloe.format.ids import ChunkId
from icefloe.storage.port import Buffer
from icefloe.transactions.packing import ChunkPacker, PackingOptions


class ObjectsInMemory:
    """Chunk objects in a dictionary, with a switch that makes storing fail."""

    def __init__(self) -> None:
        self.objects: dict[ChunkId, bytes] = {}
        self.is_away = False
        self.gate: threading.Event | None = None

    async def save_chunk(self, chunk_id: ChunkId, data: Buffer, /) -> None:
        if self.gate is not None:
            self.gate.wait(10)
        if self.is_away:
            raise StorageError("the storage is away", retryable=True)
        self.objects[chunk_id] = bytes(data)

    def read(self, ref: NativeChunk) -> bytes:
        return self.objects[ref.id][ref.offset : ref.offset + ref.length]


@pytest.fixture
def storage() -> ObjectsInMemory:
    return ObjectsInMemory()


def make_packer(storage: ObjectsInMemory) -> ChunkPacker:
    return ChunkPacker(storage, PackingOptions(max_chunk_bytes=8, pack_bytes=16))


def add_all(packer: ChunkPacker, chunks: Iterable[Buffer]) -> list[NativeChunk]:
    return [run_blocking(packer.add(chunk)) for chunk in chunks]


def test_chunks_share_an_object(storage: ObjectsInMemory) -> None:
    packer = make_packer(storage)
    refs = add_all(packer, [b"first", b"second"])
    assert refs[0].id == refs[1].id
    assert (refs[1].offset, refs[1].length) == (5, 6)
    assert storage.objects == {}
    run_blocking(packer.flush())
    assert [storage.read(ref) for ref in refs] == [b"first", b"second"]


def test_bytes_are_readable_before_they_are_stored_and_not_held_after(
    storage: ObjectsInMemory,
) -> None:
    packer = make_packer(storage)
    [ref] = add_all(packer, [b"chunk"])
    held = packer.pending(ref)
    assert held is not None
    assert bytes(held) == b"chunk"
    run_blocking(packer.flush())
    assert packer.pending(ref) is None


def test_a_copy_is_taken(storage: ObjectsInMemory) -> None:
    packer = make_packer(storage)
    mine = bytearray(b"before")
    [ref] = add_all(packer, [mine])
    mine[:] = b"after!"
    run_blocking(packer.flush())
    assert storage.read(ref) == b"before"


def test_a_full_pack_is_stored_at_once(storage: ObjectsInMemory) -> None:
    packer = make_packer(storage)
    refs = add_all(packer, [b"12345678", b"abcdefgh", b"next"])
    assert list(storage.objects.values()) == [b"12345678abcdefgh"]
    assert refs[2].id != refs[0].id
    assert refs[2].offset == 0


def test_flushing_nothing_stores_nothing(storage: ObjectsInMemory) -> None:
    packer = make_packer(storage)
    run_blocking(packer.flush())
    [ref] = add_all(packer, [b"one"])
    run_blocking(packer.flush())
    run_blocking(packer.flush())
    assert list(storage.objects) == [ref.id]


def test_after_a_flush_a_new_pack_begins(storage: ObjectsInMemory) -> None:
    packer = make_packer(storage)
    [before] = add_all(packer, [b"one"])
    run_blocking(packer.flush())
    [after] = add_all(packer, [b"two"])
    assert before.id != after.id


def test_a_failure_loses_nothing_and_is_mended_by_flush(storage: ObjectsInMemory) -> None:
    packer = make_packer(storage)
    refs = add_all(packer, [b"12345678", b"abcdefgh"])
    storage.is_away = True
    with pytest.raises(StorageError):
        add_all(packer, [b"third"])
    with pytest.raises(StorageError):
        run_blocking(packer.flush())
    held = [packer.pending(ref) for ref in refs]
    assert [bytes(data) for data in held if data is not None] == [b"12345678", b"abcdefgh"]
    storage.is_away = False
    run_blocking(packer.flush())
    assert [storage.read(ref) for ref in refs] == [b"12345678", b"abcdefgh"]


def test_memory_does_not_fill_while_the_storage_is_away(storage: ObjectsInMemory) -> None:
    packer = make_packer(storage)
    refs = add_all(packer, [b"12345678", b"abcdefgh"])
    storage.is_away = True
    for _ in range(100):
        with pytest.raises(StorageError):
            add_all(packer, [b"x" * 8])
    storage.is_away = False
    run_blocking(packer.flush())
    assert len(storage.objects) <= 2
    assert storage.read(refs[0]) == b"12345678"


def test_after_a_failure_the_next_chunk_stores_what_was_left(storage: ObjectsInMemory) -> None:
    packer = make_packer(storage)
    refs = add_all(packer, [b"12345678", b"abcdefgh"])
    storage.is_away = True
    with pytest.raises(StorageError):
        add_all(packer, [b"third"])
    storage.is_away = False
    add_all(packer, [b"fourth"])
    assert storage.read(refs[0]) == b"12345678"


def test_slow_storages_slow_writers_down(storage: ObjectsInMemory) -> None:
    """While too many full packs wait to be stored, chunks get objects of their own."""
    packer = make_packer(storage)
    storage.gate = threading.Event()
    with ThreadPoolExecutor(32) as pool:
        futures = [pool.submit(add_all, packer, [bytes([n]) * 8]) for n in range(200)]
        storage.gate.set()
        refs = [future.result()[0] for future in futures]
    run_blocking(packer.flush())
    assert [storage.read(ref) for ref in refs] == [bytes([n]) * 8 for n in range(200)]


def test_many_threads_lose_nothing(storage: ObjectsInMemory) -> None:
    packer = make_packer(storage)
    chunks = [str(n).encode() for n in range(4000)]

    def work(part: int) -> list[tuple[bytes, NativeChunk]]:
        own = chunks[part::8]
        return list(zip(own, add_all(packer, own), strict=True))

    with ThreadPoolExecutor(8) as pool:
        written = [pair for found in pool.map(work, range(8)) for pair in found]
    run_blocking(packer.flush())
    assert len(written) == 4000
    assert all(storage.read(ref) == chunk for chunk, ref in written)
    assert all(len(stored) <= 16 for stored in storage.objects.values())


def test_flush_waits_for_nobody_and_stores_what_others_are_storing(
    storage: ObjectsInMemory,
) -> None:
    packer = make_packer(storage)
    refs = add_all(packer, [b"12345678", b"abcdefgh"])
    storage.gate = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        adding = pool.submit(add_all, packer, [b"third"])
        flushing = pool.submit(run_blocking, packer.flush())
        storage.gate.set()
        flushing.result()
        assert storage.read(refs[0]) == b"12345678"
        adding.result()


def test_discarded_chunks_are_not_stored(storage: ObjectsInMemory) -> None:
    packer = make_packer(storage)
    [ref] = add_all(packer, [b"gone"])
    packer.discard()
    run_blocking(packer.flush())
    assert storage.objects == {}
    assert packer.pending(ref) is None


def test_larger_chunks_are_not_packed(storage: ObjectsInMemory) -> None:
    packer = make_packer(storage)
    assert packer.accepts(8)
    assert not packer.accepts(9)
    with pytest.raises(InvalidInputError, match="too large for a pack"):
        add_all(packer, [b"123456789"])


@pytest.mark.parametrize(("chunk", "pack"), [(0, 16), (17, 16), (-1, 16)])
def test_options_must_make_sense(chunk: int, pack: int) -> None:
    with pytest.raises(InvalidInputError) as caught:
        PackingOptions(max_chunk_bytes=chunk, pack_bytes=pack)
    assert caught.value.kind == ErrorKind.INVALID_CONFIG
