"""Pages over HTTP: what they show, what they never run, how they fail."""

import html
import re
from importlib.resources import files
from pathlib import Path

import httpx2 as httpx
import pytest
import zarr
from starlette.testclient import TestClient

import icefloe
from icefloe.web import nodes
from icefloe.web.site import create_site
from icefloe.web.versions import Viewed
from tests.web.conftest import HOSTILE

PAGES = [
    "/",
    "/?version=v1",
    "/node/t2m",
    "/node/names",
    "/node/ocean",
    "/node/ocean/sparse",
    "/history",
    "/versions",
    "/commit?version=v1",
    "/diff",
    "/diff?from=v1&to=main",
    "/diff/t2m?from=v1&to=main",
    "/node/t2m?since=v1",
    "/fragment/chunks/t2m",
    "/fragment/chunks/t2m?since=v1",
    "/fragment/statistics/t2m",
    "/coverage",
    "/sources?check=1",
    "/dependencies",
    "/chunk/ocean/virtual?by=step&at=0",
]


@pytest.mark.parametrize("path", PAGES)
def test_pages_answer_with_a_strict_policy(client: httpx.Client, path: str) -> None:
    response = client.get(path)
    assert response.status_code == 200
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "<style" not in response.text
    assert not re.search(r"<script(?! src=\"/static/)", response.text)
    assert not re.search(r"\s(on\w+|style)=", response.text)


def test_the_root_lists_groups_and_arrays(client: httpx.Client) -> None:
    text = client.get("/").text
    assert "Example" in text
    for name in ("t2m", "image", "line", "names", "ocean/"):
        assert f">{name}</a>" in text
    assert "time: 20" in text
    assert "degrees_north" in text
    assert 'import xarray as xr\n\nds = xr.open_dataset(\n    "./cube",\n' in html.unescape(text)


def test_nodes_are_found_in_all_groups(client: httpx.Client) -> None:
    text = client.get("/?search=SPARS").text
    assert "1 node." in text
    assert 'href="/node/ocean/sparse">ocean/sparse</a>' in text
    assert ">t2m</a>" not in text
    below = client.get("/node/ocean?search=r").text
    assert "2 nodes." in below
    assert 'href="/node/ocean/sparse">sparse</a>' in below
    assert 'href="/node/ocean/virtual">virtual</a>' in below
    group = client.get("/?search=ocean&version=v1").text
    assert "3 nodes." in group
    assert 'href="/node/ocean?version=v1">ocean/</a>' in group
    nothing = client.get("/", params={"search": "<script>x"}).text
    assert "0 nodes." in nothing
    assert "empty" not in nothing
    assert "<script>x" not in nothing


def test_a_long_list_of_nodes_is_cut(monkeypatch: pytest.MonkeyPatch, client: httpx.Client) -> None:
    monkeypatch.setattr(nodes, "MOST_CHILDREN", 3)

    def names(path: str) -> list[str]:
        return re.findall(r'<tr><th scope="row"><a[^>]*>([^<]*)</a>', client.get(path).text)

    assert "of which these are the first 3." in client.get("/?search=e").text
    assert len(names("/?search=e")) == 3
    assert len(names("/")) == 3
    assert not set(names("/")) & set(names(f"/?after={names('/')[-1]}"))


def test_hostile_texts_stay_text(client: httpx.Client, repository: icefloe.Repository) -> None:
    commit = client.get(f"/commit/{repository.lookup_tag('v1')}").text
    for text in (client.get("/").text, commit, client.get("/history").text):
        assert "<script>alert" not in text
        assert "\u202e" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in commit
    assert len(client.get("/").text) < 20_000  # a long attribute is cut
    assert HOSTILE not in commit


def test_an_array_page_shows_dimensions_and_encoding(client: httpx.Client) -> None:
    text = client.get("/node/t2m").text
    assert "20 steps, 4 chunks: 2024-01-01 to 2024-01-20" in text
    assert "-90 to 90 degrees_north" in text
    assert "float32" in text
    assert 'data-kind="map"' in text
    assert 'type="range" min="0" max="19"' in text


def test_an_array_that_cannot_be_drawn_says_why(client: httpx.Client) -> None:
    assert "no numbers to draw" in client.get("/node/names").text


def test_a_long_readme_can_be_read_to_its_end() -> None:
    repository = icefloe.Repository.create(icefloe.in_memory_storage())
    lines = [f"{number} lines < before" for number in range(1500)]
    with repository.transaction("main", message="data") as store:
        zarr.create_group(store, attributes={"readme": "\n".join(lines)})
    with TestClient(create_site(Viewed(repository, "x", "x")), "http://localhost") as client:
        text = html.unescape(client.get("/").text)
    first, _, rest = text.partition("<summary>The rest of the text</summary>")
    shown = first.partition('<p class="readme text">')[2].partition("</p>")[0]
    rest = rest.partition('<p class="text">')[2].partition("</p>")[0]
    assert len(shown) <= 2_000
    assert [*shown.splitlines(), *rest.splitlines()] == lines


@pytest.mark.parametrize(("name", "expected"), [("marked", "-1.0"), ("packed", "-9")])
def test_a_marker_of_missing_values_is_a_number(
    client: httpx.Client, name: str, expected: str
) -> None:
    text = client.get(f"/node/{name}").text
    assert re.search(rf'>_FillValue</th><td class="text">{expected}</td>', text)


def test_chunks_are_counted(client: httpx.Client) -> None:
    sparse = client.get("/fragment/chunks/ocean/sparse?short=1").text
    assert "10 inline" in sparse or "10 native" in sparse
    assert "90 missing" in sparse
    assert "1 virtual" in client.get("/fragment/chunks/ocean/virtual").text


def test_statistics_tell_whether_they_are_exact(client: httpx.Client) -> None:
    text = client.get("/fragment/statistics/image").text
    assert "<strong>Exact</strong>: 1,200 values" in text
    assert "1199" in text
    assert "599.5" in text


def test_history_and_commits(client: httpx.Client, repository: icefloe.Repository) -> None:
    history = client.get("/history").text
    assert "a correction" in history
    assert "Repository initialized" in history
    commit = client.get(f"/commit/{repository.lookup_branch('main')}").text
    assert "Arrays with changed chunks" in commit
    assert re.search(r">/t2m</a></th>\s*<td class=\"number\">4</td>", commit)


def test_versions_by_name(client: httpx.Client, repository: icefloe.Repository) -> None:
    first = repository.lookup_tag("v1")
    assert first in client.get("/?version=v1").text
    assert first in client.get(f"/?version={first}").text
    assert repository.lookup_branch("main") in client.get("/?version=2999-01-01").text


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/node/nope", 404),
        ("/nothing/here", 404),
        ("/?version=no%20such", 400),
        ("/fragment/chunks/ocean", 404),
        ("/commit/garbage", 400),
        ("/picture/names", 422),
        ("/picture/t2m?index=1,2", 422),
        ("/picture/t2m?index=99,0,0", 422),
        ("/picture/t2m?index=x", 422),
        ("/series/t2m?index=0,0,0&along=3", 422),
        ("/series/t2m?index=0,0,0&along=lat", 422),
        ("/series/t2m?index=0,0,0", 422),
    ],
)
def test_problems_are_answers(client: httpx.Client, path: str, status: int) -> None:
    response = client.get(path)
    assert response.status_code == status
    assert "Traceback" not in response.text


def test_other_host_names_are_refused(client: httpx.Client) -> None:
    assert client.get("/", headers={"host": "evil.example"}).status_code == 400


def test_nothing_can_be_changed(client: httpx.Client) -> None:
    for path in ("/", "/node/t2m", "/zarr/cube@main/zarr.json"):
        assert client.post(path).status_code == 405


def test_static_files_are_compressed_and_sent_once(client: httpx.Client) -> None:
    path = "/static/vendor/uplot.min.js"
    plain = client.get(path, headers={"accept-encoding": "identity"})
    small = client.get(path, headers={"accept-encoding": "br, gzip;q=0.8"})
    assert "content-encoding" not in plain.headers
    assert small.headers["content-encoding"] == "gzip"
    assert small.content == plain.content  # the client decompresses it
    assert int(small.headers["content-length"]) < int(plain.headers["content-length"]) / 2
    assert plain.headers["vary"] == small.headers["vary"] == "accept-encoding"
    assert plain.headers["etag"] != small.headers["etag"]
    assert small.headers["content-type"].startswith("text/javascript")
    again = {"accept-encoding": "gzip", "if-none-match": f'"x", W/{small.headers["etag"]}'}
    assert client.get(path, headers=again).status_code == 304
    refused = client.get(path, headers={"accept-encoding": "gzip;q=0"})
    assert "content-encoding" not in refused.headers
    assert client.head(path).headers["content-length"] == small.headers["content-length"]
    assert client.post(path).status_code == 405
    for other in ("/static/", "/static/nope.js", "/static/%2e%2e/site.py", "/static/vendor"):
        assert client.get(other).status_code == 404


def test_our_files_are_small() -> None:
    folder = Path(str(files("icefloe.web") / "static"))
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < 250_000


def test_an_empty_repository_has_a_page() -> None:
    repository = icefloe.Repository.create(icefloe.in_memory_storage())
    site = create_site(Viewed(repository, "new", "new"))
    with TestClient(site, base_url="http://localhost") as client:
        assert "This group is empty." in client.get("/").raise_for_status().text
        for path in ("/history", "/coverage", "/dependencies", "/sources"):
            client.get(path).raise_for_status()
