"""Prefixes of containers: one plain reading, or a refusal."""

import pytest

from icefloe.catalog.model import Bucket, DeclaredContainer, Platform
from icefloe.service.domain.locations import (
    Location,
    Reason,
    Refusal,
    bucket_location,
    screen,
    screen_all,
    store_name,
)


def container(prefix: str, **fields: str | None) -> DeclaredContainer:
    return DeclaredContainer(prefix, prefix, **fields)  # type: ignore[arg-type]


def refusal(declared: DeclaredContainer) -> Refusal:
    answer = screen(declared)
    assert isinstance(answer, Refusal), answer
    return answer


@pytest.mark.parametrize(
    ("prefix", "location"),
    [
        ("s3://data/", Location(Platform.S3, "amazonaws.com", "data")),
        ("s3://data/a/b=1/", Location(Platform.S3, "amazonaws.com", "data", ("a", "b=1"))),
        (
            "s3://data/a,b:c@d+e~f/",
            Location(Platform.S3, "amazonaws.com", "data", ("a,b:c@d+e~f",)),
        ),
    ],
)
def test_plain_prefixes(prefix: str, location: Location) -> None:
    assert screen(container(prefix)) == location


def test_platforms() -> None:
    google = screen(container("gs://data/x/", platform="gcs"))
    assert google == Location(Platform.GCS, "storage.googleapis.com", "data", ("x",))
    azure = screen(container("az://data/x/", platform="azure", account="lab"))
    assert azure == Location(Platform.AZURE, "lab.blob.core.windows.net", "data", ("x",))
    assert refusal(container("az://data/x/", platform="azure")).reason is Reason.INVALID
    assert refusal(container("gs://data/x/", platform="s3")).reason is Reason.INVALID


@pytest.mark.parametrize("scheme", ["file", "memory", "http", "https", "vcc"])
def test_what_is_no_object_store_is_forbidden(scheme: str) -> None:
    answer = refusal(container(f"{scheme}:///home/ada/wallet/"))
    assert answer.reason is Reason.FORBIDDEN_SCHEME
    assert scheme in answer.detail


@pytest.mark.parametrize("platform", ["file", "memory", "http"])
def test_the_store_counts_as_much_as_the_scheme(platform: str) -> None:
    assert refusal(container("s3://data/x/", platform=platform)).reason is Reason.FORBIDDEN_SCHEME


def test_a_container_listed_under_another_prefix_is_refused() -> None:
    answer = refusal(DeclaredContainer("s3://public/", "s3://private/"))
    assert answer.reason is Reason.INVALID
    assert "s3://public/" in answer.detail


TWO_READINGS = [
    "s3://data/../",
    "s3://data/./x/",
    "s3://data/a/../b/",
    "s3://data/%2e%2e/",
    "s3://data/..%2f/",
    "s3://data/%252e%252e%252f/",
    "s3://data/a\\..\\b/",
    "s3://data/a\0/",
    "s3://data//x/",
    "s3://data/x//",
    "s3://data/x/\n",
    "s3://data\n/x/",
    "s3://data/x",
    "s3://data",
    "s3://",
    "s3:///x/",
    "s3:data/x/",
    "data/x/",
    "",
    "S3://data/x/",
    "s3://Data/x/",
    "s3://d\u0430ta/x/",  # a Cyrillic letter
    "s3://data/\uff0e\uff0e/",  # full-width dots
    "s3://data/a\u202eb/",
    "s3://data/\u2215/",
    "s3://data/*/",
    "s3://data/a?/",
    "s3://data/${aws:username}/",
    "s3://data/'/",
    's3://data/"/',
    "s3://data/a b/",
    "s3://*/",
    "s3://ada@data/x/",
    "s3://ada:secret@data/x/",
    "s3://data:443/x/",
    "s3://data/x/?versionId=1",
    "s3://data/x/#top",
    "s3://s3://data/x/",
    "s3://-data/x/",
    "s3://da/",
    f"s3://data/{'a' * 256}/",
]


@pytest.mark.parametrize("prefix", TWO_READINGS)
def test_text_with_two_readings_is_refused_not_repaired(prefix: str) -> None:
    assert refusal(container(prefix)).reason is Reason.INVALID


@pytest.mark.parametrize("endpoint", ["data.example", "ftp://x", "https://u@x", "https://x/path"])
def test_an_endpoint_is_a_plain_address(endpoint: str) -> None:
    assert store_name(Platform.S3, endpoint, None) is None
    assert refusal(container("s3://data/x/", endpoint=endpoint)).reason is Reason.INVALID


def test_stores_are_named_by_host_and_port() -> None:
    names = {
        "http://minio.example:9000": "minio.example:9000",
        "https://minio.example:443/": "minio.example",
        "http://MINIO.example": "minio.example",
        "https://s3.eu-west-1.amazonaws.com": "amazonaws.com",
        "https://s3.amazonaws.com": "amazonaws.com",
        "https://s3.amazonaws.com.evil.example": "s3.amazonaws.com.evil.example",
        "http://[::1]:9000": "[::1]:9000",
    }
    assert {text: store_name(Platform.S3, text, None) for text in names} == names


def test_only_endpoints_of_the_platforms_are_well_known() -> None:
    known = Location(Platform.S3, "amazonaws.com", "data")
    assert known.is_well_known
    assert Location(Platform.AZURE, "lab.blob.core.windows.net", "data").is_well_known
    assert not Location(Platform.S3, "evilamazonaws.com", "data").is_well_known
    assert not Location(Platform.S3, "x.execute-api.amazonaws.com", "data").is_well_known
    assert not Location(Platform.AZURE, "a.b.blob.core.windows.net", "data").is_well_known
    assert not Location(Platform.S3, "minio.example:9000", "data").is_well_known


def test_prefixes_cover_by_segments() -> None:
    place = Location(Platform.S3, "amazonaws.com", "data", ("pub",))
    assert place.covers(place)
    assert place.covers(place.below("a/b/"))
    assert place.below("a/") == Location(Platform.S3, "amazonaws.com", "data", ("pub", "a"))
    others = [
        Location(Platform.S3, "amazonaws.com", "data"),
        Location(Platform.S3, "amazonaws.com", "data", ("pub2",)),
        Location(Platform.S3, "amazonaws.com", "data-evil", ("pub",)),
        Location(Platform.S3, "minio.example", "data", ("pub",)),
        Location(Platform.GCS, "amazonaws.com", "data", ("pub",)),
    ]
    assert not any(place.covers(other) for other in others)


def test_names_of_containers() -> None:
    assert isinstance(screen(container("s3://data/x/", name="era5")), Location)
    for name in ["icefloe-provider", "a/b", "a b", "", "\n"]:
        assert refusal(container("s3://data/x/", name=name)).reason is Reason.INVALID
    twice = [container("s3://data/x/", name="era5"), container("s3://other/", name="era5")]
    assert all(isinstance(answer, Refusal) for answer in screen_all(twice))
    alone = [container("s3://data/x/", name="era5"), container("s3://other/")]
    assert all(isinstance(answer, Location) for answer in screen_all(alone))


def test_a_bucket_has_a_location() -> None:
    bucket = Bucket("lab", "main", Platform.S3, "data", "a/b/", endpoint="http://minio:9000")
    assert bucket_location(bucket) == Location(Platform.S3, "minio:9000", "data", ("a", "b"))
