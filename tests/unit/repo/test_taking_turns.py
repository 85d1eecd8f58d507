"""Whom to let go first, by the log of operations."""

import pytest

from icefloe.format.ids import ObjectId
from icefloe.format.layout import backup_name
from icefloe.format.update_table import UpdateEntry, UpdateKind, UpdateTable
from icefloe.repo.ledger import Pace, author_of, is_contested, writers_before

NOW = 1_800_000_000_000_000


def name_of(writer: str, number: int) -> str:
    raw = writer.encode() * 8 + number.to_bytes(4)
    return backup_name("repo", NOW // 1000, ObjectId(raw))


def log_of(writers: str, *, ages: list[int] | None = None, branch: str = "main") -> UpdateTable:
    """Make the log after these writers committed, the last of them latest."""
    count = len(writers)
    table = UpdateTable.from_entries([UpdateEntry(UpdateKind.REPO_INITIALIZED, NOW - 10**9)])
    for number, writer in enumerate(writers):
        age = 1000 * (count - number) if ages is None else ages[number]
        entry = UpdateEntry(UpdateKind.NEW_COMMIT, NOW - age, name=f"{branch}{writer}")
        table = table.with_newest(entry, name_of(writer, number))
    return table


def own(writer: str) -> str:
    return author_of(name_of(writer, 0))


def test_names_of_one_series_have_one_author() -> None:
    assert author_of(name_of("a", 1)) == author_of(name_of("a", 70_000))
    assert author_of(name_of("a", 1)) != author_of(name_of("b", 1))


@pytest.mark.parametrize(
    ("writers", "expected"),
    [
        ("", {"a": 0}),
        ("aaaa", {"a": 0, "b": 0}),
        ("ab", {"a": 0, "b": 1, "c": 0}),
        ("abcabc", {"a": 0, "b": 1, "c": 2}),
        ("abcccc", {"a": 0, "b": 1, "c": 2}),
        ("b" + "a" * 20, {"a": 0, "b": 0}),  # whoever is missing for long is not waited for
        ("abcdefghijkl", {"l": 8}),
    ],
)
def test_who_wrote_last_waits_longest(writers: str, expected: dict[str, int]) -> None:
    log = log_of(writers)
    assert {who: writers_before(log, own(who), NOW) for who in expected} == expected


def test_who_did_nothing_for_long_is_not_waited_for() -> None:
    log = log_of("ab", ages=[60_000_000, 1000])
    assert writers_before(log, own("b"), NOW) == 0


def test_a_branch_is_contested_if_others_changed_it_lately() -> None:
    log = log_of("ab")  # on branches of their own
    assert not is_contested(log, "maina", own("a"), NOW)
    assert is_contested(log, "mainb", own("a"), NOW)
    assert not is_contested(log, "mainb", own("a"), NOW + 60_000_000)


def test_pauses_follow_the_pace() -> None:
    pace = Pace()
    for _ in range(50):
        pace.note(2.0)
    assert 2.9 < pace.pause_for(3) < 6.01
    assert pace.pause_for(0) == 0
