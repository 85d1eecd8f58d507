"""What repair leaves, the reference opens, reads and goes on with."""

import random
from pathlib import Path
from typing import Any

import icechunk as ic
import pytest
import zarr

import icefloe
from icefloe.format.ids import INITIAL_SNAPSHOT_ID
from tests.interop.test_maintenance import Random, arrays, opened, reference_at

pytestmark = pytest.mark.interop

DAMAGES = ("beginning", "backups", "snapshots", "manifests", "chunks", "transactions")
CASES = [
    (spec, damage) for spec in (1, 2) for damage in DAMAGES if (spec, damage) != (1, "backups")
]


def history(path: Path, spec: int) -> Random:
    done = Random(path, spec, random.Random(5))
    done.do(12)
    return done


def damage(path: Path, spec: int, what: str) -> None:
    """Lose what every repository begins with, or some file of a kind."""
    beginning = path / ("repo" if spec == 2 else "refs/branch.main/ref.json")
    match what:
        case "beginning":
            beginning.write_bytes(b"torn")
        case "backups":
            beginning.unlink()
            for backup in (path / "overwritten").iterdir():
                backup.unlink()
        case kind:
            tip = reference_at(path).lookup_branch("main")
            names = sorted(each.name for each in (path / kind).iterdir())
            lost = [name for name in names if name not in (str(INITIAL_SNAPSHOT_ID), tip)]
            (path / kind / lost[len(lost) // 2]).unlink()


@pytest.mark.parametrize(("spec", "what"), CASES)
def test_the_reference_goes_on_after_a_repair(tmp_path: Path, spec: int, what: str) -> None:
    path = tmp_path / "repo"
    before = history(path, spec).repo
    expected = arrays(before, before.lookup_branch("main"))
    damage(path, spec, what)
    report = icefloe.Repository.repair_storage(
        icefloe.local_filesystem_storage(str(path)),
        dry_run=False,
        recover_versions=True,
        drop_lost_versions=True,
        drop_lost_references=True,
        drop_damaged_versions=True,
        rebuild_logs=True,
    )
    tagged = {opened(path).lookup_tag(name) for name in opened(path).list_tags()}
    left = [one for one in report.after.damages if not tagged.intersection(one.versions)]
    assert left == []
    repo = reference_at(path)
    damaged = {one for each in report.after.damages for one in each.versions}
    for name in repo.list_branches():
        for version in repo.ancestry(branch=name):
            if version.id != str(INITIAL_SNAPSHOT_ID) and version.id not in damaged:
                assert arrays(repo, version.id) == arrays(opened(path), version.id)
    if what in ("manifests", "chunks"):
        now = arrays(repo, repo.lookup_branch("main"))
        assert all(
            value in (0, was)
            for name in expected
            for value, was in zip(now[name], expected[name], strict=True)
        )
    elif what in ("snapshots", "transactions"):
        assert arrays(repo, repo.lookup_branch("main")) == expected
    else:
        tips = [repo.lookup_branch(name) for name in repo.list_branches()]
        found = [arrays(repo, tip) for tip in tips if tip != str(INITIAL_SNAPSHOT_ID)]
        assert expected in found
    continued(repo, path)


def continued(repo: ic.Repository, path: Path) -> None:
    session = repo.writable_session("main")
    array: Any = zarr.open_array(session.store, path="a")
    array[:] = 7
    new = session.commit("goes on")
    assert arrays(opened(path), new)["a"] == [7] * len(array[:])
