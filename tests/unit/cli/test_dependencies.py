"""`icefloe dependencies`: which foreign objects a repository needs."""

import json
from pathlib import Path
from typing import Any

import pytest
import zarr
from typer.testing import CliRunner, Result

import icefloe
from icefloe.cli.main import app


@pytest.fixture
def place(tmp_path: Path) -> str:
    config = icefloe.RepositoryConfig.default()
    config.set_virtual_chunk_container(
        icefloe.VirtualChunkContainer("s3://bucket/", icefloe.s3_store(region="eu-west-1"))
    )
    path = str(tmp_path / "repository")
    repository = icefloe.Repository.create(icefloe.local_filesystem_storage(path), config)
    with repository.transaction("main", message="all files") as store:
        zarr.create_array(store, name="t2m", shape=6, chunks=1, dtype="i4")
        for index in range(6):
            year = 2020 + index // 3
            location = f"s3://bucket/era5/{year}/{index}.nc"
            store.set_virtual_ref(f"t2m/c/{index}", location, offset=0, length=1000 + index)
    with repository.transaction("main", message="without the first") as store:
        store.delete_sync("t2m/c/0")
    return path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["dependencies", *arguments])


def rows(*arguments: str) -> list[dict[str, Any]]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = json.loads(result.stdout)["rows"]
    return found


def test_containers_by_default(place: str) -> None:
    result = run(place)
    assert result.exit_code == 0, result.output
    heading, row, total = result.stdout.splitlines()
    assert heading.split()[:3] == ["container", "chunks", "bytes"]
    assert row.split()[:4] == ["s3://bucket/", "5", "4.9", "KiB"]
    assert total == "1 in all: 5 chunks, 4.9 KiB"


def test_who_needs_a_file(place: str) -> None:
    lost = "s3://bucket/era5/2020/0.nc"
    assert rows(place, "--by", "array", "--prefix", lost) == []
    [row] = rows(place, "--by", "array", "--prefix", lost, "--all-versions")
    assert (row["place"], row["chunks"], row["bytes"], row["versions"]) == ("/t2m", 1, 1000, 1)
    assert row["newest_snapshot"] == row["oldest_snapshot"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--by", "bucket"), {"s3://bucket": 5}),
        (("--by", "prefix"), {"s3://bucket/era5/": 5}),
        (
            ("--by", "prefix", "--depth", "2"),
            {"s3://bucket/era5/2020/": 2, "s3://bucket/era5/2021/": 3},
        ),
        (("--by", "bucket", "--glob", "s3://bucket/*/2020/*.nc"), {"s3://bucket": 2}),
        (("--by", "file", "--glob", "**/5.nc"), {"s3://bucket/era5/2021/5.nc": 1}),
        (("--by", "bucket", "--all-versions"), {"s3://bucket": 5}),
    ],
)
def test_groups_and_choices(place: str, arguments: tuple[str, ...], expected: Any) -> None:
    assert {row["place"]: row["chunks"] for row in rows(place, *arguments)} == expected


def test_long_tables_are_cut_and_json_is_not(place: str) -> None:
    result = run(place, "--by", "file", "--max-rows", "2")
    assert len(result.stdout.splitlines()) == 4
    assert "5 in all: 5 chunks, 4.9 KiB (3 not shown)" in result.stdout
    assert len(rows(place, "--by", "file", "--max-rows", "2")) == 5


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--branch", "nope"), 3),
        (("--prefix", "nope/nope"), 5),
        (("--glob", "s3://[z-a]"), 5),
        (("--by", "planet"), 2),
    ],
)
def test_mistakes_have_their_exit_codes(place: str, arguments: tuple[str, ...], code: int) -> None:
    assert run(place, *arguments).exit_code == code
