"""What a storage really does, as users see it."""

import html
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from icefloe.effects import blocking
from icefloe.maintenance.doctor import GUARANTEES, Checkup, probe
from icefloe.printable import printable
from icefloe.reports import table_html, table_text
from icefloe.storage import Storage
from icefloe.values.model import Progress

TRIAL_HEADINGS: Final = ("trial", "outcome", "what was seen")


class StorageVerdict(StrEnum):
    """What a storage was found to be."""

    SOUND = "sound"
    UNSAFE = "unsafe"
    """Something that repositories rely on does not hold."""
    READ_ONLY = "read-only"
    INCOMPLETE = "incomplete"
    """Nothing was found to fail, but not everything could be tried."""


@dataclass(frozen=True, slots=True)
class StorageGuarantee:
    """Something that users of a repository rely on."""

    name: str
    holds: bool | None
    """None: it could not be found out."""
    without: str
    """What goes wrong if it does not hold."""


class StorageCheckup:
    """What a storage does, and which guarantees follow; see `check_storage`.

    Print it, or let a notebook show it.
    """

    def __init__(self, checkup: Checkup) -> None:
        self._found = checkup

    @property
    def guarantees(self) -> tuple[StorageGuarantee, ...]:
        """What can be relied on."""
        return tuple(
            StorageGuarantee(guarantee.name, self._found.holds(guarantee), guarantee.without)
            for guarantee in GUARANTEES
        )

    @property
    def trials(self) -> dict[str, str]:
        """How each trial ended: `holds`, `fails`, `lacks` (which does no harm) or `unknown`."""
        return {str(probe.trial): str(probe.outcome) for probe in self._found.probes}

    @property
    def has_repository(self) -> bool | None:
        """Whether there is a repository in the place; nothing of it was touched."""
        return self._found.has_repository

    @property
    def left_behind(self) -> tuple[str, ...]:
        """Objects of the trials that could not be removed; usually none."""
        return self._found.left_behind

    @property
    def verdict(self) -> StorageVerdict:
        """Sound, unsafe, read-only, or not known for sure."""
        if self._found.is_read_only:
            return StorageVerdict.READ_ONLY
        outcomes = [guarantee.holds for guarantee in self.guarantees]
        if False in outcomes:
            return StorageVerdict.UNSAFE
        return StorageVerdict.INCOMPLETE if None in outcomes else StorageVerdict.SOUND

    def to_dict(self) -> dict[str, Any]:
        """Return everything as a dictionary, ready for JSON."""
        return {
            "verdict": str(self.verdict),
            "has_repository": self.has_repository,
            "guarantees": {guarantee.name: guarantee.holds for guarantee in self.guarantees},
            "trials": {
                str(probe.trial): {"outcome": str(probe.outcome), "detail": probe.detail}
                for probe in self._found.probes
            },
            "scratch": self._found.scratch,
            "left_behind": list(self.left_behind),
        }

    def rows(self) -> list[list[object]]:
        """Write the trials for people, under `TRIAL_HEADINGS`."""
        return [[probe.trial, probe.outcome, probe.detail] for probe in self._found.probes]

    def notes(self) -> list[str]:
        """Describe in sentences what users can rely on."""
        return [*map(printable, self._notes())]

    def _notes(self) -> Iterator[str]:
        match self.verdict:
            case StorageVerdict.READ_ONLY:
                yield "read-only: nothing could be written here, so that nothing more was tried"
            case verdict:
                for guarantee in self.guarantees:
                    mark = {True: "yes", False: "NO", None: "not known"}[guarantee.holds]
                    yield f"{mark}: {guarantee.name}" + (
                        f" - {guarantee.without}" if not guarantee.holds else ""
                    )
                yield f"{verdict}"
        if self.has_repository:
            yield "there is a repository here; nothing of it was touched"
        if self.left_behind:
            yield f"could not be removed, do so yourself: {', '.join(self.left_behind)}"

    def __repr__(self) -> str:
        return "\n".join([table_text(TRIAL_HEADINGS, self.rows()), *self.notes()])

    def _repr_html_(self) -> str:
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes())
        return table_html(TRIAL_HEADINGS, self.rows()) + notes


async def check_storage_async(
    storage: Storage, *, on_progress: Progress | None = None
) -> StorageCheckup:
    """Find out what a storage really does, and whether repositories are safe in it.

    Tries conditional writes (also in races), reads after writes, ranges, listings and deletions
    under keys of its own, which are removed afterwards. A repository in the same place is not
    touched, and may be in use.

    >>> import icefloe
    >>> checkup = check_storage(icefloe.in_memory_storage())
    >>> str(checkup.verdict)
    'sound'
    """
    return StorageCheckup(await probe(storage, progress=on_progress))


check_storage = blocking(check_storage_async)
