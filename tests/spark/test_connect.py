"""Jobs over Spark Connect, on a real server, and what it keeps of their credentials."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from examples.archives import write_archive
from icefloe.pipeline.files.facts import SourceState
from icefloe.pipeline.files.options import ParseOptions
from icefloe.pipeline.running.job import Job, Target
from icefloe.pipeline.running.virtual import scan
from icefloe.spark import StageProgress, virtualize
from icefloe.spark.engine import SparkEngine, SparkRows
from tests.cluster.drivers import ROOT, Driver, driver_on
from tests.cluster.gates import Gate, GatedAccess
from tests.cluster.places import (
    Site,
    add,
    assert_not_told,
    contents,
    copy_files,
    copy_site,
    ingest,
    on_disk,
    on_s3,
    upload,
)
from tests.spark.archives import TIME, assert_complete, assert_sound
from tests.spark.conftest import JAVA_HOME
from tests.spark.copies import assert_clean, used_chunks
from tests.support.clusters import SparkConnectServer, spark_connect_server
from tests.support.servers import S3Endpoint

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("connect-events")


@pytest.fixture(scope="module")
def server(events: Path) -> Iterator[SparkConnectServer]:
    environment = {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    if JAVA_HOME.exists():
        environment["JAVA_HOME"] = JAVA_HOME.read_text().strip()
    settings = {
        "spark.default.parallelism": "2",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.dir": events.as_uri(),
        "spark.sql.shuffle.partitions": "2",
    }
    with spark_connect_server(settings=settings, environment=environment) as started:
        yield started


@pytest.fixture(scope="module")
def client(server: SparkConnectServer) -> Iterator[Driver]:
    with driver_on(server.url) as started:
        yield started


def artifacts(server: SparkConnectServer) -> set[str]:
    """Name what clients sent that is kept."""
    return {path.name for path in server.folder.rglob("icefloe-*") if path.is_file()}


def planned(spark: Any, site: Site) -> tuple[bytes, bytes]:
    """Give what is secret, and the plan of a scan as it is sent and shown."""
    engine = SparkEngine(spark)
    job = Job(engine, Target(site.open(), "main", ""))
    with engine.share(job.context, site.access) as workers:
        states = [SourceState("s3://somewhere/a.nc")]
        scanned = scan(job, states, ParseOptions(("time",)), workers)
        assert isinstance(scanned, SparkRows)
        rows: Any = scanned.frame
        plan = rows._plan.to_proto(spark.client).SerializeToString()
        return cloudpickle.dumps((job.context, site.access)), plan + rows._explain_string(
            extended=True
        ).encode()


@pytest.mark.server
def test_a_job_in_a_bucket_leaves_no_credentials_behind(
    client: Driver,
    server: SparkConnectServer,
    events: Path,
    s3_endpoint: S3Endpoint,
    prefix: str,
    tmp_path: Path,
) -> None:
    archive = write_archive(tmp_path / "data", 8, steps=2)
    site = on_s3(s3_endpoint, prefix)
    upload(site, archive)
    site.create()
    keys = [str(archive.path(number).relative_to(archive.folder)) for number in range(5)]
    client.run(ingest, site, [site.prefix + key for key in keys])
    report = client.run(add, site)
    assert (report.known, report.scan.used) == (5, 3)
    repository = site.open()
    assert_complete(repository.readonly_session("main"), archive)
    assert_sound(repository)
    word = s3_endpoint.secret_access_key.encode()
    shipped_whole, plan = client.run(planned, site)
    assert word in shipped_whole
    assert word not in plan
    kept = contents(events, server.folder)
    assert any(path.name.startswith("icefloe-") for path in kept)  # the artifacts
    assert any(b"SparkListenerTaskEnd" in content for content in kept.values())
    assert_not_told(s3_endpoint.secret_access_key, kept)


@pytest.mark.server
def test_copies_in_a_bucket_leave_no_credentials_behind(
    client: Driver,
    server: SparkConnectServer,
    events: Path,
    s3_endpoint: S3Endpoint,
    prefix: str,
    tmp_path: Path,
) -> None:
    archive = write_archive(tmp_path / "data", 6, steps=2)
    source, target = (on_s3(s3_endpoint, f"{prefix}/{name}") for name in ("source", "target"))
    upload(source, archive)
    repository, other = source.create(), target.create()
    before = artifacts(server)
    report = client.run(copy_files, source)
    assert report.scan is not None
    assert (report.scan.used, report.written) == (6, 2 * 3 + 3)
    report = client.run(copy_site, source, target)
    assert (report.written, report.objects) == (2 * 3 * 4 + 3, 2 * 3 * 4 + 3)
    for copy in (repository, other):
        assert_complete(copy.readonly_session("main"), archive)
        assert_clean(copy)
    assert len(used_chunks(repository)) == 2 * 3
    assert len(artifacts(server) - before) >= 1 + 2  # of the scan, and of each copy
    kept = contents(events, server.folder)
    assert any(b"SparkListenerTaskEnd" in content for content in kept.values())
    assert_not_told(s3_endpoint.secret_access_key, kept)


def with_progress(spark: Any, site: Site) -> list[str]:
    """Ingest, and name the stages whose end was told."""
    seen: list[StageProgress] = []
    virtualize(spark, site.open(), site.pattern, TIME, on_progress=seen.append)
    return [each.stage for each in seen if each.is_over and each.tasks_done == each.tasks]


def interrupted(spark: Any, site: Site, access: GatedAccess) -> bool:
    """Press a key while files are parsed, and tell whether that is what came out."""

    def press(each: StageProgress) -> None:
        is_held = Path(access.gate.folder, "first").exists()
        if each.stage == "scan" and each.tasks > each.tasks_done and is_held:
            raise KeyboardInterrupt

    try:
        virtualize(spark, site.open(), site.pattern, TIME, access=access, on_progress=press)
    except KeyboardInterrupt:
        return True
    return False


def test_progress_and_interrupts(client: Driver, tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "data", 6)
    site = on_disk(tmp_path)
    repository = site.create()
    before = repository.lookup_branch("main")
    gate = Gate(str(tmp_path))
    assert client.run(interrupted, site, GatedAccess(gate=gate, name="model_000003.nc"))
    assert not Path(gate.folder, "open").exists()  # it was held all the time
    gate.open()
    assert repository.lookup_branch("main") == before
    stages = ["list", "scan", "combine", "check", "write", "commit"]
    assert client.run(with_progress, site) == stages
    assert_complete(repository.readonly_session("main"), archive)
    assert_sound(repository)
