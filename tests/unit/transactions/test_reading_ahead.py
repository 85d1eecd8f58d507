"""Loops and small arrays are read ahead: few rounds of requests, bounded, and never old bytes."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import given
from hypothesis import strategies as st

import icefloe
from icefloe.errors import InvalidInputError
from icefloe.storage.wrapper import BackendWrapper, Verb
from icefloe.testing.schedules import WrappedStorage
from icefloe.transactions import reading_ahead
from icefloe.transactions.reading_ahead import Box, Course, read_ahead
from icefloe.zarr_store.selections import AHEAD_BYTES, requesting_coordinates, with_selections
from tests.property.test_selections import ACCESS, OURS, far_repository, opened

VALUES = np.arange(60.0 * 8).reshape(60, 8)


class Gathering:
    """Holds requests for chunks back until so many are under way, and counts all of them."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.expected = 0
        self.arrived = 0
        self.chunks = Counter[str]()

    def note(self, key: str) -> None:
        if not key.startswith("chunks/"):
            return
        with self.changed:
            self.chunks[key] += 1
            self.arrived += 1
            self.changed.notify_all()
            assert self.changed.wait_for(lambda: self.arrived >= self.expected, timeout=60)

    def begin(self, expected: int = 0) -> None:
        """Forget what was counted."""
        self.chunks.clear()
        self.arrived, self.expected = 0, expected


class GatheringBackend(BackendWrapper):
    """Hands the keys of its reads to a gathering."""

    def __init__(self, inner: Any, gathering: Gathering) -> None:
        super().__init__(inner)
        self._gathering = gathering

    async def around(self, verb: Verb, *arguments: Any, **options: Any) -> Any:
        """Note a request, then make it."""
        if verb in {"get", "get_ranges"}:
            self._gathering.note(arguments[0])
        return await getattr(self.inner, verb)(*arguments, **options)


@contextmanager
def written(**arrays: dict[str, Any]) -> Iterator[tuple[Any, Gathering]]:
    """Yield a repository far away with some arrays, and what is known of its requests."""
    storage, gathering = icefloe.in_memory_storage(), Gathering()
    session = far_repository(storage=storage, inline_bytes=0).writable_session("main")
    root = zarr.create_group(session.store)
    for name, options in arrays.items():
        root.create_array(name, **options)
    session.commit("arrays")
    wrapped = WrappedStorage(storage, lambda backend: GatheringBackend(backend, gathering))
    yield icefloe.Repository.open(wrapped, authorize_virtual_chunk_access=ACCESS), gathering


def steps_of(rows: int) -> dict[str, Any]:
    return {"data": VALUES, "chunks": (rows, 8), "dimension_names": ("time", "x")}


def test_a_loop_reads_ahead_more_each_time() -> None:
    with written(values=steps_of(1)) as (repository, gathering):
        array = opened_array(repository.readonly_session("main"))
        gathering.begin()
        np.testing.assert_array_equal(array[0], VALUES[0])
        assert sum(gathering.chunks.values()) == 1  # nothing is known yet
        gathering.begin(expected=3)  # the next one, and two ahead, before any of them ends
        np.testing.assert_array_equal(array[1], VALUES[1])
        for step in range(2, 60):
            np.testing.assert_array_equal(array[step], VALUES[step])
        assert set(gathering.chunks.values()) == {1}
        assert len(gathering.chunks) == 59


def test_a_loop_over_small_chunks_that_are_at_hand_reads_ahead_as_well() -> None:
    with written(values=steps_of(1)) as (repository, gathering):
        array = opened_array(repository.readonly_session("main"))
        for step in range(2):
            np.testing.assert_array_equal(array[step], VALUES[step])
        ahead = read_ahead(array.store._state)
        assert all(held.fetched.result(60) for *_, held in ahead._held.all())
        gathering.begin()
        np.testing.assert_array_equal(array[2], VALUES[2])
        with gathering.changed:
            assert gathering.changed.wait_for(lambda: gathering.arrived == 3, timeout=60)


@pytest.mark.parametrize("order", ["backwards", "every third", "windows"])
def test_loops_of_other_kinds_fetch_each_chunk_once(order: str) -> None:
    with written(values=steps_of(1)) as (repository, gathering):
        array = opened_array(repository.readonly_session("main"))
        gathering.begin()
        rows: list[slice] = {
            "backwards": [slice(row, row + 1) for row in range(59, -1, -1)],
            "every third": [slice(row, row + 1) for row in range(0, 60, 3)],
            "windows": [slice(row, row + 4) for row in range(0, 60, 4)],
        }[order]
        for part in rows:
            np.testing.assert_array_equal(array[part], VALUES[part])
        assert set(gathering.chunks.values()) == {1}
        assert len(gathering.chunks) == (20 if order == "every third" else 60)


def test_steps_within_a_chunk_fetch_it_once() -> None:
    with written(values=steps_of(10)) as (repository, gathering):
        array = opened_array(repository.readonly_session("main"))
        gathering.begin()
        for step in range(60):
            np.testing.assert_array_equal(array[step], VALUES[step])
        assert sorted(gathering.chunks.values()) == [1, 1, 1, 1, 1, 2]  # the first one twice
        assert read_ahead(array.store._state).held_bytes <= VALUES[:10].nbytes


def test_reads_without_a_direction_request_nothing_more() -> None:
    with written(values=steps_of(1)) as (repository, gathering):
        array = opened_array(repository.readonly_session("main"))
        gathering.begin()
        order = [7, 31, 2, 50, 12, 40, 21, 3]
        for step in order:
            np.testing.assert_array_equal(array[step], VALUES[step])
        assert sum(gathering.chunks.values()) == len(order)


def test_a_session_that_changes_reads_its_own_values() -> None:
    with written(values=steps_of(1)) as (repository, _):
        session = repository.writable_session("main")
        array = opened_array(session)
        expected = VALUES.copy()
        for step in range(60):
            np.testing.assert_array_equal(array[step], expected[step])
            later = min(step + 1 + step % 3, 59)
            array[later] = expected[later] = -step
            if step == 20:
                session.commit("changes")
                session = repository.writable_session("main")
                array = opened_array(session)
            if step == 40:
                session.discard_changes()
                expected[:] = opened_array(repository.readonly_session("main"))[:]


def test_what_is_requested_is_bounded_by_a_setting() -> None:
    size_bytes = VALUES[:1].nbytes
    with written(values=steps_of(1) | {"compressors": None}) as (repository, gathering):
        for limit in (0, size_bytes, 4 * size_bytes):
            with zarr.config.set({AHEAD_BYTES: limit}):
                array = opened_array(repository.readonly_session("main"))
                gathering.begin()
                ahead = read_ahead(array.store._state)
                for step in range(60):
                    np.testing.assert_array_equal(array[step], VALUES[step])
                    assert ahead.held_bytes <= limit
                assert set(gathering.chunks.values()) == {1}


def test_the_setting_is_checked() -> None:
    with written(values=steps_of(1)) as (repository, _):
        array = opened_array(repository.readonly_session("main"))
        with (
            zarr.config.set({AHEAD_BYTES: -1}),
            pytest.raises(InvalidInputError, match="ahead_bytes must be a number, 0 or more"),
        ):
            array[0]


def test_chunks_that_nobody_reads_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    with written(values=steps_of(1)) as (repository, _):
        array = opened_array(repository.readonly_session("main"))
        ahead = read_ahead(array.store._state)
        monkeypatch.setattr(ahead, "_clock", lambda: now[0])
        for step in range(8):
            array[step]
        assert ahead.held_bytes > 0
        now[0] = reading_ahead._HELD_SECONDS + 1
        array[50]
        assert ahead.held_bytes == 0


def test_requests_ahead_that_fail_are_made_again() -> None:
    with written(values=steps_of(1)) as (repository, gathering):
        array = opened_array(repository.readonly_session("main"))
        failures = iter(range(1_000))

        def fail_often(key: str) -> None:
            is_ahead = threading.current_thread().name.startswith("icefloe-ahead")
            if is_ahead and next(failures) % 2:
                raise icefloe.IcefloeError(f"simulated failure of {key}")

        gathering.note = fail_often  # type: ignore[method-assign]
        for step in range(60):
            np.testing.assert_array_equal(array[step], VALUES[step])


def test_coordinates_are_requested_together_on_opening() -> None:
    coordinates = {
        f"c{number}": {"data": np.arange(10.0), "chunks": (5,), "dimension_names": (f"c{number}",)}
        for number in range(6)
    }
    times: dict[str, Any] = {"attributes": {"units": "days since 2000-01-01"}}
    times |= {"data": np.arange(10), "chunks": (5,), "dimension_names": ("c0",)}
    variable = {"shape": (10, 10), "chunks": (2, 2), "dtype": "f4", "dimension_names": ("c0", "c1")}
    with written(**coordinates, valid=times, values=variable) as (repository, gathering):
        gathering.begin(expected=14)  # all chunks of coordinates and times, before any arrives
        dataset = xr.open_dataset(repository, engine="icefloe", decode_timedelta=False)
        assert all((dataset[f"c{number}"] == np.arange(10.0)).all() for number in range(6))
        assert set(gathering.chunks.values()) == {1}
        gathering.begin()
        with zarr.config.set({AHEAD_BYTES: 0}):
            again = xr.open_dataset(repository, engine="icefloe", decode_timedelta=False)
        assert again.identical(dataset)


def test_coordinates_are_requested_while_the_caller_goes_on() -> None:
    coordinate = {"data": np.arange(10.0), "chunks": (5,), "dimension_names": ("x",)}
    with written(x=coordinate) as (repository, gathering):
        store: Any = repository.readonly_session("main").store
        is_going_on = threading.Event()

        def wait(key: str) -> None:
            if key.startswith("manifests/"):
                assert is_going_on.wait(60)

        gathering.note = wait  # type: ignore[method-assign]
        with with_selections(), requesting_coordinates(store, ""):
            is_going_on.set()
            array: Any = zarr.open_array(store, path="x", mode="r")
            assert array[:].tolist() == list(range(10))


def test_a_manifest_that_cannot_be_read_ahead_is_read_again() -> None:
    coordinate = {"data": np.arange(10.0), "chunks": (5,), "dimension_names": ("x",)}
    with written(x=coordinate) as (repository, gathering):
        manifests = list[str]()

        def fail_once(key: str) -> None:
            if key.startswith("manifests/"):
                manifests.append(key)
                if len(manifests) == 1:
                    raise icefloe.IcefloeError("simulated failure")

        gathering.note = fail_once  # type: ignore[method-assign]
        dataset = xr.open_dataset(repository, engine="icefloe")
        assert dataset.x.values.tolist() == list(range(10))
        assert len(manifests) > 1


def test_manifests_of_a_dataset_are_loaded_when_it_is_opened() -> None:
    values = {"data": np.ones((10, 10)), "chunks": (2, 2), "dimension_names": ("y", "x")}
    with written(values=values) as (repository, gathering):
        manifests, is_loaded = list[str](), threading.Event()

        def note(key: str) -> None:
            if key.startswith("manifests/"):
                manifests.append(key)
                is_loaded.set()

        gathering.note = note  # type: ignore[method-assign]
        dataset = xr.open_dataset(repository, engine="icefloe")
        assert is_loaded.wait(60)
        assert dataset["values"].sum() == 100
        assert len(manifests) == 1


def test_users_decide_which_manifests_are_loaded_before_they_are_needed() -> None:
    values = {"data": np.ones((10, 10)), "chunks": (2, 2), "dimension_names": ("y", "x")}
    with written(values=values) as (repository, gathering):
        store: Any = chosen_preload(repository).readonly_session("main").store
        threads = list[str]()

        def note(key: str) -> None:
            if key.startswith("manifests/"):
                threads.append(threading.current_thread().name)

        gathering.note = note  # type: ignore[method-assign]
        dataset = xr.open_dataset(store, engine="icefloe")
        assert dataset["values"].sum() == 100
        assert "icefloe-ahead" not in threads


def chosen_preload(repository: icefloe.Repository) -> icefloe.Repository:
    """Open a repository without any manifest before it is needed."""
    preload = icefloe.ManifestPreloadConfig(preload_if=icefloe.ManifestPreloadCondition.false())
    config = icefloe.RepositoryConfig(manifest=icefloe.ManifestConfig(preload=preload))
    return icefloe.Repository.open(
        repository.storage, config, authorize_virtual_chunk_access=ACCESS
    )


def test_a_session_counts_the_bytes_that_it_holds() -> None:
    with written(values=steps_of(1)) as (repository, _):
        array = opened_array(repository.readonly_session("main"))
        ahead = read_ahead(array.store._state)
        held_bytes = list[int]()
        for step in range(60):
            np.testing.assert_array_equal(array[step], VALUES[step])
            held_bytes.append(sum(held.size_bytes for *_, held in ahead._held.all()))
            assert ahead.held_bytes == held_bytes[-1]
        assert max(held_bytes) > held_bytes[-1] == 0


def test_small_variables_are_requested_before_they_are_loaded() -> None:
    small = {
        f"v{number:02}": {"data": np.full(4, number), "dimension_names": ("x",)}
        for number in range(20)
    }
    with written(**small) as (repository, gathering):
        dataset = xr.open_dataset(repository, engine="icefloe")
        gathering.begin()
        names = list(dataset)
        assert dataset[names[0]].values.tolist() == [0] * 4
        gathering.begin(expected=3)  # the second, and two after it
        dataset[names[1]].load()
        gathering.begin()
        assert all(dataset[name].values.tolist() == [int(str(name)[1:])] * 4 for name in names)
        assert set(gathering.chunks.values()) <= {1}


@given(st.data())
def test_any_walk_reads_what_is_stored(data: st.DataObject) -> None:
    rows = data.draw(st.sampled_from([1, 3]))
    storage = icefloe.in_memory_storage()
    session = far_repository(storage=storage, inline_bytes=0).writable_session("main")
    layout = {"shape": (24, 8), "chunks": (rows, 4), "dtype": "f8"}
    array = opened(session.store, OURS, **layout)
    expected = VALUES[:24].copy()
    array[:] = expected
    moves = st.sampled_from(["on", "on", "on", "back", "jump", "write", "commit"])
    first = width = 1
    for move in data.draw(st.lists(moves, max_size=15)):
        if move == "write":
            row = data.draw(st.integers(0, 23))
            array[row] = expected[row] = data.draw(st.integers(-9, -1))
        elif move == "commit":
            if session.has_uncommitted_changes:
                session.commit("a step")
            session = icefloe.Repository.open(
                storage, authorize_virtual_chunk_access=ACCESS
            ).writable_session("main")
            array = opened(session.store, OURS)
        else:
            if move == "jump":
                first, width = data.draw(st.integers(0, 23)), data.draw(st.integers(1, 4))
            else:
                first = max(0, min(23, first + (width if move == "on" else -width)))
            part = slice(first, first + width)
            np.testing.assert_array_equal(array[part, :4], expected[part, :4])


boxes = st.tuples(st.integers(0, 20), st.integers(1, 4)).map(
    lambda pair: Box((pair[0], 0), (pair[0] + pair[1], 2))
)


@given(st.lists(boxes, max_size=30))
def test_a_course_stays_within_the_grid_and_asks_for_nothing_twice_in_a_row(
    reads: list[Box],
) -> None:
    course, counts = Course(), (24, 2)
    for box in reads:
        chosen = course.follow(box, counts)
        for ahead in chosen:
            assert ahead.first[1:] == (0,)
            assert ahead.last[1:] == (2,)
            assert 0 <= ahead.first[0] < ahead.last[0] <= 24
            beside = ahead.first[0] >= box.last[0] or ahead.last[0] <= box.first[0]
            assert beside
        assert course.follow(box, counts) == []


def opened_array(session: Any) -> Any:
    with zarr.config.set({"codec_pipeline.path": OURS}):
        return zarr.open_array(session.store, path="values")


def test_a_forked_child_reads_for_itself(tmp_path: Path) -> None:
    import os

    with written(values=steps_of(1)) as (repository, _):
        session = repository.readonly_session("main")
        for step in range(4):
            opened_array(session)[step]
        child = os.fork()
        if child == 0:
            held = read_ahead(session.store._state).held_bytes
            (tmp_path / "held").write_text(str(held))
            os._exit(0)
        os.waitpid(child, 0)
        assert (tmp_path / "held").read_text() == "0"
