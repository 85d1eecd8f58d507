"""What must always hold of a repository holds of those that the reference writes."""

import pytest

from icefloe.storage.local import LocalBackend
from tests.interop.conftest import CopyOf
from tests.interop.reference import BUILDERS
from tests.support.checking import check_repository_blocking

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("name", BUILDERS)
def test_the_reference_writes_sound_repositories(original: CopyOf, name: str) -> None:
    check_repository_blocking(LocalBackend(str(original(name).path)))
