"""Archives on Spark: one job, one commit, the values of the files, and nothing left behind."""

from pathlib import Path
from typing import Any

import pytest
from numpy.testing import assert_array_equal

import icefloe
from icefloe.effects import run_blocking
from icefloe.pipeline.local import virtualize_locally
from icefloe.pipeline.options import CombineOptions
from icefloe.spark import virtualize
from icefloe.testing.archives import Archive, write_archive
from icefloe.testing.invariants import InvariantChecker
from tests.pipeline.repositories import opened, repository_for

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default")]

TIME = CombineOptions(("time",))


def stored_repository(tmp_path: Path) -> icefloe.Repository:
    storage = icefloe.local_filesystem_storage(str(tmp_path / "repository"))
    return repository_for(tmp_path / "data", storage=storage)


def check(repository: icefloe.Repository) -> None:
    run_blocking(InvariantChecker().check(repository._context.backend))


def test_an_archive_becomes_a_dataset_in_one_commit(spark: Any, tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "data", 200, steps=2)
    repository = stored_repository(tmp_path)
    report = virtualize(spark, repository, archive.pattern, TIME, message="all of it")
    print(report.summary(), report.stages)
    assert (report.scan.files, report.scan.used) == (200, 200)
    check(repository)
    history = list(repository.ancestry(branch="main"))
    assert [version.message for version in history] == ["all of it", "Repository initialized"]
    locally = repository_for(tmp_path / "data").writable_session("main")
    virtualize_locally(locally, archive.pattern, TIME)
    found = opened(repository.readonly_session("main"))
    assert found.identical(opened(locally))
    assert not list((tmp_path / "repository" / "icefloe").rglob("*-*"))
