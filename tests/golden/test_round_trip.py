"""What was decoded from a golden file, encoded by us and decoded again, is the same."""

import pytest

from icefloe.format.envelope import FileType, open_envelope
from icefloe.format.ids import INITIAL_SNAPSHOT_ID
from icefloe.format.locations import LocationCompression
from icefloe.format.manifest import ManifestFile, encode_manifest
from icefloe.format.repo_info import decode_repo_info, encode_repo_info
from icefloe.format.snapshot import decode_snapshot, encode_snapshot
from icefloe.format.transaction_log import decode_transaction_log, encode_transaction_log
from icefloe.records import replace
from tests.golden import describe
from tests.golden.files import GOLDEN
from tests.unit.format import oracle
from tests.unit.format.samples import expanded


def files(*folders: str) -> pytest.MarkDecorator:
    found = [
        path
        for path in sorted(GOLDEN.rglob("*"))
        if path.is_file() and (path.parent.name in folders or path.name in folders)
    ]
    assert found
    cases = [pytest.param(path.read_bytes(), id=str(path.relative_to(GOLDEN))) for path in found]
    return pytest.mark.parametrize("data", cases)


@files("snapshots")
@pytest.mark.parametrize("spec_version", [1, 2])
def test_snapshots(data: bytes, spec_version: int) -> None:
    written = decode_snapshot(data)
    parent = written.parent_id if spec_version == 1 else None
    ours = encode_snapshot(replace(written, spec_version=spec_version, parent_id=parent))
    read = decode_snapshot(ours)
    assert read.parent_id == parent
    assert read.spec_version == spec_version
    expected = describe.snapshot(written, data)
    found = describe.snapshot(read, ours)
    del expected["header"], found["header"]
    assert found == expected
    assert read.nodes.user_data == written.nodes.user_data


@files("transactions")
@pytest.mark.parametrize("spec_version", [1, 2])
def test_transaction_logs(data: bytes, spec_version: int) -> None:
    written = decode_transaction_log(data)
    ours = encode_transaction_log(written, spec_version=spec_version)
    assert oracle.read_log(expanded(ours)) == oracle.read_log(expanded(data))
    assert open_envelope(ours).spec_version == spec_version


@files("manifests")
@pytest.mark.parametrize("spec_version", [1, 2])
def test_manifests(data: bytes, spec_version: int) -> None:
    written = ManifestFile(data)
    ours = ManifestFile(encode_manifest(written.id, written.tables(), spec_version=spec_version))
    assert ours.id == written.id
    assert ours.tables() == written.tables()


@files("manifests")
def test_manifests_with_compressed_locations(data: bytes) -> None:
    written = ManifestFile(data)
    compression = LocationCompression(min_num_chunks=1)
    ours = encode_manifest(written.id, written.tables(), location_compression=compression)
    assert ManifestFile(ours).tables() == written.tables()


def test_our_own_dictionary_is_used() -> None:
    [path] = (GOLDEN / "v2-compressed-locations" / "manifests").iterdir()
    written = ManifestFile(path.read_bytes())
    ours = encode_manifest(written.id, written.tables(), location_compression=LocationCompression())
    assert oracle.compressed_references(expanded(ours)) == 1100
    stored = oracle.dictionary(expanded(ours))
    assert stored is not None
    assert len(stored) <= 2048
    assert ManifestFile(ours).tables() == written.tables()
    few = encode_manifest(
        written.id,
        written.tables(),
        location_compression=LocationCompression(min_num_chunks=1101),
    )
    assert oracle.compressed_references(expanded(few)) == 0
    old = encode_manifest(
        written.id,
        written.tables(),
        spec_version=1,
        location_compression=LocationCompression(),
    )
    assert oracle.compressed_references(expanded(old)) == 0


@files("repo", "overwritten")
def test_repo_objects(data: bytes) -> None:
    if open_envelope(data).file_type is not FileType.REPO_INFO:
        pytest.fail("only repo objects are backed up in spec 2")
    written = decode_repo_info(data)
    ours = encode_repo_info(written)
    assert oracle.read_repo(expanded(ours)) == oracle.read_repo(expanded(data))
    read = decode_repo_info(ours)
    assert describe.repo_info(read, data) == describe.repo_info(written, data)
    assert read.status == written.status
    assert read.config == written.config


def test_repo_objects_start_at_the_same_snapshot() -> None:
    for path in GOLDEN.glob("v2-*/repo"):
        repo = decode_repo_info(path.read_bytes())
        assert repo.snapshots.row_of(INITIAL_SNAPSHOT_ID) is not None
