"""The record of sources: what is new, what is known, what changed."""

import pytest

import icefloe
from icefloe.errors import InvalidInputError
from icefloe.pipeline.files.facts import SourceState
from icefloe.pipeline.files.options import CombineOptions, Format, ParseOptions
from icefloe.pipeline.writing.provenance import (
    RecordedFile,
    SourceRecord,
    options_from_json,
    options_to_json,
    read_record,
    record_path,
    sort_sources,
    write_record,
)
from tests.pipeline.repositories import opened

COMBINE = CombineOptions(("time", "lat"), coordinates={"time": "t"}, gaps="leave")
PARSE = ParseOptions(("time", "lat"), format=Format.HDF5, drop=("junk",))
OPTIONS = options_to_json(COMBINE, PARSE)


def state(number: int, *, etag: str | None = "a", size: int | None = 7) -> SourceState:
    return SourceState(f"s3://bucket/{number}.nc", size, etag, 1_000_000 + number)


def row(number: int, etag: str = "a") -> RecordedFile:
    return RecordedFile(state(number, etag=etag), 2 * number, 2, "pressure temperature")


@pytest.fixture
def session() -> icefloe.Session:
    return icefloe.Repository.create(icefloe.in_memory_storage()).writable_session("main")


def test_what_is_written_is_read_back(session: icefloe.Session) -> None:
    assert read_record(session.store, "model") is None
    write_record(session.store, "model", None, [row(0), row(1)], OPTIONS)
    before = read_record(session.store, "model")
    assert before is not None
    assert before.files == (row(0), row(1))
    write_record(session.store, "model", before, [row(1, etag="b"), row(2)], OPTIONS)
    after = read_record(session.store, "model")
    assert after is not None
    assert after.files == (row(0), row(1, etag="b"), row(2))
    assert options_from_json(after.options) == (COMBINE, PARSE)
    found = opened(session, record_path("model"))
    assert found.url.values.tolist() == [f"s3://bucket/{number}.nc" for number in range(3)]
    assert found.start.values.tolist() == [0, 2, 4]


def test_nothing_known_is_kept_as_such(session: icefloe.Session) -> None:
    bare = RecordedFile(SourceState("file:///a.nc"), 0, 1, "")
    write_record(session.store, "", None, [bare], OPTIONS)
    record = read_record(session.store, "")
    assert record is not None
    assert record.files == (bare,)


def test_files_are_sorted_by_their_state(session: icefloe.Session) -> None:
    write_record(session.store, "", None, [row(0), row(1), row(2)], OPTIONS)
    record = read_record(session.store, "")
    by_name = SourceState(state(2).url)
    found = sort_sources(record, [state(0), state(1, etag="b"), by_name, state(3)])
    assert (found.new, found.known, found.changed) == (
        (state(3),),
        (state(0), by_name),
        (state(1, etag="b"),),
    )
    assert sort_sources(None, [state(0)]).new == (state(0),)


def test_local_files_are_told_apart_by_size_and_time() -> None:
    before = SourceState("file:///a.nc", 7, "x", 1)
    record = SourceRecord((RecordedFile(before, 0, 1, ""),))
    same = SourceState("file:///a.nc", 7, "y", 1)  # programs make etags in different ways
    assert sort_sources(record, [same]).known == (same,)
    for other in (SourceState("file:///a.nc", 8, "x", 1), SourceState("file:///a.nc", 7, "x", 2)):
        assert sort_sources(record, [other]).changed == (other,)


def test_a_record_without_options_asks_for_them() -> None:
    with pytest.raises(InvalidInputError, match="give options"):
        options_from_json({"combine": {}})


def test_groups_have_records_of_their_own() -> None:
    paths = [record_path(group) for group in ("", "root", "a/b", "a%2Fb", "a")]
    assert len(set(paths)) == len(paths)
