"""The conformance suite notices storages that break a promise."""

import threading
from collections.abc import AsyncIterator, Sequence
from itertools import count
from typing import Unpack

import pytest

from icefloe import effects
from icefloe.errors import InvalidInputError, ObjectNotFoundError, PreconditionFailedError
from icefloe.storage.memory import MemoryBackend
from icefloe.storage.port import (
    Buffer,
    ByteRange,
    DeleteReport,
    Fetched,
    ObjectInfo,
    PutOptions,
    Version,
)
from icefloe.testing.storage_suite import StorageConformance


class LooksThenWrites(MemoryBackend):
    """Checks conditions, but not in one step with the write: two do so before either writes."""

    def __init__(self) -> None:
        super().__init__()
        self._first_two = threading.Barrier(2)
        self._turns = count()

    async def put(self, key: str, data: Buffer, **options: Unpack[PutOptions]) -> Version:
        if_absent = options.pop("if_absent", False)
        if_version = options.pop("if_version", None)
        try:
            found: Version | None = (await self.head(key)).info.version
        except ObjectNotFoundError:
            found = None
        if (if_absent and found is not None) or (if_version is not None and found != if_version):
            raise PreconditionFailedError(key)
        if (if_absent or if_version is not None) and next(self._turns) < 2:
            self._first_two.wait(60)
        return await super().put(key, data, **options)


class ReadsShort(MemoryBackend):
    """Gives what there is of a range that reaches past the end."""

    async def get(self, key: str, byte_range: ByteRange | None = None) -> Fetched:
        try:
            return await super().get(key, byte_range)
        except InvalidInputError:
            whole = await super().get(key)
            start, stop = byte_range or (0, 0)
            return Fetched(whole.data[start:stop], whole.info)


class SortsRanges(MemoryBackend):
    """Answers in the order of the object."""

    async def get_ranges(self, key: str, byte_ranges: Sequence[ByteRange]) -> list[Buffer]:
        return await super().get_ranges(key, sorted(byte_ranges))


class ListsFolders(MemoryBackend):
    """Takes a prefix for a folder."""

    async def list(self, prefix: str = "") -> AsyncIterator[list[ObjectInfo]]:
        async for batch in super().list(prefix):
            yield [info for info in batch if not prefix or info.key.startswith(f"{prefix}/")]


class ListsOnePage(MemoryBackend):
    """Stops after a thousand keys."""

    async def list(self, prefix: str = "") -> AsyncIterator[list[ObjectInfo]]:
        left = 1000
        async for batch in super().list(prefix):
            yield batch[:left]
            left -= len(batch[:left])


class ForgetsAttributes(MemoryBackend):
    """Stores the bytes only."""

    async def head(self, key: str) -> Fetched:
        return Fetched(b"", (await super().head(key)).info)


class CopiesAnything(MemoryBackend):
    """Does not look at the state of the source."""

    async def copy(self, source: str, target: str, *, if_version: Version | None = None) -> None:
        await super().copy(source, target)


class MindsAbsence(MemoryBackend):
    """Fails to delete what is not there."""

    async def delete_many(self, keys: Sequence[str]) -> DeleteReport:
        for key in keys:
            await self.head(key)
        return await super().delete_many(keys)


BROKEN: list[tuple[type[MemoryBackend], str]] = [
    (LooksThenWrites, "test_one_creator_wins"),
    (LooksThenWrites, "test_no_increment_is_lost"),
    (SortsRanges, "test_ranges"),
    (ListsFolders, "test_prefixes_are_strings"),
    (ForgetsAttributes, "test_attributes"),
    (CopiesAnything, "test_copy_if_version"),
    (MindsAbsence, "test_delete_many"),
]

FAILURES = (AssertionError, pytest.fail.Exception, ObjectNotFoundError)


@pytest.mark.parametrize(("broken", "name"), BROKEN)
def test_driven_tests_notice(broken: type[MemoryBackend], name: str) -> None:
    test = getattr(StorageConformance(), name)
    test(backend=MemoryBackend(), drive=effects.run_blocking)
    with pytest.raises(FAILURES):
        test(backend=broken(), drive=effects.run_blocking)


def test_short_reads_are_noticed() -> None:
    test = StorageConformance().test_wrong_range
    test(backend=MemoryBackend(), drive=effects.run_blocking, wrong=(99, 101))
    with pytest.raises(FAILURES):
        test(backend=ReadsShort(), drive=effects.run_blocking, wrong=(99, 101))


@pytest.mark.parametrize(
    ("broken", "name"),
    [
        (LooksThenWrites, "test_no_increment_is_lost_between_threads"),
        (ListsOnePage, "test_many_objects"),
    ],
)
def test_other_tests_notice(broken: type[MemoryBackend], name: str) -> None:
    test = getattr(StorageConformance(), name)
    test(backend=MemoryBackend())
    with pytest.raises(FAILURES):
        test(backend=broken())
