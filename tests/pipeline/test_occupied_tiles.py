"""Positions of files that are joined along several dimensions: tiles."""

import numpy as np
import pytest

from icefloe.pipeline.combining.combine import Combined, Existing, combine
from icefloe.pipeline.files.facts import FileFacts, LoadedValues, SourceState
from icefloe.pipeline.files.options import CombineOptions
from icefloe.pipeline.writing.provenance import (
    RecordedFile,
    SourceRecord,
    recorded_files,
    without_occupied,
)
from icefloe.records import replace
from tests.pipeline.made_up import made_up

TILES = CombineOptions(("time", "y"))


def tile(url: str, time: int, y: int) -> FileFacts:
    return made_up(url, {"time": [time, time + 1], "y": [y]})


THERE = [tile(f"{time}/{y}", time, y) for time in (0, 2, 4) for y in (0, 1, 2)]


@pytest.fixture
def record() -> SourceRecord:
    made = recorded_files(THERE, combine(THERE, TILES), TILES)
    return SourceRecord(tuple(each for each in made if each.state.url != "2/1"))


def outcome(record: SourceRecord, *given: FileFacts) -> Combined:
    schema = THERE[0].schema
    assert schema is not None
    axes = {"time": LoadedValues(np.arange(6.0)), "y": LoadedValues(np.arange(3.0))}
    existing = Existing(schema, {"time": 6, "y": 3}, axes)
    return without_occupied(given, combine(given, TILES, existing), TILES, existing, record)


def test_places_are_recorded_along_all_dimensions(record: SourceRecord) -> None:
    [last] = [each for each in record.files if each.state.url == "4/2"]
    assert (last.start, last.length, last.further) == (4, 2, "2+1")


def test_a_tile_that_is_missing_has_its_place(record: SourceRecord) -> None:
    found = outcome(record, tile("late", 2, 1))
    assert found.report.misfits == ()
    assert found.starts["y"].tolist() == [1]


def test_the_place_of_another_tile_is_taken(record: SourceRecord) -> None:
    found = outcome(record, tile("copy", 4, 1))
    [misfit] = found.report.misfits
    assert (misfit.url, misfit.kind.value) == ("copy", "duplicate")
    assert misfit.message.startswith("4/1 ")


def test_a_tile_that_changed_stays_where_it_was(record: SourceRecord) -> None:
    assert outcome(record, tile("4/1", 4, 1)).report.misfits == ()
    [misfit] = outcome(record, tile("4/1", 4, 2)).report.misfits
    assert misfit.message.startswith("along y it had 1 steps from number 1, and now has 1 from 2")


def test_records_that_do_not_say_refuse_nothing(record: SourceRecord) -> None:
    older = tuple(replace(each, further="") for each in record.files)
    hostile = RecordedFile(
        state=SourceState("odd"),
        start=0,
        length=6,
        variables="t time y",
        ingested=None,
        further="0+99999999999999999999 x",
    )
    assert outcome(SourceRecord((*older, hostile)), tile("copy", 4, 1)).report.misfits == ()
