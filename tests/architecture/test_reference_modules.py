"""Every public module of the reference has its twin here, with the same names in it.

Directly, as `icefloe.config`, a module has the names that its twin exports or defines. In the
place of `icechunk` it also has the names that its twin only imports, as programs import those
from wherever they found them.
"""

import builtins
import importlib
import inspect
import json
import pkgutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from types import ModuleType

import icechunk
import pytest

pytestmark = pytest.mark.interop

EXCEPTIONS: dict[str, set[str]] = {
    # Functions behind methods of ManifestSplittingConfig, which are the way to call them.
    "config": {"from_dict", "to_dict"},
    # Classes of the compiled part of the reference.
    "repository": {"PyRepository"},
    "session": {"PySession"},
    "store": {"PyStore"},
    # Inner parts of `to_icechunk`, written against inner parts of xarray.
    "xarray": {"LazyArrayWriter", "is_dask_collection"},
}
"""Names that are absent on purpose."""

ABSENT_MODULES = {
    # The kit of the reference's own tests; ours is `icefloe.testing`.
    "testing.invariants",
    "testing.models",
    "testing.strategies",
    "testing.trees",
    "testing.utils",
    # Copies of parts of xarray.
    "vendor",
    "vendor.xarray",
}


def reference_modules() -> Iterator[str]:
    for module in pkgutil.walk_packages(icechunk.__path__, "icechunk."):
        name = module.name.removeprefix("icechunk.")
        if name not in ABSENT_MODULES and not any(part[0] == "_" for part in name.split(".")):
            yield name


MODULES = ["", *reference_modules()]


def is_of_the_reference(value: object) -> bool:
    home = getattr(value, "__module__", None) or ""
    is_compiled = isinstance(value, type) and not hasattr(builtins, value.__name__)
    return home.startswith("icechunk") or (home == "builtins" and is_compiled)


def names_in(module: ModuleType, *, imported: bool) -> set[str]:
    """List what a module exports and defines, and what it imports of the reference too."""
    found = set(getattr(module, "__all__", ()))
    for name, value in vars(module).items():
        if name.startswith("_") or inspect.ismodule(value):
            continue
        is_defined_here = getattr(value, "__module__", None) == module.__name__
        if is_defined_here or (imported and is_of_the_reference(value)):
            found.add(name)
    return {name for name in found if not name.startswith("_")}


def wanted(module: str, *, imported: bool) -> set[str]:
    twin = importlib.import_module(f"icechunk.{module}".rstrip("."))
    return names_in(twin, imported=imported) - EXCEPTIONS.get(module, set())


@pytest.mark.parametrize("module", MODULES)
def test_names_are_found_directly(module: str) -> None:
    ours = importlib.import_module(f"icefloe.{module}".rstrip("."))
    names = wanted(module, imported=False)
    assert [name for name in sorted(names) if not hasattr(ours, name)] == []


def test_names_are_found_in_the_place_of_the_reference() -> None:
    program = """
        import importlib, json, sys
        import icefloe
        icefloe.install_as_icechunk()
        missing = [
            f"{module}.{name}"
            for module, names in json.load(sys.stdin).items()
            for name in names
            if not hasattr(importlib.import_module(f"icechunk.{module}".rstrip(".")), name)
        ]
        assert missing == [], missing
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        input=json.dumps({module: sorted(wanted(module, imported=True)) for module in MODULES}),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_exceptions_are_still_needed() -> None:
    for module, names in EXCEPTIONS.items():
        twin = importlib.import_module(f"icechunk.{module}")
        assert names <= names_in(twin, imported=True), module
        ours = importlib.import_module(f"icefloe.{module}")
        assert [name for name in names if hasattr(ours, name)] == []
    for module in ABSENT_MODULES:
        importlib.import_module(f"icechunk.{module}")
