"""A storage that keeps writes to itself behaves as any other, and leaves the real one alone."""

import pytest

from icefloe.effects import run_blocking
from icefloe.storage import Storage
from icefloe.storage.overlay import OverlayStorage
from icefloe.storage.port import Backend
from icefloe.testing.storage_suite import StorageConformance


class TestOverlay(StorageConformance):
    @pytest.fixture
    def backend(self) -> Backend:
        return OverlayStorage(Storage.new_in_memory()).open()


def test_what_is_there_is_read_and_never_changed() -> None:
    real = Storage.new_in_memory()
    version = run_blocking(real.open().put("a", b"one"))
    run_blocking(real.open().put("b", b"two"))
    tried = OverlayStorage(real).open()
    run_blocking(tried.put("a", b"third", if_version=version))
    run_blocking(tried.copy("b", "c"))
    run_blocking(tried.delete_many(["b"]))
    assert bytes(run_blocking(tried.get("a", (0, 2))).data) == b"th"
    assert sorted(OverlayStorage(real).list_objects()) == [("a", 3), ("b", 3)]

    async def keys() -> list[str]:
        return sorted([info.key async for batch in tried.list() for info in batch])

    assert run_blocking(keys()) == ["a", "c"]
    assert sorted(real.list_objects()) == [("a", 3), ("b", 3)]
