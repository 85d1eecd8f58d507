"""Our files in place of the reference's own: it must not notice, and must work on top of them."""

import shutil
from functools import cache
from typing import Any

import icechunk as ic
import pytest

from icefloe.format.locations import LocationCompression
from tests.interop.agreeing import assert_agreement
from tests.interop.conftest import CopyOf
from tests.interop.continuing import carry_on
from tests.interop.observing import observe
from tests.interop.reference import BUILDERS, Place, array_at
from tests.interop.rewriting import Kind, rewrite

pytestmark = pytest.mark.interop

EVERYTHING = frozenset(Kind)
CHOICES: dict[str, tuple[frozenset[Kind], LocationCompression | None]] = {
    "repo": (frozenset({Kind.REPO}), None),
    "backups": (frozenset({Kind.BACKUPS}), None),
    "snapshots": (frozenset({Kind.SNAPSHOTS}), None),
    "manifests": (frozenset({Kind.MANIFESTS}), None),
    "compressed manifests": (frozenset({Kind.MANIFESTS}), LocationCompression(min_num_chunks=1)),
    "logs": (frozenset({Kind.LOGS}), None),
    "everything": (EVERYTHING, None),
}
CASES: dict[str, list[str]] = {
    "varied-v1": ["snapshots", "manifests", "logs", "everything"],
    "varied-v2": [*CHOICES],
    "migrated-v2": ["repo", "snapshots", "manifests", "logs", "everything"],
    "many-v1": ["manifests", "everything"],
    "many-v2": ["manifests", "compressed manifests", "everything"],
    "ops-log-v2": ["repo", "backups", "everything"],
    "split-v1": ["everything"],
    "split-v2": ["everything"],
    "expired-v1": ["everything"],
    "expired-v2": ["repo", "everything"],
}


@pytest.fixture(scope="session")
def observed(original: CopyOf) -> Any:
    return cache(lambda name: observe(original(name).open()))


@pytest.mark.parametrize(
    ("name", "choice"), [(name, choice) for name in BUILDERS for choice in CASES[name]]
)
def test_our_files_in_place_of_its_own_read_the_same(
    name: str, choice: str, copy_of: CopyOf, observed: Any
) -> None:
    place = copy_of(name)
    kinds, compression = CHOICES[choice]
    replaced = rewrite(place.path, kinds, compression)
    assert replaced > 0
    assert observe(place.open()) == observed(name)


@pytest.mark.parametrize("spec", [1, 2])
def test_the_reference_works_on_top_of_our_files(
    spec: int, copy_of: CopyOf, original: CopyOf
) -> None:
    ours = copy_of(f"varied-v{spec}")
    theirs = Place(ours.path.parent / "untouched", ours.virtual)
    shutil.copytree(original(f"varied-v{spec}").path, theirs.path)
    rewrite(ours.path, EVERYTHING)
    assert carry_on(ours) == carry_on(theirs)
    assert_agreement(ours)


@pytest.mark.parametrize("name", ["many-v1", "many-v2"])
def test_the_reference_edits_our_manifests_of_many_blocks(name: str, copy_of: CopyOf) -> None:
    place = copy_of(name)
    rewrite(place.path, EVERYTHING)
    session = place.open().writable_session("main")
    array_at(session, "cube")[0, 0, :3] = 5
    array_at(session, "line").resize((1000,))
    session.commit("touch manifests of ours")
    decoded = assert_agreement(place)
    [snapshot] = [
        one for one in decoded.snapshots.values() if one.message == "touch manifests of ours"
    ]
    assert sorted(snapshot.manifests.num_chunk_refs.tolist()) == [1000, 1199]


@pytest.mark.parametrize("spec", [1, 2])
def test_the_reference_rebases_over_our_transaction_log(spec: int, copy_of: CopyOf) -> None:
    place = copy_of(f"split-v{spec}")
    repo = place.open()
    meets = repo.writable_session("main")
    array_at(meets, "grid")[0, 0] = 1
    passes = repo.writable_session("main")
    array_at(passes, "line")[9] = 9
    other = repo.writable_session("main")
    array_at(other, "grid")[0, :2] = 7
    other.commit("in between")
    # Open sessions remember the sizes of manifests, so those stay.
    rewrite(place.path, {Kind.LOGS, Kind.REPO})
    passes.commit("no conflict", rebase_with=ic.ConflictDetector())
    with pytest.raises(ic.RebaseFailedError) as failure:
        meets.commit("conflict", rebase_with=ic.ConflictDetector())
    [conflict] = failure.value.conflicts
    assert (conflict.path, conflict.conflicted_chunks) == ("/grid", [[0, 0]])


@pytest.mark.parametrize(
    ("compression", "expected"),
    [(None, {0}), (LocationCompression(min_num_chunks=1000), {0, 1590})],
)
def test_our_locations_are_compressed_only_when_asked_for(
    compression: LocationCompression | None, expected: set[int], copy_of: CopyOf
) -> None:
    place = copy_of("many-v2")
    rewrite(place.path, {Kind.MANIFESTS}, compression)
    repo = place.open()
    files = repo.list_manifest_files(repo.lookup_branch("main"))
    about = [repo.inspect_manifest(file.id)["compression"] for file in files]
    # The other manifest has one location, which trains no dictionary.
    assert {one["num_compressed_refs"] for one in about} == expected
