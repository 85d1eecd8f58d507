"""GRIB: the library eccodes, loaded safely."""

from contextlib import suppress
from typing import Any


def load_eccodes() -> Any:
    """Import eccodes.

    Its wheels bring a PROJ of their own and share its symbols with all libraries that are loaded
    later: with pyproj among these, the process would crash at its end.
    """
    with suppress(ImportError):
        import pyproj  # noqa: F401 - before eccodes
    import eccodes

    return eccodes
