"""Migration of a long history from spec 1 to spec 2."""

from collections.abc import Mapping
from types import ModuleType
from typing import Any, Final

import zarr

import icefloe
from bench.engine_location import Location, seconds_of
from bench.engine_rows import Group, Row, Scale

_COMMITS: Final = 1000


def _migrate(lib: ModuleType, location: Location, scale: Scale) -> Mapping[str, float]:
    """Migrate one repository with many commits; first say what would be done."""
    _build(location, scale.of(_COMMITS, 50))
    repo = location.open(lib)
    return {
        "dry run": seconds_of(lambda: lib.upgrade_icechunk_repository(repo, dry_run=True)),
        "migration": seconds_of(lambda: lib.upgrade_icechunk_repository(repo, dry_run=False)),
    }


def _build(location: Location, commits: int) -> None:
    """Write the history with ours, for both: that is not what is measured."""
    repo = location.create(icefloe, spec_version=1)
    session = repo.writable_session("main")
    for name in ("t2m", "pressure", "wind"):
        zarr.create_array(session.store, name=name, shape=2000, chunks=1, dtype="i4")
    session.commit("arrays")
    for number in range(commits):
        session = repo.writable_session("main")
        array: Any = zarr.open_array(session.store, path="t2m")
        array[number % 2000] = number + 1
        session.commit(f"commit {number}", {"author": "bench", "number": number})


GROUPS: Final = {
    "migrate": Group(
        _migrate,
        (
            Row("migration", "migrate a history of 1,000 commits", 1.0),
            Row("dry run", "… as a dry run"),
        ),
    ),
    "migrate on s3": Group(
        _migrate,
        (
            Row("migration", "migrate a history of 1,000 commits on S3", 1.0),
            Row("dry run", "… as a dry run"),
        ),
        on_s3=True,
        rounds=1,
    ),
}
