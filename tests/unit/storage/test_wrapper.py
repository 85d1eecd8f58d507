"""Backends around a backend: every request goes through one method."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from icefloe.effects import run_blocking
from icefloe.errors import ErrorKind, ReadOnlyError, StorageError
from icefloe.storage.memory import MemoryBackend
from icefloe.storage.port import Backend, ObjectInfo
from icefloe.storage.wrapper import BackendWrapper, PrecededBackend, ReadOnlyBackend, Verb
from icefloe.testing.storage_suite import StorageConformance


class TestPlainWrapper(StorageConformance):
    """A wrapper that adds nothing is as good as what it wraps."""

    @pytest.fixture
    def backend(self) -> Backend:
        return BackendWrapper(BackendWrapper(MemoryBackend()))


class Noting(BackendWrapper):
    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.requests: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    async def around(self, verb: Verb, *arguments: Any, **options: Any) -> Any:
        self.requests.append((verb, arguments, options))
        return await super().around(verb, *arguments, **options)


class Announcing(PrecededBackend):
    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.announced: list[tuple[tuple[str, ...], bool]] = []

    async def _before(self, *keys: str, writes: bool) -> None:
        self.announced.append((keys, writes))


async def do_everything(backend: Backend) -> list[str]:
    await backend.put("a", b"12345", if_absent=True, content_type="text/plain")
    await backend.get("a", (1, 2))
    await backend.get_ranges("a", [(0, 1)])
    await backend.head("a")
    await backend.copy("a", "b")
    listed = [info.key async for batch in backend.list() for info in batch]
    await backend.delete_many(["a", "b"])
    return sorted(listed)


def test_one_method_sees_every_request_with_its_arguments() -> None:
    backend = Noting(MemoryBackend())
    assert run_blocking(do_everything(backend)) == ["a", "b"]
    assert backend.requests == [
        ("put", ("a", b"12345"), {"if_absent": True, "content_type": "text/plain"}),
        ("get", ("a", (1, 2)), {}),
        ("get_ranges", ("a", [(0, 1)]), {}),
        ("head", ("a",), {}),
        ("copy", ("a", "b"), {"if_version": None}),
        ("delete_many", (["a", "b"],), {}),
    ]


def test_something_precedes_every_request() -> None:
    backend = Announcing(MemoryBackend())
    run_blocking(do_everything(backend))
    assert backend.announced == [
        (("a",), True),
        (("a",), False),
        (("a",), False),
        (("a",), False),
        (("a",), True),
        (("",), False),
        (("a", "b"), True),
    ]


async def first_batch(batches: AsyncIterator[list[ObjectInfo]]) -> list[ObjectInfo]:
    return await anext(batches)


def test_reading_is_all_that_a_read_only_backend_does() -> None:
    memory = MemoryBackend()
    run_blocking(memory.put("a", b"12345"))
    backend = ReadOnlyBackend(memory, "https://example.org")
    assert bytes(run_blocking(backend.get("a")).data) == b"12345"
    assert run_blocking(backend.head("a")).info.size_bytes == 5
    assert [*map(bytes, run_blocking(backend.get_ranges("a", [(1, 3)])))] == [b"23"]
    for request, words in (
        (lambda: backend.put("b", b""), "cannot write 'b': https://example.org can only be read"),
        (lambda: backend.copy("a", "b"), "cannot copy 'a'"),
        (lambda: backend.delete_many(["a", "b"]), "cannot delete 'a, b'"),
    ):
        with pytest.raises(ReadOnlyError, match=words) as caught:
            run_blocking(request())
        assert caught.value.kind == ErrorKind.READ_ONLY_STORAGE
    with pytest.raises(StorageError, match="cannot list ''") as unlisted:
        run_blocking(first_batch(backend.list()))
    assert unlisted.value.kind == ErrorKind.UNIMPLEMENTED
