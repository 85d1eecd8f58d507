"""Whether what is stored is whole."""

from collections.abc import Mapping

from icefloe.api.verification import VerificationReport
from icefloe.credentials import AnyCredential
from icefloe.effects import run_blocking
from icefloe.engine.context import RepoContext
from icefloe.engine.verification.opening import verify_repository, verify_storage
from icefloe.engine.verification.run import Progress, VerificationRules
from icefloe.storage import Storage


class RepositoryHealth:
    """The part of `Repository` that checks what is stored."""

    _context: RepoContext

    def verify(
        self, *, deep: bool = False, on_progress: Progress | None = None
    ) -> VerificationReport:
        """Check that all versions are whole; nothing is changed.

        Every file that a version needs exists, has the right size, can be read, and fits to the
        others; chunk objects are compared with one listing. With `deep`, all chunk objects are
        read, too, and foreign objects are looked at (one request for each) and compared with
        what was recorded of them, as far as they were authorised; all backups are read.

        Others may go on writing. `on_progress` hears how much of how much is done.

        >>> import icefloe
        >>> repository = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> report = repository.verify()
        >>> str(report.verdict), report.damages
        ('healthy', ())
        """
        return run_blocking(self.verify_async(deep=deep, on_progress=on_progress))

    async def verify_async(
        self, *, deep: bool = False, on_progress: Progress | None = None
    ) -> VerificationReport:
        rules = VerificationRules(deep=deep)
        return VerificationReport(
            await verify_repository(self._context, rules, progress=on_progress)
        )

    @staticmethod
    def verify_storage(
        storage: Storage,
        *,
        deep: bool = False,
        authorize_virtual_chunk_access: Mapping[str, AnyCredential | None] | None = None,
        on_progress: Progress | None = None,
    ) -> VerificationReport:
        """Check a repository that may be too damaged to be opened; as `verify` otherwise.

        Raises `RepositoryNotFoundError` where nothing of a repository is.
        """
        return run_blocking(
            RepositoryHealth.verify_storage_async(
                storage,
                deep=deep,
                authorize_virtual_chunk_access=authorize_virtual_chunk_access,
                on_progress=on_progress,
            )
        )

    @staticmethod
    async def verify_storage_async(
        storage: Storage,
        *,
        deep: bool = False,
        authorize_virtual_chunk_access: Mapping[str, AnyCredential | None] | None = None,
        on_progress: Progress | None = None,
    ) -> VerificationReport:
        outcome = await verify_storage(
            storage,
            VerificationRules(deep=deep),
            access=authorize_virtual_chunk_access,
            progress=on_progress,
        )
        return VerificationReport(outcome)
