"""Checks a repository with two independent checkers: `verify`, and the one of the tests.

The names are those of `icefloe.testing.invariants`, which has the first of them only.
"""

from icefloe.effects import run_blocking
from icefloe.storage import Backend
from icefloe.testing import invariants
from icefloe.testing.stored_files import kept_in_memory, read_all
from tests.support.invariants import StoredInvariants


class InvariantChecker:
    """Checks a repository again and again, and remembers its files from one time to the next."""

    def __init__(self) -> None:
        self._verifying = invariants.InvariantChecker()
        self._independent = StoredInvariants()

    async def check(self, backend: Backend) -> None:
        """Raise `BrokenRepositoryError` with what either checker finds; both see the same files."""
        files = await read_all(backend)
        violations = [f"(independent) {one}" for one in self._independent.violations(files)]
        try:
            await self._verifying.check(await kept_in_memory(files))
        except invariants.BrokenRepositoryError as broken:
            violations += [f"(verify) {one}" for one in broken.violations]
        if violations:
            raise invariants.BrokenRepositoryError(violations)

    def check_blocking(self, backend: Backend) -> None:
        """Check everything, for callers that block."""
        run_blocking(self.check(backend))


async def check_repository(backend: Backend) -> None:
    """Check a repository once."""
    await InvariantChecker().check(backend)


def check_repository_blocking(backend: Backend) -> None:
    """Check a repository once, for callers that block."""
    run_blocking(check_repository(backend))
