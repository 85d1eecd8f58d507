"""Where files go, and what does not fit: by example, and against a model that tries every cell."""

import json
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.errors import InvalidInputError
from icefloe.pipeline.combining.combine import Combined, Existing, combine
from icefloe.pipeline.combining.placing import find_gaps, place
from icefloe.pipeline.combining.report import MisfitsError, Report
from icefloe.pipeline.files.facts import ArraySchema, DatasetSchema, FileFacts, Kind, LoadedValues
from icefloe.pipeline.files.options import CombineOptions
from icefloe.pipeline.files.references import References
from icefloe.pipeline.writing.building import cut_into_waves
from icefloe.records import replace
from tests.pipeline.made_up import ZLIB, made_up

TIME = CombineOptions(("time",))


def starts(combined: Combined, files: list[FileFacts], name: str = "time") -> dict[str, int]:
    return {
        files[number].url: int(start)
        for number, start in zip(combined.files, combined.starts[name], strict=True)
    }


def kinds(report: Report) -> dict[str, set[str]]:
    return {url: {each.kind.value for each in found} for url, found in report.by_file().items()}


def test_order_follows_the_values() -> None:
    files = [made_up("b", {"time": [2, 3]}), made_up("a", {"time": [0, 1]})]
    combined = combine(files, TIME)
    assert starts(combined, files) == {"b": 2, "a": 0}
    [array] = [each for each in combined.arrays if each.path == "t"]
    assert array.metadata["shape"] == [4, 4]
    assert [run.tolist() for _, run in combined.native["time"]] == [[0, 1], [2, 3]]
    json.dumps(array.metadata)


def test_an_axis_may_fall() -> None:
    files = [made_up("a", {"time": [1, 0]}), made_up("b", {"time": [3, 2]})]
    assert starts(combine(files, TIME), files) == {"a": 2, "b": 0}
    mixed = [*files, made_up("c", {"time": [4, 5]})]
    assert kinds(combine(mixed, TIME).report) == {"c": {"not-monotonic"}}


def test_the_first_of_two_that_contradict_stays() -> None:
    files = [
        made_up("a", {"time": [0, 1]}),
        made_up("b", {"time": [1, 2]}),
        made_up("c", {"time": [0, 1]}),
        made_up("d", {"time": [5, 5]}),
        made_up("e", {"time": [np.nan]}),
    ]
    combined = combine(files, CombineOptions(("time",), on_misfit="skip"))
    assert kinds(combined.report) == {
        "b": {"overlap"},
        "c": {"duplicate"},
        "d": {"not-monotonic"},
        "e": {"coordinate"},
    }
    assert starts(combined, files) == {"a": 0}
    assert combine(files, TIME).arrays == ()
    assert "overlaps a" in combined.report.by_file()["b"][0].message


def test_times_compare_across_units() -> None:
    days: dict[str, Any] = {"units": "days since 2000-01-01", "calendar": "360_day"}
    files = [
        made_up("later", {"time": [31]}, **days),
        made_up("hours", {"time": [24.5]}, units="hours since 2000-02-01", calendar="360_day"),
        made_up("seconds", {"time": [3600]}, units="seconds since 2000-01-30", calendar="360_day"),
    ]
    combined = combine(files, TIME)
    assert starts(combined, files) == {"seconds": 0, "later": 1, "hours": 2}
    values = np.concatenate([run for _, run in combined.native["time"]])
    np.testing.assert_allclose(values, [29 + 1 / 24, 31, 30 + 24.5 / 24])
    [time] = [each for each in combined.arrays if each.path == "time"]
    assert time.metadata["attributes"] == days
    assert combined.report.coverage.last == {"time": "2000-02-02 00:30:00"}


def test_calendars_and_units_that_do_not_compare() -> None:
    files = [
        made_up("a", {"time": [0]}, units="days since 2000-01-01", calendar="360_day"),
        made_up("b", {"time": [1]}, units="days since 2000-01-01", calendar="noleap"),
        made_up("c", {"time": [1]}, units="m"),
        made_up("d", {"time": [1]}, units="days since never"),
    ]
    assert kinds(combine(files, TIME).report) == {
        "b": {"calendar"},
        "c": {"units"},
        "d": {"units"},
    }


def test_steps_are_compared_in_a_calendar_with_30_february() -> None:
    files = [
        made_up("mar", {"time": [0]}, units="days since 2001-03-01", calendar="360_day"),
        made_up("feb", {"time": [29]}, units="days since 2001-02-01", calendar="360_day"),
    ]
    report = combine(files, TIME).report
    assert report.coverage.first == {"time": "2001-02-30 00:00:00"}


def test_files_of_other_variables_are_merged() -> None:
    files = [
        made_up("t0", {"time": [0]}),
        made_up("t1", {"time": [1]}),
        made_up("p0", {"time": [0]}, variables=("p",)),
    ]
    combined = combine(files, TIME)
    assert not combined.report.misfits
    assert {each.path for each in combined.arrays} == {"t", "p", "time"}
    assert starts(combined, files) == {"t0": 0, "t1": 1, "p0": 0}
    [hole] = combined.report.coverage.holes
    assert (hole.variables, hole.starts) == (("p",), (1,))


def test_variables_of_which_all_files_are_refused_are_left_out() -> None:
    broken = made_up("p", {"time": [5, 5]}, variables=("p",))
    for files in (
        [broken, made_up("a", {"time": [1, 2]})],
        [made_up("a", {"time": [1, 2]}), broken],
    ):
        combined = combine(files, replace(TIME, on_misfit="skip"))
        assert [array.path for array in combined.arrays] == ["t", "time"]
        assert [misfit.url for misfit in combined.report.misfits] == ["p"]
        assert [len(run) for _, run in combined.native["time"]] == [2]


def test_an_array_of_one_file_comes_with_the_wave_of_that_file() -> None:
    files = [
        made_up("a", {"time": [1, 2]}, references=2),
        made_up("b", {"time": [3, 4]}, variables=("p",), references=2),
    ]
    relief = ArraySchema("relief", "float32", ("x",), (4,), (4,), ZLIB, 0.0)
    assert files[1].schema is not None
    files[1] = replace(files[1], schema=DatasetSchema.of([*files[1].schema.arrays, relief]))
    combined = combine(files, TIME)
    first, second = cut_into_waves(files, combined, TIME, None, most=2)
    assert [array.path for array in first.arrays] == ["p", "t", "time"]
    assert [array.path for array in second.arrays] == ["p", "relief", "t", "time"]
    assert second.donor(second.arrays[1]) == 1
    assert second.rows_of(second.arrays[1]) == [0]


def test_a_variable_is_missing_or_too_many() -> None:
    usual = [made_up(str(n), {"time": [n]}, variables=("t", "p")) for n in range(3)]
    odd = [
        made_up("less", {"time": [7]}, variables=("t",)),
        made_up("more", {"time": [8]}, variables=("t", "p", "q")),
    ]
    assert kinds(combine([*odd, *usual], TIME).report) == {
        "less": {"missing-variable"},
        "more": {"extra-variable"},
    }


def test_tiles_along_two_dimensions() -> None:
    files = [
        made_up(f"{t}{y}", {"time": [t], "y": [10 * y, 10 * y + 5]})
        for t, y in ((0, 0), (0, 1), (1, 0))
    ]
    combined = combine(files, CombineOptions(("time", "y")))
    assert starts(combined, files, "y") == {"00": 0, "01": 2, "10": 0}
    [hole] = combined.report.coverage.holes
    assert (hole.starts, hole.lengths) == ((1, 2), (1, 2))


def test_the_order_given() -> None:
    files = [made_up("b", {"time": [2, 3]}), made_up("a", {"time": [0]})]
    options = CombineOptions(("time",), by="order")
    combined = combine(files, options)
    assert starts(combined, files) == {"b": 0, "a": 2}
    there = Existing(files[0].schema, {"time": 5}, {})  # type: ignore[arg-type]
    assert starts(combine(files, options, there), files) == {"b": 5, "a": 7}
    merged = [*files, made_up("p", {"time": [2, 3]}, variables=("p",))]
    coverage = combine(merged, options).report.coverage
    assert [(each.variables, each.starts) for each in coverage.holes] == [(("p",), (2,))]
    assert coverage.missing_places == 1
    with pytest.raises(InvalidInputError, match="one dimension only"):
        combine(files, CombineOptions(("time", "x"), by="order"))


def test_files_that_do_not_fill_chunks() -> None:
    files = [made_up(str(n), {"time": [3 * n, 3 * n + 1]}, chunk=2) for n in range(3)]
    odd = made_up("odd", {"time": [5]}, chunk=2)
    assert kinds(combine([*files, odd], TIME).report) == {"odd": {"unaligned"}}
    last = made_up("last", {"time": [99]}, chunk=2)
    assert not combine([*files, last], TIME).report.misfits
    skipped = combine([*files, odd], CombineOptions(("time",), on_misfit="skip"))
    assert skipped.lengths == {"time": 6}


def test_plain_chunks_are_cut_to_fit() -> None:
    files = [
        made_up("jan", {"time": range(6)}, whole=True),
        made_up("feb", {"time": range(6, 10)}, whole=True),
    ]
    combined = combine(files, TIME)
    [array] = [each for each in combined.arrays if each.path == "t"]
    assert array.chunks == (2, 4)
    references = References(
        np.zeros((1, 2), np.int64),
        np.array([1000], np.uint64),
        np.array([4 * 4 * 4], np.uint64),
        ("feb",),
        np.zeros(1, np.uint32),
    )
    placed = combined.placed_file(1, files).references_in(array, references)
    assert placed.coordinates.tolist() == [[3, 0], [4, 0]]
    assert placed.offsets.tolist() == [1000, 1032]
    assert placed.lengths.tolist() == [32, 32]


def test_gaps_are_noted_left_or_refused() -> None:
    files = [made_up(str(n), {"time": [n, n + 1]}) for n in (0, 2, 8)]
    closed = combine(files, TIME)
    assert closed.lengths == {"time": 6}
    [gap] = closed.report.coverage.gaps
    assert (gap.after, gap.before, gap.missing) == ("3.0", "8.0", 4)
    left = combine(files, CombineOptions(("time",), gaps="leave"))
    assert starts(left, files) == {"0": 0, "2": 2, "8": 8}
    whole = np.full(left.lengths["time"], np.nan)
    for start, run in left.native["time"]:
        whole[start : start + len(run)] = run
    assert whole.tolist() == list(range(10))
    failed = combine(files, CombineOptions(("time",), gaps="fail"))
    assert kinds(failed.report) == {"8": {"gap"}}


def test_late_files_fall_into_place_where_one_was_left() -> None:
    first = [made_up(str(n), {"time": [n]}) for n in (0, 1, 4)]
    options = CombineOptions(("time",), gaps="leave")
    there = Existing(
        first[0].schema,  # type: ignore[arg-type]
        {"time": 5},
        {"time": LoadedValues(np.arange(5.0))},
    )
    more = [made_up("late", {"time": [2, 3]}), made_up("new", {"time": [6]})]
    combined = combine(more, options, there)
    assert starts(combined, more) == {"late": 2, "new": 6}
    assert combined.report.coverage.late == ("late",)
    assert combined.lengths == {"time": 7}
    before = made_up("before", {"time": [-3, -2]})
    combined = combine([*more, before], options, there)
    assert starts(combined, [*more, before]) == {"before": 0, "late": 5, "new": 9}
    assert combined.inserted["time"].runs == ((0, 3),)
    assert combined.lengths == {"time": 10}
    assert combined.report.coverage.late == ("late",)
    gaps = [(gap.after, gap.before, gap.missing) for gap in combined.report.coverage.gaps]
    assert gaps == [("-2.0", "0.0", 1), ("4.0", "6.0", 1)]
    closed = Existing(
        first[0].schema,  # type: ignore[arg-type]
        {"time": 3},
        {"time": LoadedValues(np.array([0.0, 1, 4]))},
    )
    combined = combine(more, TIME, closed)
    assert starts(combined, more) == {"late": 2, "new": 5}
    assert combined.inserted["time"].runs == ((2, 2),)
    assert combined.report.coverage.late == ("late",)
    assert combined.report.notes == (
        "2 steps along 'time' came before existing ones: 1 step moved",
    )
    across = made_up("across", {"time": [3, 4]})
    assert kinds(combine([across], TIME, closed).report) == {"across": {"overlap"}}


@pytest.mark.parametrize("rule", ["drop", "first", "promote", "fail"])
def test_attributes_that_differ(rule: Any) -> None:
    files = [
        made_up("a", {"time": [0, 1]}, attributes={"title": "x", "orbit": 7}),
        made_up("b", {"time": [2]}, attributes={"title": "x", "orbit": 8}),
    ]
    combined = combine(files, CombineOptions(("time",), attributes=rule))
    if rule == "fail":
        assert kinds(combined.report) == {"b": {"attributes"}}
        return
    expected = {"title": "x"} if rule != "first" else {"title": "x", "orbit": 7}
    assert combined.groups[""] == expected
    assert "orbit" in combined.report.notes[0]
    if rule == "promote":
        assert [run.tolist() for _, run in combined.native["orbit"]] == [[7, 7], [8]]
        [array] = [each for each in combined.arrays if each.path == "orbit"]
        assert (array.metadata["data_type"], array.metadata["shape"]) == ("int64", [3])


def test_another_grid_is_noticed() -> None:
    files = [made_up(str(n), {"time": [n]}, digests={"x": "aa"}) for n in range(3)]
    odd = made_up("odd", {"time": [9]}, digests={"x": "bb"})
    assert kinds(combine([odd, *files], TIME).report) == {"odd": {"other-coordinate"}}


def test_an_error_has_the_whole_report_and_travels() -> None:
    files = [made_up("a", {"time": [0]}), made_up("b", {"time": [0]})]
    error = pickle.loads(pickle.dumps(MisfitsError(combine(files, TIME).report)))
    assert error.report.counts() == {"duplicate": 1}
    assert "duplicate" in str(error)
    assert json.loads(error.report.to_json())["misfits"][0]["kind"] == "duplicate"


def test_gaps_of_months_are_told_from_months_of_other_lengths() -> None:
    months = np.cumsum([0, 31, 28, 31, 30, 31])
    assert find_gaps(months) == ()
    assert find_gaps(np.delete(months, 2)) == ((1, 1),)


RUNS = st.lists(
    st.tuples(st.integers(0, 24), st.integers(1, 4)).map(
        lambda run: np.arange(run[0], run[0] + run[1])
    ),
    min_size=1,
    max_size=8,
)


@given(RUNS, st.booleans())
def test_placing_against_a_model(blocks: list[Any], falls: bool) -> None:
    """Go through blocks in order; a block that touches a step taken by an unequal one is out."""
    given_blocks = [block[::-1] if falls else block for block in blocks]
    if falls and all(len(block) == 1 for block in blocks):
        falls = False  # nothing shows the direction
    kept: dict[tuple[int, ...], None] = {}
    expected: list[bool] = []
    for block in blocks:
        key = tuple(block.tolist())
        span = set(range(key[0], key[-1] + 1))
        fits = key in kept or not any(span & set(range(k[0], k[-1] + 1)) for k in kept)
        expected.append(fits)
        if fits:
            kept[key] = None
    placed = place(given_blocks)
    assert (placed.starts >= 0).tolist() == expected
    axis = sorted(step for key in kept for step in key)
    assert placed.axis.tolist() == (axis[::-1] if falls else axis)
    for block, start in zip(given_blocks, placed.starts.tolist(), strict=True):
        if start >= 0:
            assert placed.axis[start : start + len(block)].tolist() == block.tolist()
    assert {each.kind for each in placed.refusals.values()} <= {Kind.OVERLAP}


@given(RUNS, RUNS, st.sampled_from(["close", "leave"]))
def test_placing_among_existing_steps(earlier: list[Any], later: list[Any], gaps: Any) -> None:
    there = place(earlier, gaps=gaps).axis
    placed = place(later, existing=there, gaps=gaps)
    axis, moved = placed.axis, placed.inserted.moved(np.arange(len(there)))
    assert axis[moved].tolist() == there.tolist()
    assert (np.diff(axis) > 0).all()
    assert len(axis) == placed.length
    steps = set(there.tolist())
    for number, (block, start) in enumerate(zip(later, placed.starts.tolist(), strict=True)):
        if start >= 0:
            assert axis[start : start + len(block)].tolist() == block.tolist()
        if gaps == "close":
            is_new = not steps & set(range(block[0], block[-1] + 1))
            is_there = set(block.tolist()) <= steps
            overlaps_another = placed.refusals[number].against if start < 0 else None
            assert (start >= 0) or overlaps_another is not None or not (is_new or is_there)
            assert (start < 0) or is_new or is_there
        assert (number in placed.late) == (moved[0] <= start <= moved[-1])
    inserted = np.setdiff1d(np.arange(placed.length), moved)
    assert placed.inserted.steps == (inserted < moved[-1]).sum()


@given(
    st.sets(st.tuples(st.integers(0, 4), st.integers(0, 3)), min_size=1),
    st.integers(1, 3),
    st.randoms(use_true_random=False),
)
def test_tiles_against_a_model(cells: set[tuple[int, int]], size: int, random: Any) -> None:
    """Every step of every file lands where its values sort among all values."""
    order = sorted(cells)
    random.shuffle(order)
    files = [
        made_up(f"{t}-{y}", {"time": [t], "y": [size * y + step for step in range(size)]})
        for t, y in order
    ]
    combined = combine(files, CombineOptions(("time", "y")))
    assert not combined.report.misfits
    times = sorted({t for t, _ in cells})
    rows = sorted({y for _, y in cells})
    for position, number in enumerate(combined.files):
        t, y = order[number]
        assert combined.starts["time"][position] == times.index(t)
        assert combined.starts["y"][position] == size * rows.index(y)
    holes = {each.starts for each in combined.report.coverage.holes}
    expected = {
        (times.index(t), size * rows.index(y)) for t in times for y in rows if (t, y) not in cells
    }
    assert holes == expected


@given(
    st.lists(st.integers(-(10**6), 10**6), min_size=1, max_size=5),
    st.sampled_from(["days", "hours", "seconds"]),
    st.sampled_from(["360_day", "standard", "noleap"]),
)
def test_moments_survive_a_change_of_units(values: list[int], unit: str, calendar: str) -> None:
    from icefloe.pipeline.files.times import parse_units

    here = parse_units(f"{unit} since 1850-03-01", calendar)
    there = parse_units("seconds since 1700-01-01 12:00", calendar)
    assert here is not None
    assert there is not None
    given_values = np.array(values)
    moments = here.moments(given_values)
    other = there.values(moments, np.dtype(np.int64))
    assert there.moments(other).tolist() == moments.tolist()
    assert here.values(moments, np.dtype(np.int64)).tolist() == values
