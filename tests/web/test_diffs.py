"""Differences of versions: nodes, chunks, regions and values, compared with plain reads."""

import html
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from shutil import copytree
from typing import Any

import httpx2 as httpx
import numpy as np
import pytest
import zarr
from numpy.typing import NDArray
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

import icefloe
from icefloe.effects import run_blocking
from icefloe.format.chunk_table import NativeChunk
from icefloe.format.layout import chunk_key
from icefloe.format.nodes import ArrayNode
from icefloe.transactions.chunks import find_ref
from icefloe.web import differences, diffs, history
from icefloe.web.pictures import NotDrawableError
from icefloe.web.server import listening_socket, server_of
from icefloe.web.site import Site
from icefloe.web.versions import Viewed
from tests.web.conftest import HOSTILE

TIME, LAT, LON = 20, 19, 36
CHUNKS = (5, 10, 18)


def create(root: zarr.Group, name: str, values: NDArray[Any], *names: str, **options: Any) -> Any:
    array = root.create_array(
        name, shape=values.shape, dtype=values.dtype, dimension_names=names, **options
    )
    array[...] = values
    return array


def field() -> NDArray[np.float64]:
    return np.arange(TIME * LAT * LON, dtype="f8").reshape(TIME, LAT, LON)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("diff")
    return folder


@pytest.fixture(scope="module")
def repository(folder: Path) -> icefloe.Repository:
    """A repository with a tag, a changed branch `main`, and a branch `side` from the tag."""
    config = icefloe.RepositoryConfig.default()
    config.inline_chunk_threshold_bytes = 0  # values of all chunks are in objects of their own
    repository = icefloe.Repository.create(icefloe.local_filesystem_storage(str(folder)), config)
    with repository.transaction("main", message="first") as store:
        root = zarr.open_group(store, mode="a")
        create(root, "t", field(), "time", "lat", "lon", chunks=CHUNKS, fill_value=np.nan)
        days = {"units": "days since 2024-01-01"}
        create(root, "time", np.arange(TIME), "time", attributes=days)
        create(root, "lat", np.linspace(-90, 90, LAT), "lat", attributes={"units": "degrees_north"})
        east = {"units": "degrees_east"}
        create(root, "lon", np.arange(0.0, 360, 10), "lon", attributes=east)
        create(root, "grows", np.arange(40.0), "x", chunks=(10,))
        create(root, "retyped", np.arange(6, dtype="i4"), "x")
        create(root, "bent", np.arange(24.0).reshape(8, 3), "p", "q", chunks=(2, 3))
        create(root, "rechunked", np.arange(12.0), "x", chunks=(4,))
        create(root, "text", np.array(["a", "b"]), "n")
        create(root, "scalar", np.array(3.0))
        create(root, "gone", np.arange(3), "x")
        create(root, "same", np.arange(3), "x")
        with zarr.config.set({"array.rectilinear_chunks": True}):
            create(root, "uneven", np.arange(10.0), "x", chunks=((2, 3, 5),))
        root.create_group("old").create_array("inside", shape=2, dtype="i2")
        root.create_group(HOSTILE)
    repository.create_tag("v1", repository.lookup_branch("main"))
    repository.create_branch("side", repository.lookup_branch("main"))
    with repository.transaction("main", message="second") as store:
        root = zarr.open_group(store, mode="a")
        array = zarr.open_array(store, path="t", mode="r+")
        array[7, 12:, 20:] = field()[7, 12:, 20:] + 0.25  # one chunk
        array[10:15, :5] = np.nan  # a row of two chunks
        root["grows"].resize(60)  # type: ignore[union-attr]
        root["grows"][35:] = -1.0  # type: ignore[index]
        root["bent"].resize((4, 6))  # type: ignore[union-attr]
        root["bent"][:, 3:] = 1.0  # type: ignore[index]
        root["bent"][:2] = 2.0  # type: ignore[index]
        create(root, "retyped", np.arange(6) + 0.5, "x", overwrite=True)
        create(root, "rechunked", np.arange(12.0), "x", chunks=(3,), overwrite=True)
        root["text"][0] = "c"  # type: ignore[index]
        root["scalar"][...] = 5.0  # type: ignore[index]
        with zarr.config.set({"array.rectilinear_chunks": True}):
            root["uneven"][3] = 7  # type: ignore[index]
        root.attrs["title"] = "changed"
        del root["gone"]
        root.create_group("new")
        root[HOSTILE].attrs[HOSTILE] = HOSTILE
    session = repository.rearrange_session("main")
    session.move("/old", "/moved")
    session.commit(f"third {HOSTILE}", metadata={"author": "Ada", "hostile": HOSTILE})
    with repository.transaction("side", message="on the side") as store:
        zarr.open_array(store, path="t", mode="r+")[0, 0, 0] = 1000
    return repository


@pytest.fixture(scope="module")
def viewed(repository: icefloe.Repository) -> Viewed:
    return Viewed(repository, "cube", "./cube")


@pytest.fixture(scope="module")
def client(viewed: Viewed) -> Iterator[httpx.Client]:
    server = server_of(viewed)
    with listening_socket("127.0.0.1", 0) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with httpx.Client(base_url=address, timeout=60, trust_env=False) as client:
            yield client
        server.should_exit = True
        thread.join()


def values(repository: icefloe.Repository, path: str, **version: Any) -> NDArray[Any]:
    """Read an array with plain Zarr."""
    store = repository.readonly_session(**version).store
    return np.asarray(zarr.open_array(store, path=path, mode="r")[...])


def difference(client: httpx.Client, path: str) -> tuple[dict[str, Any], NDArray[np.float32]]:
    response = client.get(f"/difference{path}")
    assert response.status_code == 200, response.text
    length = int.from_bytes(response.content[:4], "little")
    header = json.loads(response.content[4 : 4 + length])
    numbers = np.frombuffer(response.content[4 + length :], "<f4").reshape(header["shape"])
    return header, numbers


def drawn_grid(client: httpx.Client, path: str) -> dict[str, Any]:
    [grid] = re.findall(r'data-grid="([^"]*)"', client.get(path).text)
    drawing: dict[str, Any] = json.loads(html.unescape(grid))
    return drawing


def changed(viewed: Viewed, path: str, before: str, after: str) -> diffs.ArrayComparison:
    versions = viewed.version(before), viewed.version(after)
    old, new = diffs.find_pair(*versions, path)
    assert isinstance(old, ArrayNode)
    assert isinstance(new, ArrayNode)
    return diffs.compare_array(*versions, old, new)


def test_nodes_that_changed(client: httpx.Client) -> None:
    text = html.unescape(client.get("/diff?from=v1&to=main").text)
    sections = dict(re.findall(r"<h2>([^<]*)</h2>(.*?)</section>", text, re.DOTALL))
    paths = {title: re.findall(r">(/[^<]*)</a>", part) for title, part in sections.items()}
    assert paths["Arrays with changed chunks"] == [
        "/bent",
        "/grows",
        "/scalar",
        "/t",
        "/text",
        "/uneven",
    ]
    assert "/" in paths["Groups with changed metadata"]
    assert paths["Groups created"] == ["/new"]
    assert paths["Arrays deleted"] == ["/gone"]
    assert paths["Arrays replaced by new ones"] == ["/rechunked", "/retyped"]
    assert paths["Arrays with changed metadata"] == ["/bent", "/grows"]
    assert "from /old to " in sections["Nodes moved"]
    assert set(paths["Nodes moved"]) == {"/moved", "/moved/inside"}
    assert "/same" not in text
    assert "by the logs of the commits" in text


def test_versions_compare_with_themselves(client: httpx.Client) -> None:
    assert "Nothing changed." in client.get("/diff?from=v1&to=v1").text


def test_chunks_agree_with_the_diff_of_the_engine(
    repository: icefloe.Repository, viewed: Viewed, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = repository.diff(from_tag="v1", to_branch="main").chunk_coordinates
    for path in ("/t", "/grows", "/bent", "/scalar", "/text"):
        by_logs = changed(viewed, path, "v1", "main")
        assert by_logs.is_by_logs
        np.testing.assert_array_equal(by_logs.coordinates, expected[path])
        with monkeypatch.context() as patched:
            patched.setattr(diffs, "MOST_LOGS", 1)
            by_manifests = changed(viewed, path, "v1", "main")
        assert not by_manifests.is_by_logs
        assert by_manifests.is_complete
        np.testing.assert_array_equal(by_manifests.coordinates, expected[path])


def test_the_same_chunks_in_either_direction(viewed: Viewed) -> None:
    forth, back = changed(viewed, "/t", "v1", "main"), changed(viewed, "/t", "main", "v1")
    np.testing.assert_array_equal(forth.coordinates, back.coordinates)


def test_branches_are_compared_by_their_common_commit(
    viewed: Viewed, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = sorted([[0, 0, 0], *changed(viewed, "/t", "v1", "main").coordinates.tolist()])
    assert changed(viewed, "/t", "side", "main").coordinates.tolist() == expected
    monkeypatch.setattr(diffs, "MOST_LOGS", 0)
    by_manifests = changed(viewed, "/t", "side", "main")
    assert not by_manifests.is_by_logs
    assert by_manifests.coordinates.tolist() == expected
    assert "manifests were compared" in client.get("/diff?from=side&to=main").text


def test_too_many_references_are_not_compared(
    viewed: Viewed, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diffs, "MOST_LOGS", 0)
    monkeypatch.setattr(diffs, "MOST_REFERENCES", 3)
    assert not changed(viewed, "/t", "v1", "side").is_complete
    assert "not counted" in client.get("/diff?from=v1&to=side").text


def test_regions_are_in_coordinates(client: httpx.Client) -> None:
    text = html.unescape(client.get("/diff/t?from=v1&to=main").text)
    titles = re.findall(r'<tr title="([^"]*)"', text)
    assert titles == [
        "time 2024-01-06 to 2024-01-10, lat 10 to 90 degrees_north, lon 180 to 350 degrees_east",
        "time 2024-01-11 to 2024-01-15, lat -90 to 0 degrees_north, lon 0 to 350 degrees_east",
    ]
    assert "3 changed" in text
    drawing = drawn_grid(client, "/diff/t?from=v1&to=main")
    assert np.sum(drawing["changed"]) == 3
    assert np.sum(drawing["room"]) == 4 * 2 * 2


@pytest.mark.parametrize("step", [5, 7, 12])
@pytest.mark.parametrize(("before", "after"), [("v1", "main"), ("main", "v1"), ("side", "main")])
def test_values_are_those_of_numpy(
    client: httpx.Client, repository: icefloe.Repository, step: int, before: str, after: str
) -> None:
    names = {"v1": {"tag": "v1"}, "main": {"branch": "main"}, "side": {"branch": "side"}}
    expected = values(repository, "t", **names[after]) - values(repository, "t", **names[before])
    header, numbers = difference(client, f"/t?from={before}&to={after}&index={step},0,0")
    assert header["kind"] == "map"
    assert header["centred"]
    np.testing.assert_array_equal(numbers, expected[step].astype("f4"))
    assert header["range"]["max"] == np.nanmax(expected[step])


def test_the_note_counts_what_is_missing(client: httpx.Client) -> None:
    header, numbers = difference(client, "/t?from=v1&to=main&index=12,0,0")
    assert "2 changed chunks in this plane." in header["note"]
    assert f"{5 * LON} values are missing now." in header["note"]
    assert np.isnan(numbers).sum() == 5 * LON
    header, _ = difference(client, "/t?from=main&to=v1&index=12,0,0")
    assert f"{5 * LON} values were missing before." in header["note"]
    header, numbers = difference(client, "/t?from=v1&to=main&index=0,0,0")
    assert header["note"] == "No chunk of this plane changed."
    assert not numbers.any()


def test_the_page_begins_where_most_changed(client: httpx.Client) -> None:
    text = client.get("/diff/t?from=v1&to=main").text
    assert 'max="19" value="10"' in text
    assert "2024-01-11" in text


def test_only_changed_chunks_are_read(
    folder: Path, repository: icefloe.Repository, tmp_path: Path
) -> None:
    """All other chunks may even be deleted."""
    copytree(folder, tmp_path, dirs_exist_ok=True)
    copy = icefloe.Repository.open(icefloe.local_filesystem_storage(str(tmp_path)))
    comparison = changed(Viewed(copy, "copy", "copy"), "/t", "v1", "main")
    kept = set(map(tuple, comparison.coordinates.tolist()))
    deleted = 0
    for chunk in set(np.ndindex(comparison.new.array.num_chunks)) - kept:
        ref = run_blocking(find_ref(comparison.after.state, comparison.new, chunk))
        assert isinstance(ref, NativeChunk)
        (tmp_path / chunk_key(ref.id)).unlink()
        deleted += 1
    assert deleted == 16 - 3
    for step in (0, 7, 12):
        picture = differences.read_difference(comparison, [step, 0, 0])
        expected = values(repository, "t", branch="main") - values(repository, "t", tag="v1")
        np.testing.assert_array_equal(picture.values, expected[step].astype("f4"))


def test_large_differences_are_coarse_and_partial(monkeypatch: pytest.MonkeyPatch) -> None:
    repository = icefloe.Repository.create(icefloe.in_memory_storage())
    before = np.zeros((60, 80))
    after = before.copy()
    after[10:50] = np.arange(40 * 80).reshape(40, 80) + 1.0
    for message, array in {"before": before, "after": after}.items():
        with repository.transaction("main", message=message) as store:
            group = zarr.open_group(store, mode="a")
            if "a" not in group:
                group.create_array("a", shape=(60, 80), chunks=(5, 8), dtype="f8")
            group["a"][:] = array  # type: ignore[index]
        repository.create_tag(message, repository.lookup_branch("main"))
    viewed = Viewed(repository, "x", "x")
    comparison = changed(viewed, "/a", "before", "after")
    monkeypatch.setattr(differences, "MOST_PIXELS", 10)
    picture = differences.read_difference(comparison)
    window = picture.header["axes"]["rows"], picture.header["axes"]["columns"]
    # All chunks of a plane were written, those with zeros, too.
    assert [(axis["start"], axis["stride"]) for axis in window] == [(0, 6), (0, 8)]
    np.testing.assert_array_equal(picture.values, (after - before)[::6, ::8])
    assert picture.header["note"].startswith("Coarse: every 6th dim_0, every 8th dim_1. Partial: ")
    monkeypatch.setattr(differences, "MOST_CHUNKS", 2 * 30)
    picture = differences.read_difference(comparison)
    read = np.isfinite(picture.values)
    assert read.sum() == 30  # one value of each chunk
    np.testing.assert_array_equal(picture.values[read], (after - before)[::6, ::8][read])
    assert "30 of 120 changed chunks were read. The others are blank." in picture.header["note"]
    monkeypatch.setattr(differences, "MOST_BYTES", 600)
    with pytest.raises(NotDrawableError, match="compare them in Python"):
        differences.read_difference(comparison)


def test_arrays_that_grew(client: httpx.Client, repository: icefloe.Repository) -> None:
    text = html.unescape(client.get("/diff/grows?from=v1&to=main").text)
    assert "The shape changed from 40 to 60." in text
    assert re.findall(r'<tr title="([^"]*)"', text) == ["x 30 to 59"]
    header, numbers = difference(client, "/grows?from=v1&to=main")
    assert header["kind"] == "line"
    now, then = values(repository, "grows", branch="main"), values(repository, "grows", tag="v1")
    np.testing.assert_array_equal(numbers[0], (now[30:40] - then[30:]).astype("f4"))


def test_arrays_that_grew_and_shrank(client: httpx.Client, repository: icefloe.Repository) -> None:
    text = html.unescape(client.get("/diff/bent?from=v1&to=main").text)
    assert "The shape changed from 8 × 3 to 4 × 6." in text
    assert re.findall(r'<tr title="([^"]*)"', text) == [
        "p 0 to 1, q 0 to 5",
        "p 2 to 3, q 3 to 5",
        "p 4 to 7, q 0 to 2",  # only the earlier version has these
    ]
    _, numbers = difference(client, "/bent?from=v1&to=main")
    now, then = values(repository, "bent", branch="main"), values(repository, "bent", tag="v1")
    np.testing.assert_array_equal(numbers, (now[:2, :3] - then[:2]).astype("f4"))
    text = client.get("/diff/bent?from=main&to=v1").text
    assert "The shape changed from 4 × 6 to 8 × 3." in text
    assert client.get("/fragment/chunks/bent?since=v1").status_code == 200


def test_arrays_of_another_type_or_chunk(client: httpx.Client) -> None:
    text = client.get("/diff/retyped?from=v1&to=main").text
    assert "The type changed from int32 to float64." in text
    assert "replaced by a new one" in text
    _, numbers = difference(client, "/retyped?from=v1&to=main")
    assert numbers.tolist() == [[0.5] * 6]
    text = client.get("/diff/rechunked?from=v1&to=main").text
    assert "The shape of the chunks changed from 4 to 3" in text
    assert client.get("/difference/rechunked?from=v1&to=main").status_code == 422
    text = client.get("/diff/text?from=v1&to=main").text
    assert "no numbers to draw" in text
    assert "1 changed" in text


def test_chunks_of_different_lengths(client: httpx.Client) -> None:
    text = client.get("/diff/uneven?from=v1&to=main").text
    assert "1 changed" in text
    assert "the regions have no coordinates here" in text
    assert client.get("/difference/uneven?from=v1&to=main").status_code == 422


def test_logs_may_be_deleted(folder: Path, tmp_path: Path, viewed: Viewed) -> None:
    copytree(folder, tmp_path, dirs_exist_ok=True)
    for log in (tmp_path / "transactions").iterdir():
        log.unlink()
    copy = icefloe.Repository.open(icefloe.local_filesystem_storage(str(tmp_path)))
    comparison = changed(Viewed(copy, "copy", "copy"), "/t", "v1", "main")
    assert not comparison.is_by_logs
    expected = changed(viewed, "/t", "v1", "main").coordinates
    np.testing.assert_array_equal(comparison.coordinates, expected)


def test_repositories_of_the_first_spec(monkeypatch: pytest.MonkeyPatch) -> None:
    repository = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version=1)
    for number in range(3):
        with repository.transaction("main", message=f"{number}") as store:
            group = zarr.open_group(store, mode="a")
            if number == 0:
                group.create_array("a", shape=30, chunks=10, dtype="i4")
            group["a"][10 * number] = number + 1  # type: ignore[index]
        repository.create_tag(f"v{number}", repository.lookup_branch("main"))
    viewed = Viewed(repository, "x", "x")
    assert changed(viewed, "/a", "v0", "v2").coordinates.tolist() == [[1], [2]]
    comparison = diffs.compare(viewed.version("v0"), viewed.version("v2"))
    assert [(array.path, array.chunks) for array in comparison.arrays.nodes] == [("/a", 2)]
    picture = differences.read_difference(changed(viewed, "/a", "v0", "v2"))
    expected = values(repository, "a", tag="v2") - values(repository, "a", tag="v0")
    np.testing.assert_array_equal(picture.values[0], expected[10:])
    graph = history.read_graph(viewed.version("main"), is_only=False)
    assert not history.history_page(graph, 1).is_cut
    monkeypatch.setattr(history, "_MOST_REQUESTS", 2)
    page = history.history_page(history.read_graph(viewed.version("main"), is_only=True), 1)
    assert [row.headline for row in page.rows] == ["2", "1"]
    assert page.is_cut


def test_scalars_groups_and_nodes_of_one_version(client: httpx.Client) -> None:
    header, numbers = difference(client, "/scalar?from=v1&to=main")
    assert (header["kind"], numbers.tolist()) == ("value", [[2.0]])
    assert "the only value" in client.get("/diff/scalar?from=v1&to=main").text
    assert "it was deleted" in client.get("/diff/gone?from=v1&to=main").text
    assert "it was created" in client.get("/diff/new?from=v1&to=main").text
    assert "was at /old and is at /moved" in client.get("/diff/moved?from=v1&to=main").text
    assert "is at /moved" in client.get("/diff/old?from=v1&to=main").text
    assert "attribute title" in client.get("/diff/?from=v1&to=main").text
    assert "No chunk changed." in client.get("/diff/same?from=v1&to=main").text
    assert "Nothing" not in client.get("/diff").text  # only the fields for two versions


def test_hostile_texts_stay_text(client: httpx.Client, repository: icefloe.Repository) -> None:
    tip, path = (
        repository.lookup_branch("main"),
        httpx.URL("http://x").copy_with(path=f"/{HOSTILE}"),
    )
    pages = [
        "/diff?from=v1&to=main",
        f"/diff{path.raw_path.decode()}?from=v1&to=main",
        "/history",
        f"/commit/{tip}",
        f"/diff?from={HOSTILE}&to=main",
        f"/node/t?since={HOSTILE}",
        f"/fragment/chunks/t?since={HOSTILE}",
    ]
    for page in pages:
        text = client.get(page).text
        assert "<script>alert" not in text, page
        assert "\u202e" not in text, page
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text, page
        assert not re.search(r"<script(?! src=\"/static/)", text), page
        assert not re.search(r"\s(on\w+|style)=\"", text), page
    assert "Ada" in client.get(f"/commit/{tip}").text


def test_chunks_changed_since_a_version(client: httpx.Client) -> None:
    assert "3 changed" in client.get("/fragment/chunks/t?since=v1").text
    drawing = drawn_grid(client, "/fragment/chunks/t?since=v1")
    assert np.sum(drawing["changed"]) == 3
    assert np.sum(drawing["native"]) == 16
    assert "0 changed" in client.get("/fragment/chunks/t?since=main").text
    assert "is not in" in client.get("/fragment/chunks/gone?version=v1&since=main").text
    page = client.get("/node/t?since=v1").text
    assert "/fragment/chunks/t?since=v1" in page
    assert "/diff/t?from=v1&amp;to=main" in page


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/diff?from=nope&to=main", 400),
        ("/diff/t?from=v1", 400),
        ("/diff/nope?from=v1&to=main", 404),
        ("/difference/nope?from=v1&to=main", 422),
        ("/difference/t", 400),
        ("/difference/t?from=v1&to=main&index=1", 422),
        ("/difference/t?from=v1&to=main&index=99,0,0", 422),
        ("/history?page=x", 400),
        ("/history?page=-1", 400),
    ],
)
def test_problems_are_answers(client: httpx.Client, path: str, status: int) -> None:
    response = client.get(path)
    assert response.status_code == status
    assert "Traceback" not in response.text


def test_moments_and_ids_name_versions(
    client: httpx.Client, repository: icefloe.Repository
) -> None:
    first = repository.lookup_tag("v1")
    text = client.get(f"/diff?from={first}&to=2999-01-01").text
    assert f"snapshot {first}" in text
    assert "moment 2999-01-01" in text
    assert "/diff/t?from=" in text


def test_the_history_is_a_graph_in_pages(
    client: httpx.Client, repository: icefloe.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = client.get("/history").text
    assert text.count("<svg") == 5
    for ref in ("main", "side", "v1"):
        assert re.search(rf'class="chip [^"]*" href="/\?version={ref}">{ref}</a>', text)
    for commit in repository.ancestry(branch="main"):
        assert f'href="/commit/{commit.id}"' in text
        assert text.count(f'value="{commit.id}"') == 2  # to compare from and to
    assert text.count('type="radio"') == 10
    monkeypatch.setattr(history, "COMMITS_PER_PAGE", 2)
    pages = [client.get(f"/history?page={number}").text for number in (1, 2, 3)]
    shown = [re.findall(r'name="from" value="(\w+)"', page) for page in pages]
    assert list(map(len, shown)) == [2, 2, 1]
    assert len({commit for page in shown for commit in page}) == 5
    assert "Older" in pages[0]
    assert "Newer" in pages[2]
    only = client.get("/history?only=1&version=side").text
    assert "3 commits." in only
    assert "only=1" in client.get("/history?only=1&version=side&page=1").text


def test_a_commit_shows_its_author_and_changes(
    client: httpx.Client, repository: icefloe.Repository
) -> None:
    commits = [commit.id for commit in repository.ancestry(branch="main")]
    text = client.get(f"/commit/{commits[0]}").text
    assert '<th scope="row">author</th><td class="text">Ada</td>' in text
    assert "Nodes moved" in text
    assert f"/diff?from={commits[1]}&amp;to={commits[0]}" in text
    assert "The first version" in client.get(f"/commit/{commits[-1]}").text


def test_pages_below_another_path(viewed: Viewed) -> None:
    """All addresses of the pages begin with the path that they are served below."""
    site = Starlette(routes=[Mount("/repos/org/cube", routes=Site(viewed).routes())])
    with TestClient(site) as client:
        for path in ("/history", "/diff?from=v1&to=main", "/diff/t?from=v1&to=main", "/node/t"):
            text = client.get(f"/repos/org/cube{path}").text
            found = re.findall(r'(?:href|action|data-picture|hx-get)="([^"]*)"', text)
            assert len(found) > 5
            for address in found:
                assert address.startswith(("/repos/org/cube/", "/static/", "#")) or not address
