"""Jobs on repositories of a service, on a real cluster: workers ask the service themselves.

The credentials live for six seconds. A job is held up for longer than four of these lives, and
goes on as if nothing had happened.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import icefloe
from examples.archives import Archive, write_archive
from icefloe.pipeline.files.granted import granted_sources
from icefloe.spark import append, virtualize
from tests.cluster.drivers import PATIENCE_SECONDS, Driver
from tests.cluster.gates import Gate, GatedAccess
from tests.cluster.places import assert_not_told, contents
from tests.service.client_world import World, world
from tests.service.conftest import archive_store, lab_store  # noqa: F401 - fixtures
from tests.service.test_client import wait_for_end
from tests.spark.archives import TIME, assert_complete
from tests.support.clusters import SparkCluster
from tests.support.desk import root_of
from tests.support.servers import VENDOR, S3Endpoint

pytestmark = [pytest.mark.spark, pytest.mark.server]

FILES, HELD, LIVES = 8, "model_000003.nc", 4


@pytest.fixture
def here(
    tmp_path: Path,
    lab_store: S3Endpoint,  # noqa: F811 - the fixture
    archive_store: S3Endpoint,  # noqa: F811 - the fixture
    prefix: str,
) -> Iterator[World]:
    with world(tmp_path / "service", lab_store, archive_store, prefix) as here:
        yield here


def ingest_by_name(
    spark: Any, service: str, token: str, pattern: str, gate: Gate | None = None
) -> int:
    """Add files to `lab/cube`, of which one waits at a gate; return how many."""
    repository = icefloe.Client(service, token=token).get_repo("lab/cube", access="write")
    access = granted_sources(repository._context)
    if gate is None:
        report = append(spark, repository, pattern, TIME)
    else:
        gated = GatedAccess(access.storages, gate=gate, name=HELD)
        report = virtualize(spark, repository, pattern, TIME, access=gated)
    return report.scan.used


def test_a_job_outlives_its_credentials(
    cluster: SparkCluster, driver: Driver, here: World, tmp_path: Path
) -> None:
    archive = write_archive(tmp_path / "data", FILES)
    folder, store = f"{here.prefix}/lab/data/", root_of(here.lab_store)

    def upload(archive: Archive, numbers: range) -> None:
        for number in numbers:
            path = archive.path(number)
            store.put(f"{folder}{path.relative_to(archive.folder)}", path.read_bytes())

    upload(archive, range(6))
    url = f"s3://{here.lab_store.bucket}/{folder}"
    here.client("ada").create_policy(
        "lab", bucket="main", prefix="data/", scope="anyone", confirm_prefix=url
    )
    config = icefloe.RepositoryConfig.default()
    config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(url, icefloe.s3_store()))
    here.client("ada").create_repo("lab/cube", bucket="main", visibility="everyone", config=config)
    here.desk.make_brief()
    gate, token = Gate(str(tmp_path)), here.desk.tokens["bob"]
    place = (here.desk.url, token, f"{url}*/model_*.nc")
    job = driver.submit(ingest_by_name, *place, gate)
    gate.comer()
    mine = here.client("bob").get_repo("lab/cube", access="write")
    for _ in range(LIVES):
        wait_for_end(here, mine)
    here.desk.forget_requests()
    gate.open()
    assert job.result(PATIENCE_SECONDS) == 6
    renewals = here.desk.requests.count(("POST", "/api/v1/repos/lab/cube/credentials"))
    assert renewals >= 2  # in the driver and in workers, at least

    upload(archive, range(6, FILES))
    assert driver.run(ingest_by_name, *place) == 2
    reader = here.client("mia").get_repo("lab/cube")  # of another organisation
    assert_complete(reader.readonly_session("main"), archive)

    # Neither tokens nor credentials are in what workers have written.
    kept = contents(*(worker.folder for worker in cluster.workers))
    assert any(path.name == "stderr" for path in kept)
    for secret in {*here.desk.minted, token, VENDOR["secret_access_key"], "icefloe_"}:
        assert_not_told(secret, kept)
