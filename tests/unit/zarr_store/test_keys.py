"""Keys, taken apart and put together."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.zarr_store.keys import (
    ChunkKey,
    MetadataKey,
    ParsedKey,
    V2Key,
    chunk_key,
    metadata_key,
    parse_key,
)


@pytest.mark.parametrize(
    ("key", "parsed"),
    [
        ("zarr.json", MetadataKey("/")),
        ("/zarr.json", MetadataKey("/")),
        ("a/zarr.json", MetadataKey("/a")),
        ("c/zarr.json", MetadataKey("/c")),
        ("a/c/0/zarr.json", MetadataKey("/a/c/0")),
        ("zarr.json/zarr.json", MetadataKey("/zarr.json")),
        ("c", ChunkKey("/", ())),
        ("c/0", ChunkKey("/", (0,))),
        ("a/c", ChunkKey("/a", ())),
        ("a/c/10/0", ChunkKey("/a", (10, 0))),
        ("c/c/0", ChunkKey("/c", (0,))),
        ("c/c/c", ChunkKey("/c/c", ())),
        ("a/c/0/c/1", ChunkKey("/a/c/0", (1,))),
        ("a/c/4294967295", ChunkKey("/a", (2**32 - 1,))),
        ("line\nbreak/c/0", ChunkKey("/line\nbreak", (0,))),
        (".zgroup", V2Key(".zgroup")),
        ("a/.zarray", V2Key("a/.zarray")),
        ("a/.zattrs", V2Key("a/.zattrs")),
        (".zmetadata", V2Key(".zmetadata")),
    ],
)
def test_keys_of_a_hierarchy(key: str, parsed: ParsedKey) -> None:
    found = parse_key(key)
    assert found == parsed
    assert type(found) is type(parsed)


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/",
        "nope",
        "a/b",
        "zarr.json/",
        "a//zarr.json",
        "../zarr.json",
        "a/./c/0",
        "a/c/",
        "a/c/0/",
        "a/c//0",
        "a/c/x",
        "a/c/-1",
        "a/c/+1",
        "a/c/00",
        "a/c/01",
        "a/c/ 1",
        "a/c/1_0",
        "a/c/٣",
        "a/c/0.0",
        "a/c/4294967296",
        "a/c/99999999999999999999",
        "a/0/0",
        "c/0\n",
        "\ud800/zarr.json",
    ],
)
def test_other_keys_are_refused(key: str) -> None:
    with pytest.raises(InvalidInputError, match="is not a key of a Zarr v3 hierarchy") as caught:
        parse_key(key)
    assert caught.value.kind == ErrorKind.INVALID_KEY


segments = st.one_of(
    st.sampled_from(["c", "0", "1", "zarr.json", ".zgroup"]),
    st.text(st.characters(exclude_characters="/", exclude_categories=["Cs"]), min_size=1),
).filter(lambda segment: segment not in {".", ".."})
paths = st.lists(segments, max_size=4).map(lambda names: "/" + "/".join(names))
coordinates = st.lists(st.integers(0, 2**32 - 1), max_size=4).map(tuple)


@given(paths, coordinates)
def test_chunk_keys_round_trip(path: str, index: tuple[int, ...]) -> None:
    assert parse_key(chunk_key(path, index)) == ChunkKey(path, index)


@given(paths)
def test_metadata_keys_round_trip(path: str) -> None:
    assert parse_key(metadata_key(path)) == MetadataKey(path)


@given(st.text())
def test_any_text_is_a_key_or_refused(text: str) -> None:
    try:
        parsed = parse_key(text)
    except InvalidInputError:
        return
    if isinstance(parsed, ChunkKey):
        assert chunk_key(parsed.path, parsed.coordinates) == text.removeprefix("/")
    elif isinstance(parsed, MetadataKey):
        assert metadata_key(parsed.path) == text.removeprefix("/")
