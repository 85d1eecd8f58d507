"""Consent of a reader in few words: a list of prefixes, or the folders of a local repository.

A repository names the places of its virtual chunks, and may have come from anybody. So only the
reader decides: by prefixes, or, for repositories of one's own on this machine, by `True`.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import unquote, urlsplit

from icefloe.config.containers import VirtualChunkContainer
from icefloe.credentials.access import (
    AnyCredential,
    Authorisations,
    checked_authorisations,
    credential_of_platform,
)
from icefloe.errors import ErrorKind, InvalidInputError, WrongTypeError
from icefloe.storage import Storage
from icefloe.storage.specs import LocalSpec

type Authorize = Literal[True] | str | Sequence[str] | Authorisations
"""Prefixes to read with the credentials of the environment; prefixes with credentials; or True."""

_SYSTEM: Final = (
    "/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/private/etc", "/proc", "/run", "/sbin",
    "/sys", "/usr", "/var/lib", "/var/log", "/var/run", "/var/spool",
)  # fmt: skip
"""Folders of the system: no archive lies there."""


def authorised_by(
    authorize: Authorize, storage: Storage, containers: Iterable[VirtualChunkContainer]
) -> Mapping[str, AnyCredential | None]:
    """Return the credentials by prefix that a reader authorises.

    Raise `InvalidInputError` if `True` is not enough, and name what is.

    >>> from icefloe.storage import in_memory_storage
    >>> list(authorised_by(["file:///data/"], in_memory_storage(), []))
    ['file:///data/']
    """
    if authorize is True:
        return _local(storage, list(containers))
    if isinstance(authorize, str):
        authorize = [authorize]
    if isinstance(authorize, Mapping):
        return checked_authorisations(authorize) or {}
    given: Any = authorize  # callers in Python may pass anything
    if not isinstance(given, Sequence) or not all(isinstance(prefix, str) for prefix in given):
        raise WrongTypeError(
            "authorize must be a list of url prefixes, a dict from url prefixes to credentials, or"
            f" True for a repository of your own on this machine, not {authorize!r:.80}",
            ErrorKind.INVALID_CREDENTIALS,
        )
    return {prefix: credential_of_platform(prefix) for prefix in authorize}


def _local(
    storage: Storage, containers: Sequence[VirtualChunkContainer]
) -> dict[str, AnyCredential]:
    """Authorise the folders of a repository that its reader made on this machine."""
    prefixes = [container.url_prefix for container in containers]
    spec = storage.spec
    problem = "the repository is not on this machine"
    if isinstance(spec, LocalSpec):
        problem = _foreign(spec.path) or next(filter(None, map(_unfit, prefixes)), "")
    if problem:
        raise InvalidInputError(
            f"authorize=True is not enough, because {problem}. If you trust the repository to read"
            f" from there, name the places: authorize={prefixes or ['s3://bucket/folder/']!r}",
            ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER,
        )
    return {prefix: credential_of_platform(prefix) for prefix in prefixes}


def _foreign(folder: str) -> str:
    """Return whether a folder is somebody else's, in words."""
    if not hasattr(os, "getuid"):
        return ""
    is_own = Path(folder).stat().st_uid == os.getuid()
    return "" if is_own else "the repository belongs to another user of this machine"


def _unfit(prefix: str) -> str:
    """Return why `True` does not cover a container, in words."""
    if not prefix.lower().startswith("file://"):
        return f"its container {prefix!r} is not on this machine"
    folder = Path(unquote(urlsplit(prefix).path)).resolve()
    home = Path.home().resolve()
    if folder == home or folder in home.parents:
        return f"its container {prefix!r} is your home, or above it"
    if any(part.startswith(".") for part in folder.parts):
        return f"its container {prefix!r} is a hidden folder"
    for place in map(Path, _SYSTEM):
        if folder == place or place in folder.parents or folder in place.parents:
            return f"its container {prefix!r} is a folder of the system"
    return ""
