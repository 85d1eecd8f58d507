"""Jobs on repositories of a service: workers ask it themselves, and no plan has a secret."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import xarray
from typer.testing import CliRunner

import icefloe
from examples.archives import Archive, write_archive
from icefloe.cli.main import app
from icefloe.pipeline import LocalEngine
from icefloe.pipeline.files.granted import granted_sources
from icefloe.pipeline.running.jobs import ingest as ingest_on
from icefloe.spark import StageProgress, ingest, rechunk
from tests.cluster.places import assert_not_told, contents
from tests.pipeline.repositories import opened
from tests.service.client_world import World, world
from tests.service.conftest import archive_store, lab_store  # noqa: F401 - fixtures
from tests.spark.archives import TIME, assert_complete
from tests.spark.conftest import wait_for_events
from tests.spark.copies import assert_clean, assert_same_values, group_of
from tests.support.desk import root_of
from tests.support.servers import VENDOR, S3Endpoint

pytestmark = [pytest.mark.spark, pytest.mark.server]


@pytest.fixture
def here(
    tmp_path: Path,
    lab_store: S3Endpoint,  # noqa: F811 - the fixture
    archive_store: S3Endpoint,  # noqa: F811 - the fixture
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[World]:
    # Nobody is logged in on the machines of the workers.
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    with world(tmp_path / "service", lab_store, archive_store, prefix) as here:
        yield here


class Onlooker:
    """Reads what lies in Spark's folders while a job runs."""

    def __init__(self, spark: Any) -> None:
        variables = Path(spark.sparkContext._temp_dir).parent
        self.folders = (variables, Path(spark.sparkContext.getConf().get("spark.local.dir")))
        self.seen: dict[Path, bytes] = {}

    def __call__(self, _: StageProgress) -> None:
        self.seen |= contents(*self.folders)


def assert_no_secret(here: World, kept: dict[Path, bytes]) -> None:
    """Check that no token, no key of a bucket and no vended credential is in some files.

    Nor is any of them in the files of the service itself: its database and its settings.
    """
    minted = here.desk.minted
    assert len(minted) >= 4
    secrets = {*minted, *here.desk.tokens.values(), VENDOR["secret_access_key"]}
    service = contents(here.desk.service.settings.folder)
    for secret in secrets:
        assert_not_told(secret, kept | service)
    assert_not_told("icefloe_", kept)


def test_a_job_writes_and_reads_with_tokens_of_its_own(
    spark: Any, event_logs: Path, here: World, tmp_path: Path
) -> None:
    here.desk.make_brief()  # so that credentials end during the jobs
    client = here.client("bob")
    archive = write_archive(tmp_path / "data", 6, steps=2)
    onlooker = Onlooker(spark)
    files = client.create_repo("lab/files", bucket="main")
    pattern = f"{tmp_path / 'data'}/*/model_*.nc"
    ingest(
        spark,
        files,
        pattern,
        TIME,
        chunks={"time": 4},
        compressors=None,
        on_progress=onlooker,
    )
    assert_complete(files.readonly_session("main"), archive)
    assert_clean(files)

    source = here.client("cid").get_repo("lab/files").readonly_session("main")
    series = client.create_repo("lab/series", bucket="main")
    chunks = {"time": -1, "lat": 5, "lon": 5}
    rechunk(spark, series, source, chunks=chunks, compressors=None, on_progress=onlooker)
    assert_same_values(group_of(series), group_of(files))
    assert_clean(series)

    # Each job had tokens for its repositories only, and all of them have ended.
    asked = [path for _, path in here.desk.requests if path.endswith("/tokens")]
    assert set(asked) == {f"/api/v1/repos/lab/{name}/tokens" for name in ("files", "series")}
    assert here.desk.requests.count(("DELETE", "/api/v1/me/token")) == len(asked)
    for person, names in (("bob", {("lab/files",), ("lab/series",)}), ("cid", {("lab/files",)})):
        made = [token for token in here.client(person).list_tokens() if token.name != "test"]
        assert {token.scope.repositories for token in made} == names
        assert all(token.revoked_at is not None for token in made)

    # Neither tokens nor credentials are in plans, logs and files of Spark.
    wait_for_events(spark)
    kept = {**contents(event_logs), **contents(*onlooker.folders), **onlooker.seen}
    assert_no_secret(here, kept)


def test_a_pool_writes_with_tokens_of_its_own(here: World, tmp_path: Path) -> None:
    here.desk.make_brief()
    archive = write_archive(tmp_path / "data", 6, steps=2)
    files = here.client("bob").create_repo("lab/files", bucket="main")
    seen: dict[Path, bytes] = {}
    with LocalEngine(2) as engine:

        def look(_: StageProgress) -> None:
            seen.update(contents(Path(engine.folder)))

        chunks = {"time": 4}
        ingest_on(engine, files, archive.pattern, TIME, chunks=chunks, on_progress=look)
    assert_complete(files.readonly_session("main"), archive)
    assert_clean(files)
    asked = [path for _, path in here.desk.requests if path.endswith("/tokens")]
    assert set(asked) == {"/api/v1/repos/lab/files/tokens"}
    assert here.desk.requests.count(("DELETE", "/api/v1/me/token")) == len(asked)
    assert seen
    assert_no_secret(here, seen)


def upload(here: World, archive: Archive, numbers: range) -> str:
    """Copy files of an archive to the bucket of the lab, and return the URL of their folder."""
    folder, store = f"{here.prefix}/lab/data/", root_of(here.lab_store)
    for number in numbers:
        path = archive.path(number)
        store.put(f"{folder}{path.relative_to(archive.folder)}", path.read_bytes())
    return f"s3://{here.lab_store.bucket}/{folder}"


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return result.output


def assert_same_as_files(session: icefloe.Session, archive: Archive, numbers: range) -> None:
    """Compare all values with those that another library reads from the files."""
    paths = [archive.path(number) for number in numbers]
    with xarray.open_mfdataset(paths, engine="h5netcdf") as files:
        xarray.testing.assert_equal(opened(session).load(), files.load())


def test_archives_are_ingested_and_read_by_name(
    spark: Any,
    event_logs: Path,
    here: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No keys of any store are at hand: those of the bucket's owner are on the service only."""
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("COLUMNS", "1000")
    monkeypatch.setenv("ICEFLOE_SERVICE", here.desk.url)
    monkeypatch.setenv("ICEFLOE_TOKEN", here.desk.tokens["bob"])
    archive = write_archive(tmp_path / "data", 6)
    url = upload(here, archive, range(4))
    here.client("ada").create_repo("lab/cube", bucket="main", visibility="everyone")
    pattern, repo = f"{url}*/model_*.nc", ["--repo", "lab/cube"]

    # Nobody has shared the folder yet: the command says so, and leaves the repository as it was.
    refused = CliRunner().invoke(
        app, ["ingest", "virtual", pattern, *repo, "--concat=time", f"--container={url}"]
    )
    assert refused.exit_code != 0
    assert f"{url}: no policy shares it" in refused.output
    assert here.client("cid").get_repo("lab/cube").config.virtual_chunk_containers == {}

    here.client("ada").create_policy(
        "lab", bucket="main", prefix="data/", scope="anyone", confirm_prefix=url
    )
    here.desk.make_brief()
    run("ingest", "virtual", pattern, *repo, "--concat=time", f"--container={url}")
    reader = here.client("mia")  # of another organisation
    first = reader.get_repo("lab/cube").readonly_session("main")
    assert_same_as_files(first, archive, range(4))

    upload(here, archive, range(4, 6))
    assert "6 of 6 steps" in run("append", pattern, *repo)
    session = reader.get_repo("lab/cube").readonly_session("main")
    assert_same_as_files(session, archive, range(6))
    assert_complete(session, archive)

    # A copy of the values, from the same files.
    cube = here.client("bob").get_repo("lab/cube", access="write")
    copy = here.client("ada").create_repo("lab/copy", bucket="main", visibility="everyone")
    access = granted_sources(cube._context)
    ingest(spark, copy, pattern, TIME, chunks={"time": 4}, access=access)
    copied = reader.get_repo("lab/copy").readonly_session("main")
    assert_same_as_files(copied, archive, range(6))

    # Files of this machine, which others cannot read through the service, are copied.
    here.client("ada").create_repo("lab/local", bucket="main")
    told = run("ingest", archive.pattern, "--repo=lab/local", "--concat=time")
    assert f"a service never lets {archive.folder.as_uri()}/ be read" in told
    local = here.client("cid").get_repo("lab/local")
    assert_same_as_files(local.readonly_session("main"), archive, range(6))
    assert not local.config.virtual_chunk_containers

    wait_for_events(spark)
    assert_no_secret(here, {**contents(event_logs), **contents(*Onlooker(spark).folders)})
