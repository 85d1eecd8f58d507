"""Objects of a repository listed by kind, and deleted in batches, with an account of failures."""

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from itertools import batched
from typing import Any, Final

import numpy as np

from icefloe.effects import map_concurrently
from icefloe.errors import StorageError
from icefloe.format.columns import Bools
from icefloe.format.layout import (
    CHUNKS_PREFIX,
    MANIFESTS_PREFIX,
    SNAPSHOTS_PREFIX,
    TRANSACTIONS_PREFIX,
)
from icefloe.records import MutableRecord, Record, field
from icefloe.reports import FactsReport
from icefloe.storage import Backend
from icefloe.storage.capabilities import list_wanted
from icefloe.walk.spill import Keys, keys_of_names

_log = logging.getLogger(__name__)

BATCH: Final = 1000
"""Objects that one request deletes, at most."""
_SMALL_BATCH: Final = 100
"""Fewer than this many are not worth another request."""
_MOST_ERRORS: Final = 1000


class Kind(StrEnum):
    """What is collected, in the order in which it goes."""

    SNAPSHOTS = "snapshots"
    TRANSACTION_LOGS = "transaction_logs"
    MANIFESTS = "manifests"
    CHUNKS = "chunks"


PREFIXES: Final = {
    Kind.SNAPSHOTS: SNAPSHOTS_PREFIX,
    Kind.TRANSACTION_LOGS: TRANSACTIONS_PREFIX,
    Kind.MANIFESTS: MANIFESTS_PREFIX,
    Kind.CHUNKS: CHUNKS_PREFIX,
}


class GCSummary(FactsReport, Record):
    """What garbage collection removed; in a dry run, what it would remove.

    Objects that could not be deleted are counted, with the reasons in `delete_errors`; kinds
    that were not gone through to the end because of such failures are in `skipped_phases`.
    """

    bytes_deleted: int
    chunks_deleted: int
    manifests_deleted: int
    snapshots_deleted: int
    attributes_deleted: int
    """Always 0: no version of the format stores any such files."""
    transaction_logs_deleted: int
    objects_failed_to_delete: int
    throttled_batches: int
    """Requests of which something failed that may work at another time."""
    delete_errors: list[str]
    skipped_phases: list[str]

    headings = ("kind", "objects")
    _title = "ops.GCSummary"

    @property
    def is_complete(self) -> bool:
        """Whether all that was to go did."""
        return not (self.objects_failed_to_delete or self.delete_errors or self.skipped_phases)

    @property
    def objects_deleted(self) -> int:
        """How many objects went, of all kinds."""
        return (
            self.chunks_deleted
            + self.manifests_deleted
            + self.snapshots_deleted
            + self.transaction_logs_deleted
        )

    def to_dict(self) -> dict[str, Any]:
        """Return everything as a dictionary, ready for JSON."""
        return {**super().to_dict(), "is_complete": self.is_complete}

    def _rows(self) -> Iterator[list[object]]:
        yield ["snapshots", self.snapshots_deleted]
        yield ["transaction logs", self.transaction_logs_deleted]
        yield ["manifests", self.manifests_deleted]
        yield ["chunks", self.chunks_deleted]


class Collected(MutableRecord):
    """The account of a run: what went, or would go, and what did not."""

    objects: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(Kind, 0))
    size_bytes: int = 0
    failed: int = 0
    throttled: int = 0
    """Requests in which something failed that may work another time."""
    errors: list[str] = field(default_factory=list)
    skipped: list[Kind] = field(default_factory=list)
    """Kinds that were not, or not wholly, gone through."""

    @property
    def total(self) -> int:
        """How many objects went."""
        return sum(self.objects.values())

    def summary(self) -> GCSummary:
        """Sum up for users."""
        return GCSummary(
            bytes_deleted=self.size_bytes,
            chunks_deleted=self.objects[Kind.CHUNKS],
            manifests_deleted=self.objects[Kind.MANIFESTS],
            snapshots_deleted=self.objects[Kind.SNAPSHOTS],
            attributes_deleted=0,
            transaction_logs_deleted=self.objects[Kind.TRANSACTION_LOGS],
            objects_failed_to_delete=self.failed,
            throttled_batches=self.throttled,
            delete_errors=self.errors,
            skipped_phases=[str(kind) for kind in self.skipped],
        )

    def report(self, error: str) -> None:
        """Note a failure."""
        _log.error("garbage collection: %s", error)
        if len(self.errors) < _MOST_ERRORS:
            self.errors.append(error)

    def count(self, kind: Kind, objects: "Objects") -> None:
        """Note what went."""
        self.objects[kind] += len(objects)
        self.size_bytes += sum(objects.sizes)


class Objects(Record):
    """Some objects of one kind: the last part of their keys, and how large they are."""

    names: Sequence[str] = ()
    sizes: Sequence[int] = ()

    def __len__(self) -> int:
        return len(self.names)

    def chosen(self, is_chosen: Bools) -> "Objects":
        """Pick some."""
        if is_chosen.all():
            return self
        rows = np.flatnonzero(is_chosen).tolist()
        return Objects([self.names[row] for row in rows], [self.sizes[row] for row in rows])

    def batches(self, size: int) -> "list[Objects]":
        """Cut into pieces."""
        pairs = zip(batched(self.names, size), batched(self.sizes, size), strict=True)
        return [Objects(names, sizes) for names, sizes in pairs]


def together(parts: Iterable[Objects]) -> Objects:
    """Put objects of one kind into one list."""
    pieces = list(parts)
    return Objects(
        [name for part in pieces for name in part.names],
        [size for part in pieces for size in part.sizes],
    )


class Listed(Record):
    """Objects of one kind that are there."""

    old: Objects = field(default_factory=Objects)
    """Those that were written before the cut-off."""
    young: Objects = field(default_factory=Objects)


async def list_kind(
    backend: Backend,
    kind: Kind,
    cutoff: datetime | None,
    chooses: Callable[[Keys], Bools] | None = None,
) -> AsyncIterator[Listed]:
    """Walk all objects of a kind, or those wanted by the numbers of their ids, in batches.

    Those whose names are not ids are passed over. Without a cut-off all of them are young. A
    time in whole seconds was rounded down, as many object stores do: the object may be younger
    by up to a second, and is old only if that cannot matter.
    """
    prefix = PREFIXES[kind]
    skip = len(prefix)

    def is_wanted(keys: Sequence[str]) -> list[bool]:
        names = [key[skip:] for key in keys]
        numbers, is_id = keys_of_names(names)
        chosen: list[bool] = (is_id if chooses is None else is_id & chooses(numbers)).tolist()
        return chosen

    async for batch in list_wanted(backend, prefix, is_wanted):
        every = Objects([info.key[skip:] for info in batch], [info.size_bytes for info in batch])
        is_old = np.zeros(len(batch), np.bool_)
        if cutoff is not None:
            whole = cutoff.replace(microsecond=0)
            moments = [info.last_modified for info in batch]
            is_old[:] = [moment < (cutoff if moment.microsecond else whole) for moment in moments]
        yield Listed(every.chosen(is_old), every.chosen(~is_old))


async def list_whole_kind(backend: Backend, kind: Kind, cutoff: datetime | None) -> Listed:
    """List all objects of a kind at once."""
    parts = [listed async for listed in list_kind(backend, kind, cutoff)]
    return Listed(together(part.old for part in parts), together(part.young for part in parts))


class TooManyFailuresError(Exception):
    """So much failed in a row that it is better to stop."""


class Sweeper:
    """Deletes objects, and keeps the account."""

    def __init__(
        self, backend: Backend, done: Collected, *, concurrency: int, most_failures: int
    ) -> None:
        self._backend = backend
        self._done = done
        self._concurrency = max(concurrency, 1)
        self._most_failures = most_failures
        self._failures_in_a_row = 0

    @property
    def portion(self) -> int:
        """How many objects to delete at a time."""
        return BATCH * self._concurrency

    async def delete(self, kind: Kind, objects: Objects) -> None:
        """Delete objects; those that cannot be are noted, and too many of them raise."""
        # A store deletes the objects of one request one after the other: use all requests.
        even_share = -(-len(objects) // self._concurrency)
        batches = objects.batches(min(BATCH, max(_SMALL_BATCH, even_share)))
        outcomes = await map_concurrently(
            lambda batch: self._delete_batch(kind, batch), batches, limit=self._concurrency
        )
        for batch, failures in zip(batches, outcomes, strict=True):
            self._note(kind, batch, failures)
        if self._failures_in_a_row > self._most_failures:
            raise TooManyFailuresError(
                f"{self._failures_in_a_row} requests in a row deleted nothing"
            )

    async def _delete_batch(self, kind: Kind, batch: Objects) -> "_Failures":
        prefix = PREFIXES[kind]
        try:
            report = await self._backend.delete_many([prefix + name for name in batch.names])
        except StorageError as error:
            reasons = dict.fromkeys((prefix + name for name in batch.names), str(error))
            return _Failures(reasons, is_throttled=error.retryable)
        return _Failures(report.failures, is_throttled=bool(report.retryable), absent=report.absent)

    def _note(self, kind: Kind, batch: Objects, failures: "_Failures") -> None:
        prefix, reasons = PREFIXES[kind], failures.reasons
        for key, reason in reasons.items():
            self._done.report(f"{key} could not be deleted: {reason}")
        self._done.failed += len(reasons)
        self._done.throttled += failures.is_throttled
        went = np.array([prefix + name not in reasons for name in batch.names], np.bool_)
        gone = batch.chosen(went)
        if failures.absent:  # another collection deleted them, and counts them
            keys = [prefix + name for name in gone.names]
            gone = gone.chosen(np.array([key not in failures.absent for key in keys], np.bool_))
        self._done.count(kind, gone)
        self._failures_in_a_row = 0 if went.any() else self._failures_in_a_row + 1


class _Failures(Record):
    reasons: Mapping[str, str]
    """By key."""
    is_throttled: bool
    absent: frozenset[str] = frozenset()
