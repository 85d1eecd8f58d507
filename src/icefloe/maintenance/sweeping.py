"""List the objects of a repository by kind; delete objects in batches, and count failures."""

import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
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
from icefloe.walk.reachability import list_objects
from icefloe.walk.spill import Keys

_log = logging.getLogger(__name__)

BATCH: Final = 1000
"""Objects that one request deletes, at most."""
_SMALL_BATCH: Final = 100
"""Fewer than this many are not worth another request."""
_MOST_ERRORS: Final = 1000


class Kind(StrEnum):
    """The kinds of files that are collected, in the order in which they are deleted."""

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
    """The result of a garbage collection; in a dry run, the objects that it would delete.

    Objects that could not be deleted are counted, with the reasons in `delete_errors`; kinds
    that were not examined to the end because of such failures are in `skipped_phases`.
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
        """Whether everything that was to be deleted was."""
        return not (self.objects_failed_to_delete or self.delete_errors or self.skipped_phases)

    @property
    def objects_deleted(self) -> int:
        """The number of deleted objects of all kinds."""
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
    """Counts what a run deleted, or would delete, and what it could not delete."""

    objects: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(Kind, 0))
    size_bytes: int = 0
    failed: int = 0
    throttled: int = 0
    """Requests in which something failed that may work at another time."""
    errors: list[str] = field(default_factory=list)
    skipped: list[Kind] = field(default_factory=list)
    """Kinds that were not examined, or not to the end."""

    @property
    def total(self) -> int:
        """The number of deleted objects."""
        return sum(self.objects.values())

    def summary(self) -> GCSummary:
        """Return the summary for users."""
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
        """Count deleted objects."""
        self.objects[kind] += len(objects)
        self.size_bytes += sum(objects.sizes)


class Objects(Record):
    """Some objects of one kind: the last part of their keys, and how large they are."""

    names: Sequence[str] = ()
    sizes: Sequence[int] = ()

    def __len__(self) -> int:
        return len(self.names)

    def __add__(self, other: "Objects") -> "Objects":
        return Objects([*self.names, *other.names], [*self.sizes, *other.sizes])

    def chosen(self, is_chosen: Bools) -> "Objects":
        """Pick some rows."""
        if is_chosen.all():
            return self
        rows = np.flatnonzero(is_chosen).tolist()
        return Objects([self.names[row] for row in rows], [self.sizes[row] for row in rows])

    def named(self, is_chosen: Callable[[str], bool]) -> "Objects":
        """Pick some by their names."""
        return self.chosen(np.fromiter(map(is_chosen, self.names), np.bool_, len(self)))

    def batches(self, size: int) -> "list[Objects]":
        """Cut into pieces."""
        pairs = zip(batched(self.names, size), batched(self.sizes, size), strict=True)
        return [Objects(names, sizes) for names, sizes in pairs]


class Listed(Record):
    """Stored objects of one kind, by whether they were written before the cut-off."""

    old: Objects = Objects()
    young: Objects = Objects()


async def list_kind(
    backend: Backend,
    kind: Kind,
    cutoff: datetime | None,
    chooses: Callable[[Keys], Bools] | None = None,
) -> AsyncIterator[Listed]:
    """List all objects of a kind, or those chosen by the numbers of their ids, in batches.

    Objects whose names are not ids are left out. Without a cut-off all of them are young. A
    time in whole seconds was rounded down, as many object stores do: the object may be younger
    by up to a second, and is old only if that cannot matter.
    """
    prefix = PREFIXES[kind]
    async for batch in list_objects(backend, prefix, chooses):
        every = Objects(
            [info.key[len(prefix) :] for info in batch], [info.size_bytes for info in batch]
        )
        is_old = np.zeros(len(batch), np.bool_)
        if cutoff is not None:
            whole = cutoff.replace(microsecond=0)
            moments = [info.last_modified for info in batch]
            is_old[:] = [moment < (cutoff if moment.microsecond else whole) for moment in moments]
        yield Listed(every.chosen(is_old), every.chosen(~is_old))


async def list_whole_kind(backend: Backend, kind: Kind, cutoff: datetime | None) -> Listed:
    """List all objects of a kind at once."""
    names: tuple[list[str], list[str]] = [], []
    sizes: tuple[list[int], list[int]] = [], []
    async for listed in list_kind(backend, kind, cutoff):
        for number, objects in enumerate((listed.old, listed.young)):
            names[number].extend(objects.names)
            sizes[number].extend(objects.sizes)
    return Listed(Objects(names[0], sizes[0]), Objects(names[1], sizes[1]))


class TooManyFailuresError(Exception):
    """Too many requests in a row deleted nothing."""


class Sweeper:
    """Deletes objects, and counts them."""

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
        """The number of objects in a deletion request."""
        return BATCH * self._concurrency

    async def delete(self, kind: Kind, objects: Objects) -> None:
        """Delete objects; note those that cannot be deleted, and raise if there are too many."""
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
        deleted = batch.named(lambda name: prefix + name not in reasons)
        self._failures_in_a_row = 0 if len(deleted) else self._failures_in_a_row + 1
        if failures.absent:  # another collection deleted them, and counts them
            deleted = deleted.named(lambda name: prefix + name not in failures.absent)
        self._done.count(kind, deleted)


class _Failures(Record):
    reasons: Mapping[str, str]
    """By key."""
    is_throttled: bool
    absent: frozenset[str] = frozenset()
