"""Branches, tags, resets and settings that commands made, read by the reference."""

from pathlib import Path

import icechunk as ic
import numpy as np
import pytest
import zarr
from typer.testing import CliRunner

from icefloe.cli.main import app

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("spec", [1, 2])
def test_the_reference_reads_what_commands_did(tmp_path: Path, spec: int) -> None:
    path = tmp_path / "repo"

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(app, [*arguments])
        assert result.exit_code == 0, result.output
        return result.stdout

    run("create", str(path), "--spec-version", str(spec))
    theirs = ic.Repository.open(ic.local_filesystem_storage(str(path)))
    snapshots = []
    for number in range(3):
        session = theirs.writable_session("main")
        zarr.create_array(
            session.store, name="a", shape=4, chunks=2, dtype="i4", fill_value=0, overwrite=True
        )[:] = number
        snapshots.append(session.commit(f"no. {number}"))
    run("branch", "create", str(path), "older", snapshots[0][:8])
    run("branch", "create", str(path), "gone")
    run("branch", "delete", str(path), "gone", "--yes")
    run("tag", "create", str(path), "v1", snapshots[1][:8].lower())
    run("tag", "create", str(path), "lost")
    run("tag", "delete", str(path), "lost", "--yes")
    run("branch", "reset", str(path), "main", "v1", "--yes")
    run("config", "set", str(path), "inline_chunk_threshold_bytes=99")
    run("container", "add", str(path), "s3://era5/", "--region", "us-east-1")

    theirs = ic.Repository.open(ic.local_filesystem_storage(str(path)))
    assert theirs.list_branches() == {"main", "older"}
    assert theirs.list_tags() == {"v1"}
    assert theirs.lookup_branch("older") == snapshots[0]
    assert theirs.lookup_branch("main") == theirs.lookup_tag("v1") == snapshots[1]
    array = zarr.open_array(theirs.readonly_session(tag="v1").store, path="a", mode="r")
    assert np.asarray(array[:]).tolist() == [1, 1, 1, 1]
    assert theirs.config.inline_chunk_threshold_bytes == 99
    assert list(theirs.config.virtual_chunk_containers or {}) == ["s3://era5/"]
    [line, *_] = run("log", str(path)).splitlines()
    assert snapshots[1][:8] in line
    assert "(main, tag: v1) no. 1" in line
