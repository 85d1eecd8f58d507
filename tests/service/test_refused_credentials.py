"""Stores that end credentials before their time: each is replaced once, and a real 403 stays one.

The stores stand behind proxies. When a store "restarts with another key", its proxy leads to
another gateway of the same objects, which refuses every credential that the first one made.
"""

import asyncio
import os
import pickle
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2 as httpx
import numpy as np
import pyarrow as pa
import pytest
import zarr

import icefloe
from tests.service.client_world import CHUNK, LENGTH, World, check_cube, make_cube, world
from tests.service.pages_world import browser_of, make_map, map_values
from tests.support.proxy import CuttingProxy, LoseResponse, cutting_proxy
from tests.support.servers import S3Endpoint, seaweedfs_gateway

pytestmark = pytest.mark.server

FACTORS = {"native": (1, 1), "tapes": (2, 0), "scans": (3, 0)}


@dataclass
class Town(World):
    """A world whose stores can restart with another key."""

    proxies: dict[str, CuttingProxy]
    gateways: dict[str, list[str]]
    """The addresses of two gateways for each store."""

    def restart(self, *names: str) -> None:
        """Restart stores, or all of them; what they made before is not accepted any more."""
        for name in names or self.proxies:
            proxy, (first, second) = self.proxies[name], self.gateways[name]
            proxy.upstream = second if proxy.upstream == first else first

    @property
    def renewals(self) -> int:
        """How often credentials were renewed since requests were last forgotten."""
        return sum(path.endswith("/credentials") for _, path in self.desk.requests)


@pytest.fixture(scope="module")
def shared_town(
    tmp_path_factory: pytest.TempPathFactory,
    servers_folder: Path,
    lab_store: S3Endpoint,
    archive_store: S3Endpoint,
) -> Iterator[Town]:
    folder, prefix = tmp_path_factory.mktemp("town"), f"test-{uuid.uuid4().hex}"
    with ExitStack() as stack:
        proxies, gateways, stores = {}, {}, []
        for name, store in (("lab", lab_store), ("archive", archive_store)):
            other = seaweedfs_gateway(store, shared=servers_folder, name=f"{name}-restarted")
            urls = [store.url, stack.enter_context(other).url]
            gateways[name] = [urlsplit(url).netloc for url in urls]
            proxies[name] = stack.enter_context(cutting_proxy(store.url))
            stores.append(replace(store, url=proxies[name].url))
        lab, archive = stores
        here = stack.enter_context(world(folder, lab, archive, prefix))
        town = Town(here.desk, lab, archive, prefix, proxies, gateways)
        town.share_everything()
        yield town


@pytest.fixture
def town(shared_town: Town) -> Iterator[Town]:
    yield shared_town
    for proxy in shared_town.proxies.values():
        proxy.plan()


@pytest.fixture
def name() -> str:
    """The name of a repository that no other test uses."""
    return f"cube-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def values(town: Town, name: str) -> Any:
    """The values of a new repository, which readers and writers can read at first."""
    values = make_cube(town, name)
    for person in ("bob", "cid"):  # tests before this one have ended credentials of both
        check_cube(town.client(person).get_repo(f"lab/{name}"), values)
    return values


def part_of(values: Any, array: str, part: slice) -> Any:
    factor, added = FACTORS[array]
    return (values * factor + added)[part]


def test_reads_go_on_after_a_restart_of_all_stores(town: Town, name: str, values: Any) -> None:
    repository = town.client("cid").get_repo(f"lab/{name}")
    group: Any = zarr.open_group(repository.readonly_session("main").store, mode="r")
    half = slice(LENGTH // 2)
    for array in FACTORS:
        np.testing.assert_array_equal(group[array][half], part_of(values, array, half))
    town.restart()
    town.desk.forget_requests()
    rest = slice(LENGTH // 2, LENGTH)
    with ThreadPoolExecutor(12) as pool:
        reads = [
            (array, pool.submit(group[array].__getitem__, rest))
            for array in FACTORS
            for _ in range(4)
        ]
        for array, future in reads:
            np.testing.assert_array_equal(future.result(), part_of(values, array, rest))
    assert town.renewals == len(FACTORS)  # one for each credential that was refused
    # The service has forgotten what the stores refused, for all.
    town.desk.forget_requests()
    check_cube(town.client("cid").get_repo(f"lab/{name}"), values)
    assert town.renewals == 0


def test_awaited_reads_go_on_as_well(town: Town, name: str, values: Any) -> None:

    async def read() -> None:
        repository = await town.client("cid").get_repo_async(f"lab/{name}")
        session = await repository.readonly_session_async("main")
        arrays = {
            array: await zarr.api.asynchronous.open_array(store=session.store, path=array)
            for array in FACTORS
        }
        town.restart()
        parts = [slice(start, start + CHUNK) for start in range(0, LENGTH, CHUNK)]
        wanted = [(array, part) for array in FACTORS for part in parts]
        read = await asyncio.gather(*(arrays[array].getitem(part) for array, part in wanted))
        for (array, part), content in zip(wanted, read, strict=True):
            np.testing.assert_array_equal(content, part_of(values, array, part))

    town.desk.forget_requests()
    asyncio.run(read())
    assert town.renewals == len(FACTORS)


def test_pages_and_data_go_on_as_well(town: Town, name: str, values: Any) -> None:
    make_map(town, name_of_map := f"map-{name}", "tapes")
    part = slice(CHUNK, 2 * CHUNK)
    point = map_values()[1, 9, 18]
    data = f"api/v1/data/scans?i.dim_0={part.start}:{part.stop}&format=arrow"

    def is_part(factor: int, content: bytes) -> bool:
        return np.array_equal(np.frombuffer(content, "<i4"), values[part] * factor)

    def is_table(content: bytes) -> bool:
        table = pa.ipc.open_stream(content).read_all()
        return np.array_equal(table["scans"].to_numpy(), values[part] * 3)

    # Each pair of a person and a repository has credentials of its own, which are all refused.
    checks: list[tuple[str, str, str, Callable[[bytes], bool]]] = [
        ("ada", name, "zarr/{}@main/tapes/c/1", lambda content: is_part(2, content)),
        ("bob", name, f"repos/{{}}/{data}", is_table),
        ("cid", name, "repos/{}/picture/tapes", lambda content: len(content) > 1000),
        (
            "ada",
            name_of_map,
            "repos/{}/tiles/t2m/0/0/0.png?range=0,2052",
            lambda content: content[1:4] == b"PNG",
        ),
        (
            "bob",
            name_of_map,
            "repos/{}/api/v1/data/t2m?i.time=1&lat=0&lon=180",
            lambda content: f'"values": {point:.0f}}}' in content.decode(),
        ),
        (
            "cid",
            name_of_map,
            "repos/{}/fragment/statistics/t2m",
            lambda content: b"Exact" in content,
        ),
    ]
    browsers = {person: browser_of(town, person) for person in ("ada", "bob", "cid")}
    for person, repository, *_ in checks:
        assert browsers[person].get(f"/repos/lab/{repository}/").status_code == 200
    town.restart()
    for person, repository, path, is_right in checks:
        response = browsers[person].get("/" + path.format(f"lab/{repository}"))
        assert response.status_code == 200, (path, response.text)
        assert is_right(response.content), (path, response.content)


def test_addresses_of_a_plan_are_good_again_after_a_read(
    town: Town, name: str, values: Any
) -> None:
    browser = browser_of(town, "cid")

    def plan() -> Any:
        (chunk,) = browser.get(f"/repos/lab/{name}/plan/tapes?i.dim_0=0").json()["chunks"]
        return chunk

    def fetch(chunk: Any) -> httpx.Response:
        return httpx.get(chunk["url"], headers=chunk["headers"], trust_env=False)

    assert np.array_equal(np.frombuffer(fetch(plan()).content, "<i4"), values[:CHUNK] * 2)
    town.restart()
    # The service hears of the restart when it reads something itself.
    assert fetch(plan()).status_code == 403
    key = browser.get(f"/zarr/lab/{name}@main/tapes/c/0")
    assert np.array_equal(np.frombuffer(key.content, "<i4"), values[:CHUNK] * 2)
    assert fetch(plan()).content == key.content


def test_pages_do_not_give_back_what_was_taken_away(town: Town, name: str, values: Any) -> None:
    browser = browser_of(town, "cid")
    data = f"/repos/lab/{name}/api/v1/data/tapes?i.dim_0=0"
    assert browser.get(data).status_code == 200
    (policy,) = town.client("eve").list_policies("archive")
    town.client("eve").delete_policy("archive", policy.id)
    town.restart()
    refused = browser.get(data)
    assert refused.status_code == 403, refused.text
    town.client("eve").undo_policy("archive", policy.id)
    assert browser.get(data).status_code == 200


@pytest.mark.parametrize("is_awaited", [False, True], ids=["blocking", "awaited"])
def test_a_commit_goes_on_and_happens_once(
    town: Town, name: str, values: Any, *, is_awaited: bool
) -> None:
    repository = town.client("bob").get_repo(f"lab/{name}", access="write")
    session = repository.writable_session("main")
    array = zarr.open_array(session.store, path="native")
    array[:CHUNK] = 5
    before = repository.lookup_branch("main")
    town.restart("lab")
    town.desk.forget_requests()
    made = asyncio.run(session.commit_async("five")) if is_awaited else session.commit("five")
    assert town.renewals == 1
    versions = [version.id for version in repository.ancestry(branch="main")]
    assert versions[:2] == [made, before]
    native = zarr.open_array(repository.readonly_session("main").store, path="native", mode="r")
    expected = values + 1
    expected[:CHUNK] = 5
    np.testing.assert_array_equal(native[:], expected)


def test_a_commit_whose_answer_is_lost_by_the_restart_is_known_to_have_happened(
    town: Town, name: str, values: Any
) -> None:
    repository = town.client("bob").get_repo(f"lab/{name}", access="write")
    session = repository.writable_session("main")
    zarr.open_array(session.store, path="native")[:CHUNK] = 5
    lost = LoseResponse(method="PUT", path="/repo", meanwhile=lambda: town.restart("lab"))
    town.proxies["lab"].plan(lost)
    made = session.commit("five")
    messages = [version.message for version in repository.ancestry(branch="main")]
    assert repository.lookup_branch("main") == made
    assert messages.count("five") == 1


def test_a_conflict_stays_a_conflict(town: Town, name: str, values: Any) -> None:
    client = town.client("bob")
    sessions = []
    for number in range(2):
        session = client.get_repo(f"lab/{name}", access="write").writable_session("main")
        zarr.open_array(session.store, path="native")[:CHUNK] = number
        sessions.append(session)
    town.restart("lab")
    sessions[0].commit("first")
    with pytest.raises(icefloe.ConflictError):
        sessions[1].commit("second")


def test_a_real_refusal_costs_one_renewal(town: Town, name: str, values: Any) -> None:
    repository = town.client("cid").get_repo(f"lab/{name}")
    town.desk.forget_requests()
    for _ in range(3):
        session = repository.writable_session("main")
        zarr.create_group(session.store, path="x")
        with pytest.raises(icefloe.StorageError, match="the credentials do not allow it"):
            session.commit("not mine")
    assert town.renewals == 1


def test_what_was_taken_away_is_not_given_back(town: Town, name: str, values: Any) -> None:
    repository = town.client("cid").get_repo(f"lab/{name}")
    array = zarr.open_array(repository.readonly_session("main").store, path="tapes", mode="r")
    np.testing.assert_array_equal(array[:CHUNK], values[:CHUNK] * 2)
    (policy,) = town.client("eve").list_policies("archive")
    town.client("eve").delete_policy("archive", policy.id)
    town.restart("archive")
    with pytest.raises(icefloe.AccessDeniedError, match="Admins of archive can change that"):
        array[CHUNK:]
    town.client("eve").undo_policy("archive", policy.id)


def test_another_process_is_served_after_a_restart(town: Town, name: str, values: Any) -> None:
    session = town.client("cid").get_repo(f"lab/{name}").readonly_session("main")
    payload = pickle.dumps(session.store)
    town.restart()
    read = (
        "import pickle, sys, zarr; group = zarr.open_group(pickle.load(sys.stdin.buffer), mode='r')"
    )
    read += "; print(*(int(group[name][:].sum()) for name in ('native', 'tapes', 'scans')))"
    token = {"ICEFLOE_TOKEN": town.desk.tokens["cid"], "ICEFLOE_SERVICE": town.desk.url}
    done = subprocess.run(
        [sys.executable, "-c", read],
        input=payload,
        capture_output=True,
        check=False,
        env={**os.environ, **token},
    )
    expected = f"{values.sum() + LENGTH} {values.sum() * 2} {values.sum() * 3}"
    assert done.stdout.decode().strip() == expected, done.stderr.decode()
