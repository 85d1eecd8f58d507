"""Other writers of the same repository, and whom of them to let go first.

Where a storage has a queue (`icefloe.storage.turns`), that decides. Elsewhere the log of
operations does: every writer names the copies of the repo object in a series of its own, so the
log shows who changed the repository when. Whoever did so last lets those go first who did so
before; whoever is not in the log goes at once. So writers take turns without talking to each
other, and who has lost often waits least.
"""

import random
from dataclasses import dataclass, field
from typing import Final

from icefloe.format.ids import SeriesOfIds
from icefloe.format.update_table import UpdateTable

_ENTRIES: Final = 32
_ACTIVE_MICROSECONDS: Final = 5_000_000
"""Who did nothing for longer is not waited for."""
_MOST_BEFORE: Final = 8
_SLOWNESS: Final = 4
"""Who is missing for so many rounds of the others is not waited for either."""
_SERIES_TEXT: Final = 12
"""Characters of an id that are the same in a whole series."""
_SMOOTHING: Final = 0.3
_LONG_SECONDS: Final = 0.5
_CALM_COMMITS: Final = 3
"""Commits without rivals after which no rivals are expected."""

BACKUP_IDS: Final = SeriesOfIds()
"""Names the copies of repo objects that this process makes."""


@dataclass(slots=True)
class Pace:
    """How long something takes that several writers do one after the other."""

    seconds: float = 0.02

    def note(self, seconds: float) -> None:
        """Take one more duration into account."""
        self.seconds += _SMOOTHING * (seconds - self.seconds)

    def pause_for(self, writers: int) -> float:
        """Choose how many seconds to leave to so many others."""
        return writers * self.seconds * random.uniform(0.5, 1.0)  # noqa: S311 - jitter


@dataclass(slots=True)
class Rivals:
    """What is known about others who commit to the repository at the same time."""

    pace: Pace = field(default_factory=Pace)
    """Of a commit that is rebased, from reading the present state to the last write."""
    _commits_alone: int = _CALM_COMMITS

    @property
    def are_expected(self) -> bool:
        """Whether they got ahead of us during one of our last commits.

        A single commit without rivals proves little: they may all be busy with rebasing.
        """
        return self._commits_alone < _CALM_COMMITS

    def note_race(self, *, was_lost: bool) -> None:
        """Record whether rivals changed the branch during a commit of ours."""
        self._commits_alone = 0 if was_lost else self._commits_alone + 1

    @property
    def can_wait_for_us(self) -> bool:
        """Whether a whole commit is short enough to make others wait for it."""
        return self.pace.seconds < _LONG_SECONDS


def author_of(backup_name: str) -> str:
    """Tell by the name of a copy of the repo object who made it.

    >>> author_of("repo.30708914770077.0123456789ABCDEFGHJK")
    '0123456789AB'
    """
    return backup_name.rpartition(".")[2][:_SERIES_TEXT]


def writers_before(updates: UpdateTable, own: str, now: int) -> int:
    """Count the writers whose last change is older than our last one, but not old.

    An entry of the log was made by whoever made the copy that the entry before it names.
    """
    depths: dict[str, int] = {}
    for row in range(1, min(len(updates), _ENTRIES)):
        if now - int(updates.updated_at[row - 1]) > _ACTIVE_MICROSECONDS:
            break
        depths.setdefault(author_of(updates.backup_paths[row].decode()), row - 1)
    if own not in depths:
        return 0
    places = list(enumerate(depths.items()))
    older = places[list(depths).index(own) + 1 :]
    active = [place for place, (_, depth) in older if depth <= _SLOWNESS * (place + 1)]
    return min(len(active), _MOST_BEFORE)


def is_contested(updates: UpdateTable, branch: str, own: str | None, now: int) -> bool:
    """Tell whether others changed a branch lately."""
    for row in range(1, min(len(updates), _ENTRIES)):
        if now - int(updates.updated_at[row - 1]) > _ACTIVE_MICROSECONDS:
            break
        author = author_of(updates.backup_paths[row].decode())
        if author != own and updates.names[row - 1].decode() == branch:
            return True
    return False
