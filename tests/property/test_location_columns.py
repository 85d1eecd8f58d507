"""Locations handled as columns come out as those taken apart one by one."""

import re

from hypothesis import given
from hypothesis import strategies as st

from icefloe.config import VirtualChunkContainer, gcs_store, local_filesystem_store, s3_store
from icefloe.errors import InvalidInputError
from icefloe.format.columns import BytesColumn
from icefloe.maintenance.dependencies.summary import container_numbers
from icefloe.values.urls import parse_prefix
from icefloe.virtual_chunks.grouping import (
    Grouped,
    LocationQuery,
    absolute_all,
    by_bucket,
    by_folder,
    canonical,
    canonical_all,
)
from icefloe.virtual_chunks.resolve import LocationResolver

CONTAINERS = [
    VirtualChunkContainer("s3://bucket/", s3_store(), "wide"),
    VirtualChunkContainer("s3://bucket/deep", s3_store(), "narrow"),
    VirtualChunkContainer("gs://bucket/", gcs_store()),
    VirtualChunkContainer("gcs://bucket/", gcs_store()),
    VirtualChunkContainer("file:///data/", local_filesystem_store("/data"), "files"),
]
PLACES = LocationResolver(CONTAINERS)

heads = st.sampled_from(
    [
        "s3://bucket",
        "S3://bucket",
        "gs://bucket",
        "gcs://bucket",
        "s3://bucket-evil",
        "file://",
        "vcc://wide",
        "vcc://narrow",
        "vcc://files",
        "vcc://nobody",
        "https://Host:443",
        "http:/x",
    ]
)
pieces = st.sampled_from(
    [
        "deep",
        "data",
        "a b",
        "ä",
        "%41",
        "%2F",
        "%2e%2e",
        "..",
        ".",
        "",
        "x?y",
        "#f",
        "@",
        "\\",
        "\n",
    ]
) | st.text(max_size=3)
urls = st.builds(lambda head, path: "/".join([head, *path]), heads, st.lists(pieces, max_size=5))
locations = st.lists(urls | st.text(max_size=12), min_size=1, max_size=12).map(
    lambda texts: [text.encode(errors="replace").decode() for text in texts]
)


def absolute(text: str) -> str:
    try:
        return PLACES.absolute(text) if text.startswith("vcc://") else text
    except InvalidInputError:
        return text


def named(grouped: Grouped) -> list[str]:
    places, rows = grouped
    names = places.to_strings()
    assert len(set(names)) == len(names) == len(set(rows.tolist()))
    return [names[row] for row in rows.tolist()]


@given(locations)
def test_names_of_containers_are_replaced(texts: list[str]) -> None:
    column = BytesColumn.from_strings(texts)
    assert absolute_all(column, PLACES.absolute).to_strings() == [*map(absolute, texts)]


@given(locations)
def test_canonical_forms(texts: list[str]) -> None:
    found = canonical_all(BytesColumn.from_strings(texts)).to_strings()
    assert found == [*map(canonical, texts)]
    assert not any(re.search(r"://[^/]*@", text) for text in found)


@given(locations)
def test_containers(texts: list[str]) -> None:
    """Whatever can be located lies in the container that reading would take."""
    recorded = BytesColumn.from_strings(texts)
    resolved = canonical_all(absolute_all(recorded, PLACES.absolute))
    numbers = container_numbers(CONTAINERS, recorded, resolved).tolist()
    for text, number in zip(texts, numbers, strict=True):
        try:
            place = PLACES.locate(text)
            PLACES.require_key(place)
        except InvalidInputError:
            continue  # cannot be read at all
        assert number >= 0
        assert CONTAINERS[number] == place.container, text


@given(locations)
def test_places_are_beginnings_of_locations(texts: list[str]) -> None:
    column = canonical_all(BytesColumn.from_strings(texts))
    for depth in range(3):
        for whole, part in zip(column.to_strings(), named(by_folder(column, depth)), strict=True):
            assert whole.startswith(part)
            if whole.count("/") >= 3:
                assert part.count("/") == min(3 + depth, whole.count("/"))
                assert part.endswith("/")
            else:
                assert part == whole
    for whole, part in zip(column.to_strings(), named(by_bucket(column)), strict=True):
        assert part == "/".join(whole.split("/")[:3])


@given(locations, st.sampled_from(["s3://bucket", "s3://bucket/deep/", "gs", "file:///data"]))
def test_prefixes_choose_what_they_cover(texts: list[str], prefix: str) -> None:
    column = canonical_all(BytesColumn.from_strings(texts))
    wanted = parse_prefix(prefix)
    chosen = LocationQuery(prefix=prefix).chosen(column).tolist()
    for text, is_chosen in zip(column.to_strings(), chosen, strict=True):
        if is_chosen:
            head = text.split("://", 1)[0]
            assert head in {wanted.scheme, "gcs"}
        if text.startswith(f"{prefix.rstrip('/')}/"):
            assert is_chosen
