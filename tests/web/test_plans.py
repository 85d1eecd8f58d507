"""Plans of chunks: fetched with plain HTTP from a real S3 server, decoded by Zarr on its own."""

import base64
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx2 as httpx
import numpy as np
import pytest
import zarr
from playwright.sync_api import Page
from starlette.testclient import TestClient
from zarr.storage import MemoryStore

import icefloe
from icefloe.effects import run_blocking
from icefloe.errors import InvalidInputError
from icefloe.format.chunk_table import VirtualChunk
from icefloe.storage.capabilities import LONGEST_SIGNATURE, sign_reads
from icefloe.storage.overlay import OverlayStorage
from icefloe.virtual_chunks.reader import SignedChunk, read_conditions
from icefloe.web.site import create_site
from icefloe.web.versions import Viewed
from tests.conformance.storages import s3_storage_at
from tests.support.chromium import PROJECT, chromium
from tests.support.http_server import ScriptedHandler, scripted_server
from tests.support.servers import S3Endpoint
from tests.web.conftest import served
from tests.web.cubes import weather

RAW = np.arange(24, dtype="<i4").reshape(4, 6)


class Place:
    """A repository on an S3 server with native, inline and virtual chunks, and its pages."""

    def __init__(self, endpoint: S3Endpoint, prefix: str) -> None:
        self.endpoint, self.prefix = endpoint, prefix
        self.files = s3_storage_at(endpoint, f"{prefix}/files").open()
        self.write("raw.bin", RAW.tobytes())
        self.container = f"s3://{endpoint.bucket}/{prefix}/files/"
        store = icefloe.s3_store(
            region=endpoint.region,
            endpoint_url=endpoint.url,
            allow_http=True,
            s3_compatible=True,
            force_path_style=True,
        )
        self.config = icefloe.RepositoryConfig.default()
        self.config.set_virtual_chunk_container(
            icefloe.VirtualChunkContainer(self.container, store)
        )
        keys = icefloe.s3_credentials(
            access_key_id=endpoint.access_key_id, secret_access_key=endpoint.secret_access_key
        )
        self.storage = s3_storage_at(endpoint, f"{prefix}/cube")
        self.access = icefloe.containers_credentials({self.container: keys})
        self.repository = icefloe.Repository.create(
            self.storage, self.config, authorize_virtual_chunk_access=self.access
        )
        self._fill()

    def write(self, name: str, data: bytes) -> str:
        version = run_blocking(self.files.put(name, data))
        assert version.etag is not None
        return version.etag

    def _fill(self) -> None:
        session = self.repository.writable_session("main")
        group = zarr.open_group(session.store, mode="a")
        values = weather().rain.to_numpy()
        group.create_array("native", data=values, chunks=(5, 33, 48), compressors="auto")
        inline = group.create_array("inline", shape=(40,), chunks=(10,), dtype="i2", fill_value=-1)
        inline[:30] = np.arange(30)
        virtual = group.create_array(
            "virtual", shape=(8, 6), chunks=(2, 6), dtype="<i4", compressors=None, fill_value=7
        )
        virtual[6:] = 9
        head = run_blocking(self.files.head("raw.bin"))
        etag = head.info.version.etag
        assert etag is not None
        checksums: list[str | datetime] = [etag, head.info.last_modified + timedelta(seconds=2)]
        for row, checksum in enumerate(checksums):
            session.store.set_virtual_ref(
                f"virtual/c/{row}/0",
                f"{self.container}raw.bin",
                offset=48 * row,
                length=48,
                checksum=checksum,
            )
        session.commit("data")

    def client(self, repository: icefloe.Repository | None = None) -> TestClient:
        viewed = Viewed(repository or self.repository, "cube", "s3")
        return TestClient(create_site(viewed), base_url="http://localhost")


@pytest.fixture(scope="module")
def place(s3_endpoint: S3Endpoint, tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(s3_endpoint, f"plans-{tmp_path_factory.mktemp('plans').name}-{time.time_ns()}")


@pytest.fixture(scope="module")
def plain() -> Iterator[httpx.Client]:
    """A client that has no credentials."""
    with httpx.Client(timeout=60, trust_env=False) as client:
        yield client


def fetch(chunk: dict[str, Any], plain: httpx.Client, pages: TestClient) -> bytes | None:
    """Get the bytes of a chunk as the plan says."""
    if chunk["kind"] == "missing":
        return None
    if "data" in chunk:
        return base64.b64decode(chunk["data"])
    client = plain if chunk["signed"] else pages
    answer = client.get(chunk["url"], headers=chunk["headers"]).raise_for_status()
    assert len(answer.content) == chunk.get("length", len(answer.content))
    return answer.content


def assembled(plan: dict[str, Any], plain: httpx.Client, pages: TestClient) -> zarr.Array[Any]:
    """Make an array of Zarr in memory, of nothing but what the plan says."""
    store = MemoryStore()
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        **{key: plan[key] for key in ("shape", "data_type", "chunk_grid", "codecs", "fill_value")},
    }
    files = store._store_dict
    buffer = zarr.core.buffer.default_buffer_prototype().buffer
    files["zarr.json"] = buffer.from_bytes(json.dumps(document).encode())
    for chunk in plan["chunks"]:
        content = fetch(chunk, plain, pages)
        if content is not None:
            key = "/".join(["c", *map(str, chunk["index"])])
            files[key] = buffer.from_bytes(content)
    return zarr.open_array(store, mode="r")


@pytest.mark.server
def test_chunks_are_read_from_the_bucket_itself(place: Place, plain: httpx.Client) -> None:
    pages = place.client()
    plan = pages.get("/plan/native?i.dim_0=6:11&i.dim_2=3").raise_for_status().json()
    assert [chunk["index"] for chunk in plan["chunks"]] == [[1, 0, 0], [2, 0, 0]]
    for chunk in plan["chunks"]:
        assert chunk["kind"] == "native"
        assert chunk["signed"]
        assert chunk["url"].startswith(f"{place.endpoint.url}/")
    assert plan["selection"]["dim_0"] == {"start": 6, "stop": 11, "step": 1}
    array = assembled(plan, plain, pages)
    np.testing.assert_array_equal(array[6:11, :, 3], weather().rain[6:11, :, 3])


@pytest.mark.server
def test_inline_missing_and_virtual_chunks(place: Place, plain: httpx.Client) -> None:
    pages = place.client()
    plan = pages.get("/plan/inline").json()
    assert [chunk["kind"] for chunk in plan["chunks"]] == ["inline"] * 3 + ["missing"]
    np.testing.assert_array_equal(assembled(plan, plain, pages)[:], [*range(30), *[-1] * 10])
    plan = pages.get("/plan/virtual").json()
    assert [chunk["kind"] for chunk in plan["chunks"]] == ["virtual"] * 2 + ["missing", "inline"]
    first, second = plan["chunks"][:2]
    assert first["headers"]["Range"] == "bytes=0-47"
    assert first["headers"]["If-Match"].startswith('"')
    assert "If-Unmodified-Since" in second["headers"]
    expected = [*RAW.tolist(), *[[7] * 6] * 2, *[[9] * 6] * 2]
    np.testing.assert_array_equal(assembled(plan, plain, pages)[:], expected)
    direct = zarr.open_array(place.repository.readonly_session("main").store, path="virtual")
    np.testing.assert_array_equal(direct[:], expected)


@pytest.mark.server
def test_signed_addresses_only_read(place: Place, plain: httpx.Client) -> None:
    [chunk, *_] = place.client().get("/plan/native").json()["chunks"]
    for method in ("PUT", "DELETE", "POST"):
        assert plain.request(method, chunk["url"], content=b"x").status_code in (403, 405), method
    assert plain.get(chunk["url"].partition("?")[0]).status_code == 403
    assert plain.get(chunk["url"], headers=chunk["headers"]).status_code == 206
    seconds = int(httpx.URL(chunk["url"]).params["X-Amz-Expires"])
    assert seconds <= LONGEST_SIGNATURE.total_seconds() == 300
    assert place.endpoint.secret_access_key not in json.dumps(chunk)


@pytest.mark.server
def test_an_address_expires(place: Place, plain: httpx.Client) -> None:
    backend = place.files
    urls = run_blocking(sign_reads(backend, ["raw.bin"], timedelta(seconds=1)))
    others = run_blocking(sign_reads(backend, ["raw.bin"], LONGEST_SIGNATURE))
    assert urls is not None
    assert others is not None
    assert plain.get(others[0]).content == RAW.tobytes()
    deadline = time.monotonic() + 60
    while (answer := plain.get(urls[0])).status_code == 200:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert answer.status_code == 403
    assert "Request has expired" in answer.text or "ExpiredToken" in answer.text, answer.text


@pytest.mark.server
def test_a_changed_source_is_not_served(
    s3_endpoint: S3Endpoint, plain: httpx.Client, prefix: str
) -> None:
    place = Place(s3_endpoint, prefix)
    plan = place.client().get("/plan/virtual").json()
    place.write("raw.bin", RAW[::-1].tobytes())
    first = plan["chunks"][0]
    answer = plain.get(first["url"], headers=first["headers"])
    assert answer.status_code == 412
    unconditional = plain.get(first["url"], headers={"Range": first["headers"]["Range"]})
    assert unconditional.content == RAW[::-1].tobytes()[:48]  # which is why plans have conditions


@pytest.mark.server
def test_places_that_were_not_authorised_are_not_signed(place: Place) -> None:
    reader = icefloe.Repository.open(place.storage, place.config)
    answer = place.client(reader).get("/plan/virtual")
    assert answer.status_code == 400
    assert "which you did not authorise" in answer.json()["message"]
    assert "X-Amz" not in answer.text
    stored_only = icefloe.Repository.open(
        place.storage, authorize_virtual_chunk_access=place.access
    )
    answer = place.client(stored_only).get("/plan/virtual")
    assert "X-Amz" not in answer.text  # the repository alone names the server


def test_what_cannot_be_signed_has_a_key_of_the_server(
    cubes: TestClient, plain: httpx.Client
) -> None:
    plan = cubes.get("/plan/t2m?i.time=4:9&version=v1").json()
    assert {chunk["signed"] for chunk in plan["chunks"]} == {False}
    array = assembled(plan, plain, cubes)
    stored = cubes.get("/api/v1/data/t2m?i.time=4:9&decode=false").json()["variables"]["t2m"]
    np.testing.assert_array_equal(array[4:9], stored["values"])


def test_storages_without_signatures(tmp_path: Path) -> None:
    minute = timedelta(minutes=1)
    anonymous = icefloe.s3_storage(bucket="b", prefix="p", region="us-east-1", anonymous=True)
    keys: dict[str, Any] = {
        "bucket": "b",
        "prefix": "p",
        "region": "us-east-1",
        "access_key_id": "a",
        "secret_access_key": "b",
    }
    signed = icefloe.s3_storage(**keys)
    for storage in (
        anonymous,  # the client library would sign with credentials of the machine
        icefloe.local_filesystem_storage(str(tmp_path)),
        icefloe.in_memory_storage(),
        icefloe.http_storage("https://example.org/data"),
        OverlayStorage(signed),
        icefloe.s3_storage(**keys, read_headers={"x-special": "1"}),
    ):
        assert run_blocking(sign_reads(storage.open(), ["a"], minute)) is None
    urls = run_blocking(sign_reads(signed.open(), ["a b", "c"], minute))
    assert urls is not None
    assert "/p/a%20b?" in urls[0]
    for lifetime in (timedelta(minutes=6), timedelta(0)):
        with pytest.raises(InvalidInputError, match="1 to 300 seconds"):
            run_blocking(sign_reads(signed.open(), ["a"], lifetime))


def test_conditions_and_secrets() -> None:
    chunk = VirtualChunk("s3://b/a", 0, 8, etag='"1f"', last_modified=5)
    assert read_conditions(chunk, "strict") == {"If-Match": '"1f"'}
    assert read_conditions(chunk, "off") == {}
    assert read_conditions(VirtualChunk("s3://b/a", 0, 8), "strict") == {}
    assert read_conditions(VirtualChunk("s3://b/a", 0, 8, etag='a"\r\nb'), "strict") is None
    assert "secret" not in repr(SignedChunk("https://b/a?secret", {}))


DOCUMENTED = Path(__file__).parents[2] / "docs" / "how-to" / "data-over-http.md"
MODULES = {
    "zarrita": "/zarrita/dist/src/index.js",
    "@zarrita/storage/fetch": "/@zarrita/storage/dist/src/fetch.js",
    "numcodecs/zstd": "/numcodecs/dist/zstd.js",
}
READ_WITH_ZARRITA = """async (address) => {
    const [{ openPlan }, zarr] = await Promise.all([import("/plan.js"), import("zarrita")]);
    const { data, shape } = await zarr.get(await openPlan(address));
    return { shape, values: [...data] };
}"""


@contextmanager
def visited(
    answer: Callable[[ScriptedHandler], None], place: Place
) -> Iterator[tuple[Page, str, list[str]]]:
    """Open another site, whose pages may read data; yield what its page requests, too."""
    viewed, asked = Viewed(place.repository, "cube", "s3"), list[str]()
    with (
        scripted_server(answer) as site,
        served(viewed, [site.url]) as root,
        chromium() as browser,
    ):
        page = browser.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.goto(site.url)
        yield page, root, asked
        page.close()


@pytest.mark.server
@pytest.mark.slow
def test_the_documented_script_reads_all_kinds_of_chunks(place: Place) -> None:
    [script] = re.findall(r"```js\n(.*?)```", DOCUMENTED.read_text(), re.DOTALL)
    page_text = f'<script type="importmap">{json.dumps({"imports": MODULES})}</script><p>Maps'

    def answer(request: ScriptedHandler) -> None:
        path = request.path.partition("?")[0]
        text = {"/": f"<!doctype html>{page_text}", "/plan.js": script}.get(path)
        file = PROJECT / "node_modules" / path.lstrip("/")
        if text is None and not file.is_file():
            request.answer(HTTPStatus.NOT_FOUND)
            return
        kind = "text/html" if path == "/" else "text/javascript"
        content = file.read_bytes() if text is None else text.encode()
        request.answer(HTTPStatus.OK, content, {"Content-Type": kind})

    store = place.repository.readonly_session("main").store
    with visited(answer, place) as (page, root, asked):
        for name in ("native", "inline", "virtual"):
            read = page.evaluate(READ_WITH_ZARRITA, f"{root}/plan/{name}")
            expected = zarr.open_array(store, path=name)[:]
            np.testing.assert_array_equal(np.reshape(read["values"], read["shape"]), expected)
        # The server of the pages has sent nothing but the plans.
        assert {url for url in asked if url.startswith(root)} == {
            f"{root}/plan/{name}" for name in ("native", "inline", "virtual")
        }


READ_CHUNKS = """async (address) => {
    const plan = await (await fetch(address)).json();
    return await Promise.all(plan.chunks.map(async ({ url, headers, signed }) => {
        const response = await fetch(url, { headers });
        const values = new Int32Array(await response.arrayBuffer());
        return [signed, response.status, [...values]];
    }));
}"""


@pytest.mark.server
@pytest.mark.slow
def test_a_page_of_another_site_reads_from_the_bucket_itself(place: Place) -> None:
    def answer(request: ScriptedHandler) -> None:
        request.answer(HTTPStatus.OK, b"<!doctype html><p>A site", {"Content-Type": "text/html"})

    with visited(answer, place) as (page, root, asked):
        # One chunk has an entity tag as its checksum, the other one a date: both are headers.
        chunks = page.evaluate(READ_CHUNKS, f"{root}/plan/virtual?i.dim_0=0:4")
        expected = [[True, 206, rows.ravel().tolist()] for rows in (RAW[:2], RAW[2:])]
        assert chunks == expected
        assert [url.startswith(f"{place.endpoint.url}/") for url in asked[1:]] == [
            False,
            True,
            True,
        ]
