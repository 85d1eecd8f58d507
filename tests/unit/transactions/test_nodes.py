"""What is read from a zarr.json, and what is refused."""

import json
from typing import Any

import pytest

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.nodes import ArrayInfo
from icefloe.transactions.nodes import chunk_grid_name, parse_metadata


def array_document(**changed: Any) -> dict[str, Any]:
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [10, 4],
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [6, 2]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0,
        "codecs": [{"name": "bytes"}],
    }
    return {name: value for name, value in (document | changed).items() if value != "absent"}


def parse(document: object) -> ArrayInfo | None:
    return parse_metadata(json.dumps(document).encode(), "/a")


def grid(name: str, **configuration: Any) -> dict[str, Any]:
    return {"name": name, "configuration": configuration}


def test_a_group_has_no_array() -> None:
    assert parse({"zarr_format": 3, "node_type": "group", "attributes": {"a": [1]}}) is None


def test_a_group_may_hold_consolidated_metadata() -> None:
    inner = {"kind": "inline", "must_understand": False, "metadata": {}}
    assert parse({"zarr_format": 3, "node_type": "group", "consolidated_metadata": inner}) is None


def test_chunks_are_counted_upwards() -> None:
    assert parse(array_document()) == ArrayInfo((10, 4), (2, 2))


@pytest.mark.parametrize(
    ("shape", "chunk_grid", "num_chunks"),
    [
        ([], grid("regular", chunk_shape=[]), ()),
        ([0, 4], grid("regular", chunk_shape=[6, 2]), (0, 2)),
        ([4, 4], grid("regular", chunk_shape=[0, 2]), (0, 2)),
        ([4], grid("rectilinear", kind="inline", chunk_shapes=[[1, 3]]), (2,)),
        ([10], grid("rectilinear", kind="inline", chunk_shapes=[[[2, 3], 4]]), (4,)),
        ([2**63], grid("regular", chunk_shape=[2**32]), (2**31,)),
    ],
)
def test_grids(shape: list[int], chunk_grid: dict[str, Any], num_chunks: tuple[int, ...]) -> None:
    info = parse(array_document(shape=shape, chunk_grid=chunk_grid))
    assert info is not None
    assert info.num_chunks == num_chunks


@pytest.mark.parametrize("names", [["x", None], [], ["only one"]])
def test_dimension_names_are_kept(names: list[str | None]) -> None:
    info = parse(array_document(dimension_names=names))
    assert info is not None
    assert info.dimension_names == tuple(names)


@pytest.mark.parametrize(
    "document",
    [
        [1],
        "text",
        {"node_type": "group"},
        {"zarr_format": 2, "node_type": "group"},
        {"zarr_format": 3},
        {"zarr_format": 3, "node_type": "thing"},
        array_document(shape="absent"),
        array_document(shape=[-1, 4]),
        array_document(shape=[4.0, 4]),
        array_document(shape=[True, 4]),
        array_document(shape=[2**64, 4]),
        array_document(chunk_grid="absent"),
        array_document(chunk_grid="regular"),
        array_document(chunk_grid={"name": "regular"}),
        array_document(chunk_grid=grid("weird", chunk_shape=[6, 2])),
        array_document(chunk_grid=grid("regular", chunk_shape=[6])),
        array_document(chunk_grid=grid("regular", chunk_shape=[6, 2, 1])),
        array_document(chunk_grid=grid("regular", chunk_shape=[6, -2])),
        array_document(chunk_grid=grid("rectilinear", chunk_shapes=[[6, 4]])),
        array_document(chunk_grid=grid("rectilinear", chunk_shapes=[6, [2, 2]])),
        array_document(chunk_grid=grid("rectilinear", chunk_shapes=[[[6, 1, 1]], [2, 2]])),
        array_document(chunk_grid=grid("rectilinear", chunk_shapes=6)),
        array_document(dimension_names="xy"),
        array_document(dimension_names=[1, 2]),
        array_document(dimension_names=["\ud800", "y"]),
    ],
)
def test_documents_that_are_not_valid(document: object) -> None:
    with pytest.raises(InvalidInputError, match=r"zarr\.json of /a is not valid") as caught:
        parse(document)
    assert caught.value.kind == ErrorKind.BAD_METADATA


@pytest.mark.parametrize(
    "raw", [b"", b"hello", b"\xff{}", "{}".encode("utf-16"), b"[" * 100_000, b"1" * 10_000]
)
def test_bytes_that_are_not_json(raw: bytes) -> None:
    with pytest.raises(InvalidInputError) as caught:
        parse_metadata(raw, "/a")
    assert caught.value.kind == ErrorKind.BAD_METADATA


def test_more_chunks_than_can_be_numbered() -> None:
    document = array_document(shape=[2**40, 4], chunk_grid=grid("regular", chunk_shape=[1, 2]))
    with pytest.raises(InvalidInputError, match="use larger chunks") as caught:
        parse(document)
    assert caught.value.kind == ErrorKind.INVALID_ARRAY_METADATA


def test_the_name_of_the_chunk_grid() -> None:
    regular = json.dumps(array_document()).encode()
    assert chunk_grid_name(regular, "/a") == "regular"
    other = array_document(chunk_grid=grid("rectilinear", chunk_shapes=[[10], [4]]))
    assert chunk_grid_name(json.dumps(other).encode(), "/a") == "rectilinear"
