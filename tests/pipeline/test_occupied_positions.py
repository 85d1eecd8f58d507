"""Files that would take the place of others are refused; one that changed takes its own."""

from pathlib import Path

import pytest

import icefloe
from examples.archives import write_archive
from icefloe.pipeline.combining.combine import Combined, combine
from icefloe.pipeline.files.facts import FileFacts, SourceState
from icefloe.pipeline.files.options import CombineOptions, ParseOptions
from icefloe.pipeline.files.parsing import parse_file
from icefloe.pipeline.local import virtualize_locally
from icefloe.pipeline.writing.dataset import read_existing
from icefloe.pipeline.writing.provenance import SourceRecord, recorded_files, without_occupied
from icefloe.records import replace
from tests.pipeline.repositories import repository_for

TIME = CombineOptions(("time",))


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> tuple[icefloe.Session, list[FileFacts]]:
    folder: Path = tmp_path_factory.mktemp("data")
    archive = write_archive(folder, 4, steps=2)
    session = repository_for(folder).writable_session("main")
    virtualize_locally(session, archive.urls()[:3], TIME)
    return session, [parse_file(url, ParseOptions(("time",))).facts for url in archive.urls()]


def outcome(
    there: tuple[icefloe.Session, list[FileFacts]], given: list[FileFacts], options: CombineOptions
) -> Combined:
    session, facts = there
    first = combine(facts[:3], TIME)
    record = SourceRecord(tuple(recorded_files(facts[:3], first, TIME)))
    existing = read_existing(session.store, "", TIME)
    return without_occupied(given, combine(given, options, existing), options, existing, record)


def named(facts: FileFacts, url: str) -> FileFacts:
    return replace(facts, state=SourceState(url, 1, "new", 1))


def test_new_places_and_ones_own_are_free(
    there: tuple[icefloe.Session, list[FileFacts]],
) -> None:
    _, facts = there
    found = outcome(there, [named(facts[1], facts[1].url), facts[3]], TIME)
    assert found.report.misfits == ()
    assert found.starts["time"].tolist() == [2, 6]


def test_the_place_of_another_is_not(there: tuple[icefloe.Session, list[FileFacts]]) -> None:
    _, facts = there
    copy = named(facts[1], "file:///copy.nc")
    found = outcome(there, [copy, facts[3]], TIME)
    assert [(each.url, each.kind.value) for each in found.report.misfits] == [
        ("file:///copy.nc", "duplicate")
    ]
    assert found.arrays == ()
    skipped = outcome(there, [copy, facts[3]], CombineOptions(("time",), on_misfit="skip"))
    assert skipped.files == (1,)
    assert skipped.report.counts() == {"duplicate": 1}


def test_a_changed_file_may_not_move(there: tuple[icefloe.Session, list[FileFacts]]) -> None:
    _, facts = there
    moved = named(facts[3], facts[1].url)
    found = outcome(there, [moved], TIME)
    assert found.report.counts() == {"coordinate": 1}
