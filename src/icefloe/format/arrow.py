"""Arrow, imported when something first needs it.

The import takes a tenth of a second, and small repositories are read and written without.
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from icefloe.forks import importing

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
else:

    class _OnFirstUse(ModuleType):
        def __getattr__(self, name: str) -> object:
            with importing():
                value = getattr(import_module(self.__name__), name)
            setattr(self, name, value)  # from now on found without coming here
            return value

    pa, pc = _OnFirstUse("pyarrow"), _OnFirstUse("pyarrow.compute")

__all__ = ["pa", "pc"]
