"""Files are loaded once, checked against their names, and saved as readers expect them."""

import asyncio
import threading

import numpy as np
import pytest

from icefloe import assets as assets_module
from icefloe.assets import Assets, EncodedManifest
from icefloe.config import (
    CachingConfig,
    CompressionConfig,
    ManifestConfig,
    ManifestVirtualChunkLocationCompressionConfig,
    RepositoryConfig,
    SpecVersion,
    effective_config,
)
from icefloe.effects import map_concurrently, run_blocking
from icefloe.errors import (
    ErrorKind,
    FormatError,
    ObjectNotFoundError,
    SnapshotNotFoundError,
    StorageError,
)
from icefloe.format.chunk_table import ChunkTable
from icefloe.format.columns import BytesColumn
from icefloe.format.ids import ChunkId, ManifestId, NodeId, SnapshotId
from icefloe.format.layout import chunk_key, manifest_key, snapshot_key, transaction_log_key
from icefloe.format.manifest import Manifest, ManifestFile
from icefloe.format.snapshot import Snapshot
from icefloe.format.transaction_log import TransactionLog
from icefloe.storage import LatencyStorage, Storage

COMPRESSED_FROM_900 = RepositoryConfig(
    manifest=ManifestConfig(
        virtual_chunk_location_compression=ManifestVirtualChunkLocationCompressionConfig(900)
    )
)


def assets_of(
    storage: Storage, config: RepositoryConfig | None = None, spec_version: int = SpecVersion.v2
) -> Assets:
    return Assets(storage.open(), effective_config(config), spec_version)


def saved_manifest(assets: Assets, arrays: dict[NodeId, ChunkTable]) -> EncodedManifest:
    manifest = run_blocking(assets.encode_manifest(arrays))
    run_blocking(assets.save_manifest(manifest))
    return manifest


def table_of(count: int) -> ChunkTable:
    coordinates = np.arange(count, dtype=np.uint32).reshape(-1, 1)
    return ChunkTable.inlined(coordinates, BytesColumn.from_list([b"%d" % n for n in range(count)]))


def virtual_table(count: int) -> ChunkTable:
    return ChunkTable.virtual(
        np.arange(count, dtype=np.uint32).reshape(-1, 1),
        BytesColumn.from_strings([f"s3://bucket/a/folder/file-{n}.nc" for n in range(count)]),
        np.arange(count, dtype=np.uint64),
        np.ones(count, np.uint64),
    )


@pytest.fixture
def storage() -> Storage:
    return Storage.new_in_memory()


class TestSnapshots:
    @pytest.mark.parametrize("spec_version", [1, 2])
    def test_are_read_back(self, storage: Storage, spec_version: int) -> None:
        snapshot = Snapshot(SnapshotId.random(), 5, "hello", spec_version=spec_version)
        run_blocking(assets_of(storage, spec_version=spec_version).save_snapshot(snapshot))
        loaded = run_blocking(assets_of(storage).load_snapshot(snapshot.id))
        assert (loaded.id, loaded.message, loaded.flushed_at) == (snapshot.id, "hello", 5)

    def test_are_loaded_once(self, storage: Storage) -> None:
        snapshot = Snapshot(SnapshotId.random(), 5, "hello")
        run_blocking(assets_of(storage).save_snapshot(snapshot))
        assets = assets_of(storage)
        storage.reset_request_counts()
        first = run_blocking(assets.load_snapshot(snapshot.id))
        assert run_blocking(assets.load_snapshot(snapshot.id)) is first
        assert storage.request_counts().get == 1

    def test_that_were_saved_need_not_be_loaded(self, storage: Storage) -> None:
        assets = assets_of(storage)
        snapshot = Snapshot(SnapshotId.random(), 5, "hello")
        run_blocking(assets.save_snapshot(snapshot))
        assert run_blocking(assets.load_snapshot(snapshot.id)) is snapshot

    def test_missing(self, storage: Storage) -> None:
        missing = SnapshotId.random()
        with pytest.raises(SnapshotNotFoundError, match=str(missing)):
            run_blocking(assets_of(storage).load_snapshot(missing))

    def test_in_the_wrong_place(self, storage: Storage) -> None:
        snapshot, other = Snapshot(SnapshotId.random(), 5, "hello"), SnapshotId.random()
        run_blocking(assets_of(storage).save_snapshot(snapshot))
        run_blocking(storage.open().copy(snapshot_key(snapshot.id), snapshot_key(other)))
        with pytest.raises(FormatError, match="wrong place"):
            run_blocking(assets_of(storage).load_snapshot(other))

    def test_damaged_ones_name_their_key(self, storage: Storage) -> None:
        broken = SnapshotId.random()
        run_blocking(storage.open().put(snapshot_key(broken), b"junk"))
        with pytest.raises(FormatError) as caught:
            run_blocking(assets_of(storage).load_snapshot(broken))
        assert snapshot_key(broken) in "".join(caught.value.__notes__)


class TestManifests:
    def test_are_read_back_with_their_size(self, storage: Storage) -> None:
        node = NodeId.random()
        saved = saved_manifest(assets_of(storage), {node: table_of(10)})
        stored = run_blocking(storage.open().head(manifest_key(saved.id))).info
        assert len(saved.data) == stored.size_bytes
        loaded = run_blocking(assets_of(storage).load_manifest(saved.id, len(saved.data)))
        assert loaded.table(node) == table_of(10)

    def test_shorter_than_written_are_refused(self, storage: Storage) -> None:
        saved = saved_manifest(assets_of(storage), {NodeId.random(): table_of(10)})
        with pytest.raises(StorageError) as caught:
            run_blocking(assets_of(storage).load_manifest(saved.id, len(saved.data) + 1))
        assert caught.value.kind == ErrorKind.INVALID_OBJECT_SIZE

    def test_missing_ones_name_their_key(self, storage: Storage) -> None:
        missing = ManifestId.random()
        with pytest.raises(ObjectNotFoundError, match=manifest_key(missing)):
            run_blocking(assets_of(storage).load_manifest(missing))

    def test_forgotten_ones_are_loaded_anew(self, storage: Storage) -> None:
        assets = assets_of(storage)
        saved = saved_manifest(assets, {NodeId.random(): table_of(1)})
        first = run_blocking(assets.load_manifest(saved.id))
        assets.forget_manifests([saved.id])
        assert run_blocking(assets.load_manifest(saved.id)) is not first

    def test_no_room_for_references_keeps_none(self, storage: Storage) -> None:
        config = RepositoryConfig(caching=CachingConfig(num_chunk_refs=0))
        assets = assets_of(storage, config)
        saved = saved_manifest(assets, {NodeId.random(): table_of(1)})
        first = run_blocking(assets.load_manifest(saved.id))
        assert run_blocking(assets.load_manifest(saved.id)) is not first

    def test_small_ones_that_were_saved_need_not_be_loaded(self, storage: Storage) -> None:
        assets, node = assets_of(storage), NodeId.random()
        saved = saved_manifest(assets, {node: table_of(10)})
        storage.reset_request_counts()
        loaded = run_blocking(assets.load_manifest(saved.id, len(saved.data)))
        assert loaded.table(node) == table_of(10)
        assert storage.request_counts().get == 0

    def test_large_ones_are_not_kept_for_being_saved(self, storage: Storage) -> None:
        assets, node = assets_of(storage), NodeId.random()
        saved = saved_manifest(assets, {node: table_of(40_000)})
        assert len(saved.data) < 2**20, "small on storage, large in memory"
        storage.reset_request_counts()
        assert len(run_blocking(assets.load_manifest(saved.id)).table(node)) == 40_000
        assert storage.request_counts().get == 1

    @pytest.mark.parametrize("is_async", [True, False])
    def test_readers_at_the_same_time_share_one_request(
        self, storage: Storage, is_async: bool
    ) -> None:
        saved = saved_manifest(assets_of(storage), {NodeId.random(): table_of(1)})
        assets = assets_of(LatencyStorage(storage, read_latency_ms=20))
        storage.reset_request_counts()

        async def load_all() -> list[Manifest]:
            return await map_concurrently(assets.load_manifest, [saved.id] * 20, limit=20)

        found = asyncio.run(load_all()) if is_async else run_blocking(load_all())
        assert len({id(each) for each in found}) == 1
        assert storage.request_counts().get == 1

    def test_locations_are_compressed_as_configured_in_spec_2_only(self, storage: Storage) -> None:
        node = NodeId.random()
        for spec_version, count, expected in ((2, 900, True), (2, 899, False), (1, 900, False)):
            assets = assets_of(storage, COMPRESSED_FROM_900, spec_version=spec_version)
            saved = saved_manifest(assets, {node: virtual_table(count)})
            elsewhere = assets_of(storage, spec_version=spec_version)
            loaded = run_blocking(elsewhere.load_manifest(saved.id))
            assert isinstance(loaded, ManifestFile)
            assert loaded.has_location_dictionary is expected
            assert loaded.spec_version == spec_version
            assert loaded.table(node) == virtual_table(count)

    def test_locations_are_plain_unless_asked_otherwise(self, storage: Storage) -> None:
        node = NodeId.random()
        saved = saved_manifest(assets_of(storage), {node: virtual_table(2000)})
        loaded = run_blocking(assets_of(storage).load_manifest(saved.id))
        assert isinstance(loaded, ManifestFile)
        assert not loaded.has_location_dictionary

    def test_the_level_of_compression_is_the_configured_one(self, storage: Storage) -> None:
        def size_at(level: int) -> int:
            config = RepositoryConfig(compression=CompressionConfig(level=level))
            table = {NodeId(bytes(8)): virtual_table(900)}
            return len(saved_manifest(assets_of(storage, config), table).data)

        assert size_at(19) < size_at(1)


class Crowd:
    """Stands in the way of decoding until as many as expected are at it, and tells of more."""

    def __init__(self, expected: int) -> None:
        self._all_here = threading.Barrier(expected)
        self._one_more = threading.Barrier(expected + 1)
        self.was_exceeded = False

    def enter(self, data: bytes) -> ManifestFile:
        self._all_here.wait(timeout=60)
        try:
            self._one_more.wait(timeout=0.1)
        except threading.BrokenBarrierError:
            return ManifestFile(data)
        self.was_exceeded = True
        return ManifestFile(data)


class TestDecoding:
    @pytest.mark.parametrize("is_async", [True, False])
    @pytest.mark.parametrize("limit", [1, 2, 3])
    def test_as_many_at_once_as_configured(
        self, storage: Storage, monkeypatch: pytest.MonkeyPatch, limit: int, is_async: bool
    ) -> None:
        table = table_of(40_000)
        saved = [saved_manifest(assets_of(storage), {NodeId.random(): table}).id for _ in range(6)]
        crowd = Crowd(limit)
        monkeypatch.setattr(assets_module, "ManifestFile", crowd.enter)
        assets = assets_of(storage, RepositoryConfig(max_concurrent_decodes=limit))

        async def load_all() -> list[Manifest]:
            return await map_concurrently(assets.load_manifest, saved, limit=6)

        found = asyncio.run(load_all()) if is_async else run_blocking(load_all())
        assert [each.id for each in found] == saved
        assert not crowd.was_exceeded


class TestTransactionLogs:
    def test_are_read_back(self, storage: Storage) -> None:
        log = TransactionLog(SnapshotId.random())
        run_blocking(assets_of(storage).save_transaction_log(log))
        assert run_blocking(assets_of(storage).load_transaction_log(log.id)).id == log.id

    def test_are_kept_only_when_there_is_room(self, storage: Storage) -> None:
        log = TransactionLog(SnapshotId.random())
        roomy = RepositoryConfig(caching=CachingConfig(num_transaction_changes=1000))
        for config, gets in ((None, 2), (roomy, 1)):
            assets = assets_of(storage, config)
            run_blocking(assets_of(storage).save_transaction_log(log))
            storage.reset_request_counts()
            run_blocking(assets.load_transaction_log(log.id))
            run_blocking(assets.load_transaction_log(log.id))
            assert storage.request_counts().get == gets


class TestChunks:
    def test_ranges_are_exact(self, storage: Storage) -> None:
        assets, chunk = assets_of(storage), ChunkId.random()
        run_blocking(assets.save_chunk(chunk, b"0123456789"))
        assert bytes(run_blocking(assets.read_chunk(chunk, 3, 4))) == b"3456"

    def test_short_objects_are_refused_with_their_key(self, storage: Storage) -> None:
        assets, chunk = assets_of(storage), ChunkId.random()
        run_blocking(assets.save_chunk(chunk, b"0123"))
        with pytest.raises(StorageError, match=chunk_key(chunk)) as caught:
            run_blocking(assets.read_chunk(chunk, 2, 3))
        assert caught.value.kind == ErrorKind.INVALID_OBJECT_SIZE

    def test_missing_objects_name_their_key(self, storage: Storage) -> None:
        missing = ChunkId.random()
        with pytest.raises(ObjectNotFoundError, match=chunk_key(missing)):
            run_blocking(assets_of(storage).read_chunk(missing, 0, 1))

    def test_are_kept_when_there_is_room(self, storage: Storage) -> None:
        roomy = RepositoryConfig(caching=CachingConfig(num_bytes_chunks=6))
        chunk = ChunkId.random()
        for config, gets in ((None, 3), (roomy, 2)):
            assets = assets_of(storage, config)
            run_blocking(assets.save_chunk(chunk, b"0123456789"))
            storage.reset_request_counts()
            read = [bytes(run_blocking(assets.read_chunk(chunk, 0, n))) for n in (4, 4, 8)]
            assert read == [b"0123", b"0123", b"01234567"]
            assert storage.request_counts().requests == gets


def test_metadata_files_carry_their_attributes_and_chunks_none(storage: Storage) -> None:
    assets = assets_of(storage)
    snapshot = Snapshot(SnapshotId.random(), 5, "hello")
    run_blocking(assets.save_snapshot(snapshot))
    run_blocking(assets.save_transaction_log(TransactionLog(snapshot.id)))
    saved = saved_manifest(assets, {NodeId.random(): table_of(1)})
    chunk = ChunkId.random()
    run_blocking(assets.save_chunk(chunk, b"x"))
    types = {
        snapshot_key(snapshot.id): "snapshot",
        transaction_log_key(snapshot.id): "transaction-log",
        manifest_key(saved.id): "manifest",
    }
    for key, expected in types.items():
        attributes = run_blocking(storage.open().head(key)).attributes
        assert attributes["icfiletype"] == expected
        assert attributes["icspecver"] == "2"
    assert run_blocking(storage.open().head(chunk_key(chunk))).attributes == {}
