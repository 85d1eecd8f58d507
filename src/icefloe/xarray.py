"""xarray: writing datasets to a session, and opening them from repositories by URL."""

import os
import warnings
from collections.abc import Hashable, Iterable, Mapping, MutableMapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import xarray
import zarr
from xarray.backends import BackendEntrypoint
from xarray.backends import ZarrBackendEntrypoint as _Zarr
from xarray.backends.common import ArrayWriter
from xarray.backends.writers import dump_to_store, get_writable_zarr_store

from icefloe.api.repository import Repository
from icefloe.api.session import ForkSession, Session
from icefloe.catalog.handles import is_service_url
from icefloe.config import RepositoryConfig
from icefloe.credentials.access import Authorisations
from icefloe.errors import ErrorKind, InvalidInputError, ReadOnlyError
from icefloe.opening import ChosenVersion, Source
from icefloe.storage import Storage
from icefloe.virtual_chunks.consent import Authorize
from icefloe.zarr_store import IcechunkStore
from icefloe.zarr_store.openings import with_rectilinear
from icefloe.zarr_store.selections import requesting_coordinates, with_selections

if TYPE_CHECKING:
    from xarray.core.datatree import DataTree

type WriteMode = Literal["w", "w-", "a", "a-", "r+", "r"]
type Region = Mapping[str, slice | Literal["auto"]] | Literal["auto"]

_UNNAMED = "__xarray_dataarray_variable__"  # what xarray itself calls an array without a name
_MOST_GROUPS = 10
_RECORDS = "icefloe/"
"""Below it are the records of ingested files."""
_NAME_ATTRIBUTE = "__xarray_dataarray_name__"


def to_icechunk(
    obj: xarray.DataArray | xarray.Dataset,
    session: Session,
    *,
    group: str | None = None,
    mode: WriteMode | None = None,
    safe_chunks: bool = True,
    align_chunks: bool = False,
    append_dim: Hashable | None = None,
    region: Region | None = None,
    encoding: Mapping[Any, Any] | None = None,
    chunkmanager_store_kwargs: MutableMapping[Any, Any] | None = None,
    split_every: int | None = None,
) -> None:
    """Write an xarray object through a session; nothing is committed.

    Arrays of dask are computed and written by its workers, of any scheduler, through a fork
    whose changes are merged into the session at the end: if a task fails, the session is as it
    was before.

    Args:
        obj: what to write.
        session: a writable session, or a fork of one.
        group: path of the group to write to; the root if not given.
        mode: `"w"` replaces the group, `"w-"` fails if it exists (the default), `"a"` adds or
            replaces variables, `"a-"` only appends, `"r+"` changes existing values only.
        safe_chunks: refuse blocks of dask that would share a chunk.
        align_chunks: rechunk so that no blocks share a chunk.
        append_dim: the dimension along which to append to what exists.
        region: where to write within existing arrays: a slice for each dimension, or `"auto"`
            to find it by the coordinates.
        encoding: for each variable by name, as in `Dataset.to_zarr`.
        chunkmanager_store_kwargs: for dask: `scheduler`, `lock` and others.
        split_every: how many forks one task merges.

    >>> import icefloe, xarray
    >>> repository = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> session = repository.writable_session("main")
    >>> to_icechunk(xarray.Dataset({"t2m": ("time", [280.0, 281.5])}), session)
    >>> _ = session.commit("first steps")
    >>> dataset = xarray.open_dataset(repository, engine="icefloe")
    >>> dataset.t2m.values.tolist()
    [280.0, 281.5]
    """
    if session.read_only:
        raise ReadOnlyError(
            "cannot write to a read-only session: use repository.writable_session(branch)",
            ErrorKind.READ_ONLY_SESSION,
        )
    dataset = _as_dataset(obj)
    is_lazy = any(variable.chunks is not None for variable in dataset.variables.values())
    through = session.fork() if is_lazy and not isinstance(session, ForkSession) else session
    zarr_store = get_writable_zarr_store(
        through.store,
        mode=mode,
        group=group,
        append_dim=append_dim,
        region=region,
        safe_chunks=safe_chunks,
        align_chunks=align_chunks,
        zarr_format=3,
    )
    # The two checks are what `Dataset.to_zarr` does at this point; it offers no way to take
    # part in how the arrays are written afterwards.
    dataset = zarr_store._validate_and_autodetect_region(dataset)  # noqa: SLF001
    zarr_store._validate_encoding(encoding or {})  # noqa: SLF001
    writer = ArrayWriter()
    dump_to_store(dataset, zarr_store, writer, encoding=encoding or {})
    if writer.sources:
        merged = _write_lazily(writer, dict(chunkmanager_store_kwargs or {}), split_every)
        if merged is not through:
            through.merge(merged)
    if through is not session:
        assert isinstance(through, ForkSession)
        session.merge(through)


def _write_lazily(
    writer: ArrayWriter, store_kwargs: dict[Any, Any], split_every: int | None
) -> ForkSession:
    # Only here, as dask is optional.
    from icefloe.dask import store_dask

    if unknown := {
        type(source).__module__ for source in writer.sources if not hasattr(source, "dask")
    }:
        raise InvalidInputError(
            f"of lazy arrays only those of dask can be written, not of {sorted(unknown)}:"
            " compute them first",
            ErrorKind.UNIMPLEMENTED,
        )
    return store_dask(
        sources=writer.sources,
        targets=writer.targets,
        regions=writer.regions,
        split_every=split_every,
        **store_kwargs,
    )


def _as_dataset(obj: xarray.DataArray | xarray.Dataset) -> xarray.Dataset:
    """Make a dataset of an array, named as xarray does when it writes one."""
    if isinstance(obj, xarray.DataArray):
        if obj.name is None:
            obj = obj.to_dataset(name=_UNNAMED)
        elif obj.name in obj.coords or obj.name in obj.dims:
            name = obj.name
            obj = obj.to_dataset(name=_UNNAMED)
            obj.attrs[_NAME_ATTRIBUTE] = name
        else:
            obj = obj.to_dataset()
    if unfit := [name for name in obj.variables if not isinstance(name, str) or not name]:
        raise InvalidInputError(
            f"variables need texts as names, not {unfit[0]!r}: rename them first",
            ErrorKind.INVALID_KEY,
        )
    return obj


class IcefloeBackend(BackendEntrypoint):
    """`xarray.open_dataset(source, engine="icefloe")`, where the source is one of:

    a URL or path of a repository (see `icefloe.storage_from_url`), a URL of a repository service
    like `icefloe://host/org/name`, a `Storage`, a `Repository`, a `Session` or its store. Of all
    but the last two, `branch`, `tag`, `snapshot_id` or `as_of` choose the version; the tip of
    `main` otherwise.

    `authorize` lets virtual chunks be read: a list of url prefixes, read with the credentials of
    the environment; a dict from url prefixes to credentials; or `True` for a repository of one's
    own on this machine whose containers are all folders of this machine.
    """

    description = "Open versions of Icechunk repositories with Icefloe"
    supports_groups = True
    open_dataset_parameters = (
        "filename_or_obj",
        "mask_and_scale",
        "decode_times",
        "concat_characters",
        "decode_coords",
        "drop_variables",
        "use_cftime",
        "decode_timedelta",
        "group",
        "branch",
        "tag",
        "snapshot_id",
        "as_of",
        "config",
        "authorize",
        "authorize_virtual_chunk_access",
    )

    def guess_can_open(self, filename_or_obj: Any) -> bool:
        """Claim our own objects, names of repositories, and local folders with a repository."""
        if isinstance(filename_or_obj, Storage | Repository | Session | IcechunkStore):
            return True
        if is_service_url(filename_or_obj):
            return True
        if not isinstance(filename_or_obj, str | os.PathLike) or "://" in str(filename_or_obj):
            return False
        folder = Path(filename_or_obj)
        has_refs = (folder / "repo").is_file() or (folder / "refs").is_dir()
        return has_refs and (folder / "snapshots").is_dir()

    def open_dataset(  # type: ignore[override]
        self,
        filename_or_obj: Source,
        *,
        drop_variables: str | Iterable[str] | None = None,
        group: str | None = None,
        branch: str | None = None,
        tag: str | None = None,
        snapshot_id: str | None = None,
        as_of: datetime | None = None,
        config: RepositoryConfig | None = None,
        authorize: Authorize | None = None,
        authorize_virtual_chunk_access: Authorisations | None = None,
        **decoding: Any,
    ) -> xarray.Dataset:
        """Open one group, lazily.

        A group without variables is empty, and a warning names the groups below it.
        """
        version = ChosenVersion(branch, tag, snapshot_id, as_of)
        access = _chosen_access(authorize, authorize_virtual_chunk_access)
        store = version.store(filename_or_obj, config, access)
        with with_selections(), with_rectilinear(), requesting_coordinates(store, group or ""):
            dataset = _Zarr().open_dataset(
                cast("Any", store),
                group=group,
                drop_variables=drop_variables,
                consolidated=False,
                **decoding,
            )
        if not dataset.variables:
            _name_groups(store, group or "")
        return dataset

    def open_groups_as_dict(  # type: ignore[override]
        self,
        filename_or_obj: Source,
        *,
        drop_variables: str | Iterable[str] | None = None,
        group: str | None = None,
        branch: str | None = None,
        tag: str | None = None,
        snapshot_id: str | None = None,
        as_of: datetime | None = None,
        config: RepositoryConfig | None = None,
        authorize: Authorize | None = None,
        authorize_virtual_chunk_access: Authorisations | None = None,
        **decoding: Any,
    ) -> dict[str, xarray.Dataset]:
        """Open a group and all groups below it, lazily."""
        version = ChosenVersion(branch, tag, snapshot_id, as_of)
        access = _chosen_access(authorize, authorize_virtual_chunk_access)
        store = version.store(filename_or_obj, config, access)
        requesting = requesting_coordinates(store, group or "", is_deep=True)
        with with_selections(), with_rectilinear(), requesting:
            return _Zarr().open_groups_as_dict(
                cast("Any", store),
                group=group,
                drop_variables=drop_variables,
                consolidated=False,
                **decoding,
            )

    def open_datatree(self, filename_or_obj: Source, **options: Any) -> "DataTree":  # type: ignore[override]
        """Open a group and all groups below it as a tree."""
        return xarray.DataTree.from_dict(self.open_groups_as_dict(filename_or_obj, **options))


def _chosen_access(
    authorize: Authorize | None, authorize_virtual_chunk_access: Authorisations | None
) -> Authorize | None:
    if not authorize:
        return authorize_virtual_chunk_access
    if authorize_virtual_chunk_access is not None:
        raise InvalidInputError(
            "authorize and authorize_virtual_chunk_access are two forms of one argument: leave one"
            " out",
            ErrorKind.INVALID_CREDENTIALS,
        )
    return authorize


def _name_groups(store: IcechunkStore, group: str) -> None:
    """Warn that a group without variables has groups below it that have some."""
    with with_rectilinear():
        members = zarr.open_group(store, path=group, mode="r").members(max_depth=None)
    paths = [path for path, member in members if isinstance(member, zarr.Array)]
    below = sorted({path.rpartition("/")[0] for path in paths if not path.startswith(_RECORDS)})
    if not below:
        return
    groups = [f"{group.strip('/')}/{path}".strip("/") for path in below]
    shown = ", ".join(map(repr, groups[:_MOST_GROUPS]))
    more = f" and {len(groups) - _MOST_GROUPS} more" if len(groups) > _MOST_GROUPS else ""
    here = f"the group {group!r}" if group.strip("/") else "the root"
    warnings.warn(
        f"{here} has no variables, only groups: {shown}{more}. Open a group with"
        f" xarray.open_dataset(..., engine='icefloe', group={groups[0]!r}), or all with"
        " xarray.open_datatree(..., engine='icefloe')",
        UserWarning,
        skip_file_prefixes=(str(Path(__file__).parent), str(Path(xarray.__file__).parent)),
    )
