"""Pages of other sites read data only if the user named their site, and read nothing else."""

import pytest
from starlette.testclient import TestClient

from icefloe.errors import InvalidInputError
from icefloe.web.origins import parse_origin
from icefloe.web.site import create_site
from icefloe.web.versions import Viewed

FRIEND = "https://maps.example.org"
DATA = [
    "/zarr/cube@v1/zarr.json",
    "/api/v1/data/line?version=v1",
    "/tiles/t2m/0/0/0.png?range=0,9",
    "/plan/line",
]


@pytest.fixture
def shared(viewed: Viewed) -> TestClient:
    return TestClient(create_site(viewed, [FRIEND]), base_url="http://localhost")


@pytest.mark.parametrize("path", DATA)
def test_a_named_site_may_read_data(shared: TestClient, path: str) -> None:
    answer = shared.get(path, headers={"origin": FRIEND})
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == FRIEND
    assert "access-control-allow-credentials" not in answer.headers
    asked = {"origin": FRIEND, "access-control-request-method": "GET"}
    before = shared.options(path, headers=asked | {"access-control-request-headers": "range"})
    assert before.status_code == 200
    assert "range" in before.headers["access-control-allow-headers"].lower()


def test_nobody_else_may(shared: TestClient, viewed: Viewed) -> None:
    closed = TestClient(create_site(viewed), base_url="http://localhost")
    for path in DATA:
        for client, origin in (
            (shared, "https://evil.example"),
            (shared, f"{FRIEND}.evil.example"),
            (shared, "http://maps.example.org"),
            (shared, "null"),
            (closed, FRIEND),
        ):
            answer = client.get(path, headers={"origin": origin})
            assert "access-control-allow-origin" not in answer.headers
            asked = {"origin": origin, "access-control-request-method": "GET"}
            assert client.options(path, headers=asked).status_code in (400, 405)
    for path in ("/", "/node/t2m", "/history"):
        answer = shared.get(path, headers={"origin": FRIEND})
        assert "access-control-allow-origin" not in answer.headers


def test_ranges_can_be_seen_by_a_named_site(shared: TestClient) -> None:
    headers = {"origin": FRIEND, "range": "bytes=-7"}
    answer = shared.get("/zarr/cube@v1/image/c/0/0", headers=headers)
    assert answer.status_code == 206
    exposed = answer.headers["access-control-expose-headers"].lower()
    assert {"content-range", "etag", "accept-ranges"} <= {*exposed.split(", ")}


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("https://maps.example.org/", FRIEND),
        ("https://maps.example.org:443", FRIEND),
        ("http://LOCALHOST:5173", "http://localhost:5173"),
        ("http://[::1]:80", "http://[::1]"),
    ],
)
def test_origins_are_written_as_browsers_do(text: str, origin: str) -> None:
    assert parse_origin(text) == origin


@pytest.mark.parametrize(
    "text", ["*", "null", "", "https://*.example.org", "https://a.example/path", "ftp://a", "a.b"]
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="not the origin of a site"):
        parse_origin(text)
