"""A rolling embargo with a clock that moves, on real stores."""

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
from icefloe.service.jobs import JobRunner
from icefloe.service.settings import Settings
from tests.support.crashes import Crashes
from tests.support.desk import (
    PATIENCE_SECONDS,
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


def release(desk: Desk) -> Any:
    return desk.report_of("ada", desk.ask("ada", "POST", "/repos/lab/live/embargo/release"))


def test_data_becomes_public_when_it_is_old_enough(
    desk: Desk, lab_store: S3Endpoint, archive_store: S3Endpoint, prefix: str
) -> None:
    refused = desk.ask("ada", "POST", "/repos/lab/live/embargo/release")
    assert "scope 'anyone'" in refused.json()["message"]
    allow_everybody(desk, archive_store, prefix)
    assert desk.ask("zoe", "POST", "/repos/lab/live/embargo/release").status_code == 404
    seen: list[int] = []
    for _ in range(6):
        released = release(desk)
        require_nothing_early(desk, archive_store, prefix)
        require_all_days(desk)
        again = release(desk)
        assert again["chunks"] == 0
        assert again["snapshot"] == released["snapshot"]
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


STEPS = ["open", "choose", "_copy_rows", "copy", "declare", "commit", "publish", "remember"]


@pytest.mark.parametrize("step", [*STEPS, "_finish"])
def test_a_release_whose_server_dies_anywhere_goes_on(
    desk: Desk,
    archive_store: S3Endpoint,
    prefix: str,
    step: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    allow_everybody(desk, archive_store, prefix)
    monkeypatch.setattr(releasing, "_BATCH", 1)  # there are few chunks here
    crashes = Crashes(monkeypatch)
    if step == "_finish":
        crashes.before(JobRunner, step)
    else:
        crashes.after(releasing.Release, step)
    accepted = desk.ask("ada", "POST", "/repos/lab/live/embargo/release")
    assert crashes.happened.wait(PATIENCE_SECONDS)
    require_nothing_early(desk, archive_store, prefix)
    require_all_days(desk)
    path = accepted.headers["location"].removeprefix("/api/v1")
    assert desk.ask("ada", "GET", path).json()["state"] == "running"
    desk.now += timedelta(minutes=2)
    desk.ring()
    job = desk.ended_job("ada", accepted)
    assert (job["state"], job["attempts"]) == ("done", 2), job
    group, _ = read(desk, "zoe", "archive")
    assert group["heat"].shape[0] == 4
    np.testing.assert_array_equal(group["heat"][:, 0], np.arange(1.0, 5.0))
    require_all_days(desk)
    require_nothing_early(desk, archive_store, prefix)


def test_a_release_lets_others_write_meanwhile(
    desk: Desk,
    lab_store: S3Endpoint,
    archive_store: S3Endpoint,
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    allow_everybody(desk, archive_store, prefix)
    copy = releasing.Release.copy
    writes = iter([70.0])

    def copy_while_others_write(release: releasing.Release, session: Any) -> None:
        copy(release, session)
        for value in writes:
            repository = icefloe.Repository.open(storage_at(lab_store, f"{prefix}/private/live"))
            other = repository.writable_session("main")
            zarr.open_array(other.store, path="heat")[10:12] = value
            other.commit("meanwhile")

    monkeypatch.setattr(releasing.Release, "copy", copy_while_others_write)
    assert release(desk)["chunks"] == 3
    group, _ = read(desk, "zoe", "archive")
    np.testing.assert_array_equal(group["heat"][:, 0], [1.0, 2.0, 3.0, 4.0])
    private, _ = read(desk, "ada", "live")
    np.testing.assert_array_equal(private["heat"][8:, 0], [9.0, 10.0, 70.0, 70.0])
