"""How the result is read: as any dataset of xarray."""

from typing import Any, cast

import xarray as xr

import icefloe


def opened(repository: icefloe.Repository, group: str, tag: str | None = None) -> xr.Dataset:
    """Open a group of the newest version, or of one that has a name."""
    source = cast("Any", repository)  # xarray does not know what its engines can open
    return xr.open_dataset(source, engine="icefloe", group=group, tag=tag)
