"""A store that is slow, that fails or that lies while a repository is opened.

The error says what happened, nothing is granted by halves, and the next attempt works.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

import icefloe
from icefloe.catalog.model import Organisation, Person
from icefloe.records import replace
from icefloe.service import opening
from icefloe.service.buckets import probe_due_buckets, take_due_bucket
from icefloe.service.database import accounts
from icefloe.service.settings import Settings
from tests.support.desk import Desk, bucket_body
from tests.support.proxy import (
    AnswerInstead,
    CutBody,
    CuttingProxy,
    Delay,
    LoseRequest,
    LoseResponse,
    ProxyFault,
    cutting_proxy,
)
from tests.support.servers import S3Endpoint

pytestmark = pytest.mark.server


@pytest.fixture
def proxy(lab_store: S3Endpoint) -> Iterator[CuttingProxy]:
    with cutting_proxy(lab_store.url) as proxy:
        yield proxy


@pytest.fixture
def desk(tmp_path: Path, lab_store: S3Endpoint, proxy: CuttingProxy, prefix: str) -> Iterator[Desk]:
    """A service that reaches its store through a proxy, with a repository of one container."""
    settings = Settings(
        folder=tmp_path,
        allowed_endpoints=(proxy.url,),
        allows_anonymous=False,
        probe_hours=0,
    )
    desk = Desk(settings, datetime.now(UTC))
    with desk.client:
        desk.add_person(Person("ada"))
        with desk.service.database.writing() as connection:
            accounts.create_organisation(connection, Organisation("lab"), "ada", desk.now)
        body = bucket_body("main", lab_store, f"{prefix}/")
        body |= {"endpoint": proxy.url, "sts_endpoint": proxy.url}
        desk.ask("ada", "POST", "/orgs/lab/buckets", body)
        assert desk.ask("ada", "POST", "/orgs/lab/buckets/main/probe").json()["state"] == "proven"
        desk.ask("ada", "POST", "/orgs/lab/policies", {"bucket": "main", "prefix": "files/"})
        new = {"name": "sst", "bucket": "main", "prefix": "sst/", "imports": True}
        desk.ask("ada", "POST", "/orgs/lab/repos", new)
        store = icefloe.s3_store(
            endpoint_url=proxy.url, s3_compatible=True, allow_http=True, force_path_style=True
        )
        config = icefloe.RepositoryConfig.default()
        url = f"s3://{lab_store.bucket}/{prefix}/files/"
        config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(url, store))
        icefloe.Repository.create(
            icefloe.s3_storage(
                bucket=lab_store.bucket,
                prefix=f"{prefix}/sst",
                endpoint_url=lab_store.url,
                access_key_id=lab_store.access_key_id,
                secret_access_key=lab_store.secret_access_key,
                region=lab_store.region,
                allow_http=True,
                force_path_style=True,
            ),
            config,
        )
        yield desk


def open_once(desk: Desk) -> Any:
    return desk.ask("ada", "POST", "/repos/lab/sst/open")


@pytest.mark.parametrize(
    "fault",
    [
        LoseRequest(method="GET", path="/sst/repo"),
        LoseResponse(method="GET", path="/sst/repo"),
        CutBody(method="GET", path="/sst/repo", after_bytes=50),
        AnswerInstead(method="GET", path="/sst/repo", status=HTTPStatus.INTERNAL_SERVER_ERROR),
        AnswerInstead(method="GET", path="/sst/repo", status=HTTPStatus.SERVICE_UNAVAILABLE),
        AnswerInstead(method="GET", path="/sst/repo", status=HTTPStatus.FORBIDDEN),
        AnswerInstead(method="GET", path="/sst/repo", status=HTTPStatus.FOUND),
        AnswerInstead(method="GET", path="/sst/repo", status=HTTPStatus.OK),
        AnswerInstead(method="POST", status=HTTPStatus.INTERNAL_SERVER_ERROR),
        AnswerInstead(method="POST", status=HTTPStatus.FORBIDDEN),
        AnswerInstead(method="POST", status=HTTPStatus.OK),
        LoseRequest(method="POST"),
        # The credential of the repository is made, that of its container is not.
        AnswerInstead(method="POST", status=HTTPStatus.SERVICE_UNAVAILABLE, skip=1),
        LoseResponse(method="POST", skip=1),
    ],
    ids=str,
)
def test_a_fault_is_an_error_and_grants_nothing(
    desk: Desk, proxy: CuttingProxy, fault: ProxyFault
) -> None:
    proxy.plan(fault)
    failed = open_once(desk)
    assert failed.status_code == 502, failed.text
    body = failed.json()
    assert body.keys() == {"code", "message", "request_id", "missing", "details"}
    assert "credential" not in body["details"]
    assert "session_token" not in failed.text
    (*_, audited) = [entry for entry in desk.audited() if entry[1] == "repositories:open"]
    assert audited[2] == "lab/sst"
    proxy.plan()
    opened = open_once(desk)
    assert opened.status_code == 200, opened.text
    assert len(opened.json()["containers"]) == 1


def test_a_slow_store_is_given_up(
    desk: Desk, proxy: CuttingProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "_READING_SECONDS", 0.05)
    proxy.plan(Delay(method="GET", path="/sst/repo", seconds=2.0))
    failed = open_once(desk)
    assert failed.status_code == 502
    assert "did not answer in time" in failed.json()["message"]
    monkeypatch.undo()
    proxy.plan()
    assert open_once(desk).status_code == 200


def test_a_store_that_fails_later_is_not_proven_any_more(desk: Desk, proxy: CuttingProxy) -> None:
    proxy.plan(AnswerInstead(method="GET", status=HTTPStatus.SERVICE_UNAVAILABLE, times=None))
    report = desk.ask("ada", "POST", "/orgs/lab/buckets/main/probe").json()
    assert report["state"] == "refused"
    assert "is not clear" in report["reason"]
    proxy.plan()
    refused = open_once(desk)
    assert (refused.status_code, refused.json()["code"]) == (403, "access-denied")
    assert "is refused" in refused.json()["message"]


def test_probes_on_schedule(desk: Desk, proxy: CuttingProxy) -> None:
    """A bucket is probed when its last probe is a day old, by one server at a time."""
    object.__setattr__(desk.service, "settings", replace(desk.service.settings, probe_hours=24))
    portal: Any = desk.client.portal
    assert portal.call(probe_due_buckets, desk.service) == 0
    desk.now += timedelta(hours=25)
    proxy.plan(AnswerInstead(method="PUT", status=HTTPStatus.FORBIDDEN, times=None))
    taken = take_due_bucket(desk.service)
    assert taken is not None
    assert take_due_bucket(desk.service) is None
    desk.now += timedelta(minutes=11)
    assert portal.call(probe_due_buckets, desk.service) == 1
    shown = desk.ask("ada", "GET", "/orgs/lab/buckets/main").json()
    assert shown["state"] == "refused"
    assert open_once(desk).status_code == 403
    assert ("icefloe", "buckets:change", "bucket main", True) in desk.audited()
