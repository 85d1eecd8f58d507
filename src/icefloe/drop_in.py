"""Standing in for the `icechunk` package, for libraries that import it by that name."""

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

from icefloe.errors import ErrorKind, SessionStateError

STANDS_FOR: Final = "2.3.0"
"""The release whose names and formats are offered; libraries compare with it."""

_NAME: Final = "icechunk"
_SUBMODULES: Final[dict[str, tuple[str, ...]]] = {
    "config": ("icefloe.config", "icefloe"),
    "conflicts": ("icefloe",),
    "credentials": ("icefloe.credentials",),
    "dask": ("icefloe.dask",),
    "distributed": ("icefloe.distributed",),
    "ops": ("icefloe",),
    "repository": ("icefloe", "icefloe.effects"),
    "session": ("icefloe",),
    "snapshots": ("icefloe",),
    "storage": ("icefloe.storage", "icefloe"),
    "store": ("icefloe", "icefloe.effects"),
    "testing": ("icefloe.testing",),
    "types": ("icefloe",),
    "virtual": ("icefloe",),
    "xarray": ("icefloe.xarray",),
}
"""Where the names of each submodule are found."""


def install_as_icechunk(*, force: bool = False) -> None:
    """Make `import icechunk` import Icefloe, in this process, from now on.

    Call it before anything imports `icechunk`: what did so already keeps the real one, and its
    objects and ours do not mix. That is an error, unless `force` says that this is wanted.
    `icechunk.__version__` is the release that is stood in for. A second call does nothing.

    >>> import icefloe
    >>> icefloe.install_as_icechunk(force=True)
    >>> import icechunk
    >>> icechunk.Storage is icefloe.Storage
    True
    >>> icefloe.uninstall_as_icechunk()
    """
    if _finder() is not None:
        return
    imported = {
        name: module
        for name, module in sys.modules.items()
        if name == _NAME or name.startswith(f"{_NAME}.")
    }
    if imported and not force:
        raise SessionStateError(
            "the real icechunk is imported already, and what imported it keeps it: call"
            " icefloe.install_as_icechunk() first in your program, or with force=True if"
            " nothing that matters holds the real one",
            ErrorKind.NOT_ALLOWED,
        )
    for name in imported:
        del sys.modules[name]
    sys.meta_path.insert(0, _Finder(imported))


def uninstall_as_icechunk() -> None:
    """Undo `install_as_icechunk`: later imports of `icechunk` give the real one, if there is any.

    What was imported meanwhile stays as it is. Without an earlier installation, does nothing.
    """
    finder = _finder()
    if finder is None:
        return
    sys.meta_path.remove(finder)
    for name in [name for name, module in sys.modules.items() if isinstance(module, _StandIn)]:
        del sys.modules[name]
    sys.modules.update(finder.replaced)


def _finder() -> "_Finder | None":
    return next((finder for finder in sys.meta_path if isinstance(finder, _Finder)), None)


class _StandIn(ModuleType):
    """A module with the names of others, which imports them when they are first used."""

    def __init__(self, name: str, sources: tuple[str, ...]) -> None:
        super().__init__(name, f"Icefloe, in the place of {name}.")
        self.sources = sources
        self.__version__ = STANDS_FOR

    def __getattr__(self, name: str) -> Any:
        # Names of the import system and of introspection are this module's own.
        if not (name.startswith("__") and name.endswith("__")):
            for source in self.sources:
                value = getattr(importlib.import_module(source), name, None)
                if value is not None:
                    return value
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    def __dir__(self) -> list[str]:
        modules = map(importlib.import_module, self.sources)
        return sorted({name for module in modules for name in dir(module)} | {"__version__"})


class _Finder(MetaPathFinder, Loader):
    """Finds `icechunk` and its submodules before anything else does."""

    def __init__(self, replaced: dict[str, ModuleType]) -> None:
        self.replaced = replaced

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Claim the names that there are."""
        if fullname == _NAME:
            return ModuleSpec(fullname, self, is_package=True)
        package, _, name = fullname.partition(".")
        return ModuleSpec(fullname, self) if package == _NAME and name in _SUBMODULES else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Make an empty stand-in."""
        name = spec.name.partition(".")[2]
        sources = _SUBMODULES[name] if name else ("icefloe",)
        for source in sources:
            importlib.import_module(source)  # so that a missing extra is reported at once
        return _StandIn(spec.name, sources)

    def exec_module(self, module: ModuleType) -> None:
        """Offer the names of the first source to star imports."""
        assert isinstance(module, _StandIn)
        source = importlib.import_module(module.sources[0])
        module.__dict__["__all__"] = list(getattr(source, "__all__", ()))
