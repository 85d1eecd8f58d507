"""References set as columns are those set one by one, whatever form the columns have."""

from datetime import UTC, datetime
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import zarr
from hypothesis import given
from hypothesis import strategies as st

from icefloe import (
    Repository,
    RepositoryConfig,
    Session,
    VirtualChunkContainer,
    VirtualChunkSpec,
    in_memory_storage,
    s3_store,
)
from icefloe.errors import InvalidInputError
from icefloe.format.chunk_table import ChunkTable
from icefloe.transactions.nodes import require_array

SHAPE = (3, 4)
LOCATIONS = [
    "s3://known/a",
    "s3://known/a b",
    "s3://known/é/%20x",
    "vcc://named/b",
    "s3://known-not/a",
    "gs://other/a",
]
ETAGS = [None, "x", '"y"']

rows = st.lists(
    st.tuples(
        st.tuples(*(st.integers(0, size - 1) for size in SHAPE)),
        st.sampled_from(LOCATIONS),
        st.integers(0, 2**62),
        st.integers(1, 2**62),
        st.sampled_from(ETAGS),
        st.one_of(st.none(), st.integers(1, 2**32 - 1)),
    ),
    max_size=40,
)
text_forms = st.sampled_from(["list", "object", "string", "large", "dictionary", "view"])
number_forms = st.sampled_from(["list", "numpy", "arrow"])


@cache
def repository() -> Repository:
    config = RepositoryConfig.default()
    store = s3_store("us-east-1")
    config.set_virtual_chunk_container(VirtualChunkContainer("s3://known/", store, name="named"))
    repo = Repository.create(in_memory_storage(), config=config)
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="a", shape=SHAPE, chunks=(1, 1), dtype="u1")
    session.commit("an array without chunks")
    return repo


def new_session() -> Session:
    return repository().writable_session("main")


def texts(values: list[str | None], form: str) -> Any:
    match form:
        case "list":
            return values
        case "object":
            return np.array([*values, None], object)[:-1]
        case "dictionary":
            return pa.array(values, pa.string()).dictionary_encode()
        case _:
            kinds = {"string": pa.string(), "large": pa.large_string(), "view": pa.string_view()}
            return pa.array(values, kinds[form])


def numbers(values: list[int], form: str) -> Any:
    match form:
        case "list":
            return values
        case "numpy":
            return np.array(values, np.uint64)
        case _:
            return pa.array(values, pa.uint64())


def table_of(session: Session) -> ChunkTable:
    state = session._session
    settled = state.changes.settled(require_array(state, "/a").id)
    return ChunkTable.empty(2) if settled is None else settled.table


def one_by_one(session: Session, given_rows: list[Any], *, validate: bool) -> list[list[int]]:
    refused = []
    for index, location, offset, length, etag, modified in given_rows:
        moment = None if modified is None else datetime.fromtimestamp(modified, UTC)
        spec = VirtualChunkSpec(list(index), location, offset, length, etag, moment)
        if session.store.set_virtual_refs("a", [spec], validate_containers=validate):
            refused.append(list(index))
    return refused


@given(rows, text_forms, text_forms, number_forms, st.booleans())
def test_columns_are_rows_set_one_by_one(
    given_rows: list[Any], location_form: str, etag_form: str, form: str, validate: bool
) -> None:
    singly, together = new_session(), new_session()
    expected = one_by_one(singly, given_rows, validate=validate)
    columns: list[list[Any]] = [list(column) for column in zip(*given_rows, strict=True)]
    coordinates, locations, offsets, lengths, etags, modified = columns or [[] for _ in range(6)]
    refused = together.store.set_virtual_refs_columns(
        "a",
        coordinates=np.array(coordinates, np.int64).reshape(-1, 2),
        locations=texts(locations, location_form),
        offsets=numbers(offsets, form),
        lengths=numbers(lengths, form),
        etags=texts(etags, etag_form),
        last_modified=numbers([each or 0 for each in modified], form),
        validate_containers=validate,
    )
    assert refused.tolist() == expected
    assert table_of(together) == table_of(singly)


@given(rows)
def test_a_key_at_a_time_is_the_same(given_rows: list[Any]) -> None:
    by_key, by_spec = new_session(), new_session()
    for index, location, offset, length, etag, modified in given_rows:
        checksum = modified if etag is None else etag
        row = (index, location, offset, length, etag, None if etag else modified)
        refused = one_by_one(by_spec, [row], validate=True)
        key = f"a/c/{index[0]}/{index[1]}"
        try:
            by_key.store.set_virtual_ref(
                key, location, offset=offset, length=length, checksum=checksum
            )
        except InvalidInputError:
            assert refused
        else:
            assert not refused
    assert table_of(by_key) == table_of(by_spec)


@given(
    st.lists(
        st.tuples(st.sampled_from([*LOCATIONS, ""]), st.integers(0, 99)), min_size=6, max_size=6
    ),
    text_forms,
)
def test_a_box_is_its_rows(cells: list[tuple[str, int]], form: str) -> None:
    box, singly = new_session(), new_session()
    offsets = np.array([offset for _, offset in cells], np.uint64)
    lengths = np.full(6, 5, np.uint64)
    refused = box.store.set_virtual_refs_arr(
        "a", (2, 3), texts([each for each, _ in cells], form), offsets, lengths, arr_offset=(1, 1)
    )
    given_rows = [
        ((1 + cell // 3, 1 + cell % 3), location, offset, 5, None, None)
        for cell, (location, offset) in enumerate(cells)
        if location
    ]
    expected = one_by_one(singly, given_rows, validate=True)
    assert [list(each) for each in refused or []] == expected
    assert table_of(box) == table_of(singly)
