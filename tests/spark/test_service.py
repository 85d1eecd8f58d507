"""Jobs on repositories of a service: workers ask it themselves, and no plan has a secret."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from examples.archives import write_archive
from icefloe.spark import StageProgress, ingest, rechunk
from tests.cluster.places import assert_not_told, contents
from tests.service.client_world import World, world
from tests.service.conftest import archive_store, lab_store  # noqa: F401 - fixtures
from tests.spark.archives import TIME, assert_complete
from tests.spark.conftest import wait_for_events
from tests.spark.copies import assert_clean, assert_same_values, group_of
from tests.support.servers import S3Endpoint

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
    spec: Any = series.storage.spec
    keys = spec.credentials.get_credentials()
    secrets = [keys.secret_access_key, keys.session_token, *here.desk.tokens.values()]
    for secret in [*secrets, "icefloe_"]:
        assert_not_told(secret, kept)
