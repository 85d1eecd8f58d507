"""Coverage, sources, dependencies and places of chunks, of an archive that was really ingested."""

import html
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient
from typer.testing import CliRunner

import icefloe
from icefloe.cli.common import authorised
from icefloe.cli.main import app
from icefloe.errors import InvalidInputError
from icefloe.pipeline.writing.provenance import record_path
from icefloe.web import archive_pages, dependencies, sources
from icefloe.web.site import Site, create_site, static_files
from icefloe.web.versions import Viewed
from tests.support.http_server import file_server, scripted_server
from tests.support.ingested import DayArchive, day_archive

CLIENT_URL = "http://127.0.0.1"


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> DayArchive:
    """Twenty days, of which two are missing and one came late; three files are damaged since."""
    made = day_archive(tmp_path_factory.mktemp("archive"))
    made.damage()
    return made


@pytest.fixture(scope="module")
def client(archive: DayArchive) -> Iterator[TestClient]:
    with open_pages(archive.repository, archive.url) as client:
        yield client


def open_pages(repository: icefloe.Repository, url: str) -> TestClient:
    return TestClient(create_site(Viewed(repository, "cube", url)), base_url=CLIENT_URL)


def command_json(*arguments: str) -> Any:
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def page(client: TestClient, path: str, **query: Any) -> str:
    response = client.get(path, params=query or None)
    assert response.status_code == 200
    return response.text


def table(text: str, number: int = 0) -> list[list[str]]:
    """Return the cells of the body of a table, as text."""
    body = re.findall(r"<tbody>(.*?)</tbody>", text, re.DOTALL)[number]
    return [
        [
            html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", cell))).strip()
            for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)
        ]
        for row in re.findall(r"<tr>(.*?)</tr>", body, re.DOTALL)
    ]


def facts(text: str, number: int = 0) -> dict[str, str]:
    return {row[0]: row[1] for row in table(text, number)}


# Coverage


def test_coverage_is_that_of_the_command(client: TestClient, archive: DayArchive) -> None:
    text = page(client, "/coverage")
    [dataset] = command_json("coverage", archive.url)
    [family] = dataset["families"]
    words = {"present": "present", "late": "came late", "partial": "in part", "missing": "missing"}
    assert table(text) == [
        [words[span["presence"]], span["first"], span["last"], str(span["steps"])]
        for span in family["spans"]
    ]
    assert f"{len(archive.paths)} files" in text
    assert family["late_files"][0] in text
    assert "17 present, 1 came late, 2 missing of 20 steps" in text


def test_the_picture_has_the_state_of_each_step(client: TestClient, archive: DayArchive) -> None:
    text = page(client, "/coverage")
    bars = re.findall(
        r'<rect class="(\w+)" x="(\d+)" y="(\d+)" width="(\d+)" height="(\d+)">', text
    )
    drawn = np.concatenate([np.repeat(state, int(width)) for state, _, _, width, _ in bars])
    columns = len(drawn) // archive.days
    states = np.full(archive.days, "present", "U8")
    states[list(archive.missing)] = "missing"
    states[archive.late] = "late"
    assert np.array_equal(drawn, np.repeat(states, columns))
    edges = np.cumsum([0, *(int(width) for *_, width, _ in bars)])[:-1]
    assert [int(x) for _, x, *_ in bars] == edges.tolist()
    heights = {state: int(height) for state, *_, height in bars}
    assert len(set(heights.values())) == len(heights)  # no state is known by its colour alone


def test_earlier_versions_have_their_own_files(client: TestClient, archive: DayArchive) -> None:
    first = archive.repository.lookup_tag("first")
    assert "17 present, 3 missing of 20 steps" in page(client, "/coverage", version=first)
    for _ in range(2):  # counts are kept between pages
        assert len(table(page(client, "/sources", version=first))) == 17
        assert len(table(page(client, "/sources"))) == 18


def test_a_repository_without_records(tmp_path: Path) -> None:
    storage = icefloe.local_filesystem_storage(str(tmp_path / "plain"))
    with open_pages(icefloe.Repository.create(storage), "plain") as client:
        assert "No dataset of this version has a record" in page(client, "/coverage")
        assert "No chunk of this version is virtual." in page(client, "/sources")
        assert "declares no container" in page(client, "/dependencies")


def test_a_bad_record_does_not_hide_others(tmp_path: Path) -> None:
    storage = icefloe.local_filesystem_storage(str(tmp_path / "odd"))
    repository = icefloe.Repository.create(storage)
    with repository.transaction("main", message="odd") as store:
        for name in ("<b>odd", "worse"):
            record = zarr.create_group(store, path=record_path(name))
            record.create_array("url", shape=2, dtype="string")
            record.create_array("start", shape=3 if name == "worse" else 2, dtype="int64")
    with open_pages(repository, "odd") as client:
        text = page(client, "/coverage")
    assert "&lt;b&gt;odd" in text
    assert "<b>odd" not in text
    assert "does not say how files are to be put together" in text
    assert "the record of its files is damaged" in text


def test_too_many_recorded_files_are_not_read(
    archive: DayArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_pages, "MOST_RECORDED", 5)
    with open_pages(archive.repository, archive.url) as client:
        assert "18 files are recorded, and a page reads 5" in page(client, "/coverage")


# Sources


def test_sources_are_counted_as_by_the_command(client: TestClient, archive: DayArchive) -> None:
    text = page(client, "/sources")
    listed = command_json("dependencies", archive.url, "--by", "file")
    counts = {row["place"]: row["chunks"] for row in listed["rows"]}
    assert {row[0]: int(row[1]) for row in table(text)} == counts
    assert f"with {listed['chunks']} chunks" in text
    files = sources.count_files(Viewed(archive.repository, "cube", "").version(None))
    assert files.size_bytes.sum() == listed["bytes"]
    assert files.is_complete
    assert files.counted == sum(counts_of_kinds(archive.repository).values())
    assert {name: kind.chunks for name, kind in files.kinds.items()} == counts_of_kinds(
        archive.repository
    )


def counts_of_kinds(repository: icefloe.Repository) -> dict[str, int]:
    """Ask for the kind of each chunk of each array by itself."""
    session = repository.readonly_session("main")
    kinds: Counter[str] = Counter({"native": 0, "virtual": 0, "inline": 0})
    group = zarr.open_group(session.store, mode="r")
    for path, node in group.members(max_depth=None):
        if isinstance(node, zarr.Array):
            for index in np.ndindex(*node.cdata_shape):
                kinds[session.chunk_type(f"/{path}", list(index)).name.lower()] += 1
    del kinds["uninitialized"]
    return dict(kinds)


def test_bytes_are_those_of_the_chunks_in_the_files(
    client: TestClient, archive: DayArchive
) -> None:
    with h5py.File(archive.paths[1]) as file:
        stored = sum(file[name].id.get_storage_size() for name in ("temperature", "wind"))
    [row] = table(page(client, "/sources", search=archive.paths[1].as_uri()))
    assert row[1:3] == ["2", f"{stored / 1024:.1f} KiB"]


def test_states_of_files_are_those_on_disk(client: TestClient, archive: DayArchive) -> None:
    rows = table(page(client, "/sources", check="1"))
    states = {row[0].rpartition("/")[2]: row[-1] for row in rows}
    expected = dict.fromkeys((path.name for path in archive.paths.values()), "present")
    deleted, changed, truncated = (archive.paths[day].name for day in archive.damaged)
    assert states[deleted] == "missing no such object"
    assert states[changed].startswith("changed last modification recorded")
    assert states[truncated].startswith("too short chunks need")
    for name in archive.damaged:
        del expected[archive.paths[name].name]
    assert {name: states[name] for name in expected} == expected


def test_files_that_are_not_authorised_are_not_looked_at(archive: DayArchive) -> None:
    with open_pages(archive.opened(), archive.url) as client:
        states = [row[-1] for row in table(page(client, "/sources", check="1"))]
    assert set(states) == {"not allowed you did not authorise its container"}
    assert len(states) == len(archive.paths)


def test_hostile_names_stay_text(client: TestClient, archive: DayArchive) -> None:
    chunk = page(client, "/chunk/temperature", by="step", at=[archive.hostile, 0, 0])
    for text in (page(client, "/sources"), chunk, page(client, "/sources", search="<img")):
        assert "&lt;img src=x onerror=alert(1)&gt;" in text
        assert "<img" not in text
    text = page(client, "/sources", search='"><script>alert(1)</script>')
    assert "<script>alert" not in text
    assert "No file is found." in text


def test_lists_of_files_have_pages(archive: DayArchive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "FILES_OF_A_PAGE", 7)
    names: list[str] = []
    with open_pages(archive.repository, archive.url) as client:
        link: str | None = "/sources?search=day_"
        while link is not None:
            text = page(client, link)
            names += [row[0] for row in table(text)]
            found = re.search(r'href="([^"]+)">Next<', text)
            link = None if found is None else html.unescape(found[1])
    assert len(names) == len(archive.paths)
    assert names == sorted(names)


def test_searches_find_beginnings_and_parts(client: TestClient, archive: DayArchive) -> None:
    prefix = f"{archive.folder.as_uri()}/day_1"
    beginning = [row[0] for row in table(page(client, "/sources", search=prefix))]
    assert len(beginning) == 10
    assert all(name.startswith(prefix) for name in beginning)
    [row] = table(page(client, "/sources", search="ay_07.n"))
    assert row[0].endswith("/day_07.nc")
    assert "No file is found." in page(client, "/sources", search="data://")


def test_counts_of_a_part_are_labelled(
    archive: DayArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "MOST_REFERENCES", 30)
    with open_pages(archive.repository, archive.url) as client:
        for path in ("/sources", "/dependencies"):
            assert "Counted in part: the first" in page(client, path)
    files = sources.count_files(Viewed(archive.repository, "cube", "").version(None))
    assert 0 < files.counted <= 30 < files.references


def test_files_beyond_the_limit_are_not_counted(
    archive: DayArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = Viewed(archive.repository, "cube", "").version(None)
    whole = sources.count_files(version)
    monkeypatch.setattr(sources, "MOST_FILES", 6)
    files = sources.count_files(version)
    assert len(files) == 6 < len(whole)
    assert not files.is_complete
    assert files.counted < whole.counted == files.references
    assert set(files.names.to_strings()) < set(whole.names.to_strings())


def test_a_check_sends_one_head_request_for_each_file(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for name in "abc":
        (data / f"{name}.bin").write_bytes(b"12345678")
    config = icefloe.RepositoryConfig.default()
    with file_server(data) as server:
        prefix = f"{server.url}/"
        container = icefloe.VirtualChunkContainer(prefix, icefloe.http_store())
        config.set_virtual_chunk_container(container)
        repository = icefloe.Repository.create(
            icefloe.local_filesystem_storage(str(tmp_path / "repository")),
            config,
            icefloe.containers_credentials({prefix: icefloe.credentials.HttpAccess}),
        )
        with repository.transaction("main", message="three") as store:
            zarr.create_array(store, name="n", shape=24, chunks=4, dtype="i2")
            for chunk in range(6):  # two chunks of each file
                url = f"{prefix}{'abc'[chunk // 2]}.bin?token=secret"
                etag = "an-old-etag" if chunk == 5 else None
                store.set_virtual_ref(f"n/c/{chunk}", url, offset=0, length=8, checksum=etag)
        (data / "b.bin").unlink()
        with open_pages(repository, "web") as client:
            before = len(server.requests)
            listed = page(client, "/sources")
            assert server.requests[before:] == []
            rows = table(page(client, "/sources", check="1"))
        asked = server.requests[before:]
    assert "secret" not in listed
    states = [row[-1] for row in rows]
    assert states[0] == "present no checksum is recorded: changes are not noticed"
    assert states[1] == "missing no such object"
    assert states[2].startswith("changed etag recorded an-old-etag, found")
    assert Counter(request.split()[0] for request in asked) == {"HEAD": 3}


def test_a_server_that_refuses_is_not_allowed(tmp_path: Path) -> None:
    config = icefloe.RepositoryConfig.default()
    with scripted_server(lambda handler: handler.answer(HTTPStatus.FORBIDDEN)) as server:
        prefix = f"{server.url}/"
        container = icefloe.VirtualChunkContainer(prefix, icefloe.http_store())
        config.set_virtual_chunk_container(container)
        repository = icefloe.Repository.create(
            icefloe.local_filesystem_storage(str(tmp_path / "repository")),
            config,
            icefloe.containers_credentials({prefix: icefloe.credentials.HttpAccess}),
        )
        with repository.transaction("main", message="one") as store:
            zarr.create_array(store, name="n", shape=4, chunks=4, dtype="i2")
            store.set_virtual_ref("n/c/0", f"{prefix}a.bin", offset=0, length=8)
        with open_pages(repository, "web") as client:
            [row] = table(page(client, "/sources", check="1"))
    assert row[-1].startswith("not allowed")


# Dependencies


def test_dependencies_have_shares_and_freshness(client: TestClient, archive: DayArchive) -> None:
    text = page(client, "/dependencies")
    kinds = {row[0]: row for row in table(text)}
    counts = counts_of_kinds(archive.repository)
    assert {name: int(row[1]) for name, row in kinds.items()} == counts
    assert kinds["virtual"][2] == f"{100 * counts['virtual'] / sum(counts.values()):.1f} %"
    container = facts(text, 1)
    assert container["authorised"] == "yes"
    assert container["chunks"].startswith(f"{counts['virtual']} in {len(archive.paths)} files")
    newest = max(archive.modified.values())
    assert container["newest file"].startswith(f"{newest:%Y-%m-%d %H:%M:%S} UTC")
    assert container["changed files"] == "are errors"
    [row] = command_json("access", archive.url)["containers"]
    assert (row["references"], row["platform"]) == (counts["virtual"], container["platform"])


def test_the_command_on_the_page_really_authorises(archive: DayArchive) -> None:
    with open_pages(archive.opened(), archive.url) as client:
        text = page(client, "/dependencies")
        refused = client.get("/picture/temperature")
    assert facts(text, 1)["authorised"] == "no"
    [command] = re.findall(r"<pre[^>]*><code>(icefloe view .*?)</code>", text)
    words = shlex.split(html.unescape(command))
    assert words[0] == "icefloe"
    assert refused.status_code == 422
    assert html.unescape(command) in refused.text
    assert "icefloe.containers_credentials" not in refused.text
    program = [sys.executable, "-c", "from icefloe.cli.main import app; app()"]
    process = subprocess.Popen(
        [*program, *words[1:], "--no-browser"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stdout is not None
        address = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
        assert address is not None
        import httpx2 as httpx

        answer = httpx.get(f"{address[0]}/picture/temperature", trust_env=False, timeout=60)
        assert answer.status_code == 200
        process.send_signal(signal.SIGINT)
        process.wait(60)
    finally:
        process.kill()
        process.communicate()


def test_statistics_of_what_is_not_authorised_name_the_option(archive: DayArchive) -> None:
    with open_pages(archive.opened(), archive.url) as client:
        text = html.unescape(page(client, "/fragment/statistics/wind"))
    assert f"icefloe view {archive.url} --authorize {archive.folder.as_uri()}/" in text


STORES = {
    "s3://plain/": (icefloe.s3_store(region="eu-west-1"), ["--authorize", "--authorize-anonymous"]),
    "s3://open/": (icefloe.s3_store(region="eu-west-1", anonymous=True), ["--authorize-anonymous"]),
    "s3://elsewhere/": (
        icefloe.s3_store(region="x", endpoint_url="https://evil.example"),
        ["--authorize-anonymous"],
    ),
    "s3://metadata/": (
        icefloe.s3_store(region="x", endpoint_url="http://169.254.169.254", allow_http=True),
        [],
    ),
    "gs://bucket/": (icefloe.gcs_store(), ["--authorize", "--authorize-anonymous"]),
    "https://data.example/": (icefloe.http_store(), ["--authorize"]),
    "models://bucket/": (icefloe.s3_store(region="eu-west-1"), []),
}


def test_only_options_that_work_are_offered(tmp_path: Path) -> None:
    config = icefloe.RepositoryConfig.default()
    for prefix, (store, _) in STORES.items():
        config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(prefix, store))
    place = str(tmp_path / "it's")
    storage = icefloe.local_filesystem_storage(place)
    icefloe.Repository.create(storage, config)
    repository = icefloe.Repository.open(storage)  # what is stored is nobody's word
    version = Viewed(repository, "cube", place).version(None)
    found = dependencies.read_dependencies(version, sources.count_files(version), place)
    offered = {row.access.url_prefix: row.commands for row in found.rows}
    assert offered == {
        prefix: tuple(f"icefloe view {shlex.quote(place)} {option} {prefix}" for option in options)
        for prefix, (_, options) in STORES.items()
    }


def test_the_schemes_are_those_of_the_command() -> None:
    for scheme in dependencies.SCHEMES:
        assert authorised([f"{scheme}://bucket/"], [])
    with pytest.raises(InvalidInputError):
        authorised(["models://bucket/"], [])


def test_a_bucket_without_a_container(tmp_path: Path) -> None:
    storage = icefloe.local_filesystem_storage(str(tmp_path / "repository"))
    repository = icefloe.Repository.create(storage)
    with repository.transaction("main", message="outside") as store:
        zarr.create_array(store, name="n", shape=4, chunks=4, dtype="i2")
        store.set_virtual_ref("n/c/0", "s3://outside/a/b.bin", offset=0, length=8)
    with open_pages(repository, "./cube") as client:
        text = html.unescape(page(client, "/dependencies"))
        picture = client.get("/picture/n").text
    assert "icefloe view ./cube --authorize s3://outside/" in text
    assert "none: the reader decides" in text
    assert "icefloe view ./cube --authorize s3://outside/a/" in picture


# Places of chunks


def test_a_chunk_has_the_bytes_of_its_file(client: TestClient, archive: DayArchive) -> None:
    day = 7
    questions: list[dict[str, Any]] = [
        {"by": "step", "at": [day, 3, 2]},
        {"by": "coordinate", "at": ["2024-01-08", "-40", "45.1"]},
        {"by": "chunk", "at": [day, 0, 0]},
    ]
    places = [facts(page(client, "/chunk/temperature", **question)) for question in questions]
    assert places[0] == places[1] == places[2]
    place = places[0]
    assert place["kind"] == "virtual"
    assert place["file"] == archive.paths[day].as_uri()
    assert place["time"] == "steps 7 to 7: 2024-01-08 to 2024-01-08"
    offset = int(place["offset"].replace(",", ""))
    length = int(place["length"].split()[0].replace(",", ""))
    with archive.paths[day].open("rb") as file:
        file.seek(offset)
        stored = np.frombuffer(file.read(length), "<f4")
    with h5py.File(archive.paths[day]) as file:
        assert np.array_equal(stored, file["temperature"][:].ravel())
    assert f"{archive.modified[day]:%Y-%m-%d %H:%M:%S}" in place["checksum"]
    assert place["container"] == f"{archive.folder.as_uri()}/, authorised"


def test_chunks_of_all_kinds(client: TestClient, archive: DayArchive) -> None:
    missing = facts(page(client, "/chunk/temperature", by="chunk", at=[archive.missing[0], 0, 0]))
    assert missing["kind"] == "missing"
    assert "file" not in missing
    assert facts(page(client, "/chunk/time", by="chunk", at=[0]))["kind"] == "inline"
    native = facts(page(client, "/chunk/native", by="step", at=[1]))
    assert native["kind"] == "native"
    assert native["object"].startswith("chunks/")
    assert native["length"] == "4,000 bytes"


@pytest.mark.parametrize(
    ("by", "at", "answer"),
    [
        ("step", ["20", "0", "0"], "time has the steps 0 to 19"),
        ("step", ["x", "0", "0"], "time has the steps 0 to 19"),
        ("chunk", ["0", "1", "0"], "lat has the chunks 0 to 0"),
        ("step", ["0"], "3 dimensions, and 1 positions"),
        ("coordinate", ["2025-01-01", "0", "0"], "time goes from 2024-01-01 to 2024-01-20"),
        ("coordinate", ["1999", "0", "0"], "time goes from 2024-01-01 to 2024-01-20"),
        ("coordinate", ["noon", "0", "0"], "time goes from 2024-01-01 to 2024-01-20"),
        ("coordinate", ["2024-01-01", "1000", "0"], "lat goes from -82.5 to 82.5"),
        ("coordinate", ["2024-01-01", "nan", "0"], "lat goes from -82.5 to 82.5"),
        ("<b>", ["0", "0", "0"], "a chunk is found by step, coordinate, chunk"),
    ],
)
def test_wrong_questions_are_answered(
    client: TestClient, by: str, at: list[str], answer: str
) -> None:
    text = page(client, "/chunk/temperature", by=by, at=at)
    assert answer in html.unescape(text)
    assert "<b>" not in text


@pytest.mark.parametrize("path", ["/chunk/nope?at=0", "/chunk/icefloe?at=0", "/sources/x"])
def test_other_addresses_are_not_found(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 404


# As a part of a larger site


def test_links_stay_below_the_root_of_the_repository(archive: DayArchive) -> None:
    site = Site(Viewed(archive.repository, "cube", archive.url))
    root = "/repos/org/name"
    larger = Starlette(routes=[Mount(root, routes=site.routes()), static_files()])
    with TestClient(larger, base_url=CLIENT_URL) as client:
        for path in ("/coverage", "/sources", "/dependencies", "/chunk/time?by=chunk&at=0"):
            text = page(client, root + path)
            links = re.findall(r'\s(?:href|action|hx-get)="([^"#]+)"', text)
            assert len(links) > 5
            assert [link for link in links if not link.startswith((root, "/static/"))] == []
