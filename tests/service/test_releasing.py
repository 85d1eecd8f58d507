"""A rolling embargo with a clock that moves, on real stores."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from obstore.store import S3Store

import icefloe
from icefloe.service import releasing
from icefloe.service.settings import Settings
from tests.support.desk import (
    Desk,
    add_bucket,
    add_organisation,
    add_repository,
    root_of,
    storage_at,
    store_with_reference,
)
from tests.support.servers import S3Endpoint

pytestmark = pytest.mark.server
DAYS = 12
EMBARGO = 5
FIRST_DAY = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
def desk(
    tmp_path: Path, database_url: str, lab_store: S3Endpoint, archive_store: S3Endpoint, prefix: str
) -> Iterator[Desk]:
    """A lab (ada) with a private bucket, and a public one on another store; zoe is anybody."""
    settings = Settings(
        folder=tmp_path / "service",
        database=database_url,
        allowed_endpoints=(lab_store.url, archive_store.url),
        allows_anonymous=False,
    )
    desk = Desk(settings, FIRST_DAY + timedelta(days=8))
    with desk.client:
        add_organisation(desk, "lab", "ada")
        add_organisation(desk, "zoo", "zoe")
        add_bucket(desk, "ada", "lab", lab_store, f"{prefix}/private/")
        body_prefix = f"{prefix}/public/"
        add_bucket(desk, "ada", "lab", archive_store, body_prefix, name="open-data")
        make_repository(lab_store, prefix)
        add_repository(desk, "ada", "lab", "live")
        public = {"name": "archive", "bucket": "main", "visibility": "everyone"}
        assert desk.ask("ada", "POST", "/orgs/lab/repos", public).status_code == 201
        settings_of_embargo = {
            "days": EMBARGO,
            "bucket": "open-data",
            "prefix": "released/",
            "public_repository": "archive",
        }
        made = desk.ask("ada", "PUT", "/repos/lab/live/embargo", settings_of_embargo)
        assert made.status_code == 200, made.json()
        yield desk


def make_repository(store: S3Endpoint, prefix: str) -> None:
    """Make a repository with a chunk of objects for every two days; values tell the day."""
    repository = icefloe.Repository.create(storage_at(store, f"{prefix}/private/live"))
    session = repository.writable_session("main")
    group = zarr.create_group(session.store)
    time = group.create_array(
        "time", shape=(DAYS,), chunks=(100,), dtype="i8", dimension_names=("time",)
    )
    time.attrs["units"] = f"hours since {FIRST_DAY:%Y-%m-%d %H:%M:%S}"
    time[:] = np.arange(DAYS) * 24
    heat = group.create_array(
        "heat",
        shape=(DAYS, 300),
        chunks=(2, 300),
        dtype="f8",
        dimension_names=("time", "x"),
        compressors=None,
    )
    heat[:] = np.arange(1.0, DAYS + 1)[:, None]
    group.create_array("x", shape=(300,), chunks=(300,), dtype="f8", compressors=None)[:] = 0.5
    session.commit("all days")


def allow_everybody(desk: Desk, store: S3Endpoint, prefix: str) -> None:
    whole = f"s3://{store.bucket}/{prefix}/public/released/"
    policy = {
        "bucket": "open-data",
        "prefix": "released/",
        "scope": "anyone",
        "confirm_prefix": whole,
    }
    made = desk.ask("ada", "POST", "/orgs/lab/policies", policy)
    assert made.status_code == 201, made.json()


def read(desk: Desk, person: str, repository: str) -> tuple[Any, Any]:
    response = desk.ask(person, "POST", f"/repos/lab/{repository}/open")
    assert response.status_code == 200, response.json()
    answer = response.json()
    return zarr.open_group(store_with_reference(answer), mode="r"), answer


def require_nothing_early(desk: Desk, store: S3Endpoint, prefix: str) -> None:
    """Look at every byte in the public place: none is younger than the embargo allows."""
    root = root_of(store)
    allowed = (desk.now - timedelta(days=EMBARGO) - FIRST_DAY) / timedelta(days=1) + 1
    for entry in root.list(f"{prefix}/public/released/").collect():
        values = np.frombuffer(bytes(root.get(entry["path"]).bytes()), "f8")
        assert (values <= allowed).all(), (entry, allowed)


def require_all_days(desk: Desk) -> None:
    group, _ = read(desk, "ada", "live")
    np.testing.assert_array_equal(group["heat"][:, 0], np.arange(1.0, DAYS + 1))


def test_data_becomes_public_when_it_is_old_enough(
    desk: Desk, lab_store: S3Endpoint, archive_store: S3Endpoint, prefix: str
) -> None:
    refused = desk.ask("ada", "POST", "/repos/lab/live/embargo/release")
    assert "scope 'anyone'" in refused.json()["message"]
    allow_everybody(desk, archive_store, prefix)
    assert desk.ask("zoe", "POST", "/repos/lab/live/embargo/release").status_code == 404
    seen: list[int] = []
    for _ in range(6):
        released = desk.ask("ada", "POST", "/repos/lab/live/embargo/release")
        assert released.status_code == 200, released.json()
        require_nothing_early(desk, archive_store, prefix)
        require_all_days(desk)
        again = desk.ask("ada", "POST", "/repos/lab/live/embargo/release").json()
        assert again["chunks"] == 0
        assert again["snapshot"] == released.json()["snapshot"]
        group, answer = read(desk, "zoe", "archive")
        days = group["heat"].shape[0]
        seen.append(days)
        np.testing.assert_array_equal(group["heat"][:, 0], np.arange(1.0, days + 1))
        np.testing.assert_array_equal(group["time"][:], np.arange(days) * 24)
        assert (group["x"][:] == 0.5).all()
        # What the public gets reaches the public place, and nothing of the private repository.
        (container,) = answer["containers"]
        for endpoint, credential in (
            (lab_store, answer["credential"]),
            (archive_store, container["credential"]),
        ):
            vended = S3Store(
                endpoint.bucket,
                endpoint=endpoint.url,
                region=endpoint.region,
                client_options={"allow_http": True},
                **credential["values"],
            )
            for key in root_of(lab_store).list(f"{prefix}/private/live/").collect():
                with pytest.raises(Exception, match=r"(?i)denied|permission|not found"):
                    vended.get(key["path"])
        desk.now += timedelta(days=1)
    assert desk.ask("zoe", "POST", "/repos/lab/live/open").status_code == 404
    # Days 0 to 3 are old enough at first; whole chunks of two days come out.
    assert seen == [4, 4, 6, 6, 8, 8]


@pytest.mark.parametrize("steps", range(5))
def test_a_release_that_stops_anywhere_does_no_harm(
    desk: Desk, archive_store: S3Endpoint, prefix: str, steps: int
) -> None:
    allow_everybody(desk, archive_store, prefix)
    assert desk.ask("ada", "POST", "/repos/lab/live/embargo/release").status_code == 200
    desk.now += timedelta(days=2)

    async def run_some_steps() -> None:
        job = releasing.load_job(desk.service, "lab", "live")
        release = await releasing.Release.prepare(desk.service, job)
        repository, session = await asyncio.to_thread(release.open)
        plan = await asyncio.to_thread(release.choose, session)
        if steps > 0:
            await release.copy(session, plan)
        if steps > 1:
            await asyncio.to_thread(release.declare, repository)
        if steps > 2:
            await asyncio.to_thread(release.commit, session)
        if steps > 3:
            await asyncio.to_thread(release.publish, repository)

    desk.client.portal.call(run_some_steps)  # type: ignore[union-attr]
    require_nothing_early(desk, archive_store, prefix)
    require_all_days(desk)
    group, _ = read(desk, "zoe", "archive")
    assert group["heat"].shape[0] == (6 if steps > 3 else 4)
    finished = desk.ask("ada", "POST", "/repos/lab/live/embargo/release")
    assert finished.status_code == 200, finished.json()
    assert finished.json()["chunks"] == (0 if steps > 2 else 1)
    group, _ = read(desk, "zoe", "archive")
    assert group["heat"].shape[0] == 6
    require_all_days(desk)
    require_nothing_early(desk, archive_store, prefix)
