"""A description of this installation, for bug reports."""

import platform
import sys
from importlib import metadata
from typing import Final

from icefloe.config import SpecVersion

_PACKAGES: Final = (
    "icefloe",
    "zarr",
    "numcodecs",
    "numpy",
    "pyarrow",
    "obstore",
    "xarray",
    "virtualizarr",
)


def spec_version() -> SpecVersion:
    """Return the version of the format that new repositories are stored in.

    >>> spec_version() == 2
    True
    """
    return SpecVersion.current()


def supported_spec_versions() -> list[SpecVersion]:
    """List the versions of the format that can be read and written, newest first.

    >>> [int(version) for version in supported_spec_versions()]
    [2, 1]
    """
    return sorted(SpecVersion, reverse=True)


def print_debug_info() -> None:
    """Print the platform and the versions of packages, to paste into a report.

    >>> print_debug_info()
    platform: ...
    python: 3...
    icefloe: ...
    """
    facts = {"platform": platform.platform(), "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            facts[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            facts[package] = "not installed"
    sys.stdout.write("".join(f"{name}: {fact}\n" for name, fact in facts.items()))
