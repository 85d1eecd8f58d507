"""Pages of the service: who sees which page, what no page shows, and when a right ends."""

import html
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx2 as httpx
import numpy as np
import pytest
import zarr
from obstore.store import HTTPStore
from zarr.storage import ObjectStore

import icefloe
from icefloe.catalog.model import Person, Repository, TokenScope
from icefloe.catalog.wire import RequestDecision
from icefloe.service.database import assets
from tests.service.client_world import World, make_cube
from tests.service.pages_world import HOSTILE, PEOPLE, browser_of, map_values
from tests.support.servers import VENDOR

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def here(pages_service: World) -> World:
    return pages_service


@pytest.fixture(scope="module")
def browsers(here: World) -> dict[str, httpx.Client]:
    return {role: browser_of(here, person) for role, person in PEOPLE.items()} | {
        "anonymous": browser_of(here, None)
    }


def new_person(here: World, name: str) -> httpx.Client:
    here.desk.add_person(Person(name))
    return browser_of(here, name)


def csrf_of(text: str) -> str:
    found = re.search(r'name="csrf" value="(\w+)"', text)
    assert found is not None
    return found[1]


# Who sees which page

INLINE = r"<script(?! src=\"/static/)|<style|\s(on\w+|style)=\""
ROLES = ("anonymous", "stranger", "reader", "writer", "admin")
ANSWERS = {
    "/": (303, 200, 200, 200, 200),
    "/repositories": (303, 200, 200, 200, 200),
    "/repositories?search=map&org=lab": (303, 200, 200, 200, 200),
    "/repositories?cursor=nonsense": (303, 422, 422, 422, 422),
    "/listings": (303, 200, 200, 200, 200),
    "/listings/lab/maps": (303, 200, 200, 200, 200),
    "/listings/lab/inner": (303, 404, 200, 200, 200),
    "/listings/lab/none": (303, 404, 404, 404, 404),
    "/requests": (303, 200, 200, 200, 200),
    "/requests/new?repository=lab/closed": (303, 404, 200, 200, 200),
    "/requests/new?repository=lab/none": (303, 404, 404, 404, 404),
    "/repos/lab/open": (303, 303, 303, 303, 303),
    "/repos/lab/open/": (303, 200, 200, 200, 200),
    "/repos/lab/map/": (303, 404, 200, 200, 200),
    "/repos/lab/map/?version=none": (303, 404, 422, 422, 422),
    "/repos/lab/map/node/t2m": (303, 404, 200, 200, 200),
    "/repos/lab/map/node/none": (303, 404, 404, 404, 404),
    "/repos/lab/map/none": (303, 404, 404, 404, 404),
    "/repos/lab/map/history": (303, 404, 200, 200, 200),
    "/repos/lab/map/versions": (303, 404, 200, 200, 200),
    "/repos/lab/map/versions?moment=2999-01-01T00:00": (303, 404, 303, 303, 303),
    "/repos/lab/map/commit": (303, 404, 200, 200, 200),
    "/repos/lab/map/diff?from=main&to=main": (303, 404, 200, 200, 200),
    "/repos/lab/map/coverage": (303, 404, 200, 200, 200),
    "/repos/lab/map/sources": (303, 404, 200, 200, 200),
    "/repos/lab/map/dependencies": (303, 404, 200, 200, 200),
    "/repos/lab/map/chunk/t2m?by=step&at=0&at=0&at=0": (303, 404, 200, 200, 200),
    "/repos/lab/map/tiles/t2m/0/0/0.png?range=0,1": (303, 404, 200, 200, 200),
    "/repos/lab/map/picture/t2m": (303, 404, 200, 200, 200),
    "/repos/lab/map/fragment/chunks/t2m": (303, 404, 200, 200, 200),
    "/repos/lab/map/fragment/statistics/t2m": (303, 404, 200, 200, 200),
    "/repos/lab/closed/": (303, 404, 403, 403, 403),
    "/repos/lab/closed/picture/t2m": (303, 404, 403, 403, 403),
    "/repos/lab/none/": (303, 404, 404, 404, 404),
    "/repos/none/map/": (303, 404, 404, 404, 404),
    "/zarr/lab/map@main/zarr.json": (401, 404, 200, 200, 200),
    "/zarr/lab/closed@main/zarr.json": (401, 404, 403, 403, 403),
    "/api/v1/repos/lab/map/data/t2m?i.time=0": (401, 404, 200, 200, 200),
    "/api/v1/repos/lab/map/tiles/t2m/tilejson.json": (401, 404, 200, 200, 200),
    "/api/v1/repos/lab/map/tiles/t2m/0/0/0.png?range=0,1": (401, 404, 200, 200, 200),
    "/api/v1/repos/lab/closed/data/t2m?i.time=0": (401, 404, 403, 403, 403),
    "/api/v1/repos/lab/closed/plan/t2m?i.time=0": (401, 404, 403, 403, 403),
    "/api/v1/repos/lab/open/data/t2m?i.time=0": (401, 200, 200, 200, 200),
    "/account": (303, 200, 200, 200, 200),
    "/device": (303, 200, 200, 200, 200),
    "/password": (303, 200, 200, 200, 200),
    "/login": (200, 303, 303, 303, 303),
    "/logged-out": (200, 200, 200, 200, 200),
    "/nothing/here": (404, 404, 404, 404, 404),
}


@pytest.mark.parametrize("path", ANSWERS)
def test_a_page_answers_each_role(
    here: World, browsers: dict[str, httpx.Client], path: str
) -> None:
    texts = []
    for role, expected in zip(ROLES, ANSWERS[path], strict=True):
        response = browsers[role].get(path)
        assert response.status_code == expected, (role, response.text)
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        if role == "anonymous" and expected == 303:
            assert unquote(response.headers["location"].partition("next=")[2] or "/") in path
        texts.append(response.text)
        assert response.headers["x-content-type-options"] == "nosniff"
        if response.headers.get("content-type", "").startswith("text/html"):
            assert "<script>alert" not in response.text
            assert "\u202e" not in response.text
            assert not re.search(INLINE, response.text)
    secrets = [*here.desk.minted, *here.desk.tokens.values(), VENDOR["secret_access_key"]]
    secrets += [client.cookies["icefloe"] for client in browsers.values() if client.cookies]
    for text in texts:
        assert "Traceback" not in text
        assert not [secret for secret in secrets if secret in text]


def test_a_missing_node_has_the_pages_of_its_repository(browsers: dict[str, httpx.Client]) -> None:
    response = browsers["reader"].get("/repos/lab/map/node/none?version=main")
    assert response.status_code == 404
    assert 'href="/repos/lab/map/?version=main"' in response.text
    assert 'href="/repositories"' in response.text
    answer = browsers["reader"].get("/repos/lab/map/versions?moment=2999-01-01T00:00&of=/history")
    location = "/repos/lab/map/history?version=2999-01-01T00%3A00"
    assert answer.headers["location"] == location


def test_pages_open_what_the_api_opens(here: World, browsers: dict[str, httpx.Client]) -> None:
    for role, person in PEOPLE.items():
        for name in ("map", "closed", "open", "none"):
            headers = {"authorization": f"Bearer {here.desk.tokens[person]}"}
            path = f"{here.desk.url}/api/v1/repos/lab/{name}/open"
            answer = httpx.post(path, headers=headers, trust_env=False)
            shown = browsers[role].get(f"/repos/lab/{name}/")
            assert shown.status_code == answer.status_code, (role, name)
            if answer.is_error and answer.status_code == 404:
                assert answer.json()["message"] in shown.text


def test_the_styles_and_scripts_are_small() -> None:
    folder = Path(str(files("icefloe.web") / "static"))
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < 250_000
    others = Path(str(files("icefloe.service.pages"))).rglob("*")
    assert not [path for path in others if path.suffix in {".css", ".js"}]


# Lists


def test_repositories_are_searched_and_shown_in_pages(here: World) -> None:
    with here.desk.service.database.writing() as connection:
        for number in range(60):
            entry = Repository("museum", f"scan-{number:02}", "main", f"scan-{number}/", HOSTILE)
            assets.create_repository(connection, entry, here.desk.now)
    browser = browser_of(here, "mia")
    names = re.compile(r'href="/repos/(museum/[\w-]+)/"')
    first = browser.get("/repositories?search=MUSEUM+scan").text
    (following,) = re.findall(r'href="([^"]*cursor=[^"]*)"', first)
    second = browser.get(html.unescape(following)).text
    shown = names.findall(first) + names.findall(second)
    assert shown == [f"museum/scan-{number:02}" for number in range(60)]
    assert len(names.findall(first)) == 50
    assert "cursor=" not in second
    assert names.findall(browser.get("/repositories?search=scan-07").text) == ["museum/scan-07"]
    assert "No repository that you may read" in browser.get("/?search=closed").text
    assert names.findall(browser_of(here, "cid").get("/?search=scan").text) == []


def test_an_admin_subscribes_on_the_page_of_a_listing(here: World) -> None:
    here.client("mia").set_member("museum", "sam", role="reader")
    sam, mia = browser_of(here, "sam"), browser_of(here, "mia")
    path = "/listings/lab/maps"
    assert "Admins of your organisation can subscribe" in sam.get(path).text
    page = mia.get(path).text
    assert "<option>museum</option>" in page
    form = {"organisation": "museum", "version": "1", "accepts": "yes"}
    assert mia.post(path, data=form).status_code == 403  # no form of ours
    refused = sam.post(path, data=form | {"csrf": csrf_of(sam.get(path).text)})
    assert refused.status_code == 403
    assert "takes the role admin" in refused.text
    form["csrf"] = csrf_of(page)
    unread = mia.post(path, data={key: form[key] for key in ("organisation", "version", "csrf")})
    assert (unread.status_code, "read the licence" in unread.text) == (422, True)
    done = mia.post(path, data=form)
    assert (done.status_code, done.headers["location"]) == (303, path)
    assert ">granted</td>" in mia.get(path).text
    assert mia.post(path, data=form).status_code == 409
    (subscription,) = here.client("mia").list_subscriptions("museum")
    assert (subscription.accepted_by, subscription.state) == ("mia", "granted")
    here.client("mia").remove_member("museum", "sam")


# Asking


def test_a_refusal_leads_to_a_request_and_a_grant_opens_the_page(here: World) -> None:
    here.client("mia").set_member("museum", "cid", role="reader")
    here.client("mia").remove_member("museum", "cid")
    cid, path = browser_of(here, "cid"), "/repos/lab/closed/"
    refused = cid.get(path)
    assert refused.status_code == 403
    for text in (f"s3://{here.archive_store.bucket}/", "no policy shares it", "admins of museum"):
        assert text in refused.text
    form = {"csrf": csrf_of(refused.text), "repository": "lab/closed", "message": HOSTILE}
    assert "You have asked" in cid.post("/requests/new", data=form).text
    again = cid.get(path).text
    assert "You have asked already" in again
    assert "Ask their admins" not in again
    assert ">pending</td>" in cid.get("/requests").text
    (request,) = here.client("mia").list_requests("museum", state="pending")
    proposal = here.client("mia").show_request("museum", request.id)
    decision = RequestDecision(grants=True, policy=proposal.policy, answer=HOSTILE)
    here.client("mia").decide_request("museum", request.id, decision)
    answered = cid.get("/requests").text
    assert ">granted</td>" in answered
    assert "<script>alert" not in answered
    assert cid.get(path).status_code == 200
    assert cid.get(f"{path}picture/t2m").status_code == 200
    policies = here.client("mia").list_policies("museum")
    here.client("mia").delete_policy("museum", policies[0].id)
    assert cid.get(path).status_code == 403
    form["csrf"] = csrf_of(cid.get(path).text)
    cid.post("/requests/new", data=form)
    (waiting,) = here.client("cid").list_requests(state="pending")
    withdrawal = f"/requests/{waiting.id}/withdraw"
    assert browser_of(here, "bob").post(withdrawal, data=form).status_code == 403
    assert cid.post(withdrawal, data=form).status_code == 303
    assert here.client("cid").list_requests(state="pending") == []


# When a right ends


def paths_of(name: str) -> list[str]:
    root = f"/repos/lab/{name}"
    return [
        f"{root}/",
        f"{root}/node/t2m",
        f"{root}/picture/t2m",
        f"{root}/fragment/statistics/t2m",
        f"/zarr/lab/{name}@main/t2m/c/0/0/0",
    ]


def remove_member(here: World, person: str) -> Callable[[], Any]:
    here.client("ada").remove_member("lab", person)
    return lambda: here.client("ada").set_member("lab", person, role="reader")


def delete_policy(here: World, _person: str) -> Callable[[], Any]:
    client = here.client("eve")
    (policy,) = client.list_policies("archive")
    client.delete_policy("archive", policy.id)
    return lambda: client.undo_policy("archive", policy.id)


def suspend_bucket(here: World, _person: str) -> Callable[[], Any]:
    here.client("eve").suspend_bucket("archive", "main")
    return lambda: here.client("eve").resume_bucket("archive", "main")


@pytest.mark.parametrize(
    ("end_right", "status"), [(remove_member, 404), (delete_policy, 403), (suspend_bucket, 403)]
)
def test_a_right_that_ended_counts_at_the_next_page(
    here: World, end_right: Callable[[World, str], Callable[[], Any]], status: int
) -> None:
    name = end_right.__name__.replace("_", "-")
    browser = new_person(here, name)
    here.client("ada").set_member("lab", name, role="reader")
    assert [browser.get(path).status_code for path in paths_of("map")] == [200] * 5
    give_back = end_right(here, name)
    assert [browser.get(path).status_code for path in paths_of("map")] == [status] * 5
    give_back()
    if end_right is not suspend_bucket:  # which is proven again by the next probe
        assert browser.get("/repos/lab/map/").status_code == 200
    else:
        here.client("eve").probe_bucket("archive", "main")
        assert browser.get("/repos/lab/map/").status_code == 200


def test_a_session_that_ended_shows_no_more_pages(here: World) -> None:
    browser = browser_of(here, "cid")
    page = browser.get("/repos/lab/map/")
    form = {"csrf": csrf_of(page.text)}  # the navigation above pages of repositories
    assert browser.post("/logout", data=form).headers["location"] == "/logged-out"
    assert browser.get("/repos/lab/map/").status_code == 303


def test_many_pages_are_one_entry_of_the_audit_and_make_no_new_credentials(here: World) -> None:
    browser = new_person(here, "ann")
    here.client("ada").set_member("lab", "ann", role="reader")
    with ThreadPoolExecutor(10) as pool:  # of which the first one opens the repository
        answers = list(pool.map(browser.get, 2 * paths_of("map")))
    assert {answer.status_code for answer in answers} == {200}
    minted = len(here.desk.minted)
    for path in paths_of("map"):
        assert browser.get(path).status_code == 200
    assert len(here.desk.minted) == minted
    audited = [entry for entry in here.desk.audited() if entry[0] == "ann"]
    opens = [entry for entry in audited if entry[1] == "repositories:open"]
    assert opens == [("ann", "repositories:open", "lab/map", True)]


def test_nobody_gets_what_another_person_has_open(here: World) -> None:
    assert browser_of(here, "cid").get("/repos/lab/map/").status_code == 200
    zed = new_person(here, "zed")
    assert [zed.get(path).status_code for path in paths_of("map")] == [404] * 5


# Data and plans


def test_data_and_plans_are_for_those_who_may_read(browsers: dict[str, httpx.Client]) -> None:
    root, reader = "/repos/lab/map", browsers["reader"]
    found = reader.get(f"{root}/api/v1/data/t2m?i.time=1&format=json").json()
    values = found["variables"]["t2m"]["values"]
    np.testing.assert_array_equal(np.reshape(values, map_values()[1].shape), map_values()[1])
    plan = reader.get(f"{root}/plan/t2m?i.time=1").json()
    [chunk] = plan["chunks"]
    assert (chunk["kind"], chunk["signed"]) == ("virtual", True)
    signed = httpx.get(chunk["url"], headers=chunk["headers"], trust_env=False)
    assert signed.content == map_values()[1].tobytes()
    for role, status in (("stranger", 404), ("anonymous", 303)):
        for path in (f"{root}/api/v1/data/t2m?i.time=1", f"{root}/plan/t2m?i.time=1"):
            assert browsers[role].get(path).status_code == status


# Zarr over HTTP


def zarr_store(here: World, token: str, name: str = "map@main") -> ObjectStore[Any]:
    options: Any = {
        "allow_http": True,
        "default_headers": {"authorization": f"Bearer {token}"},
    }
    store = HTTPStore(f"{here.desk.url}/zarr/lab/{name}", client_options=options)
    return ObjectStore(store, read_only=True)


def test_zarr_reads_virtual_chunks_with_a_token(here: World) -> None:
    group = zarr.open_group(zarr_store(here, here.desk.tokens["cid"]), mode="r")
    array = group["t2m"]
    assert isinstance(array, zarr.Array)
    np.testing.assert_array_equal(array[:], map_values())


def test_zarr_asks_for_the_scope_of_a_token(here: World) -> None:
    path = f"{here.desk.url}/zarr/lab/map@main/t2m/c/1/0/0"

    def get(token: str, **headers: str) -> httpx.Response:
        headers["authorization"] = f"Bearer {token}"
        return httpx.get(path, headers=headers, trust_env=False)

    reading = here.desk.add_token("cid", TokenScope(("read",), ("lab/map",)))
    assert get(reading).content == map_values()[1].tobytes()
    part = get(reading, range="bytes=4-11")
    assert (part.status_code, part.content) == (206, map_values()[1].tobytes()[4:12])
    assert part.headers["cache-control"] == "private, no-cache"
    seen = get(reading, **{"if-none-match": part.headers["etag"]})
    assert (seen.status_code, seen.content) == (304, b"")
    other = here.desk.add_token("cid", TokenScope(("read",), ("lab/open",)))
    assert get(other).status_code == 403
    assert get(here.desk.tokens["sam"]).status_code == 404
    assert get("icefloe_nonsense").status_code == 401
    assert get("icefloe_nonsense").json()["code"] == "not-logged-in"
    headers = {"authorization": f"Bearer {reading}"}
    assert httpx.put(path, headers=headers, trust_env=False).status_code == 405
    head = httpx.head(path, headers=headers, trust_env=False)
    assert (head.status_code, head.headers["content-length"]) == (200, str(19 * 36 * 4))


def test_the_lines_to_copy_are_those_of_the_service(
    here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = browser_of(here, "cid").get("/repos/lab/map/").text
    recipes = [
        html.unescape(code) for code in re.findall(r"<code>(import.*?)</code>", text, re.DOTALL)
    ]
    assert "The map map &lt;script&gt;" in text
    host = here.desk.url.removeprefix("http://")
    assert f'xr.open_dataset("icefloe://{host}/lab/map", engine="icefloe")' in recipes[0]
    assert f'icefloe.Client("{here.desk.url}").login()' in recipes[1]
    monkeypatch.setenv("ICEFLOE_SERVICE", here.desk.url)
    monkeypatch.setenv("ICEFLOE_TOKEN", here.desk.tokens["cid"])
    names: dict[str, Any] = {}
    for code in recipes:
        if "spark" not in code:  # those lines have a test of their own
            exec(code, names)
    repository, group = names["repository"], names["group"]
    store = repository.readonly_session("main").store
    np.testing.assert_array_equal(zarr.open_array(store, path="t2m")[:], map_values())
    np.testing.assert_array_equal(names["ds"]["t2m"].to_numpy(), map_values())
    np.testing.assert_array_equal(group["t2m"][:], map_values())


# Dependencies


def owners_of(page: str) -> list[list[str]]:
    """Return the rows about owners, as texts."""
    body = page.partition('id="owners"')[2].partition("<tbody>")[2].partition("</tbody>")[0]
    rows = re.findall(r"<tr>(.*?)</tr>", body, re.DOTALL)
    cells = [re.findall(r"<t[hd].*?</t[hd]>", row, re.DOTALL) for row in rows]
    return [
        [" ".join(html.unescape(re.sub(r"<[^>]*>", " ", cell)).split()) for cell in row]
        for row in cells
    ]


def test_dependencies_name_owners_and_policies_and_nobody_else(here: World) -> None:
    mia, path = here.client("mia"), "/repos/lab/depends/dependencies"
    end = here.desk.now + timedelta(days=30)
    policy = mia.create_policy("museum", bucket="main", shared_with=("lab", "archive"), ends_at=end)
    unrelated = mia.create_policy("museum", bucket="main", shared_with=("archive",))
    try:
        make_cube(here, "depends")
        reader = browser_of(here, "cid").get(path)
        archive, museum = sorted(owners_of(reader.text))
        assert archive[0] == "archive"
        assert "everybody on this service" in archive[1]
        until = f"{end:%Y-%m-%d %H:%M UTC}"
        assert museum[:2] == ["museum", f"{policy.id}: members of lab, until {until}"]
        # Half of the virtual chunks, and half of their bytes, are of each of them.
        assert [row[2:6] for row in (archive, museum)] == [
            ["10", "50.0 %", "78.1 KiB", "50.0 %"]
        ] * 2
        for hidden in (unrelated.id, "icefloe view", "/organisations/museum/policies"):
            assert hidden not in reader.text
        mia.set_member("museum", "bob", role="reader")
        member = browser_of(here, "bob").get(path)
        (museum,) = (row for row in owners_of(member.text) if row[0] == "museum")
        assert "members of museum, lab, archive" in museum[1]
        assert f'href="/organisations/museum/policies/{unrelated.id}"' in member.text
    finally:
        with suppress(icefloe.NotFoundError):
            mia.remove_member("museum", "bob")
        for identifier in (policy.id, unrelated.id):
            mia.delete_policy("museum", identifier)
    refused = browser_of(here, "cid").get(path)
    assert refused.status_code == 403
    missing, _, shared = refused.text.partition("What others share with you already")
    assert "/scans/" in missing
    assert "/tapes/" in shared
    assert "Ask their admins" in missing
    assert policy.id not in refused.text
