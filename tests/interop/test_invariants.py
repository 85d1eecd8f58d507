"""What must always hold of a repository holds of those that the reference writes."""

import asyncio
from pathlib import Path

import icechunk as ic
import pytest
from zarr.core.buffer import cpu

from icefloe.storage.local import LocalBackend
from tests.interop.conftest import CopyOf
from tests.interop.reference import BUILDERS
from tests.support.checking import check_repository_blocking
from tests.support.sides import array_json, group_json

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("name", BUILDERS)
def test_the_reference_writes_sound_repositories(original: CopyOf, name: str) -> None:
    check_repository_blocking(LocalBackend(str(original(name).path)))


def test_the_reference_writes_nodes_without_parents_and_below_arrays(tmp_path: Path) -> None:
    """So that neither is demanded of a repository."""
    repository = ic.Repository.create(ic.local_filesystem_storage(str(tmp_path)))
    session = repository.writable_session("main")
    array, group = array_json((4,)), group_json()
    for path, document in {"no/such/x": array, "no/such/x/below": group}.items():
        buffer = cpu.Buffer.from_bytes(document)
        asyncio.run(session.store.set(f"{path}/zarr.json", buffer))
    session.commit("orphans")
    check_repository_blocking(LocalBackend(str(tmp_path)))
