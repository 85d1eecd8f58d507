"""The same archive through both engines gives the same repository."""

from pathlib import Path
from typing import Any

import pytest

import icefloe
from examples.archives import write_archive
from icefloe.errors import InternalError, StorageError
from icefloe.pipeline import LocalEngine, read_coverage
from icefloe.pipeline.running.engines import Engine
from icefloe.pipeline.running.jobs import append, ingest, virtualize
from icefloe.spark.engine import SparkEngine
from tests.pipeline.engine_tasks import fail
from tests.pipeline.repositories import repository_for, stored_contents
from tests.spark.archives import TIME, assert_complete, assert_sound

pytestmark = pytest.mark.spark


def test_both_engines_store_the_same(spark: Any, tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "data", 9, steps=2)
    found = []
    with LocalEngine(2) as local:
        engines: dict[str, Engine] = {"local": local, "spark": SparkEngine(spark)}
        for name, engine in engines.items():
            storage = icefloe.local_filesystem_storage(str(tmp_path / name))
            repository = repository_for(archive.folder, storage=storage)
            first = virtualize(engine, repository, archive.urls()[:6], TIME)
            more = append(engine, repository, archive.pattern)
            session = repository.readonly_session("main")
            assert_complete(session, archive)
            assert_sound(repository)
            coverage = [dataset.to_dict() for dataset in read_coverage(session)]
            copied = ingest(engine, repository, archive.urls(), TIME, chunks={"time": 4}, group="c")
            assert_complete(repository.readonly_session("main"), archive, "c")
            counts = [(report.commits, report.manifests) for report in (first, more, copied)] + [
                (first.references, more.references, copied.written, copied.stored_bytes)
            ]
            found.append((stored_contents(repository), coverage, counts))
    assert found[0] == found[1]
    contents = found[0][0]
    assert len(contents["/temperature"][1]) == 18
    assert len(contents["/c/temperature"][1]) == 5


def test_errors_of_tasks_arrive_as_our_own(spark: Any) -> None:
    engine = SparkEngine(spark)
    refused = StorageError("the bucket is gone", key="a/b")
    failing = engine.numbers(2, 2).map(fail, refused, columns="id long")
    with (
        pytest.raises(StorageError, match="the bucket is gone") as caught,
        engine.watched("failing", "two numbers", None),
    ):
        failing.gather()
    assert caught.value.context == {"key": "a/b"}
    assert caught.value.__suppress_context__
    with pytest.raises(InternalError, match="ZeroDivisionError"), engine.watched("again", "", None):
        engine.numbers(2, 2).map(fail, ZeroDivisionError("no"), columns="id long").gather()
