"""Three thousand files, some of them broken in every way: all are named, then all are in."""

from pathlib import Path
from typing import Any

import pytest

from examples.archives import Fault, write_archive
from icefloe.pipeline.combining.report import MisfitsError
from icefloe.spark import virtualize
from tests.spark.archives import TIME, assert_complete, assert_sound, stored_repository

pytestmark = pytest.mark.spark

FILES = 3000
FAULTS = {97 + 211 * number: fault for number, fault in enumerate([*Fault, *Fault])}


def test_every_broken_file_is_named_and_the_mended_archive_goes_in(
    spark: Any, tmp_path: Path
) -> None:
    archive = write_archive(tmp_path / "data", FILES, faults=FAULTS)
    repository = stored_repository(tmp_path)
    before = repository.storage.list_objects()
    with pytest.raises(MisfitsError) as caught:
        virtualize(spark, repository, archive.pattern, TIME)
    report = caught.value.report
    urls = archive.urls()
    assert report.files == FILES
    assert {
        url: [each.kind.value for each in misfits] for url, misfits in report.by_file().items()
    } == {urls[number]: [fault.value] for number, fault in FAULTS.items()}
    assert repository.storage.list_objects() == before
    for number in FAULTS:
        archive.write(number)
    done = virtualize(spark, repository, archive.pattern, TIME)
    assert (done.scan.used, done.commits, done.references) == (FILES, 1, 2 * FILES + 2)
    assert_complete(repository.readonly_session("main"), archive)
    assert_sound(repository)
