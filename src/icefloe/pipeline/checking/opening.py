"""A dataset is opened with zarr and xarray before it is committed: what nobody can open is refused.

Only metadata is looked at, and coordinates whose values are written with it. References are not
followed here; see `values` for that.
"""

import warnings
from collections.abc import Collection, Iterable
from typing import Final

import zarr

from icefloe.api.session import Session
from icefloe.errors import ErrorKind, IcefloeError, SourceError
from icefloe.format.paths import joined_path, node_name
from icefloe.pipeline.combining.combine import Combined

_MOST_BYTES: Final = 1 << 20
"""Coordinates up to this size are read."""

_NO_XARRAY: Final = (
    'xarray is not installed, so the dataset was opened with zarr only: pip install "icefloe'
    '[xarray]" to have it opened with both before it is committed'
)


def require_openable(
    session: Session,
    group: str,
    paths: Collection[str],
    stored: Collection[str],
    *,
    needs_xarray: bool = True,
) -> tuple[str, ...]:
    """Open the arrays of a dataset, given by paths below a group; raise `SourceError` if one fails.

    `stored` are those whose values are in the repository already. Not every Zarr hierarchy is
    meant for xarray: without `needs_xarray`, its failure is a note. Returns notes for a report.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # codecs that zarr finds unusual are no obstacle
        for path in sorted(paths):
            try:
                zarr.open_array(session.store, path=joined_path(group, path), mode="r")
            except IcefloeError:
                raise
            except Exception as error:
                raise _unopenable(group, path, "zarr", error) from error
        try:
            return _open_with_xarray(session, group, paths, stored)
        except SourceError as error:
            if needs_xarray or error.kind != ErrorKind.SOURCE_UNOPENABLE:
                raise
            return (f"copied nevertheless: {error}",)


def _open_with_xarray(
    session: Session, group: str, paths: Collection[str], stored: Collection[str]
) -> tuple[str, ...]:
    try:
        import xarray  # noqa: F401 - optional
    except ImportError:
        return (_NO_XARRAY,)
    for folder in sorted({path.rpartition("/")[0] for path in paths}):
        names = {node_name(path) for path in paths if path.rpartition("/")[0] == folder}
        here = {node_name(path) for path in stored if path.rpartition("/")[0] == folder}
        whole = joined_path(group, folder)
        try:
            _open(session, whole, here, without=())
        except IcefloeError:
            raise
        except Exception as error:
            name = _culprit(session, whole, names, here)
            raise _unopenable(group, joined_path(folder, name or ""), "xarray", error) from error
    return ()


def _open(session: Session, group: str, stored: Collection[str], without: Iterable[str]) -> None:
    import xarray

    decoded = {name: name in stored for name in _arrays(session, group)}
    dataset = xarray.open_zarr(
        session.store,
        group=group or None,
        consolidated=False,
        chunks=None,
        decode_times=decoded,
        decode_timedelta=decoded,
        drop_variables=list(without),
        create_default_indexes=False,
    )
    for name in dataset.coords:
        if name in stored and dataset[name].nbytes <= _MOST_BYTES:
            dataset.variables[name].load()


def _culprit(
    session: Session, group: str, names: Collection[str], stored: Collection[str]
) -> str | None:
    """Find the array that xarray cannot open even alone; None if only all together fail."""
    present = _arrays(session, group)
    for name in sorted(names):
        try:
            _open(session, group, stored, without=present - {name})
        except IcefloeError:
            raise
        except Exception:  # noqa: BLE001 - the reason is reported already
            return name
    return None


def _arrays(session: Session, group: str) -> set[str]:
    return set(zarr.open_group(session.store, path=group, mode="r").array_keys())


def _unopenable(group: str, path: str, library: str, error: Exception) -> SourceError:
    text = " ".join(str(error).split())[:500]
    what = f"the array {path!r}" if path else f"the group {group!r}"
    return SourceError(
        f"{library} could not open {what} of the dataset ({type(error).__name__}: {text}). Leave"
        " variables out (drop=...) that cannot be opened, or not together with others",
        ErrorKind.SOURCE_UNOPENABLE,
        path=path,
    )


def require_opening(session: Session, group: str, combined: Combined) -> tuple[str, ...]:
    """Open a dataset whose metadata and coordinates are written; return notes for a report."""
    paths = [array.path for array in combined.arrays]
    native = [array.path for array in combined.arrays if array.is_native]
    return require_openable(session, group, paths, native)
