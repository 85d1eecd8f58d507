"""What the reference writes now, we decode; and it means what the reference says it means."""

import pytest

from icefloe.format.update_table import UpdateKind
from tests.interop.agreeing import assert_agreement, full_log
from tests.interop.conftest import CopyOf
from tests.interop.reference import BUILDERS, EVERY_JSON_KIND
from tests.interop.rewriting import decode_all

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("name", BUILDERS)
def test_every_file_decodes_to_what_the_reference_says(name: str, original: CopyOf) -> None:
    decoded = assert_agreement(original(name))
    assert decoded.snapshots
    assert decoded.manifests or name == "ops-log-v2"


def test_the_repositories_hold_every_kind_of_operation(original: CopyOf) -> None:
    seen = {
        entry.kind
        for name in ("varied-v2", "expired-v2", "migrated-v2")
        for entry in full_log(decode_all(original(name).path))
    }
    assert seen == set(UpdateKind)


@pytest.mark.parametrize("name", ["varied-v1", "varied-v2", "migrated-v2"])
def test_metadata_of_every_json_kind_decodes(name: str, original: CopyOf) -> None:
    decoded = decode_all(original(name).path)
    [first] = [one for one in decoded.snapshots.values() if one.message == "first"]
    assert first.metadata == EVERY_JSON_KIND


def test_the_reference_compresses_locations_of_many(original: CopyOf) -> None:
    repo = original("many-v2").open()
    uses = [
        repo.inspect_manifest(file.id)["compression"]["uses_location_compression"]
        for file in repo.list_manifest_files(repo.lookup_branch("main"))
    ]
    assert all(uses)
