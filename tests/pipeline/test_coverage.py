"""What a dataset holds: compared with looking at every step, and drawn without hiding anything."""

from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.pipeline.coverage import (
    SIGNS,
    Axis,
    DatasetCoverage,
    FamilyCoverage,
    Presence,
    Span,
    cells,
    coverage_of,
    coverage_svg,
    coverage_text,
    late_rows,
)
from icefloe.pipeline.files.facts import LoadedValues, SourceState
from icefloe.pipeline.writing.provenance import RecordedFile, SourceRecord

PRESENT, LATE, PARTIAL, MISSING = (
    Presence.PRESENT,
    Presence.LATE,
    Presence.PARTIAL,
    Presence.MISSING,
)


def file(start: int, length: int = 1, came: int | None = 1, name: str = "") -> RecordedFile:
    state = SourceState(f"s3://bucket/{name or start}.nc")
    return RecordedFile(state, start, length, "t", came)


def family(axis: Axis, files: list[RecordedFile]) -> FamilyCoverage:
    [found] = coverage_of("", axis, SourceRecord(tuple(files))).families
    return found


def days(values: list[int], calendar: str = "360_day") -> Axis:
    return Axis.of("time", LoadedValues(np.array(values), "days since 2015-01-01", calendar))


recorded = st.builds(
    file, st.integers(-2, 24), st.integers(0, 6), st.none() | st.integers(1, 4), st.text("ab")
)


def is_late(each: RecordedFile, files: list[RecordedFile]) -> bool:
    return any(
        other.start > each.start and (each.ingested or 0) > (other.ingested or 0) for other in files
    )


def looked_at(length: int, files: list[RecordedFile]) -> list[Presence]:
    """Look at every step for itself."""
    covering = [[f for f in files if f.start <= at < f.start + f.length] for at in range(length)]
    most = max(map(len, covering))
    found = []
    for here in covering:
        if not here:
            found.append(MISSING)
        elif len(here) < most:
            found.append(PARTIAL)
        else:
            found.append(LATE if any(is_late(each, files) for each in here) else PRESENT)
    return found


@given(st.integers(1, 20), st.lists(recorded, min_size=1, max_size=12))
def test_spans_say_what_each_step_is(length: int, files: list[RecordedFile]) -> None:
    # What lies outside was written by nobody we know; it must not matter.
    inside = [
        file(
            min(max(each.start, 0), length),
            min(each.length, length),
            each.ingested,
            each.state.url,
        )
        for each in files
    ]
    found = family(Axis("x", length), inside)
    expanded = [span.presence for span in found.spans for _ in range(span.steps)]
    assert expanded == looked_at(length, inside)
    assert [span.start for span in found.spans] == [
        sum(before.steps for before in found.spans[:at]) for at in range(len(found.spans))
    ]
    assert all(one.presence is not other.presence for one, other in pairwise(found.spans))


@given(st.lists(recorded, min_size=1, max_size=12))
def test_late_is_what_came_after_something_behind_it(files: list[RecordedFile]) -> None:
    assert late_rows(files).tolist() == [is_late(each, files) for each in files]


@given(
    st.lists(st.integers(1, 5), min_size=3, max_size=30),
    st.sampled_from(["360_day", "standard", "noleap"]),
)
def test_gaps_without_a_place_are_missing_too(widths: list[int], calendar: str) -> None:
    """All steps that a regular axis lacks are found, if most of its steps are there."""
    steps = [1] * (len(widths) + 1) + widths
    values = np.cumsum([0, *steps]).tolist()
    found = family(days(values, calendar), [file(0, len(values))])
    assert found.all_steps == values[-1] + 1
    assert found.steps(MISSING) == values[-1] + 1 - len(values)
    missing = [span for span in found.spans if span.start is None]
    every = days(list(range(values[-1] + 1)), calendar)
    assert [label for span in missing for label in (span.first, span.last)] == [
        every.label(day)
        for one, other in pairwise(values)
        if other - one > 1
        for day in (one + 1, other - 1)
    ]


def test_months_of_thirty_days() -> None:
    moments = LoadedValues(
        np.array([1, 2, 3, 6, 7]) * 30.0 - 15, "days since 2015-01-01", "360_day"
    )
    axis = Axis.of("time", moments)
    found = coverage_of("ocean", axis, SourceRecord((file(0, 3), file(3, 2))))
    assert (found.first, found.last) == ("2015-01-16", "2015-07-16")
    [gap] = found.families[0].of(MISSING)
    assert gap == Span(MISSING, "2015-04-16", "2015-05-16", 2, None)
    text = coverage_text(found, 14)
    assert "missing: time 2015-04-16 … 2015-05-16 (about 2 steps)" in text
    assert "██████····████" in text


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        (LoadedValues(np.array([1.5, 2.0, 2.5])), ["1.5", "2.5"]),
        (LoadedValues(np.array([7, 8, 9])), ["7", "9"]),
        (LoadedValues(np.array([0, 6, 12]), "hours since 2000-01-01"), ["2000-01-01 00:00:00"]),
        (LoadedValues(np.array([0, 1, 2]), "days since never"), ["0", "2"]),
        (LoadedValues(np.array([[0, 1], [2, 3]])), ["0", "1"]),
        (3, ["0", "2"]),
    ],
)
def test_steps_have_names(values: LoadedValues | int, labels: list[str]) -> None:
    found = coverage_of("", Axis.of("time", values), SourceRecord((file(0),)))
    assert [found.first, found.last][: len(labels)] == labels


@pytest.mark.parametrize(
    "values", [[0, 1, 2, 10**12], [0, 0, 0, 5], [3, 1, 2, 9], [-(2**62), 0, 1, 2, 2**62]]
)
def test_no_axis_is_too_strange(values: list[int]) -> None:
    axis = Axis.of("time", LoadedValues(np.array(values), "microseconds since 1970-01-01"))
    found = coverage_of("", axis, SourceRecord((file(0, 2**62), file(-(2**62), 2**62))))
    assert len(found.families[0].spans) <= 2 * len(values)
    assert coverage_text(found)
    assert ElementTree.fromstring(coverage_svg([found])) is not None


def test_families_are_looked_at_apart() -> None:
    pressure = [RecordedFile(SourceState(f"p{at}"), at, 1, "p", 9) for at in (0, 2)]
    record = SourceRecord((file(0), file(1), file(2), *pressure))
    found = coverage_of("", Axis("x", 3), record)
    of_p, of_t = found.families
    assert [span.presence for span in of_p.spans] == [PRESENT, MISSING, PRESENT]
    assert [span.presence for span in of_t.spans] == [PRESENT]
    assert not found.is_complete
    assert found.to_dict()["families"][0]["steps"]["missing"] == 1


spans = st.lists(st.tuples(st.sampled_from(Presence), st.integers(1, 9)), min_size=1, max_size=8)


@given(spans, st.integers(1, 40))
def test_a_drawing_hides_nothing_that_lacks(given_: list[tuple[Any, int]], columns: int) -> None:
    flat = [presence for presence, steps in given_ for _ in range(steps)]
    held = FamilyCoverage(
        ("t",), 1, (), tuple(Span(presence, "", "", steps, 0) for presence, steps in given_)
    )
    drawn = cells(held, columns)
    assert len(drawn) == columns
    for column, shown in enumerate(drawn):
        begin, end = column * len(flat) / columns, (column + 1) * len(flat) / columns
        inside = {each for at, each in enumerate(flat) if at + 1 > begin + 1e-9 and at < end - 1e-9}
        if shown in {PRESENT, LATE, MISSING}:
            assert (MISSING in inside) == (shown is MISSING)
            assert PARTIAL not in inside
            assert (LATE in inside) == (shown is LATE)
        else:
            assert PARTIAL in inside or inside > {MISSING}


def test_names_that_others_chose_do_no_harm() -> None:
    hostile = '<script>"&\x1b[31m'
    record = SourceRecord((RecordedFile(SourceState("u"), 0, 1, hostile, 1),))
    found = coverage_of(hostile, Axis(hostile, 2), record)
    assert "\x1b" not in coverage_text(found)
    picture = coverage_svg([found])
    assert "<script>" not in picture
    assert ElementTree.fromstring(picture).tag.endswith("svg")


def test_an_empty_dataset_is_complete() -> None:
    found = DatasetCoverage(group="", dimension="time", length=0, first="", last="", families=())
    assert found.is_complete
    assert coverage_text(found)
    assert coverage_of("", Axis("time", 0), SourceRecord((file(0),))).families[0].spans == ()


def test_signs_differ() -> None:
    assert len(set(SIGNS.values())) == len(Presence)
