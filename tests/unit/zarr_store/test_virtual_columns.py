"""Virtual references in columns: whatever they come in, they are recorded alike or not at all."""

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import zarr

from icefloe import (
    Repository,
    RepositoryConfig,
    Session,
    VirtualChunkContainer,
    VirtualChunkSpec,
    in_memory_storage,
    s3_store,
)
from icefloe.effects import run_blocking
from icefloe.errors import ErrorKind, IcefloeError, InvalidInputError, ReadOnlyError
from icefloe.format.chunk_table import VirtualChunk
from icefloe.zarr_store.virtual_columns import distinct_texts

LOCATIONS = ["s3://known/a", "s3://known/a", "s3://known/b"]
WHEN = datetime(2024, 1, 1, 12, 0, 0, 900_000, tzinfo=UTC)
SECONDS = int(WHEN.timestamp())


@pytest.fixture
def session() -> Session:
    """A session with an array `a` of 3 x 2 chunks and an array `line` of 100,000."""
    config = RepositoryConfig.default()
    config.set_virtual_chunk_container(VirtualChunkContainer("s3://known/", s3_store("us-east-1")))
    session = Repository.create(in_memory_storage(), config=config).writable_session("main")
    options: dict[str, Any] = {"dtype": "u1", "compressors": None}
    zarr.create_array(session.store, name="a", shape=(3, 2), chunks=(1, 1), **options)
    zarr.create_array(session.store, name="line", shape=(100_000,), chunks=(1,), **options)
    return session


def set_columns(session: Session, **changed: Any) -> list[list[int]]:
    columns: dict[str, Any] = {
        "coordinates": np.array([[0, 0], [0, 1], [2, 1]]),
        "locations": LOCATIONS,
        "offsets": np.array([1, 2, 3]),
        "lengths": np.array([4, 5, 6]),
    }
    refused = session.store.set_virtual_refs_columns("a", **columns | changed)
    assert refused.dtype == np.uint32
    rows: list[list[int]] = refused.tolist()
    return rows


def refs_of(session: Session, path: str = "/a") -> dict[tuple[int, ...], VirtualChunk]:
    changes = session._session.changes
    [node] = [each for each in changes.nodes.values() if each.path == path]
    settled = changes.settled(node.id)
    if settled is None:
        return {}
    table = settled.table
    found = {}
    for row, index in enumerate(table.coordinates.tolist()):
        ref = table.ref(row)
        assert isinstance(ref, VirtualChunk)
        found[tuple(index)] = ref
    return found


PLAIN = {
    (0, 0): VirtualChunk("s3://known/a", 1, 4),
    (0, 1): VirtualChunk("s3://known/a", 2, 5),
    (2, 1): VirtualChunk("s3://known/b", 3, 6),
}


def dictionary(index_type: Any, values: list[str | None], rows: list[int | None]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(rows, index_type), pa.array(values))


# -- forms of columns -----------------------------------------------------------------------


def _name(given: Any) -> str:
    """Name an example; what objects print of themselves has addresses in it."""
    if isinstance(given, dict):
        return ", ".join(given)
    return given if isinstance(given, str) else type(given).__name__


@pytest.mark.parametrize(
    "locations",
    [
        LOCATIONS,
        tuple(LOCATIONS),
        np.array(LOCATIONS),
        np.array(LOCATIONS, object),
        np.array(LOCATIONS, np.dtypes.StringDType()),
        pa.array(LOCATIONS),
        pa.array(LOCATIONS, pa.large_string()),
        pa.array(LOCATIONS, pa.string_view()),
        pa.array(["s3://never/x", *LOCATIONS])[1:],
        pa.chunked_array([LOCATIONS[:1], LOCATIONS[1:]]),
        pa.array(LOCATIONS).dictionary_encode(),
        dictionary(pa.int8(), ["not a url", "s3://known/b", "s3://known/a"], [2, 2, 1]),
        dictionary(pa.uint64(), ["s3://known/a", "s3://known/a", "s3://known/b"], [1, 0, 2]),
        pa.chunked_array(
            [pa.array(part).dictionary_encode() for part in (LOCATIONS[:2], ["s3://known/b"])]
        ),
        SimpleNamespace(__arrow_c_array__=pa.array(LOCATIONS).__arrow_c_array__),
        SimpleNamespace(__arrow_c_stream__=pa.chunked_array([LOCATIONS]).__arrow_c_stream__),
    ],
    ids=lambda given: str(getattr(given, "type", getattr(given, "dtype", type(given).__name__))),
)
def test_locations_come_in_many_forms(session: Session, locations: Any) -> None:
    assert set_columns(session, locations=locations) == []
    assert refs_of(session) == PLAIN


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("offsets", [1, 2, 3]),
        ("offsets", np.array([1, 2, 3], np.uint8)),
        ("offsets", np.array([1, 2, 3], object)),
        ("offsets", pa.array([1, 2, 3], pa.int16())),
        ("offsets", pa.chunked_array([[1], [2, 3]])),
        ("lengths", pa.array([0, 4, 5, 6], pa.uint64())[1:]),
        ("coordinates", [[0, 0], [0, 1], [2, 1]]),
        ("coordinates", np.array([[0, 0], [0, 1], [2, 1]], np.uint32)),
        ("coordinates", np.array([[0, 0], [0, 1], [2, 1]], ">i2")),
        ("coordinates", pa.array([[0, 0], [0, 1], [2, 1]], pa.list_(pa.int64(), 2))),
        ("coordinates", pa.array([[9, 9], [0, 0], [0, 1], [2, 1]], pa.list_(pa.uint32(), 2))[1:]),
    ],
    ids=_name,
)
def test_numbers_come_in_many_forms(session: Session, name: str, column: Any) -> None:
    assert set_columns(session, **{name: column}) == []
    assert refs_of(session) == PLAIN


def test_one_number_counts_for_all_rows(session: Session) -> None:
    set_columns(session, offsets=7, lengths=np.int64(9))
    assert {(ref.offset, ref.length) for ref in refs_of(session).values()} == {(7, 9)}


def test_one_plain_column_is_enough_for_one_dimension(session: Session) -> None:
    for coordinates in (np.array([7, 3]), pa.array([7, 3])):
        refused = session.store.set_virtual_refs_columns(
            "line", coordinates=coordinates, locations=LOCATIONS[1:], offsets=0, lengths=1
        )
        assert refused.shape == (0, 1)
    assert list(refs_of(session, "/line")) == [(3,), (7,)]


def test_rows_come_in_any_order_and_the_last_of_a_chunk_counts(session: Session) -> None:
    set_columns(session, coordinates=[[2, 1], [0, 0], [2, 1]])
    assert refs_of(session) == {
        (0, 0): VirtualChunk("s3://known/a", 2, 5),
        (2, 1): VirtualChunk("s3://known/b", 3, 6),
    }


def test_no_rows_are_fine(session: Session) -> None:
    assert (
        set_columns(
            session, coordinates=np.empty((0, 2), int), locations=[], offsets=[], lengths=[]
        )
        == []
    )
    nothing = pa.array([], pa.string())
    empty = pa.array([], pa.uint64())
    columns: dict[str, Any] = {"locations": nothing, "offsets": empty, "lengths": empty}
    assert set_columns(session, coordinates=np.empty((0, 2), int), etags=nothing, **columns) == []
    assert refs_of(session) == {}


@pytest.mark.slow
@pytest.mark.parametrize("per_file", [1, 7, 3000])
@pytest.mark.parametrize("form", [list, np.array, pa.array])
def test_long_columns(session: Session, per_file: int, form: Callable[[Any], Any]) -> None:
    rows = 70_000  # more than is handled at a time
    names = [f"s3://known/é-{row // per_file}" for row in range(rows)]
    refused = session.store.set_virtual_refs_columns(
        "line",
        coordinates=np.arange(rows)[::-1],
        locations=form(names),
        offsets=np.arange(rows),
        lengths=1,
        etags=form([name[-3:] for name in names]),
    )
    assert len(refused) == 0
    found = refs_of(session, "/line")
    assert len(found) == rows
    for row in (0, 2999, 3000, 65_535, 65_536, 69_999):
        name = names[row]
        assert found[rows - 1 - row,] == VirtualChunk(name, row, 1, name[-3:])


def test_texts_are_kept_once() -> None:
    texts, rows = distinct_texts(["b", "", "a", None, "b"], "etags")
    assert texts.to_strings() == ["b", "a"]
    assert rows.tolist() == [0, -1, 1, -1, 0]


# -- checksums ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "etags",
    [
        ["x", None, "y"],
        np.array(["x", "", "y"]),
        np.array(["x", None, "y"], object),
        pa.array(["x", None, "y"]),
        pa.array(["x", None, "y"], pa.large_string()),
        pa.array(["x", None, "y"]).dictionary_encode(),
        dictionary(pa.int32(), ["y", None, "x"], [2, 1, 0]),
    ],
    ids=_name,
)
def test_etags(session: Session, etags: Any) -> None:
    set_columns(session, etags=etags)
    assert [ref.etag for ref in refs_of(session).values()] == ["x", None, "y"]


def test_one_etag_counts_for_all_rows(session: Session) -> None:
    set_columns(session, etags='"x"')
    assert [ref.etag for ref in refs_of(session).values()] == ['"x"'] * 3


@pytest.mark.parametrize(
    "times",
    [
        [WHEN, None, SECONDS],
        [WHEN, 0, np.int64(SECONDS)],
        np.array([SECONDS, 0, SECONDS]),
        np.array([SECONDS * 1000 + 900, "NaT", SECONDS * 1000], "M8[ms]"),
        pa.array([SECONDS, None, SECONDS]),
        pa.array([WHEN, None, WHEN], pa.timestamp("us", "Europe/Paris")),
        pa.array([SECONDS * 10**9 + 1, None, SECONDS * 10**9], pa.timestamp("ns")),
    ],
    ids=_name,
)
def test_times_of_modification(session: Session, times: Any) -> None:
    set_columns(session, last_modified=times)
    assert [ref.last_modified for ref in refs_of(session).values()] == [SECONDS, None, SECONDS]


def test_one_time_counts_for_all_rows(session: Session) -> None:
    for given in (WHEN, SECONDS):
        set_columns(session, last_modified=given)
        assert {ref.last_modified for ref in refs_of(session).values()} == {SECONDS}


def test_checksums_of_the_other_forms(session: Session) -> None:
    store = session.store
    store.set_virtual_ref("a/c/0/0", "s3://known/x", offset=0, length=1, checksum=SECONDS)
    store.set_virtual_ref("a/c/0/1", "s3://known/x", offset=0, length=1, checksum=WHEN)
    store.set_virtual_ref("a/c/1/0", "s3://known/x", offset=0, length=1, checksum="tag")
    ones = np.ones(1, np.uint64)
    store.set_virtual_refs_arr(
        "a", (1, 1), ["s3://known/x"], ones, ones, arr_offset=(2, 0), checksum=SECONDS
    )
    assert [(ref.etag, ref.last_modified) for ref in refs_of(session).values()] == [
        (None, SECONDS),
        (None, SECONDS),
        ("tag", None),
        (None, SECONDS),
    ]
    with pytest.raises(InvalidInputError, match="etag of the object as text"):
        store.set_virtual_ref("a/c/0/0", "s3://known/x", offset=0, length=1, checksum=1.5)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="1970 and 2106"):
        store.set_virtual_ref("a/c/0/0", "s3://known/x", offset=0, length=1, checksum=-5)


@pytest.fixture
def local_time(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    """Have local time as the parameter says: `LOC+3` is three hours behind UTC."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("local_time", ["LOC+3"], indirect=True)
@pytest.mark.usefixtures("local_time")
def test_times_without_a_zone_are_in_local_time(session: Session) -> None:
    local = datetime(2024, 1, 1, 9, 0, 0, 900_000)
    store = session.store
    store.set_virtual_ref("a/c/0/0", "s3://known/x", offset=0, length=1, checksum=local)
    spec = VirtualChunkSpec([0, 1], "s3://known/x", 0, 1, None, local)
    assert spec == VirtualChunkSpec([0, 1], "s3://known/x", 0, 1, None, WHEN)
    assert store.set_virtual_refs("a", [spec]) is None
    ones = np.ones(1, np.uint64)
    store.set_virtual_refs_arr(
        "a", (1, 1), ["s3://known/x"], ones, ones, arr_offset=(1, 0), checksum=local
    )
    assert [ref.last_modified for ref in refs_of(session).values()] == [SECONDS] * 3
    for given in (local, [local] * 3):
        set_columns(session, last_modified=given)
    assert {ref.last_modified for ref in refs_of(session).values()} == {SECONDS}


def test_the_present_moment_is_a_checksum(session: Session) -> None:
    before = int(datetime.now(UTC).timestamp())
    session.store.set_virtual_ref(
        "a/c/0/0", "s3://known/x", offset=0, length=1, checksum=datetime.now()
    )
    recorded = refs_of(session)[0, 0].last_modified
    assert recorded is not None
    assert before <= recorded <= int(datetime.now(UTC).timestamp())


@pytest.mark.parametrize(
    ("local_time", "moment"),
    [("LOC+3", datetime.max), ("LOC-3", datetime.min)],
    indirect=["local_time"],
)
@pytest.mark.usefixtures("local_time")
def test_local_times_that_are_no_time_in_utc(moment: datetime) -> None:
    with pytest.raises(InvalidInputError, match="datetime of this age"):
        VirtualChunkSpec([0], "s3://known/x", 0, 1, None, moment)


# -- references that are refused ------------------------------------------------------------


def test_uncovered_rows_are_reported_and_not_recorded(session: Session) -> None:
    locations = ["s3://known/a", "s3://known-evil/a", "s3://other/b"]
    assert set_columns(session, locations=locations) == [[0, 1], [2, 1]]
    assert refs_of(session) == {(0, 0): PLAIN[0, 0]}
    assert set_columns(session, locations=locations, validate_containers=False) == []
    assert [ref.location for ref in refs_of(session).values()] == locations


def test_a_refused_row_leaves_an_earlier_one_of_its_chunk(session: Session) -> None:
    coordinates = [[0, 0], [0, 1], [0, 0]]
    locations = ["s3://known/a", "s3://known/a", "s3://other/b"]
    assert set_columns(session, coordinates=coordinates, locations=locations) == [[0, 0]]
    assert refs_of(session)[0, 0] == PLAIN[0, 0]
    specs = [
        VirtualChunkSpec([1, 1], "s3://known/a", 1, 2),
        VirtualChunkSpec([1, 1], "s3://other/a", 1, 2),
    ]
    assert session.store.set_virtual_refs("a", specs) == [(1, 1)]
    assert refs_of(session)[1, 1] == VirtualChunk("s3://known/a", 1, 2)


def test_both_names_of_validation(session: Session) -> None:
    store = session.store
    for names in ({"validate_container": False}, {"validate_containers": False}):
        store.set_virtual_ref("a/c/0/0", "s3://other/x", offset=0, length=1, **names)
        run_blocking(
            store.set_virtual_ref_async("a/c/0/1", "s3://other/x", offset=0, length=1, **names)
        )
    assert len(refs_of(session)) == 2
    for names in ({}, {"validate_container": True}, {"validate_containers": True}):
        with pytest.raises(InvalidInputError) as caught:
            store.set_virtual_ref("a/c/1/1", "s3://other/x", offset=0, length=1, **names)
        assert caught.value.kind == ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"coordinates": [0, 1, 2]}, r"shape \(3,\).*must be \(3, 2\)"),
        ({"coordinates": [[0, 0, 0]] * 3}, r"must be \(3, 2\)"),
        ({"coordinates": [[0, 0]] * 2}, r"must be \(3, 2\)"),
        ({"coordinates": [[0, 0], [1], [2]]}, "whole numbers"),
        ({"coordinates": [[0, 0], [0, 1], [0, -1]]}, r"no chunk \(0, -1\)"),
        ({"coordinates": [[0, 0], [0, 1], [3, 0]]}, r"no chunk \(3, 0\)"),
        ({"coordinates": [[0, 0], [0, 1], [2**32, 0]]}, r"no chunk \(4294967296, 0\)"),
        ({"coordinates": np.array([[0.0, 0]] * 3)}, "float64"),
        ({"coordinates": pa.array([[0, 0], None, [1, 1]], pa.list_(pa.int64(), 2))}, "nulls"),
        ({"locations": "s3://known/a"}, "one text for each"),
        ({"locations": ["s3://known/a", 5, "s3://known/a"]}, "5 is int"),
        ({"locations": ["s3://known/a", None, "s3://known/a"]}, "row 1 has no location"),
        ({"locations": pa.array(["", *LOCATIONS[1:]])}, "row 0 has no location"),
        ({"locations": pa.array([1, 2, 3])}, "holds int64"),
        ({"locations": np.array([LOCATIONS])}, "one dimension"),
        ({"locations": ["s3://known/\ud800"] * 3}, "not Unicode"),
        ({"locations": ["s3://known/a", "x", "s3://known/a"]}, "x"),
        ({"offsets": [1, 2]}, "one number for each"),
        ({"offsets": np.array([[1, 2, 3]])}, r"shape \(1, 3\)"),
        ({"offsets": [1, 2, -3]}, "row 2 has -3"),
        ({"offsets": -3}, "has -3"),
        ({"offsets": [1, 2, 2**64]}, "whole numbers from 0"),
        ({"offsets": np.array([1.0, 2, 3])}, "float64"),
        ({"offsets": np.array([1, 2.5, 3], object)}, "object"),
        ({"offsets": ["1", "2", "3"]}, "whole numbers"),
        ({"offsets": pa.array([1, None, 3])}, "nulls"),
        ({"offsets": pa.array([1.5, 2, 3])}, "double"),
        ({"offsets": [1, 2, 2**63]}, "row 2 starts at 9223372036854775808"),
        ({"lengths": [1, 2**63 - 1, 2]}, "row 1 starts at 2"),
        ({"lengths": [1, 2**64 - 1, 2]}, "beyond the largest object"),
        ({"lengths": [1, 0, 2]}, "no bytes"),
        ({"etags": ["a", "b"]}, "2 etags and 3 locations"),
        ({"etags": [1, 2, 3]}, "must be text"),
        ({"last_modified": [WHEN]}, "one time for each"),
        ({"last_modified": datetime.max}, "1970 and 2106"),
        ({"last_modified": [datetime.min] * 3}, "1970 and 2106"),
        ({"last_modified": 10**30}, "1970 and 2106"),
        ({"last_modified": [10**30] * 3}, "1970 and 2106"),
        ({"last_modified": ["now", None, None]}, "'now' is no time"),
        ({"last_modified": np.array([1, 2, -3])}, "row 2, -3 seconds"),
        ({"last_modified": np.array([1, 2, 2**32])}, "1970 and 2106"),
        ({"last_modified": np.array(["1969", "2024", "2024"], "M8[s]")}, "1970 and 2106"),
        ({"last_modified": pa.array(["now"] * 3)}, "must be times"),
        ({"last_modified": np.array([1.5, 2, 3])}, "float64"),
    ],
    ids=_name,
)
def test_what_is_wrong_is_said_and_nothing_is_recorded(
    session: Session, columns: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidInputError, match=says):
        set_columns(session, **columns)
    assert refs_of(session) == {}


def test_the_array_must_exist_and_the_session_be_writable(session: Session) -> None:
    columns: dict[str, Any] = {"coordinates": [[0]], "locations": ["s3://known/a"]}
    for path, kind in (("missing", ErrorKind.NODE_NOT_FOUND), ("/", ErrorKind.NOT_AN_ARRAY)):
        with pytest.raises(IcefloeError) as caught:
            session.store.set_virtual_refs_columns(path, offsets=0, lengths=1, **columns)
        assert caught.value.kind == kind
    session.commit("done")
    with pytest.raises(ReadOnlyError):
        session.store.set_virtual_refs_columns("a", offsets=0, lengths=1, **columns)


def test_the_asynchronous_form_does_the_same(session: Session) -> None:
    refused = run_blocking(
        session.store.set_virtual_refs_columns_async(
            "a",
            coordinates=[[0, 0], [2, 1]],
            locations=["s3://known/a", "s3://other/a"],
            offsets=[1, 2],
            lengths=4,
            etags="tag",
            last_modified=WHEN,
        )
    )
    assert refused.tolist() == [[2, 1]]
    assert refs_of(session) == {(0, 0): VirtualChunk("s3://known/a", 1, 4, "tag", SECONDS)}


def test_small_batches_take_no_tables_of_their_own(session: Session) -> None:
    for row in range(100):
        session.store.set_virtual_refs_columns(
            "line", coordinates=[row], locations=["s3://known/a"], offsets=row, lengths=1
        )
    [changes] = session._session.changes.arrays.values()
    assert not changes._batches
    assert len(refs_of(session, "/line")) == 100
