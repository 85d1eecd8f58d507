"""Places where a job waits until a test says so, in whichever process it gets there."""

import os
import re
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from icefloe.errors import SourceError
from icefloe.pipeline.files.sources import SourceAccess, SourceObject
from icefloe.storage import Backend, Storage
from icefloe.storage.port import Buffer, Version
from icefloe.storage.wrapper import PrecededBackend
from icefloe.testing.schedules import WrappedStorage

PATIENCE_SECONDS: Final = 150.0


def wait_until[T](ask: Callable[[], T], what: str) -> T:
    """Ask until the answer is true; fail if it takes too long."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (answer := ask()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not happen in {PATIENCE_SECONDS} seconds")
        time.sleep(0.02)
    return answer


@dataclass(frozen=True, slots=True)
class Gate:
    """Holds the first who comes until it is opened, or until a second one comes."""

    folder: str
    opens_for_second: bool = False

    def pass_through(self) -> None:
        """Come by; only the first waits."""
        for place in ("first", "second"):
            try:
                with Path(self.folder, place).open("x") as marker:
                    marker.write(str(os.getpid()))
            except FileExistsError:
                continue
            break
        else:
            return
        if place == "first":
            wait_until(Path(self.folder, "open").exists, "somebody to open the gate")
        elif self.opens_for_second:
            self.open()

    def comer(self, place: Literal["first", "second"] = "first") -> int:
        """Wait until somebody came, and give the number of the process."""
        marker = Path(self.folder, place)
        return int(wait_until(lambda: marker.exists() and marker.read_text(), f"the {place} comer"))

    def open(self) -> None:
        """Let the one that waits go on."""
        Path(self.folder, "open").touch()


@dataclass(frozen=True, slots=True)
class Death:
    """Kills the process that comes."""

    def pass_through(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class GatedAccess(SourceAccess):
    """A gate in front of one file."""

    gate: Gate = Gate("")
    name: str = "never"

    def place(self, url: str) -> SourceObject:
        if url.endswith(self.name):
            self.gate.pass_through()
        return SourceAccess.place(self, url)


@dataclass(frozen=True, slots=True)
class TooMuchOnce(SourceAccess):
    """Says so much about a file that its task cannot hold it, the first time."""

    marker: str = ""
    size: int = 0

    def place(self, url: str) -> SourceObject:
        if url.endswith(".nc"):
            with suppress(FileExistsError):
                Path(self.marker).touch(exist_ok=False)  # several tasks may come at once
                raise SourceError("x" * self.size)
        return SourceAccess.place(self, url)


class GatedStorage(WrappedStorage):
    """A storage with a gate before or after each write of keys that match a pattern."""

    def __init__(
        self,
        inner: Storage,
        gate: Gate | Death,
        pattern: str,
        moment: Literal["before", "after"] = "before",
    ) -> None:
        super().__init__(inner, lambda backend: _GatedBackend(backend, gate, pattern, moment))
        self._made_with = (inner, gate, pattern, moment)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), self._made_with)


class _GatedBackend(PrecededBackend):
    def __init__(
        self, inner: Backend, gate: Gate | Death, pattern: str, moment: Literal["before", "after"]
    ) -> None:
        super().__init__(inner)
        self._gate, self._pattern, self._moment = gate, re.compile(pattern), moment

    async def _before(self, *keys: str, writes: bool) -> None:
        if writes and self._moment == "before" and any(map(self._pattern.match, keys)):
            self._gate.pass_through()

    async def put(self, key: str, data: Buffer, **conditions: Any) -> Version:
        version = await super().put(key, data, **conditions)
        if self._moment == "after" and self._pattern.match(key):
            self._gate.pass_through()
        return version
