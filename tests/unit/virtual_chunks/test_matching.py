"""Which containers and entries cover a location: by pieces of URLs, the longest first."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.config import VirtualChunkContainer, azure_store, gcs_store, http_store, s3_store
from icefloe.config.stores import AnyObjectStoreConfig
from icefloe.credentials import AnyCredential, Credentials, HttpAccess, s3_credentials
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.columns import BytesColumn
from icefloe.values.urls import Prefix, parse_prefix
from icefloe.virtual_chunks.locations import (
    DEFAULT_CONTAINERS,
    PrefixTable,
    is_plain,
    parse_location,
)
from icefloe.virtual_chunks.resolve import LocationResolver

S3_KEYS: AnyCredential = Credentials.S3(s3_credentials(anonymous=True))


def container(prefix: str, name: str | None = None) -> VirtualChunkContainer:
    store: AnyObjectStoreConfig = s3_store()
    if prefix.startswith(("gs", "gcs")):
        store = gcs_store()
    elif prefix.startswith("http"):
        store = http_store()
    elif prefix.startswith(("az", "abfs")):
        store = azure_store(account="mine")
    return VirtualChunkContainer(prefix, store, name)


def uncovered(resolver: LocationResolver, locations: BytesColumn) -> list[bool]:
    _, is_uncovered = resolver.recorded(locations, validate=True)
    assert is_uncovered is not None
    return [bool(flag) for flag in is_uncovered]


def places(*prefixes: str) -> LocationResolver:
    return LocationResolver([container(prefix) for prefix in prefixes])


def matched(location: str, *prefixes: str) -> str | None:
    try:
        return places(*prefixes).locate(location).container.url_prefix
    except InvalidInputError as error:
        if error.kind != ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK:
            raise
        return None


@pytest.mark.parametrize(
    ("prefix", "location", "expected"),
    [
        ("s3", "s3://any/key", True),
        ("s3://", "s3://any/key", True),
        ("s3", "s3a://any/key", False),
        ("s3://foo", "s3://foo/x", True),
        ("s3://foo/", "s3://foo/x", True),
        ("s3://foo", "s3://foo-evil/x", False),
        ("s3://foo", "s3://foo.evil/x", False),
        ("s3://foo", "s3://Foo/x", False),
        ("s3://foo/bar", "s3://foo/bar/x", True),
        ("s3://foo/bar", "s3://foo/bar", True),
        ("s3://foo/bar/", "s3://foo/bar", False),
        ("s3://foo/bar", "s3://foo/barn/x", False),
        ("s3://foo/bar/", "s3://foo/barn/x", False),
        ("s3://foo/bar.nc", "s3://foo/bar.nc", True),
        ("s3://foo/bar.nc", "s3://foo/bar.nc/below", True),
        ("s3://foo/bar.nc", "s3://foo/bar.nc4", False),
        ("s3://foo/a b/", "s3://foo/a%20b/x", True),
        ("s3://foo/a%20b/", "s3://foo/a b/x", True),
        ("s3://foo/a%2fb/", "s3://foo/a/b/x", True),
        ("models://", "models://bucket/key", True),
        ("models://", "file:///bucket/key", False),
        ("s3", "models://bucket/key", False),
        ("gs://b", "gcs://b/x", True),
        ("gcs://b", "gs://b/x", True),
        ("az://b", "abfs://b/x", True),
        ("abfs", "azure://b/x", True),
        ("https://host/", "https://HOST/x", True),
        ("https://host:443/", "https://host/x", True),
        ("https://host/", "https://host:443/x", True),
        ("https://host/", "https://host:444/x", False),
        ("https://host/", "http://host/x", False),
        ("http://host/", "http://host:443/x", False),
    ],
)
def test_a_prefix_covers_whole_pieces(prefix: str, location: str, expected: bool) -> None:
    assert matched(location, prefix) == (prefix if expected else None)
    assert uncovered(places(prefix), column(location)) == [not expected]


def column(*locations: str) -> BytesColumn:
    return BytesColumn.from_strings(list(locations))


def test_the_longest_prefix_wins_by_pieces_not_by_letters() -> None:
    prefixes = ["s3", "s3://a", "s3://a/x/y/", "s3://a/a-rather-long-name/"]
    expected = {
        "s3://b/k": "s3",
        "s3://a/k": "s3://a",
        "s3://a/x/k": "s3://a",
        "s3://a/x/y/k": "s3://a/x/y/",
        "s3://a/a-rather-long-name/k": "s3://a/a-rather-long-name/",
    }
    for order in range(5):
        random.Random(order).shuffle(prefixes)
        assert {each: matched(each, *prefixes) for each in expected} == expected


def test_between_aliases_the_scheme_of_the_location_decides() -> None:
    for order in (("gs://b/", "gcs://b/"), ("gcs://b/", "gs://b/")):
        assert matched("gs://b/x", *order) == "gs://b/"
        assert matched("gcs://b/x", *order) == "gcs://b/"
    assert matched("gs://b/x/k", "gs://b/", "gcs://b/x/") == "gcs://b/x/"


def test_a_name_leads_to_its_container() -> None:
    wide = container("s3", "any")
    bucket = container("s3://b/x", "data")
    thing = container("s3://b/x/one.nc", "one")
    found = LocationResolver([wide, bucket, thing])
    assert found.absolute("vcc://any/bucket/key") == "s3://bucket/key"
    assert found.absolute("vcc://data/a%20b?q") == "s3://b/x/a%20b?q"
    assert found.absolute("vcc://one") == "s3://b/x/one.nc"
    assert found.absolute("s3://b/k") == "s3://b/k"
    # A longer prefix that belongs to another container does not take it over.
    assert found.locate("vcc://data/one.nc").container is bucket
    assert found.locate("s3://b/x/one.nc").container is thing
    for unknown in ("vcc://none/x", "vcc://any"):
        with pytest.raises(InvalidInputError) as caught:
            found.absolute(unknown)
        assert caught.value.kind == ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK


# -- containers that nobody declared -----------------------------------------------------------


def test_default_containers_take_part_where_the_reader_authorised_them() -> None:
    access: dict[str, AnyCredential | None] = {"s3://mine/data": S3_KEYS, "https": HttpAccess}
    found = LocationResolver([container("s3://declared/")], access)
    rows = ["s3://mine/data/k", "s3://mine/k", "https://host/k", "http://host/k", "gs://b/k"]
    odd = ["s3://mine/data/a%20b", "s3://mine/a%20b", "file:///mine/data/k"]
    expected = [False, True, False, False, False, False, True, True]
    assert uncovered(found, column(*rows, *odd)) == expected
    with pytest.raises(InvalidInputError) as caught:
        found.locate("gs://b/k")  # which may be recorded, and was not authorised
    assert caught.value.kind == ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK
    place = found.locate("s3://mine/data/k")
    assert place.container in DEFAULT_CONTAINERS
    assert place.grant is not None
    assert found.authorised_prefixes == frozenset()


PLATFORMS = ["s3://b/k", "gs://b/k", "gcs://b/k", "az://b/k", "abfs://b/k", "tigris://b/k"]
WEB = ["http://host/k", "https://host/k"]


def test_without_any_container_chunks_of_all_platforms_can_be_recorded_and_none_read() -> None:
    rows = [*PLATFORMS, *WEB, "s3://b/a%20b", "file:///k", "models://b/k"]
    expected = [False] * 9 + [True] * 2
    assert uncovered(places(), column(*rows)) == expected
    for row in rows[:9]:
        assert places().recorded_one(row, validate=True) == row
        with pytest.raises(InvalidInputError) as caught:
            places().locate(row)
        assert caught.value.kind == ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK


@pytest.mark.parametrize(
    ("declared", "elsewhere"),
    [
        ("s3://mine/", ["s3://b/k"]),
        ("gcs://mine/", ["gs://b/k", "gcs://b/k"]),
        ("abfs://mine/", ["az://b/k", "abfs://b/k"]),
        ("models://mine/", []),
        ("https://mine/", WEB),
    ],
)
def test_who_declares_a_place_of_a_platform_hears_of_those_elsewhere(
    declared: str, elsewhere: list[str]
) -> None:
    rows = [*PLATFORMS, *WEB]
    result = uncovered(places(declared), column(*rows))
    assert [row for row, is_uncovered in zip(rows, result, strict=True) if is_uncovered] == (
        elsewhere
    )


def test_without_either_the_error_tells_both_ways_out() -> None:
    with pytest.raises(InvalidInputError) as caught:
        places("s3://other/").locate("s3://mine/data/k")
    assert caught.value.kind == ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK
    assert "VirtualChunkContainer('s3://mine/data/', ...)" in caught.value.message
    entry = "{'s3://mine/data/': icefloe.s3_credentials(...)}"
    assert f"authorize_virtual_chunk_access=icefloe.containers_credentials({entry})" in (
        caught.value.message
    )
    with pytest.raises(InvalidInputError) as caught:
        places().locate("models://mine/k")
    assert "authorize" not in caught.value.message


def test_a_declared_container_comes_before_any_default() -> None:
    wide = container("s3")
    found = LocationResolver([wide], {"s3://mine/data": S3_KEYS})
    assert found.locate("s3://mine/data/k").container is wide


def test_no_default_is_for_local_files_or_for_schemes_of_ones_own() -> None:
    schemes = {parse_prefix(each.url_prefix).scheme for each in DEFAULT_CONTAINERS}
    assert schemes == {"s3", "gs", "az", "tigris", "http", "https"}


# -- containers about which the repository contradicts itself ----------------------------------


def test_disputed_prefixes_are_not_guessed_at() -> None:
    found = LocationResolver([container("s3")], {"s3": S3_KEYS}, disputed=["s3://a/x/", "s3://b/"])
    for location in ("s3://a/x/k", "s3://b/k", "s3://b/a%20b"):
        with pytest.raises(InvalidInputError, match="contradicts itself") as caught:
            found.locate(location)
        assert caught.value.kind == ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK
    rows = ["s3://a/x/k", "s3://b/k", "s3://b/a%20b", "s3://a/k", "s3://c/k"]
    assert uncovered(found, column(*rows)) == [True, True, True, False, False]
    closer = LocationResolver([container("s3://b/deep/")], disputed=["s3://b/"])
    assert closer.locate("s3://b/deep/k").container.url_prefix == "s3://b/deep/"


# -- the quick way for columns -----------------------------------------------------------------

_pieces = st.sampled_from(
    ["a", "b", "a-b", "ab", "a.b", "A", ".", "..", "", "a b", "%61", "~", "ñ"]
)
_schemes = st.sampled_from(["s3", "gs", "gcs", "https", "models", "S3"])
_hosts = st.sampled_from(["b", "bb", "b-b", "B", "b:443"])


@st.composite
def _urls(draw: st.DrawFn) -> str:
    scheme, host = draw(_schemes), draw(_hosts)
    host = host if scheme == "https" else host.removesuffix(":443")
    return f"{scheme}://{host}/" + "/".join(draw(st.lists(_pieces, min_size=1, max_size=4)))


def covers(prefix: Prefix, place: Prefix) -> bool:
    """Say in the plainest way what it means to be covered."""
    families = {"gcs": "gs"}
    if families.get(prefix.scheme, prefix.scheme) != families.get(place.scheme, place.scheme):
        return False
    if prefix.host is None:
        return True
    if prefix.host != place.host:
        return False
    if prefix.segments == place.segments:
        return not prefix.is_folder or not prefix.segments
    return place.segments[: len(prefix.segments)] == prefix.segments


@given(st.lists(_urls(), max_size=5), _urls())
def test_the_table_agrees_with_looking_at_every_prefix(prefixes: list[str], location: str) -> None:
    parsed = [parse_prefix(each) for each in prefixes]
    place = parse_location(location).decoded
    found = PrefixTable(zip(parsed, prefixes, strict=True)).longest(place)
    fitting = [each for each in parsed if covers(each, place)]
    if not fitting:
        assert found is None
    else:
        assert found is not None
        longest = max(each.depth for each in fitting)
        assert found[0] in [each for each in fitting if each.depth == longest]


@given(st.lists(_urls(), max_size=4), st.lists(_urls(), min_size=1, max_size=8))
def test_columns_agree_with_single_locations(prefixes: list[str], rows: list[str]) -> None:
    parsed = [(parse_prefix(each), each) for each in prefixes]
    table = PrefixTable(parsed)
    plain = is_plain(column(*rows))
    for text, is_simple, quick in zip(rows, plain, table.covered(column(*rows)), strict=True):
        place = parse_location(text).decoded
        if is_simple:
            assert quick == (table.longest(place) is not None)
            assert str(parse_location(text)) == text
            assert "/".join(place.segments) == text.split("/", 3)[3]
            assert not {"", ".", ".."} & set(place.segments)
