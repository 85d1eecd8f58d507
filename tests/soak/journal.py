"""What the processes of a soak wanted, and what they were promised; it survives their death."""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

type Kind = Literal["intent", "ack", "refusal", "defect", "expiration"]


@dataclass(frozen=True, slots=True)
class Event:
    """A line of a journal."""

    kind: Kind
    time: float
    details: dict[str, Any]


class Journal:
    """The notes of one worker, written line by line: a killed process loses none."""

    def __init__(self, path: Path) -> None:
        self._path: Final = path

    def note(self, kind: Kind, **details: Any) -> None:
        """Append an event; a line is one write, which a kill cannot split."""
        line = json.dumps({"kind": kind, "time": time.time(), "details": details}) + "\n"
        handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)

    def events(self) -> Iterator[Event]:
        """Read all events in their order."""
        if self._path.exists():
            for line in self._path.read_bytes().splitlines():
                yield Event(**json.loads(line))


@dataclass(slots=True)
class Intent:
    """Something a worker tried: to commit values, or to create or delete a tag."""

    number: int
    action: Literal["commit", "tag", "untag"]
    ref: str
    """The branch or tag."""
    cells: list[int]
    time: float
    is_acknowledged: bool = False


def intents(journal: Journal) -> list[Intent]:
    """Return what a worker tried, in its order."""
    by_number: dict[int, Intent] = {}
    for event in journal.events():
        if event.kind == "intent":
            intent = Intent(time=event.time, **event.details)
            by_number[intent.number] = intent
        elif event.kind == "ack":
            by_number[event.details["number"]].is_acknowledged = True
    return list(by_number.values())
