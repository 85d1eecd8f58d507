"""Globs, listings and names to columns, on any storage."""

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

import icefloe
from icefloe.errors import InvalidInputError, NotFoundError
from icefloe.pipeline.files.facts import SourceState
from icefloe.pipeline.files.sources import (
    SourceAccess,
    as_url,
    compile_glob,
    list_sources,
    root_of,
    sources_from_table,
)
from tests.support.servers import S3Endpoint


def names(states: list[SourceState]) -> list[str]:
    return [state.url.rpartition("/")[2] for state in states]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("a/1.nc", "a/2.nc", "a/deep/3.nc", "b/4.nc", "b/notes.txt", "a b/5%.nc"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * 7)
    return tmp_path


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("a/*.nc", ["1.nc", "2.nc"]),
        ("**/*.nc", ["5%25.nc", "1.nc", "2.nc", "3.nc", "4.nc"]),
        ("{a,b}/[!1]*.nc", ["2.nc", "4.nc"]),
        ("b/", ["4.nc", "notes.txt"]),
        ("?/[24].nc", ["2.nc", "4.nc"]),
    ],
)
def test_globs_on_local_files(tree: Path, pattern: str, expected: list[str]) -> None:
    text = f"{tree}/{pattern}"
    assert names(list_sources(text)) == expected


def test_the_states_of_a_listing(tree: Path) -> None:
    first, second = list_sources(tree / "a" / "*.nc")
    assert (first.size, second.size) == (7, 7)
    assert first.modified is not None
    assert first.modified / 1e6 == pytest.approx((tree / "a" / "1.nc").stat().st_mtime, abs=1e-5)
    assert first.etag != second.etag


def test_a_file_is_listed_once_and_names_need_no_request(tree: Path) -> None:
    given: list[str | Path] = [
        "s3://nowhere/x.nc",
        tree / "a" / "2.nc",
        tree / "a" / "*.nc",
        "s3://nowhere/x.nc",
    ]
    assert names(list_sources(given)) == ["x.nc", "2.nc", "1.nc"]


def test_a_pattern_that_matches_nothing_is_an_error(tree: Path) -> None:
    with pytest.raises(NotFoundError, match="no file matches"):
        list_sources(tree / "*.grib")


def test_folders_of_zarr_are_found_by_globs(tmp_path: Path) -> None:
    for name in (
        "1.zarr/zarr.json",
        "1.zarr/t/c/0/0",
        "b/2.zarr/.zgroup",
        "b/x.nc",
        "refs.parq/t/0",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"data")
    assert names(list_sources(tmp_path / "*.zarr")) == ["1.zarr"]
    assert names(list_sources(f"{tmp_path}/**/*.zarr/")) == ["1.zarr", "2.zarr"]
    assert names(list_sources(tmp_path / "*.parq")) == ["refs.parq"]
    [state] = list_sources(f"{tmp_path}/1.zarr/")
    assert state == SourceState((tmp_path / "1.zarr").as_uri())
    with pytest.raises(NotFoundError, match="no file matches"):
        list_sources(tmp_path / "b" / "*.parquet")


def test_names_with_unusual_signs_survive(tree: Path) -> None:
    [state] = list_sources(tree / "a b" / "*")
    assert Path("/" + SourceAccess().place(state.url).key) == tree / "a b" / "5%.nc"
    assert as_url(tree / "a b" / "5%.nc") == state.url


def test_a_table_of_urls_keeps_its_order() -> None:
    moment = datetime(2020, 1, 2, tzinfo=UTC)
    urls, moments = ["s3://b", "s3://a", "s3://b"], [moment, None, moment]
    table = pa.table({"url": urls, "size": [1, 2, 3], "modified": moments, "more": [0, 0, 0]})
    seconds = int(moment.timestamp())
    assert sources_from_table(table) == [
        SourceState("s3://b", 1, None, 1_000_000 * seconds),
        SourceState("s3://a", 2),
    ]
    with pytest.raises(InvalidInputError, match="has no URL"):
        sources_from_table(pa.table({"url": ["s3://a", None]}))
    with pytest.raises(InvalidInputError, match="column url"):
        sources_from_table(pa.table({"x": [1]}))


def test_the_longest_prefix_decides_which_storage_is_used(tree: Path) -> None:
    inner = icefloe.local_filesystem_storage(str(tree / "a"))
    outer = icefloe.local_filesystem_storage(str(tree))
    access = SourceAccess({"s3://bucket": outer, "s3://bucket/a/": inner})
    assert names(list_sources("s3://bucket/a/*.nc", access)) == ["1.nc", "2.nc"]
    assert access.place("s3://bucket/a/1.nc").key == "1.nc"
    assert access.place("s3://bucket/b/4.nc").key == "b/4.nc"


def test_what_is_no_url_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="not the URL of a file"):
        root_of("s3:/bucket")
    assert root_of("az://account/container/a/b.nc") == "az://account/container/"


def test_braces_and_stars_do_not_reach_further_than_they_say() -> None:
    assert compile_glob("a/*/c.nc").fullmatch("a/b/b/c.nc") is None
    assert compile_glob("a/**/c.nc").fullmatch("a/c.nc") is not None
    assert compile_glob("x.nc").fullmatch("xanc") is None
    assert compile_glob("a{b").fullmatch("a{b") is not None
    assert compile_glob("a},b").fullmatch("a},b") is not None
    assert compile_glob("{a,b{c,d}}").fullmatch("bd") is not None


@pytest.mark.server
def test_globs_on_s3(s3_endpoint: S3Endpoint, prefix: str, tree: Path) -> None:
    storage = icefloe.s3_storage(
        bucket=s3_endpoint.bucket,
        prefix=prefix,
        endpoint_url=s3_endpoint.url,
        region=s3_endpoint.region,
        allow_http=True,
        force_path_style=True,
        access_key_id=s3_endpoint.access_key_id,
        secret_access_key=s3_endpoint.secret_access_key,
    )
    from icefloe.effects import run_blocking

    for name in ("2020/a.nc", "2020/b.nc", "2021/c.nc", "2021/c.txt"):
        run_blocking(storage.open().put(name, b"data"))
    root = f"s3://{s3_endpoint.bucket}/{prefix}/"
    states = list_sources(f"{root}*/*.nc", SourceAccess({root: storage}))
    assert [state.url for state in states] == [
        f"{root}{name}" for name in ("2020/a.nc", "2020/b.nc", "2021/c.nc")
    ]
    assert all(state.etag for state in states)
