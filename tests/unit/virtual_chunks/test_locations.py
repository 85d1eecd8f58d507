"""How locations of virtual chunks are written, stored and compared."""

import pytest

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.virtual_chunks.locations import parse_location, segment_fault, shown


@pytest.mark.parametrize(
    ("written", "stored"),
    [
        ("file:///data/a.nc", "file:///data/a.nc"),
        ("FILE:///data/a.nc", "file:///data/a.nc"),
        ("file:/data/a.nc", "file:///data/a.nc"),
        ("file://localhost/data/a.nc", "file:///data/a.nc"),
        ("file:///data/./x/../a b.nc", "file:///data/a%20b.nc"),
        ("file:///data/%2e%2E/etc", "file:///etc"),
        ("file:///../../etc", "file:///etc"),
        ("file:///data/..%2fetc", "file:///data/..%2fetc"),
        ("file:///data/x/..", "file:///data/"),
        ("file:///data/é.nc", "file:///data/%C3%A9.nc"),
        ("S3://Bucket/a/../b//c?q#f", "s3://Bucket/a/../b//c?q#f"),
        ("https://host:443/a%20b", "https://host:443/a%20b"),
        ("vcc://data/x/a.nc", "vcc://data/x/a.nc"),
    ],
)
def test_the_stored_form(written: str, stored: str) -> None:
    assert str(parse_location(written)) == stored
    assert str(parse_location(stored)) == stored


@pytest.mark.parametrize(
    "written",
    [
        "",
        "foo",
        "/data/a.nc",
        "s3://",
        "s3:///x",
        "s3:x",
        "file://host/x",
        "s3://b/a\nb",
        "s3://b/\x00",
    ],
)
def test_malformed_locations_are_refused(written: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        parse_location(written)
    assert caught.value.kind == ErrorKind.INVALID_VIRTUAL_REF


def test_what_is_no_utf8_cannot_be_compared() -> None:
    with pytest.raises(InvalidInputError, match="UTF-8"):
        _ = parse_location("s3://bucket/%ff").decoded


@pytest.mark.parametrize(
    "key",
    [
        *("a//b", "a/./b", "../a", "a/..", "", "/a", "a/"),
        *("a\x00b", "a\nb", "a\x7f", "a%00b", "a%250a"),
        *("%2e%2e/a", "%252e%252e/a", "a\\..\\b", "..\\a", "..;x/a", "a/.;/b"),
        *(
            "\uff0e\uff0e/a",
            "\u2025/a",
            "%ef%bc%8e./a",
            "%" + "25" * 20 + "61",
        ),
    ],
)
def test_keys_that_cannot_be_read(key: str) -> None:
    assert segment_fault(key) is not None


@pytest.mark.parametrize(
    "key", ["a", "a/b.nc", "...", "a..b", "..a", "a;b", "a\\b", "a%20b", "100%", "ñ", ".hidden/x"]
)
def test_keys_that_are_merely_unusual_can_be_read(key: str) -> None:
    assert segment_fault(key) is None


@pytest.mark.parametrize(
    "written",
    ["s3://u@b/k", "s3://b:1/k", "s3://b%2fc/k", "s3://bé/k", "https://h\\@x/k", "https://ñ.org/k"],
)
def test_hosts_are_plain(written: str) -> None:
    with pytest.raises(InvalidInputError, match=r"credentials have no place|ASCII") as caught:
        parse_location(written)
    assert caught.value.kind == ErrorKind.INVALID_VIRTUAL_REF


def test_messages_show_no_secrets() -> None:
    assert shown("https://me:pw@host/a?signature=x#y") == "https://host/a"
