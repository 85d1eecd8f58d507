"""Writing dask arrays: every task writes its block through a fork, a reduction merges the forks."""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Final, cast
from uuid import uuid4

import dask.array as da
import numpy as np
import zarr
from dask.base import compute
from dask.delayed import delayed

from icefloe.api.session import ForkSession
from icefloe.distributed import extract_session, merge_sessions
from icefloe.errors import ErrorKind, InvalidInputError

SimpleGraph = Mapping[tuple[str, int], tuple[Any, ...]]
"""A graph of tasks numbered below one name."""

_OURS: Final = frozenset({"compute", "load_stored", "regions", "return_stored"})
"""Arguments of `dask.array.store` that are decided here."""


def computing_meta[**P, R](func: Callable[P, R]) -> Callable[P, Any]:
    """Return a function that tells dask its return type without doing its work."""

    @wraps(func)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> Any:
        if kwargs.pop("computing_meta", False):
            return np.array([object()], dtype=object)
        return func(*args, **kwargs)

    return wrapper


def store_dask(
    *,
    sources: list[da.Array],
    targets: "list[zarr.Array[Any]]",
    regions: list[tuple[slice, ...]] | None = None,
    split_every: int | None = None,
    **store_kwargs: Any,
) -> ForkSession:
    """Write dask arrays to zarr arrays of a fork, and give the fork with all changes.

    Blocks of one source should not share a chunk of its target: those are read, changed and
    written whole. Hand the result to `Session.merge` of the session that made the fork.

    Args:
        sources: what to write.
        targets: where to, in the same order: arrays in the store of one fork.
        regions: the part of each target; None is all of it.
        split_every: how many forks one task merges.
        store_kwargs: `lock` is for `dask.array.store`, all others (`scheduler`, ...) for
            `dask.compute`.

    >>> import dask.array, icefloe, zarr
    >>> repository = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> session = repository.writable_session("main")
    >>> data = dask.array.arange(8, chunks=4)
    >>> _ = zarr.create_array(session.store, name="t2m", shape=8, chunks=4, dtype=data.dtype)
    >>> fork = session.fork()
    >>> target = zarr.open_array(fork.store, path="t2m")
    >>> session.merge(store_dask(sources=[data], targets=[target], scheduler="sync"))
    >>> int(zarr.open_array(session.store, path="t2m")[5])
    5
    """
    if taken := sorted(_OURS & store_kwargs.keys()):
        raise InvalidInputError(
            f"{', '.join(taken)} cannot be chosen here: forks are merged as tasks of the graph",
            ErrorKind.NOT_ALLOWED,
        )
    if not sources:
        raise InvalidInputError("store_dask needs at least one source", ErrorKind.NOT_ALLOWED)
    for target in targets:
        _require_fork(target)
    stored = da.store(
        sources,
        [_sent_once(target) for target in targets],
        regions=cast("Any", regions),
        lock=store_kwargs.pop("lock", False),
        compute=False,
        return_stored=True,
        load_stored=False,
    )
    arrays = list(stored) if isinstance(stored, tuple) else [cast("da.Array", stored)]
    return session_merge_reduction(arrays, split_every=split_every, **store_kwargs)


def session_merge_reduction(
    arrays: da.Array | list[da.Array], *, split_every: int | None, **store_kwargs: Any
) -> ForkSession:
    """Compute arrays whose blocks are zarr arrays of forks, and merge the forks as a tree.

    `store_kwargs` go to `dask.compute`.
    """
    stored = [arrays] if isinstance(arrays, da.Array) else arrays
    merged = [_reduction(array, split_every) for array in stored]
    return merge_sessions(*compute(*merged, **store_kwargs))


def merge_sessions_array_kwargs(
    *sessions: Any, axis: Any = None, keepdims: Any = None
) -> ForkSession:
    """Merge forks, as the step of a reduction over an array; see `merge_sessions`."""
    return merge_sessions(*sessions)


def _reduction(stored: da.Array, split_every: int | None) -> Any:
    """Reduce the blocks to one fork; the result is an array in name only."""
    return da.reduction(
        stored,
        name="icefloe-merge",
        chunk=computing_meta(extract_session),
        aggregate=computing_meta(merge_sessions_array_kwargs),
        split_every=split_every,
        concatenate=False,
        dtype=object,
        meta=np.array([object()], dtype=object),
    )


def _sent_once(target: "zarr.Array[Any]") -> Any:
    """Make a target a task of its own: it goes to each worker once, not with every block."""
    return delayed(target, name=f"icefloe-target-{uuid4().hex}", traverse=False)


def _require_fork(target: "zarr.Array[Any]") -> None:
    if not isinstance(extract_session(target), ForkSession):
        raise InvalidInputError(
            "dask writes through forks, which can travel to its workers: make one with"
            " fork = session.fork(), open the targets from fork.store, and merge the result"
            " with session.merge(...)",
            ErrorKind.NOT_ALLOWED,
        )
