"""The choice of a version: what pages offer, where a choice leads, the ways on from a problem."""

import html
import re
from collections.abc import Iterator
from urllib.parse import quote

import httpx2 as httpx
import numpy as np
import pytest
import zarr
from starlette.testclient import TestClient

import icefloe
from icefloe.web.picker import REFS_PER_PAGE, Target
from icefloe.web.site import create_site
from icefloe.web.versions import Viewed

MANY = 120


def repository_of(spec_version: int) -> icefloe.Repository:
    """Return a repository with many refs; its last version has `new`, and no `gone` any more."""
    repository = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version=spec_version)
    with repository.transaction("main", message="first") as store:
        zarr.create_array(store, name="deep/gone", data=np.arange(3))
    first = repository.lookup_branch("main")
    for number in range(MANY):
        repository.create_tag(f"tag-{number:03}", first)
    repository.create_branch("side", first)
    session = repository.writable_session("main")
    del zarr.open_group(session.store, mode="a", path="deep")["gone"]
    zarr.create_array(session.store, name="new", data=np.arange(3))
    session.commit("second line\n\nand <b>more</b>")
    repository.create_tag("newest", repository.lookup_branch("main"))
    with repository.transaction("side", message="aside") as store:
        zarr.create_array(store, name="other", data=np.arange(3))
    return repository


@pytest.fixture(scope="module", params=[1, 2])
def many(request: pytest.FixtureRequest) -> icefloe.Repository:
    return repository_of(request.param)


@pytest.fixture(scope="module")
def pages(many: icefloe.Repository) -> Iterator[TestClient]:
    site = create_site(Viewed(many, "cube", "cube"))
    with TestClient(site, base_url="http://localhost", follow_redirects=False) as client:
        yield client


def picker_of(text: str) -> str:
    match = re.search(r'<form class="versions".*?</form>', text, re.DOTALL)
    assert match is not None
    return match[0]


def fields(form: str) -> list[tuple[str, str]]:
    hidden = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', form)
    return [(html.unescape(name), html.unescape(value)) for name, value in hidden]


def options(form: str) -> list[str]:
    return re.findall(r'<option value="([^"]*)"', form)


def chosen(form: str) -> list[str]:
    return re.findall(r'<option value="([^"]*)" selected', form)


def test_a_page_offers_few_versions_and_its_own(pages: TestClient) -> None:
    text = pages.get("/").text
    names = options(picker_of(text))
    assert names[0] == "main"
    assert "side" in names
    assert len(names) < 20
    assert chosen(picker_of(text)) == ["main"]
    assert len(text.encode()) < 8_000  # many tags do not make a page longer
    for name in ("tag-119", "2999-01-01", "side@2999-01-01T00:00"):
        assert chosen(picker_of(pages.get("/", params={"version": name}).text)) == [name]


def test_the_newest_names_are_offered_in_spec_2() -> None:
    client = TestClient(create_site(Viewed(repository_of(2), "x", "x")), "http://localhost")
    assert options(picker_of(client.get("/").text))[:3] == ["main", "side", "newest"]


@pytest.mark.parametrize(
    ("page", "action", "kept"),
    [
        ("/diff?from=newest&to=main", "/diff", [("from", "newest"), ("to", "main")]),
        ("/node/new?since=newest", "/node/new", [("since", "newest")]),
        ("/sources?search=a%26b&after=x", "/sources", [("search", "a&b")]),
        ("/history?only=1&page=2", "/history", [("only", "1")]),
        (
            "/chunk/new?by=step&at=1&version=main",
            "/chunk/new",
            [("by", "step"), ("at", "1")],
        ),
    ],
)
def test_a_choice_keeps_the_page(
    pages: TestClient, page: str, action: str, kept: list[tuple[str, str]]
) -> None:
    form = picker_of(pages.get(page).text)
    assert f'action="{action}"' in form
    assert fields(form) == kept
    target = html.unescape(re.findall(r'href="(/versions[^"]*)"', form)[0])
    listing = html.unescape(pages.get(target).text)
    expected = Target(action, tuple(kept)).address("", "newest")
    assert f'href="{expected}"' in listing
    assert pages.get(expected).status_code == 200


def test_a_choice_on_the_page_of_a_commit_opens_that_of_the_version(
    pages: TestClient, many: icefloe.Repository
) -> None:
    tip = many.lookup_branch("side")
    for path in (f"/commit/{tip}", "/commit?version=side"):
        text = pages.get(path).text
        assert "aside" in text
        assert 'action="/commit"' in picker_of(text)
        assert fields(picker_of(text)) == []


def test_a_difference_stays_and_its_links_lead_to_the_chosen_version(pages: TestClient) -> None:
    text = pages.get("/diff?from=tag-000&to=newest&version=side").text
    assert "tag newest" in text
    assert chosen(picker_of(text)) == ["side"]
    assert 'href="/?version=side"' in text


def test_a_comparison_without_a_second_version_is_with_that_of_the_page(pages: TestClient) -> None:
    form = pages.get("/history?version=side").text.partition('<form class="compare"')[2]
    assert fields(form.partition("</form>")[0]) == [("version", "side")]
    assert 'name="to" value="" placeholder="side" list="versions"' in form  # a value hides others
    text = pages.get("/diff?from=tag-000&to=&version=side").text
    assert "/other" in text
    assert "tag tag-000" in text
    assert "branch side" in text


def test_versions_are_listed_in_pages_and_found(
    pages: TestClient, many: icefloe.Repository
) -> None:
    names = []
    for number in (1, 2, 3):
        text = pages.get(f"/versions?page={number}").text
        names += re.findall(r'<th scope="row" class="text"><a href="[^"]*">([^<]*)</a>', text)
    assert len(names) == MANY + 3 > 2 * REFS_PER_PAGE
    assert names[0] == "main"
    assert sorted(names) == sorted([*many.list_branches(), *many.list_tags()])
    text = pages.get("/versions?search=TAG-11").text
    assert text.count(">tag-11") == 10
    assert many.lookup_tag("tag-110")[:8] in text
    assert "No branch or tag" in pages.get("/versions?search=%3Cscript%3E").text


def test_any_moment_of_any_branch(pages: TestClient, many: icefloe.Repository) -> None:
    late = "2999-01-01T00:00"
    query = {"branch": "side", "moment": late, "of": "/diff?from=newest&to=main"}
    answer = pages.get("/versions", params=query)
    assert answer.status_code == 303
    expected = f"/diff?from=newest&to=main&version={quote(f'side@{late}', safe='')}"
    assert answer.headers["location"] == expected
    text = pages.get("/", params={"version": f"side@{late}"}).text
    assert many.lookup_branch("side") in text
    assert ">other</a>" in text
    early = pages.get("/versions?branch=side&moment=1990-01-01T00:00")
    assert early.status_code == 200
    assert 'class="problem' in early.text
    assert 'value="1990-01-01T00:00"' in early.text


@pytest.mark.parametrize("of", ["//evil.example/", "https://evil.example/", "/\\evil.example"])
def test_a_moment_leads_to_no_other_site(pages: TestClient, of: str) -> None:
    answer = pages.get("/versions", params={"moment": "2999-01-01T00:00", "of": of})
    location = httpx.URL("http://localhost/").join(answer.headers["location"])
    assert location.host == "localhost"


def test_a_missing_node_is_no_dead_end(pages: TestClient) -> None:
    response = pages.get("/node/deep/gone", headers={"referer": "http://localhost/node/x?a=1"})
    assert response.status_code == 404
    ways = re.findall(r'<li><a class="text" href="([^"]*)">', response.text)
    assert ways == ["/node/deep?version=main", "/node/x?a=1"]
    assert pages.get(ways[0]).status_code == 200
    assert fields(picker_of(response.text)) == []
    assert 'action="/node/deep/gone"' in picker_of(response.text)
    assert pages.get("/node/deep/gone?version=tag-000").status_code == 200
    response = pages.get("/node/new?version=tag-000", headers={"referer": "http://evil.example/"})
    ways = re.findall(r'<li><a class="text" href="([^"]*)">', response.text)
    assert ways == ["/?version=tag-000", "/node/new?version=main"]


def test_an_unknown_version_has_a_page_with_the_others(pages: TestClient) -> None:
    response = pages.get("/node/new?version=nope")
    assert response.status_code == 400
    assert chosen(picker_of(response.text)) == ["main"]
    assert "version=nope" not in response.text


def test_a_commit_has_a_title_and_a_text(pages: TestClient) -> None:
    text = pages.get("/commit?version=newest").text
    assert "<h1>second line</h1>" in text
    assert '<p class="text">and &lt;b&gt;more&lt;/b&gt;</p>' in text


def test_a_snapshot_is_named_once(pages: TestClient, many: icefloe.Repository) -> None:
    tip = many.lookup_branch("main")
    footer = pages.get(f"/?version={tip}").text.partition("<footer>")[2]
    assert footer.count("snapshot") == 1
    assert "tag newest · snapshot" in pages.get("/?version=newest").text


def test_the_history_names_parents(pages: TestClient, many: icefloe.Repository) -> None:
    text = pages.get("/history").text
    info = many.lookup_snapshot(many.lookup_branch("main"))
    row = text[text.index(f"/commit/{info.id}") :].partition("</tr>")[0]
    assert f"/commit/{info.parent_id}" in row
