"""Filtered subscriptions and references between private repositories, on real stores."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from obstore.store import S3Store

import icefloe
from icefloe.service import following
from icefloe.service.derivation import Plan
from icefloe.service.settings import Settings
from tests.support.crashes import Crashes
from tests.support.desk import (
    PATIENCE_SECONDS,
    Desk,
    add_bucket,
    add_organisation,
    add_repository,
    container_at,
    root_of,
    storage_at,
    store_with_reference,
)
from tests.support.servers import S3Endpoint

pytestmark = pytest.mark.server
DAYS = 8


@pytest.fixture
def desk(
    tmp_path: Path, database_url: str, lab_store: S3Endpoint, archive_store: S3Endpoint, prefix: str
) -> Iterator[Desk]:
    """An archive (eve) with data, a shop (sam) and a lab (ada), each with a bucket of its own."""
    settings = Settings(
        folder=tmp_path / "service",
        database=database_url,
        allowed_endpoints=(lab_store.url, archive_store.url),
        allows_anonymous=False,
    )
    desk = Desk(settings, datetime.now(UTC))
    with desk.client:
        for organisation, admin in (("archive", "eve"), ("shop", "sam"), ("lab", "ada")):
            add_organisation(desk, organisation, admin)
            store = archive_store if organisation == "archive" else lab_store
            add_bucket(desk, admin, organisation, store, f"{prefix}/{organisation}/")
        yield desk


def write_days(group: Any, first: int, last: int) -> None:
    """Write some days of all arrays."""
    days = np.arange(first, last)
    group["time"][first:last] = days
    group["temperature"][first:last] = days[:, None] * 1000 + np.arange(200.0)


def make_archive(desk: Desk, store: S3Endpoint, prefix: str) -> icefloe.Repository:
    """Make the archive's repository: chunk objects, inline chunks and virtual chunks."""
    place = f"{prefix}/archive"
    raw = np.arange(DAYS * 100, dtype="i4")
    root_of(store).put(f"{place}/raw/file.bin", raw.tobytes())
    config = icefloe.RepositoryConfig.default()
    url = f"s3://{store.bucket}/{place}/raw/"
    config.set_virtual_chunk_container(container_at(store, url))
    repository = icefloe.Repository.create(storage_at(store, f"{place}/sst"), config)
    session = repository.writable_session("main")
    root = zarr.create_group(session.store, attributes={"title": "all"})
    sea = root.create_group("sea")
    names: dict[str, Any] = {"compressors": None}
    time = sea.create_array(
        "time", shape=(DAYS,), chunks=(5,), dtype="f8", dimension_names=("time",), **names
    )
    time.attrs["units"] = "days since 2026-01-01"
    sea.create_array(
        "temperature",
        shape=(DAYS, 200),
        chunks=(2, 100),
        dtype="f8",
        dimension_names=("time", "x"),
        **names,
    )
    sea.create_array(
        "salt",
        shape=(DAYS, 100),
        chunks=(1, 100),
        dtype="i4",
        dimension_names=("time", "x"),
        **names,
    )
    sea.create_array("secret", shape=(1000,), chunks=(1000,), dtype="f8", **names)[:] = 7.0
    write_days(sea, 0, DAYS)
    for day in range(DAYS):
        session.store.set_virtual_ref(
            f"sea/salt/c/{day}/0", f"{url}file.bin", offset=400 * day, length=400
        )
    session.commit("first days")
    add_repository(desk, "eve", "archive", "sst")
    policy = {"bucket": "main", "prefix": "raw/"}
    assert desk.ask("eve", "POST", "/orgs/archive/policies", policy).status_code == 201
    return repository


def subscribe(desk: Desk, **changes: Any) -> str:
    listing = {
        "name": "ocean",
        "repository": "sst",
        "licence": "CC-BY-4.0",
        "virtual_chunks": [{"bucket": "main", "prefix": "raw/"}],
    }
    offered = changes.pop("offered", None)
    body = listing | {"filter": offered}
    created = desk.ask("eve", "POST", "/orgs/archive/listings", body)
    assert created.status_code == 201, created.json()
    wanted = {
        "provider": "archive",
        "listing": "ocean",
        "kind": "filtered",
        "accepts_version": 1,
        "repository": "part",
        "bucket": "main",
        "filter": changes,
    }
    made = desk.ask("sam", "POST", "/orgs/shop/subscriptions", wanted)
    assert made.status_code == 201, made.json()
    return str(made.json()["id"])


def update(desk: Desk, subscription: str) -> Any:
    accepted = desk.ask("sam", "POST", f"/orgs/shop/subscriptions/{subscription}/update")
    return desk.report_of("sam", accepted)


def opened(desk: Desk) -> tuple[Any, Any]:
    response = desk.ask("sam", "POST", "/repos/shop/part/open")
    assert response.status_code == 200, response.json()
    return zarr.open_group(store_with_reference(response.json()), mode="r"), response.json()


def test_a_filtered_subscription_follows_its_provider(
    desk: Desk, archive_store: S3Endpoint, lab_store: S3Endpoint, prefix: str
) -> None:
    repository = make_archive(desk, archive_store, prefix)
    nodes = ["/sea/time", "/sea/temperature", "/sea/salt"]
    ranges = {"time": ["2026-01-04", "2026-01-07"]}  # from day 3, in the middle of a chunk
    subscription = subscribe(desk, nodes=nodes, ranges=ranges)
    first = update(desk, subscription)
    assert (first["changed"], first["written"]) == (True, 3)
    assert update(desk, subscription)["changed"] is False

    group, answer = opened(desk)
    source: Any = zarr.open_group(repository.readonly_session("main").store, mode="r")["sea"]
    part = slice(2, 7)  # whole chunks at the beginning
    for name in ("time", "temperature"):
        np.testing.assert_array_equal(group[f"sea/{name}"][:], source[name][part])
    salt = np.arange(DAYS * 100, dtype="i4").reshape(DAYS, 100)
    np.testing.assert_array_equal(group["sea/salt"][:], salt[part])
    assert sorted(group["sea"].array_keys()) == ["salt", "temperature", "time"]
    assert dict(group["sea/time"].attrs) == {"units": "days since 2026-01-01"}

    # Two containers: the provider's chunks, and the virtual chunks of the listing.
    bound, raw = answer["containers"]
    chunks = f"{prefix}/archive/sst/chunks/"
    assert (bound["name"], bound["prefix"]) == (
        "icefloe-provider",
        f"s3://{archive_store.bucket}/{chunks}",
    )
    assert raw["prefix"].endswith("/archive/raw/")
    # Manifests only: no chunk of the provider was copied but the coordinate.
    own = answer["store"]["prefix"]
    keys = [entry["path"] for entry in root_of(lab_store).list(own).collect()]
    assert not [key for key in keys if key.startswith(f"{own}chunks/")]

    # Nothing else is reachable: no lists, no manifests, no snapshots, no writing.
    for container in (bound, raw):
        vended = S3Store(
            archive_store.bucket,
            endpoint=archive_store.url,
            region=archive_store.region,
            client_options={"allow_http": True},
            **container["credential"]["values"],
        )
        with pytest.raises(Exception, match=r"(?i)denied|permission"):
            vended.list(container["store"]["prefix"]).collect()
        with pytest.raises(Exception, match=r"(?i)denied|permission"):
            vended.get(f"{prefix}/archive/sst/repo")
        with pytest.raises(Exception, match=r"(?i)denied|permission"):
            vended.put(f"{container['store']['prefix']}x", b"x")

    # The provider goes on: one array changes, and the range has a new day at its end.
    session = repository.writable_session("main")
    write_days(zarr.open_group(session.store)["sea"], 6, 7)
    sea: Any = zarr.open_group(session.store)["sea"]
    sea["temperature"][5] = -1.0
    session.commit("a correction")
    second = update(desk, subscription)
    assert (second["changed"], second["written"], second["kept"]) == (True, 1, 2)
    group, _ = opened(desk)
    assert (group["sea/temperature"][3] == -1.0).all()
    shown = desk.ask("sam", "GET", f"/orgs/shop/subscriptions/{subscription}").json()
    assert shown["followed_version"] == second["version"]

    # Only the service writes to it, and it opens no longer than the subscription lives.
    written = desk.ask("sam", "POST", "/repos/shop/part/open", {"access": "write"})
    assert "only the service writes to it" in written.json()["message"]
    ended = desk.ask("eve", "DELETE", f"/orgs/archive/subscriptions/{subscription}")
    assert ended.status_code == 200
    refused = desk.ask("sam", "POST", "/repos/shop/part/open")
    assert refused.status_code == 403
    reasons = {grant["reason"] for grant in refused.json()["missing"]}
    assert reasons == {"no_policy", "wrong_scope"}
    failed = desk.ask("sam", "POST", f"/orgs/shop/subscriptions/{subscription}/update")
    assert failed.status_code == 403

    # Who was refused asks, and the provider lets the subscription begin again.
    asked = desk.ask("sam", "POST", "/repos/shop/part/requests", {})
    assert asked.status_code == 201, asked.json()
    (request,) = [r for r in asked.json()["items"] if r["reason"] == "no_policy"]
    path = f"/orgs/archive/requests/{request['id']}"
    assert desk.ask("eve", "GET", path).json()["subscription"]["id"] == subscription
    granted = desk.ask("eve", "POST", f"{path}/decision", {"grants": True})
    assert granted.json()["granted_by"] == subscription
    group, _ = opened(desk)


@pytest.mark.parametrize("step", ["load_follow", "write", "_follow", "_remember"])
def test_an_update_whose_server_dies_anywhere_goes_on(
    desk: Desk,
    archive_store: S3Endpoint,
    prefix: str,
    step: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    repository = make_archive(desk, archive_store, prefix)
    subscription = subscribe(desk, nodes=["/sea/time", "/sea/temperature"])
    update(desk, subscription)
    session = repository.writable_session("main")
    sea: Any = zarr.open_group(session.store)["sea"]
    sea["temperature"][5] = -1.0
    version = session.commit("a correction")
    crashes = Crashes(monkeypatch)
    owner: Any = Plan if step == "write" else following
    crashes.after(owner, step)
    accepted = desk.ask("sam", "POST", f"/orgs/shop/subscriptions/{subscription}/update")
    assert crashes.happened.wait(PATIENCE_SECONDS)
    group, _ = opened(desk)
    assert group["sea/temperature"][4, 0] == 4000.0
    desk.now += timedelta(minutes=2)
    desk.ring()
    assert desk.report_of("sam", accepted)["version"] == version
    group, _ = opened(desk)
    assert (group["sea/temperature"][5] == -1.0).all()
    shown = desk.ask("sam", "GET", f"/orgs/shop/subscriptions/{subscription}").json()
    assert shown["followed_version"] == version


def test_a_long_update_renews_what_it_reads_with(
    desk: Desk, archive_store: S3Endpoint, prefix: str
) -> None:
    make_archive(desk, archive_store, prefix)
    subscription = subscribe(desk, nodes=["/sea/time", "/sea/salt"])
    portal: Any = desk.client.portal
    load = partial(following.load_follow, desk.service, subscription)
    side, containers = portal.call(following.reading_side, desk.service, load().provider, load)
    spec: Any = side.storage.spec
    vended = [spec.credentials, *(side.credentials[c.prefix] for c in containers)]
    assert len(vended) == 2
    first = [credentials.get_credentials() for credentials in vended]
    assert "main" in side.open().list_branches()
    desk.now += timedelta(hours=1)
    renewed = [credentials.get_credentials(clock=lambda: desk.now) for credentials in vended]
    for before, after in zip(first, renewed, strict=True):
        assert before.session_token != after.session_token
    # Another one takes the place of a credential that the store refused, for all who have it.
    assert vended[1].replace_refused(renewed[1])
    replaced = vended[1].get_credentials(clock=lambda: datetime.now(UTC))
    assert replaced.session_token not in {keys.session_token for keys in (*first, *renewed)}
    # Who may not read any more gets nothing further.
    assert desk.ask("eve", "DELETE", f"/orgs/archive/subscriptions/{subscription}").is_success
    desk.now += timedelta(hours=1)
    for credentials in vended:
        with pytest.raises(icefloe.AccessDeniedError):
            credentials.get_credentials(clock=lambda: desk.now)


def test_an_offer_is_narrowed_to_whole_chunks(
    desk: Desk, archive_store: S3Endpoint, prefix: str
) -> None:
    repository = make_archive(desk, archive_store, prefix)
    offered = {"nodes": ["/sea"], "ranges": {"time": [1.0, 6.0]}}
    subscription = subscribe(desk, offered=offered, nodes=["/sea/temperature", "/sea/time"])
    update(desk, subscription)
    group, _ = opened(desk)
    source: Any = zarr.open_group(repository.readonly_session("main").store, mode="r")
    for name in ("sea/time", "sea/temperature"):
        np.testing.assert_array_equal(group[name][:], source[name][2:6])


def test_a_private_repository_refers_to_that_of_another_organisation(
    desk: Desk, archive_store: S3Endpoint, lab_store: S3Endpoint, prefix: str
) -> None:
    repository = make_archive(desk, archive_store, prefix)
    chunks = f"s3://{archive_store.bucket}/{prefix}/archive/sst/chunks/"
    config = icefloe.RepositoryConfig.default()
    config.set_virtual_chunk_container(container_at(archive_store, chunks))
    own = icefloe.Repository.create(storage_at(lab_store, f"{prefix}/lab/view"), config)
    session = own.writable_session("main")
    group = zarr.create_group(session.store)
    options: dict[str, Any] = {"shape": (1000,), "chunks": (1000,), "dtype": "f8"}
    group.create_array("theirs", compressors=None, **options)
    group.create_array("ours", compressors=None, **options)[:] = 5.0
    theirs: Any = zarr.open_group(repository.readonly_session("main").store, mode="r")["sea/secret"]
    listed = root_of(archive_store).list(f"{prefix}/archive/sst/chunks/").collect()
    (chunk,) = [entry["path"] for entry in listed if entry["size"] == 8000]
    session.store.set_virtual_ref(
        "theirs/c/0", f"s3://{archive_store.bucket}/{chunk}", offset=0, length=8000
    )
    session.commit("refers to the archive")
    add_repository(desk, "ada", "lab", "view")
    desk.ask("ada", "PATCH", "/repos/lab/view", {"visibility": "everyone"})

    refused = desk.ask("ada", "POST", "/repos/lab/view/open").json()
    assert [(m["owner"], m["reason"]) for m in refused["missing"]] == [("archive", "no_policy")]
    policy = {"bucket": "main", "prefix": "sst/chunks/", "shared_with": ["lab"]}
    assert desk.ask("eve", "POST", "/orgs/archive/policies", policy).status_code == 201
    answer = desk.ask("ada", "POST", "/repos/lab/view/open").json()
    view: Any = zarr.open_group(store_with_reference(answer), mode="r")
    np.testing.assert_array_equal(view["theirs"][:], theirs[:])
    assert (view["ours"][:] == 5.0).all()
    stranger = desk.ask("sam", "POST", "/repos/lab/view/open").json()
    assert [m["reason"] for m in stranger["missing"]] == ["wrong_scope"]
