"""Conditional writes over a storage that loses answers, while others write too.

Whatever happens, an answer must be true: success means that our write was applied, a conflict
or another definite failure means that it never was. "Unknown" is allowed only when an answer
was lost.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, Unpack

from hypothesis import event, given
from hypothesis import strategies as st

from icefloe.config import StorageRetriesSettings, StorageSettings, effective_storage_settings
from icefloe.effects import run_blocking
from icefloe.errors import (
    ObjectNotFoundError,
    OutcomeUnknownError,
    PreconditionFailedError,
    StorageError,
)
from icefloe.storage.memory import MemoryBackend
from icefloe.storage.metering import Meter
from icefloe.storage.port import Buffer, Fetched, PutOptions, Version
from icefloe.storage.retrying import RetryingBackend

type Answer = Literal["proper", "lost before", "lost after", "busy", "too many", "denied"]
type Interference = Literal["none", "overwrite", "delete"]

OURS = b"ours"
SETTINGS = effective_storage_settings(
    StorageSettings(retries=StorageRetriesSettings(max_tries=5, initial_backoff_ms=0))
)


@dataclass
class LossyBackend(MemoryBackend):
    """Memory behind a network that a script breaks."""

    answers: Iterator[Answer]
    looks: Iterator[Answer]
    interferences: Iterator[Interference]
    keeps_metadata: bool
    was_applied: int = 0
    was_lost: bool = False
    others: int = field(default=0)

    def __post_init__(self) -> None:
        super().__init__()

    async def put(self, key: str, data: Buffer, **options: Unpack[PutOptions]) -> Version:
        answer = next(self.answers, "proper")
        if answer == "denied":
            raise StorageError("denied")
        if answer == "busy":
            raise PreconditionFailedError("409", retryable=True)
        if answer == "too many":
            raise StorageError("429", retryable=True, status=429)
        self.was_lost |= answer != "proper"
        if answer == "lost before":
            raise StorageError("no answer", retryable=True)
        try:
            if not self.keeps_metadata:
                options.pop("attributes", None)
            version = await super().put(key, data, **options)
            self.was_applied += 1
        finally:
            await self.interfere(key)
            if answer == "lost after":
                raise StorageError("no answer", retryable=True)
        return version

    async def head(self, key: str) -> Fetched:
        match next(self.looks, "proper"):
            case "lost before" | "lost after" | "busy" | "too many":
                raise StorageError("no answer", retryable=True)
            case "denied":
                raise StorageError("denied")
        return await super().head(key)

    async def interfere(self, key: str) -> None:
        match next(self.interferences, "none"):
            case "overwrite":
                self.others += 1
                await super().put(key, b"other %d" % self.others)
            case "delete":
                await self.delete_many([key])


answers = st.lists(
    st.sampled_from(["proper", "lost before", "lost after", "busy", "too many", "denied"]),
    max_size=6,
)
interferences = st.lists(st.sampled_from(["none", "none", "overwrite", "delete"]), max_size=6)


@given(
    answers=answers,
    looks=answers,
    interferences=interferences,
    start=st.sampled_from(["absent", "expected", "other"]),
    is_update=st.booleans(),
    keeps_metadata=st.booleans(),
)
def test_answers_are_true(
    answers: list[Answer],
    looks: list[Answer],
    interferences: list[Interference],
    start: str,
    is_update: bool,
    keeps_metadata: bool,
) -> None:
    lossy = LossyBackend(iter(()), iter(()), iter(()), keeps_metadata)
    expected = run_blocking(lossy.put("object", b"before"))
    if start == "absent":
        run_blocking(lossy.delete_many(["object"]))
    elif start == "other":
        run_blocking(lossy.put("object", b"other"))
    lossy.answers, lossy.looks = iter(answers), iter(looks)
    lossy.interferences = iter(interferences)
    lossy.was_applied = 0
    could_apply = start == ("expected" if is_update else "absent")

    backend = RetryingBackend(lossy, SETTINGS, Meter())
    condition: Any = {"if_version": expected} if is_update else {"if_absent": True}
    try:
        version = run_blocking(backend.put("object", OURS, **condition))
    except OutcomeUnknownError:
        event("unknown")
        assert lossy.was_lost
    except PreconditionFailedError:
        event("conflict")
        assert lossy.was_applied == 0
    except StorageError:
        event("failure")
        assert lossy.was_applied == 0
    else:
        event("success")
        # An object that was created, deleted by somebody and not seen in between is created again.
        assert lossy.was_applied == 1 or ("delete" in interferences and not is_update)
        assert lossy.was_applied
        try:
            found = run_blocking(MemoryBackend.get(lossy, "object"))
        except ObjectNotFoundError:
            pass  # deleted since
        else:
            assert bytes(found.data) != OURS or found.info.version == version
    assert lossy.was_applied <= 1 or not is_update
    if not answers and not interferences and not looks:
        assert lossy.was_applied == could_apply
