"""Invariants of every repository at every moment, checked in its stored files alone.

- Every file that can be reached from `repo` (or the refs of spec 1) exists, can be read, and
  holds the id that its name says.
- Every history ends in the initial snapshot; times increase along it.
- Snapshots list just the manifests that their arrays use, with their exact sizes and counts;
  extents are tight and disjoint; references are sorted and inside the grid; chunk objects are
  long enough.
- Transaction logs tell what happened between a snapshot and its parent.
- The log of operations is newest first and goes on in backups that exist.
- A file once written never changes.

    checker = InvariantChecker()
    ...
    run_blocking(checker.check(backend))  # after every step of a test

Everything found is listed in one `BrokenRepositoryError`. All but the last rule is what
`Repository.verify` checks, too.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from icefloe.effects import run_blocking
from icefloe.errors import ErrorKind, IcefloeError, RepositoryNotFoundError
from icefloe.format.layout import (
    BACKUPS_PREFIX,
    CHUNKS_PREFIX,
    MANIFESTS_PREFIX,
    SNAPSHOTS_PREFIX,
    TRANSACTIONS_PREFIX,
)
from icefloe.maintenance.verify.run import VerificationRules, verify
from icefloe.maintenance.verify.versions import BackupRules
from icefloe.storage.port import Backend
from icefloe.testing.stored_files import DecodedFiles, digest, kept_in_memory, read_all

_IMMUTABLE: Final = (
    SNAPSHOTS_PREFIX,
    MANIFESTS_PREFIX,
    TRANSACTIONS_PREFIX,
    CHUNKS_PREFIX,
    BACKUPS_PREFIX,
)
_RULES: Final = VerificationRules(backups=BackupRules(most=None))


class BrokenRepositoryError(IcefloeError):
    """The stored files of a repository break rules that must always hold."""

    default_kind = ErrorKind.INVALID_FILE_FORMAT

    def __init__(self, violations: Sequence[str]) -> None:
        lines = "\n".join(f"- {violation}" for violation in violations)
        super().__init__(f"{len(violations)} invariants of the repository are broken:\n{lines}")
        self.violations = tuple(violations)


class InvariantChecker:
    """Checks a repository again and again, and remembers its files from one time to the next."""

    def __init__(self) -> None:
        self._digests: dict[str, bytes] = {}
        self._decoded = DecodedFiles()

    async def check(self, backend: Backend) -> None:
        """Check everything; raise `BrokenRepositoryError` with all violations."""
        contents = await read_all(backend)
        violations = [*self._changed(contents), *await self._broken(contents)]
        if violations:
            raise BrokenRepositoryError(violations)

    def check_blocking(self, backend: Backend) -> None:
        """Check everything, for callers that block."""
        run_blocking(self.check(backend))

    def _changed(self, contents: Mapping[str, bytes]) -> list[str]:
        now = {key: digest(data) for key, data in contents.items() if key.startswith(_IMMUTABLE)}
        changed = [key for key, before in self._digests.items() if now.get(key, before) != before]
        self._digests |= now
        return [f"{key} has changed since it was written" for key in changed]

    async def _broken(self, contents: dict[str, bytes]) -> list[str]:
        backend = await kept_in_memory(contents)
        try:
            verification = await verify(backend, _RULES, files_of=self._decoded.reader)
        except RepositoryNotFoundError:
            return ["there is no branch main"]
        assert not verification.unchecked
        return [damage.message for damage in verification.damages]


async def check_repository(backend: Backend) -> None:
    """Check a repository once; raise `BrokenRepositoryError` with all violations."""
    await InvariantChecker().check(backend)


def check_repository_blocking(backend: Backend) -> None:
    """Check a repository once, for callers that block."""
    run_blocking(check_repository(backend))
