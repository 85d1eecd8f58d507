"""Writing with many workers: their sessions, found again and put together.

Each worker writes through a fork of one session, which travels to it and back by pickle. The
session that made the fork takes in what they did with `Session.merge`, and commits.
"""

from collections.abc import Iterable, Iterator
from typing import Any, cast

import zarr

from icefloe.api.session import ForkSession, Session
from icefloe.errors import ErrorKind, InvalidInputError, WrongTypeError
from icefloe.zarr_store import IcechunkStore

type NestedSessions = "ForkSession | Iterable[NestedSessions]"


def extract_session(zarray: "zarr.Array[Any]", axis: Any = None, keepdims: Any = None) -> Session:
    """Return the session that an array is read and written through.

    `axis` and `keepdims` are what dask hands to reductions; they mean nothing here.

    >>> import icefloe, zarr
    >>> repository = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> session = repository.writable_session("main")
    >>> array = zarr.create_array(session.store, name="t2m", shape=4, dtype="i4")
    >>> extract_session(array) == session
    True
    """
    store = zarray.store
    if not isinstance(store, IcechunkStore):
        raise InvalidInputError(
            f"the array is in a {type(store).__name__}, which belongs to no session: open it"
            " with zarr.open_array(session.store, path=...)",
            ErrorKind.NOT_ALLOWED,
        )
    return cast("Session", store.session)


def merge_sessions(*sessions: NestedSessions) -> ForkSession:
    """Put forks of one session together: all changes end up in the first, which is returned.

    Takes forks and lists of them, however nested; anything else is a `TypeError`. What several
    forks changed is as the last of them has it.

    >>> import icefloe
    >>> repository = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> fork = repository.writable_session("main").fork()
    >>> merge_sessions([[fork], fork]) is fork
    True
    """
    # Tasks that ran in one process share one fork: taking that in once is enough.
    forks = list({id(fork): fork for fork in _flat(sessions)}.values())
    if not forks:
        raise InvalidInputError("merge_sessions needs at least one fork", ErrorKind.MERGE_FAILED)
    first, *others = forks
    if others:
        first.merge(*others)
    return first


def _flat(sessions: Iterable[object]) -> Iterator[ForkSession]:
    for fork in sessions:
        if isinstance(fork, ForkSession):
            yield fork
        elif isinstance(fork, Iterable) and not isinstance(fork, str | bytes | Session):
            yield from _flat(fork)
        else:
            raise WrongTypeError(
                f"merge_sessions takes forks and lists of them, not {type(fork).__name__}: make"
                " forks with session.fork(), and merge the result with session.merge(fork)",
                ErrorKind.MERGE_FAILED,
            )
