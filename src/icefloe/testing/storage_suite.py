"""The promises of `icefloe.storage.port`, as tests for every storage.

Subclass, say how to make an empty backend, and pytest runs everything::

    class TestMine(StorageConformance):
        @pytest.fixture
        def backend(self) -> Backend:
            return MyBackend()

Tests are written once, as coroutines, and run both ways: blocking and on an event loop.
"""

import asyncio
import inspect
import random
import threading
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Any, ClassVar

import pytest

from icefloe import effects
from icefloe.errors import (
    InvalidInputError,
    ObjectNotFoundError,
    PreconditionFailedError,
)
from icefloe.storage.metering import Meter, MeteredBackend
from icefloe.storage.port import Backend, ObjectInfo, Version

type Drive = Callable[[Coroutine[Any, Any, None]], None]

ODD_KEYS = (
    "with space",
    "per%cent",
    "looks%20encoded",
    "señal/ñandú",
    "snow☃/日本",
    "hash#tag",
    "hash#1",
    "plus+plus",
    "amp&ersand=1",
    "question?mark",
    'quote\'d "twice"',
    "(paren) [bracket] {brace}",
    "semi;colon:comma,",
    "tilde~caret^pipe|back`tick",
    "star*less<more>",
    "back\\slash",
    "dots..in...names/.hidden",
    "at@dollar$bang!",
)
"""Keys that careless encoding breaks."""

BIG_BYTES = 5 * 1024 * 1024 + 1  # one more than the smallest part of an upload in parts
_CREATORS = 32
_INCREMENTERS = 16
_INCREMENTS = 4


def _drive_on_loop(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def driven(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Turn a coroutine into a test that runs both ways."""

    @wraps(test)
    def run(self: object, drive: Drive, **fixtures: object) -> None:
        drive(test(self, **fixtures))

    signature = inspect.signature(test)
    added = inspect.Parameter("drive", inspect.Parameter.KEYWORD_ONLY)
    shown = [*signature.parameters.values(), added]
    run.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
    return run


async def keys_of(backend: Backend, prefix: str = "") -> list[str]:
    """List the keys under a prefix, sorted, each as often as the storage gives it."""
    return sorted([info.key async for batch in backend.list(prefix) for info in batch])


async def infos_of(backend: Backend, prefix: str = "") -> dict[str, ObjectInfo]:
    """List what a storage tells about the objects under a prefix."""
    return {info.key: info async for batch in backend.list(prefix) for info in batch}


async def increment(backend: Backend, key: str) -> None:
    """Add one to the number in an object, however many others do the same."""
    while True:
        fetched = await backend.get(key)
        number = int(bytes(fetched.data))
        try:
            await backend.put(key, str(number + 1).encode(), if_version=fetched.info.version)
        except PreconditionFailedError:
            continue
        return


class StorageConformance:
    """The promises of the port; a subclass gives the fixture `backend`: a new, empty one."""

    versions_follow_content: ClassVar[bool] = False
    """Whether equal bytes have equal versions, as S3's ETags do: the port's one exception."""
    keeps_attributes: ClassVar[bool] = True
    """Whether user metadata is stored; files have none."""
    odd_keys: ClassVar[Sequence[str]] = ODD_KEYS
    """Keys with unusual characters; a server that confuses some may be spared them."""

    @pytest.fixture(params=[effects.run_blocking, _drive_on_loop], ids=["blocking", "async"])
    def drive(self, request: pytest.FixtureRequest) -> Drive:
        """Run a coroutine of the core, in each of the two ways."""
        chosen: Drive = request.param
        return chosen

    @pytest.fixture
    def backend(self) -> Backend:
        """Make a new, empty backend."""
        raise pytest.UsageError(f"{type(self).__name__} must define the fixture `backend`")

    # -- whole objects

    @pytest.mark.parametrize("size", [0, 1, 1000, BIG_BYTES])
    @driven
    async def test_round_trip(self, backend: Backend, size: int) -> None:
        """A stored object can be read, with its size, version and time."""
        data = random.Random(size).randbytes(size)  # noqa: S311 - not for secrets
        version = await backend.put("folder/object", data)
        fetched = await backend.get("folder/object")
        assert bytes(fetched.data) == data
        assert fetched.info.key == "folder/object"
        assert fetched.info.size_bytes == size
        assert fetched.info.version == version
        assert abs(fetched.info.last_modified - datetime.now(UTC)) < timedelta(minutes=5)

    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
    @driven
    async def test_any_buffer_can_be_put(
        self, backend: Backend, kind: Callable[[bytes], bytes]
    ) -> None:
        """All kinds of buffers are taken, and changing one later changes nothing."""
        data = kind(b"some bytes")
        await backend.put("object", data)
        if isinstance(data, bytearray):
            data[:] = b"x" * len(data)
        assert bytes((await backend.get("object")).data) == b"some bytes"

    @driven
    async def test_overwriting(self, backend: Backend) -> None:
        """A plain write replaces the object, also by a shorter one."""
        first = await backend.put("object", b"long enough")
        second = await backend.put("object", b"short")
        assert bytes((await backend.get("object")).data) == b"short"
        assert first != second
        assert await keys_of(backend) == ["object"]

    @driven
    async def test_head(self, backend: Backend) -> None:
        """Head tells what get tells, without the bytes."""
        version = await backend.put("object", b"12345", attributes={"icfiletype": "manifest"})
        looked, fetched = await backend.head("object"), await backend.get("object")
        assert bytes(looked.data) == b""
        assert looked.info == fetched.info
        assert looked.info.version == version
        assert looked.info.size_bytes == 5
        assert dict(looked.attributes) == dict(fetched.attributes)

    @driven
    async def test_absence(self, backend: Backend) -> None:
        """Every request for an absent object raises `ObjectNotFoundError`."""
        await backend.put("here/object", b"x")
        for key in ("absent", "here", "here/object/below", "here/other"):
            with pytest.raises(ObjectNotFoundError):
                await backend.get(key)
            with pytest.raises(ObjectNotFoundError):
                await backend.get(key, (0, 1))
            with pytest.raises(ObjectNotFoundError):
                await backend.get_ranges(key, [(0, 1), (2, 3)])
            with pytest.raises(ObjectNotFoundError):
                await backend.head(key)
            with pytest.raises(ObjectNotFoundError):
                await backend.copy(key, "target")
        assert await keys_of(backend) == ["here/object"]

    @pytest.mark.parametrize("key", ["", "/", "/absolute", "a//b", "a/", "../up", "a/../b", "./a"])
    @driven
    async def test_impossible_keys(self, backend: Backend, key: str) -> None:
        """Keys that could leave the root, or mean two things, are refused before any I/O."""
        with pytest.raises(InvalidInputError):
            await backend.put(key, b"x")
        with pytest.raises(InvalidInputError):
            await backend.get(key)
        assert await keys_of(backend) == []

    # -- ranges

    @driven
    async def test_range(self, backend: Backend) -> None:
        """A range gives exactly its bytes, and the state of the whole object."""
        version = await backend.put("object", bytes(range(100)))
        for start, stop in ((0, 100), (0, 1), (99, 100), (10, 20), (50, 50), (100, 100)):
            fetched = await backend.get("object", (start, stop))
            assert bytes(fetched.data) == bytes(range(start, stop))
            assert fetched.info.size_bytes == 100
            assert fetched.info.version == version

    @pytest.mark.parametrize(
        "wrong", [(0, 101), (99, 101), (100, 101), (500, 600), (5, 4), (-1, 3)]
    )
    @driven
    async def test_wrong_range(self, backend: Backend, wrong: tuple[int, int]) -> None:
        """A range that is not within the object is an error, never short data."""
        await backend.put("object", bytes(range(100)))
        with pytest.raises(InvalidInputError):
            await backend.get("object", wrong)
        with pytest.raises(InvalidInputError):
            await backend.get_ranges("object", [(0, 10), wrong])

    @driven
    async def test_ranges(self, backend: Backend) -> None:
        """Near and far, overlapping, equal and empty ranges come in the order asked for."""
        data = random.Random(7).randbytes(3_000_000)  # noqa: S311 - not for secrets
        await backend.put("object", data)
        near = [(position, position + 3) for position in range(0, 1000, 7)]
        far = [(2_999_990, 3_000_000), (0, 1), (1_500_000, 1_500_100)]
        asked = [*far, *near, (5, 5), (0, 1), (10, 2_000_000), (3_000_000, 3_000_000)]
        random.Random(8).shuffle(asked)  # noqa: S311 - not for secrets
        got = await backend.get_ranges("object", asked)
        assert [bytes(part) for part in got] == [data[start:stop] for start, stop in asked]

    @driven
    async def test_no_ranges(self, backend: Backend) -> None:
        """Nothing asked for, nothing given."""
        await backend.put("object", b"x")
        assert await backend.get_ranges("object", []) == []

    # -- conditions

    @driven
    async def test_create_if_absent(self, backend: Backend) -> None:
        """The first creation wins, a later one changes nothing, deletion makes room again."""
        version = await backend.put("object", b"first", if_absent=True)
        with pytest.raises(PreconditionFailedError):
            await backend.put("object", b"second", if_absent=True)
        fetched = await backend.get("object")
        assert bytes(fetched.data) == b"first"
        assert fetched.info.version == version
        await backend.delete_many(["object"])
        await backend.put("object", b"third", if_absent=True)
        assert bytes((await backend.get("object")).data) == b"third"

    @driven
    async def test_update_if_version(self, backend: Backend) -> None:
        """Only the present version can be replaced; a refused write changes nothing."""
        first = await backend.put("object", b"first", if_absent=True)
        second = await backend.put("object", b"second", if_version=first)
        with pytest.raises(PreconditionFailedError):
            await backend.put("object", b"third", if_version=first)
        fetched = await backend.get("object")
        assert bytes(fetched.data) == b"second"
        assert fetched.info.version == second
        seen = (await backend.head("object")).info.version
        await backend.put("object", b"third", if_version=seen)
        assert bytes((await backend.get("object")).data) == b"third"

    @driven
    async def test_update_of_absent_object(self, backend: Backend) -> None:
        """An object that is gone is in no version."""
        version = await backend.put("object", b"first")
        await backend.delete_many(["object"])
        with pytest.raises(PreconditionFailedError):
            await backend.put("object", b"second", if_version=version)
        with pytest.raises(ObjectNotFoundError):
            await backend.get("object")

    @driven
    async def test_equal_content_is_a_new_version(self, backend: Backend) -> None:
        """Versions name states, not bytes."""
        first = await backend.put("object", b"same")
        second = await backend.put("object", b"same", if_version=first)
        if self.versions_follow_content:
            assert first == second
            return
        assert first != second
        with pytest.raises(PreconditionFailedError):
            await backend.put("object", b"same", if_version=first)

    @driven
    async def test_conditions_exclude_each_other(self, backend: Backend) -> None:
        """Two conditions, or one that names nothing, are mistakes in the call."""
        version = await backend.put("object", b"x")
        with pytest.raises(InvalidInputError):
            await backend.put("object", b"y", if_absent=True, if_version=version)
        with pytest.raises(InvalidInputError):
            await backend.put("object", b"y", if_version=Version())
        assert bytes((await backend.get("object")).data) == b"x"

    @driven
    async def test_big_conditional_writes(self, backend: Backend) -> None:
        """Conditions hold for objects of any size."""
        big = bytes(BIG_BYTES)
        version = await backend.put("object", big, if_absent=True)
        with pytest.raises(PreconditionFailedError):
            await backend.put("object", b"small", if_absent=True)
        version = await backend.put("object", big + b"more", if_version=version)
        with pytest.raises(PreconditionFailedError):
            await backend.put("object", big, if_version=Version("another", "7"))
        assert (await backend.head("object")).info.size_bytes == BIG_BYTES + 4
        assert (await backend.head("object")).info.version == version

    @driven
    async def test_one_creator_wins(self, backend: Backend) -> None:
        """Of many that create one object at once, exactly one succeeds, and it is the one seen."""

        async def create(number: int) -> int | None:
            try:
                await backend.put("object", b"%d" % number, if_absent=True)
            except PreconditionFailedError:
                return None
            return number

        answers = await effects.map_concurrently(create, range(_CREATORS), limit=_CREATORS)
        winners = [number for number in answers if number is not None]
        assert len(winners) == 1
        assert bytes((await backend.get("object")).data) == b"%d" % winners[0]

    @driven
    async def test_no_increment_is_lost(self, backend: Backend) -> None:
        """Compare-and-set serialises concurrent updates."""
        await backend.put("counter", b"0")

        async def increment_some(_: int) -> None:
            for _ in range(_INCREMENTS):
                await increment(backend, "counter")

        await effects.map_concurrently(increment_some, range(8), limit=8)
        assert int(bytes((await backend.get("counter")).data)) == 8 * _INCREMENTS

    def test_no_increment_is_lost_between_threads(self, backend: Backend) -> None:
        """Threads of the user's own, each blocking."""
        effects.run_blocking(backend.put("counter", b"0"))
        failures: list[BaseException] = []

        def work() -> None:
            try:
                for _ in range(_INCREMENTS):
                    effects.run_blocking(increment(backend, "counter"))
            except BaseException as failure:  # noqa: BLE001 - shown by the assertion below
                failures.append(failure)

        _run_in_threads([work] * _INCREMENTERS)
        assert failures == []
        fetched = effects.run_blocking(backend.get("counter"))
        assert int(bytes(fetched.data)) == _INCREMENTERS * _INCREMENTS

    def test_readers_never_see_half_an_object(self, backend: Backend) -> None:
        """While one writes, others see whole objects of one state only."""
        contents = [bytes([letter]) * 300_000 for letter in b"abcd"]
        effects.run_blocking(backend.put("object", contents[0]))
        written = threading.Event()
        seen: set[bytes] = set()

        def write() -> None:
            try:
                for number in range(24):
                    effects.run_blocking(backend.put("object", contents[number % 4]))
            finally:
                written.set()

        def read() -> None:
            while not written.is_set():
                seen.add(bytes(effects.run_blocking(backend.get("object")).data))

        _run_in_threads([write, read, read])
        assert seen <= set(contents)

    # -- what goes with the bytes

    @driven
    async def test_attributes(self, backend: Backend) -> None:
        """User metadata comes back from get and head, and goes with the bytes it came with."""
        attributes = {"icspecver": "2", "icclient": "someone, 1.0; (really)"}
        await backend.put(
            "object", b"x", if_absent=True, attributes=attributes, content_type="application/json"
        )
        expected = attributes if self.keeps_attributes else {}
        for response in (await backend.get("object"), await backend.head("object")):
            # A layer above may add its own, such as the id of a write.
            assert {name: response.attributes.get(name) for name in expected} == expected
        await backend.put("object", b"y")
        assert "icspecver" not in (await backend.head("object")).attributes

    # -- listings

    @driven
    async def test_empty_listing(self, backend: Backend) -> None:
        """An empty folder lists nothing."""
        assert await keys_of(backend) == []
        assert await keys_of(backend, "no/such/prefix") == []

    @driven
    async def test_prefixes_are_strings(self, backend: Backend) -> None:
        """A prefix may end anywhere in a key, not only at a slash."""
        keys = ["a.b/c", "ab", "a/b", "a/bc/d", "a/bcd", "b/a", "b/ab"]  # no key is a folder too
        for key in keys:
            await backend.put(key, b"x")
        for prefix in ("", "a", "a/", "a/b", "a/bc", "a/bc/", "a/bc/d", "b/a", "c", "ab/", "a."):
            expected = sorted(key for key in keys if key.startswith(prefix))
            assert await keys_of(backend, prefix) == expected, prefix

    @driven
    async def test_listing_tells_what_head_tells(self, backend: Backend) -> None:
        """Size and time in a listing are those of the object."""
        await backend.put("folder/one", b"1")
        await backend.put("folder/three", b"333")
        listed = await infos_of(backend, "folder/")
        assert {key: info.size_bytes for key, info in listed.items()} == {
            "folder/one": 1,
            "folder/three": 3,
        }
        for key, info in listed.items():
            looked = (await backend.head(key)).info
            assert abs(info.last_modified - looked.last_modified) < timedelta(seconds=2)
            if info.version.etag is not None:
                assert info.version.etag == looked.version.etag

    @driven
    async def test_listing_follows_writes(self, backend: Backend) -> None:
        """A written object is listed at once, and a deleted object is not."""
        for number in range(5):
            await backend.put(f"object-{number}", b"x")
            assert len(await keys_of(backend)) == number + 1
        await backend.delete_many(["object-0", "object-3"])
        assert await keys_of(backend) == ["object-1", "object-2", "object-4"]

    @driven
    async def test_abandoned_listing(self, backend: Backend) -> None:
        """A reader of a listing may stop at any time."""
        for number in range(3):
            await backend.put(f"object-{number}", b"x")
        async for batch in backend.list():
            assert batch
            break
        assert len(await keys_of(backend)) == 3

    @driven
    async def test_odd_keys(self, backend: Backend) -> None:
        """Every character of a key means itself, in every operation."""
        keys = self.odd_keys
        for number, key in enumerate(keys):
            await backend.put(key, b"%d" % number, if_absent=True)
        for number, key in enumerate(keys):
            fetched = await backend.get(key)
            assert fetched.info.key == key
            assert bytes(fetched.data) == b"%d" % number
            assert (await backend.head(key)).info.size_bytes == len(b"%d" % number)
            assert key in await keys_of(backend, key[: len(key) // 2])
        assert await keys_of(backend) == sorted(keys)
        await backend.copy(keys[1], "copies/" + keys[3])
        assert bytes((await backend.get("copies/" + keys[3])).data) == b"1"
        report = await backend.delete_many(keys)
        assert (report.deleted, dict(report.failures)) == (len(keys), {})
        assert await keys_of(backend) == ["copies/" + keys[3]]

    def test_many_objects(self, backend: Backend) -> None:
        """Listings and deletions go past the pages of the storage, both ways."""
        keys = [f"many/{number:04}" for number in range(2500)]

        async def fill() -> None:
            await effects.map_concurrently(lambda key: backend.put(key, b"x"), keys, limit=16)

        async def check(prefix: str, expected: Sequence[str]) -> None:
            assert await keys_of(backend, prefix) == list(expected)

        async def remove(some: Sequence[str]) -> None:
            report = await backend.delete_many(some)
            assert (report.deleted, dict(report.failures)) == (len(some), {})

        effects.run_blocking(fill())
        effects.run_blocking(check("", keys))
        asyncio.run(check("many/", keys))
        asyncio.run(check("many/1", keys[1000:2000]))
        effects.run_blocking(remove(keys[:1500]))
        asyncio.run(check("", keys[1500:]))
        asyncio.run(remove(keys[1500:]))
        effects.run_blocking(check("", []))

    # -- copies and deletions

    @driven
    async def test_copy(self, backend: Backend) -> None:
        """A copy has the bytes and metadata of its source, and replaces what was there."""
        await backend.put("source", b"content", attributes={"icfiletype": "snapshot"})
        await backend.put("folder/target", b"something else")
        await backend.copy("source", "folder/target")
        target, source = await backend.get("folder/target"), await backend.get("source")
        assert bytes(target.data) == bytes(source.data) == b"content"
        assert dict(target.attributes) == dict(source.attributes)

    @driven
    async def test_copy_if_version(self, backend: Backend) -> None:
        """A copy can insist on the state of its source."""
        stale = await backend.put("source", b"first")
        fresh = await backend.put("source", b"second", attributes={"icfiletype": "snapshot"})
        with pytest.raises(PreconditionFailedError):
            await backend.copy("source", "target", if_version=stale)
        with pytest.raises(ObjectNotFoundError):
            await backend.head("target")
        await backend.copy("source", "target", if_version=fresh)
        target, source = await backend.get("target"), await backend.get("source")
        assert bytes(target.data) == b"second"
        assert dict(target.attributes) == dict(source.attributes)
        with pytest.raises((ObjectNotFoundError, PreconditionFailedError)):
            await backend.copy("absent", "target", if_version=fresh)

    @driven
    async def test_delete_many(self, backend: Backend) -> None:
        """Absent keys and repeated keys do no harm; neighbours stay."""
        for key in ("a", "b", "c/d", "c/e"):
            await backend.put(key, b"x")
        report = await backend.delete_many(["a", "absent", "c/d", "a", "no/folder/here"])
        assert dict(report.failures) == {}
        assert report.deleted >= 4
        assert await keys_of(backend) == ["b", "c/e"]
        assert (await backend.delete_many([])).deleted == 0

    # -- counting

    @driven
    async def test_requests_and_bytes_are_counted(self, backend: Backend) -> None:
        """The meter tells what was asked and how much moved."""
        meter = Meter()
        metered = MeteredBackend(backend, meter)
        await metered.put("object", b"12345", if_absent=True)
        with pytest.raises(PreconditionFailedError):
            await metered.put("object", b"678", if_absent=True)
        await metered.get("object")
        await metered.get_ranges("object", [(0, 1), (3, 5)])
        await metered.head("object")
        await metered.copy("object", "copy")
        assert await keys_of(metered) == ["copy", "object"]
        await metered.delete_many(["object", "copy"])
        with pytest.raises(ObjectNotFoundError):
            await metered.get("object")
        counts = meter.snapshot()
        assert (counts.put, counts.conflicts, counts.bytes_out) == (2, 1, 8)
        assert (counts.get, counts.get_ranges, counts.bytes_in) == (2, 1, 8)
        assert (counts.head, counts.copy, counts.list, counts.delete) == (1, 1, 1, 1)


def _run_in_threads(jobs: Sequence[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
