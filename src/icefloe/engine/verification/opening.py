"""Verifying a repository that may be too damaged to be opened."""

from icefloe.engine.context import Access, RepoContext
from icefloe.engine.lifecycle import open_
from icefloe.engine.verification.run import Verification, VerificationRules, verify
from icefloe.errors import IcefloeError
from icefloe.storage import Storage
from icefloe.values.progress import Progress


async def verify_storage(
    storage: Storage,
    rules: VerificationRules,
    *,
    access: Access | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Verify what is in a storage, also when it cannot be opened as a repository any more."""
    try:
        context: RepoContext | None = await open_(storage, access=access)
    except IcefloeError:
        context = None  # what stands in the way is found again, and reported
    if context is not None:
        return await verify_repository(context, rules, progress=progress)
    return await verify(storage.open(), rules, progress=progress)


async def verify_repository(
    context: RepoContext, rules: VerificationRules, *, progress: Progress | None = None
) -> Verification:
    """Verify an open repository."""
    return await verify(context.backend, rules, virtual=context.virtual, progress=progress)
