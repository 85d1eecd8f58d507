"""What must be true after a soak, whoever died and whatever failed: both libraries are asked."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import icechunk
import numpy as np

import icefloe
from icefloe.testing.invariants import BrokenRepositoryError
from tests.soak.journal import Intent, Journal, intents
from tests.soak.places import Place
from tests.soak.workers import CELLS, EMPTY, MAIN, WRITERS, message_of, own_branch, values_in
from tests.support.checking import check_repository_blocking

type Repository = icefloe.Repository | icechunk.Repository
type Values = np.ndarray[Any, np.dtype[np.int64]]


def problems(place: Place, journals: Sequence[Path]) -> list[str]:
    """Compare the repository with the journals; return everything that should not be."""
    events = [event for path in journals for event in Journal(path).events()]
    tried = [intents(Journal(path)) for path in journals[:WRITERS]]
    expired = [event.details["older_than"] for event in events if event.kind == "expiration"]
    found = [event.details["text"] for event in events if event.kind == "defect"]
    try:
        check_repository_blocking(place.calm.open())
    except BrokenRepositoryError as broken:
        found.append(str(broken))
    ours, peer = icefloe.Repository.open(place.calm), icechunk.Repository.open(place.peer)
    found += _lost_messages(ours, tried, max(expired, default=0))
    for name, repo in (("icefloe", ours), ("icechunk", peer)):
        for branch in (MAIN, *map(own_branch, range(WRITERS))):
            values = values_in(repo.readonly_session(branch).store)
            found += [f"{name}, {branch}: {text}" for text in _wrong_cells(values, branch, tried)]
        found += [f"{name}: {text}" for text in _wrong_tags(repo, tried)]
    found += _different_versions(ours, peer)
    return found


def acknowledged(journals: Sequence[Path]) -> int:
    """Count the actions that were acknowledged so far."""
    return sum(event.kind == "ack" for path in journals for event in Journal(path).events())


def summary(journals: Sequence[Path]) -> str:
    """Count what the workers did."""
    events = [event for path in journals for event in Journal(path).events()]
    counts = Counter(event.kind for event in events)
    per_writer = [
        sum(it.is_acknowledged and it.action == "commit" for it in intents(Journal(path)))
        for path in journals[:WRITERS]
    ]
    return (
        f"{counts['ack']} of {counts['intent']} actions acknowledged, {counts['refusal']} refused; "
        f"commits of each writer: {per_writer}"
    )


def _wrong_cells(values: Values, branch: str, tried: Sequence[Sequence[Intent]]) -> Iterator[str]:
    """Find cells with a value that neither an acknowledged nor a later commit gave them."""
    for writer, own in enumerate(tried):
        allowed: list[set[int]] = [{EMPTY} for _ in range(CELLS)]
        for intent in own:
            if intent.ref != branch:
                continue
            for cell in intent.cells:
                # A commit that was not acknowledged may have happened all the same.
                before = set() if intent.is_acknowledged else allowed[cell]
                allowed[cell] = before | {intent.number}
        for cell, choices in enumerate(allowed):
            value = int(values[writer, cell])
            if value not in choices:
                yield f"cell {writer}, {cell} is {value}, not any of {sorted(choices)}"


def _lost_messages(
    repo: icefloe.Repository, tried: Sequence[Sequence[Intent]], expired: float
) -> Iterator[str]:
    """Find commits to main that are missing from its history, or are there twice."""
    history = Counter(snapshot.message for snapshot in repo.ancestry(branch=MAIN))
    for writer, own in enumerate(tried):
        for intent in own:
            if intent.ref != MAIN:
                continue
            count = history[message_of(writer, intent.number)]
            is_lost = intent.is_acknowledged and intent.time > expired and count == 0
            if is_lost or count > 1:
                yield f"commit {intent.number} of writer {writer} is {count} times in the history"


def _wrong_tags(repo: Repository, tried: Iterable[Iterable[Intent]]) -> Iterator[str]:
    """Find tags that are missing, or that should not exist."""
    actual = set(repo.list_tags())
    states: Mapping[str, set[bool]] = _tag_states(tried)
    for name in actual - states.keys():
        yield f"nobody created the tag {name}"
    for name, possible in states.items():
        if (name in actual) not in possible:
            yield f"the tag {name} is {'there' if name in actual else 'missing'}"


def _tag_states(tried: Iterable[Iterable[Intent]]) -> dict[str, set[bool]]:
    """For each tag, whether it can exist and whether it can be missing."""
    states: dict[str, set[bool]] = {}
    for own in tried:
        for intent in own:
            if intent.action == "commit":
                continue
            before = set() if intent.is_acknowledged else states.get(intent.ref, {False})
            states[intent.ref] = before | {intent.action == "tag"}
    return states


def _different_versions(ours: icefloe.Repository, peer: icechunk.Repository) -> Iterator[str]:
    """Find tags whose values the two libraries read differently."""
    for tag in sorted(ours.list_tags()):
        ours_read = values_in(ours.readonly_session(tag=tag).store)
        peer_read = values_in(peer.readonly_session(tag=tag).store)
        if not np.array_equal(ours_read, peer_read):
            yield f"the two libraries read the tag {tag} differently"
