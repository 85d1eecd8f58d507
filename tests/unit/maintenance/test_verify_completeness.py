"""`verify` against an independent checker: each finds what the other finds.

Files of repositories are damaged in one way after the other, field by field. A damage that only
one of the two reports is a blind spot of the other, unless the reason is listed here.
"""

import pytest

from icefloe.effects import run_blocking
from icefloe.errors import RepositoryNotFoundError
from icefloe.maintenance.verify.run import VerificationRules, verify
from icefloe.maintenance.verify.versions import BackupRules
from icefloe.testing.stored_files import DecodedFiles, kept_in_memory
from tests.support.damages import damaged_fields, damaged_files
from tests.support.invariants import StoredInvariants
from tests.unit.testing.small_repository import SmallRepository
from tests.unit.testing.test_invariants import BROKEN, V1_BROKEN, golden_files

pytestmark = pytest.mark.slow

_EVERYTHING = VerificationRules(backups=BackupRules(most=None))
_SORTED_BUT_NOT_SEARCHED = "no reader searches these lists, so that their order harms nobody"
_OLD_STATE = "only the log of operations is read of a backup, until a repair puts the backup back"

ONLY_INDEPENDENT = {
    "repo Repo.metadata swapped": _SORTED_BUT_NOT_SEARCHED,
    "snapshots Snapshot.metadata swapped": _SORTED_BUT_NOT_SEARCHED,
    "overwritten Repo.branches swapped": _OLD_STATE,
    "overwritten Repo.tags swapped": _OLD_STATE,
    "overwritten SnapshotInfo.metadata doubled": _OLD_STATE,
}
"""Damages that `verify` does not report, and why it need not."""
ONLY_VERIFY = {
    "config.yaml halved": "the independent checker does not read YAML",
    "torn configuration": "the independent checker does not read YAML",
}
"""Damages that the independent checker does not report."""


def verified(files: dict[str, bytes], decoded: DecodedFiles) -> list[str]:
    try:
        backend = run_blocking(kept_in_memory(files))
        found = run_blocking(verify(backend, _EVERYTHING, files_of=decoded.reader))
    except RepositoryNotFoundError as failure:
        return [str(failure)]
    assert not found.unchecked
    return [damage.message for damage in found.damages]


GOLDEN_REPOSITORIES = [
    "v1-basic",
    "v1-expired",
    "v1-split",
    "v2-basic",
    "v2-expired",
    "v2-migrated",
    "v2-ops-log",
    "v2-split",
]


@pytest.mark.parametrize("name", GOLDEN_REPOSITORIES)
def test_whatever_is_damaged_both_find_it(name: str) -> None:
    files, decoded = golden_files(name), DecodedFiles()
    assert StoredInvariants().violations(files) == verified(files, decoded) == []
    found = 0
    for damages in (damaged_files(files), damaged_fields(files)):
        for damage in damages:
            independent = StoredInvariants().violations(damage.files)
            ours = verified(dict(damage.files), decoded)
            where = f"{damage.kind} in {damage.key}: {independent or ours}"
            if damage.kind not in ONLY_INDEPENDENT:
                assert ours or not independent, f"only the independent checker finds {where}"
            if damage.kind not in ONLY_VERIFY:
                assert independent or not ours, f"only verify finds {where}"
            found += bool(independent)
    assert found > len(files), "most damages are found at all"


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_on_purpose_is_found_independently(name: str) -> None:
    repository = SmallRepository()
    assert StoredInvariants().violations(repository.files) == []
    break_it, _ = BROKEN[name]
    break_it(repository)
    assert StoredInvariants().violations(repository.files)


@pytest.mark.parametrize("name", V1_BROKEN.keys() - ONLY_VERIFY.keys())
def test_what_is_broken_in_spec_1_is_found_independently(name: str) -> None:
    files = golden_files("v1-basic")
    break_it, _ = V1_BROKEN[name]
    break_it(files)
    assert StoredInvariants().violations(files)
