"""One call opens a repository with all its containers, against real stores with an STS."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.catalog.model import Member, Organisation, Person, Role
from icefloe.service import login
from icefloe.service.database import accounts
from icefloe.service.settings import Settings
from tests.support.desk import (
    Desk,
    bucket_body,
    container_at,
    read_with_reference,
    root_of,
    storage_at,
)
from tests.support.servers import S3Endpoint

pytestmark = pytest.mark.server


@pytest.fixture
def desk(
    tmp_path: Path, database_url: str, lab_store: S3Endpoint, archive_store: S3Endpoint, prefix: str
) -> Iterator[Desk]:
    settings = Settings(
        folder=tmp_path / "service",
        database=database_url,
        allowed_endpoints=(lab_store.url, archive_store.url),
        allows_anonymous=False,
    )
    # The stores have the true time.
    desk = Desk(settings, datetime.now(UTC))
    with desk.client:
        for name in ("ada", "bob", "eve"):
            desk.add_person(Person(name))
        with desk.service.database.writing() as connection:
            accounts.create_organisation(connection, Organisation("lab"), "ada", desk.now)
            accounts.create_organisation(connection, Organisation("archive"), "eve", desk.now)
            accounts.set_member(connection, Member("lab", "bob", Role.READER))
        main = bucket_body("main", lab_store, f"{prefix}/")
        assert desk.ask("ada", "POST", "/orgs/lab/buckets", main).status_code == 201
        tapes = bucket_body("tapes", archive_store, f"{prefix}/")
        assert desk.ask("eve", "POST", "/orgs/archive/buckets", tapes).status_code == 201
        for person, path in [("ada", "lab/buckets/main"), ("eve", "archive/buckets/tapes")]:
            report = desk.ask(person, "POST", f"/orgs/{path}/probe").json()
            assert report["state"] == "proven", report
        yield desk


def make_repository(
    desk: Desk, lab_store: S3Endpoint, archive_store: S3Endpoint, prefix: str
) -> np.ndarray[Any, Any]:
    """Make a repository with native and virtual chunks, by root's own keys; return the values."""
    body = {"name": "sst", "bucket": "main", "prefix": "sst/", "imports": True}
    assert desk.ask("ada", "POST", "/orgs/lab/repos", body).status_code == 201
    values = np.arange(100, dtype="i4")
    location = f"{prefix}/daily/file.bin"
    root_of(archive_store).put(location, values.tobytes())
    url = f"s3://{archive_store.bucket}/{prefix}/daily/"
    store = icefloe.s3_store(
        endpoint_url=archive_store.url, s3_compatible=True, allow_http=True, force_path_style=True
    )
    config = icefloe.RepositoryConfig.default()
    config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(url, store))
    storage = icefloe.s3_storage(
        bucket=lab_store.bucket,
        prefix=f"{prefix}/sst",
        endpoint_url=lab_store.url,
        access_key_id=lab_store.access_key_id,
        secret_access_key=lab_store.secret_access_key,
        region=lab_store.region,
        allow_http=True,
        force_path_style=True,
    )
    repository = icefloe.Repository.create(storage, config)
    session = repository.writable_session("main")
    group = zarr.group(session.store)
    options: dict[str, Any] = {"shape": (100,), "chunks": (100,), "dtype": "i4"}
    group.create_array("native", **options, compressors=None)[:] = values + 1
    group.create_array("virtual", **options, compressors=None)
    session.store.set_virtual_ref(
        "virtual/c/0", f"s3://{archive_store.bucket}/{location}", offset=0, length=400
    )
    session.commit("both kinds")
    return values


def test_a_reader_opens_everything_with_one_call(
    desk: Desk, lab_store: S3Endpoint, archive_store: S3Endpoint, prefix: str
) -> None:
    values = make_repository(desk, lab_store, archive_store, prefix)
    container = f"s3://{archive_store.bucket}/{prefix}/daily/"

    refused = desk.ask("bob", "POST", "/repos/lab/sst/open")
    assert refused.status_code == 403
    problem = refused.json()
    assert problem["code"] == "virtual-access-required"
    (missing,) = problem["missing"]
    assert (missing["container"], missing["reason"]) == (container, "no_policy")
    assert (missing["owner"], missing["who"]) == ("archive", "admins of archive")
    assert desk.service.broker.mints == 1  # to read the configuration, and nothing else

    policy: dict[str, Any] = {"bucket": "tapes", "prefix": "daily/"}
    made = desk.ask("eve", "POST", "/orgs/archive/policies", policy)
    assert made.status_code == 201
    wrong = desk.ask("bob", "POST", "/repos/lab/sst/open").json()
    assert [grant["reason"] for grant in wrong["missing"]] == ["wrong_scope"]

    wider = policy | {"scope": "anyone"}
    path = f"/orgs/archive/policies/{made.json()['id']}"
    assert desk.ask("eve", "PUT", path, wider).status_code == 422
    wider["confirm_prefix"] = container
    trial = {"settings": wider, "id": made.json()["id"]}
    simulated = desk.ask("eve", "POST", "/orgs/archive/policy-simulations", trial).json()
    # Ada and Bob of the lab, whom the archive does not know.
    others = [{"organisation": "", "people": 2}]
    assert (simulated["gains"], simulated["other_gains"]) == ([], others)
    assert (simulated["opens"], simulated["other_opens"]) == ([], 1)
    stale = desk.ask("eve", "PUT", path, wider, headers={"if-match": '"7"'})
    assert (stale.status_code, stale.json()["code"]) == (412, "entry-changed")
    assert desk.ask("eve", "PUT", path, wider, headers={"if-match": '"1"'}).status_code == 200

    opened = desk.ask("bob", "POST", "/repos/lab/sst/open")
    assert opened.status_code == 200, opened.json()
    answer = opened.json()
    assert [entry["prefix"] for entry in answer["containers"]] == [container]
    np.testing.assert_array_equal(read_with_reference(answer, "virtual"), values)
    np.testing.assert_array_equal(read_with_reference(answer, "native"), values + 1)

    audited = [entry for entry in desk.audited() if entry[1] == "repositories:open"]
    assert [entry[3] for entry in audited] == [False, False, True]
    secret = answer["credential"]["values"]["secret_access_key"]
    with desk.service.database.reading() as connection:
        assert secret not in str(connection.exec_driver_sql("SELECT * FROM audit").all())


def test_a_page_opens_a_repository_again_before_its_credentials_end(
    desk: Desk, lab_store: S3Endpoint, archive_store: S3Endpoint, prefix: str
) -> None:
    make_repository(desk, lab_store, archive_store, prefix)
    policy = {"bucket": "tapes", "prefix": "daily/", "shared_with": ["lab"]}
    assert desk.ask("eve", "POST", "/orgs/archive/policies", policy).status_code == 201
    cookies = {"icefloe": login.start_session(desk.service, "bob", "by a test", "test")}
    desk.client.cookies.update(cookies)

    def opens() -> int:
        assert desk.client.get("/zarr/lab/sst@main/virtual/c/0").status_code == 200
        return sum(entry[1] == "repositories:open" and entry[3] for entry in desk.audited())

    assert [opens(), opens()] == [1, 1]
    desk.now += timedelta(minutes=4)  # the credentials live for an hour
    assert [opens(), opens()] == [2, 2]
    mints = desk.service.broker.mints
    desk.now += timedelta(minutes=52)  # which is less than five minutes before their end
    assert opens() == 3
    # For the repository, for its container, and for the service that reads the configuration.
    assert desk.service.broker.mints == mints + 3
    # A writer adds a container, which nobody has shared.
    storage = storage_at(lab_store, f"{prefix}/sst")
    config = icefloe.Repository.open(storage).config
    secret = f"s3://{archive_store.bucket}/{prefix}/secret/"
    config.set_virtual_chunk_container(container_at(archive_store, secret))
    icefloe.Repository.open(storage, config).save_config()
    desk.now += timedelta(minutes=4)
    assert desk.client.get("/repos/lab/sst/").status_code == 403
