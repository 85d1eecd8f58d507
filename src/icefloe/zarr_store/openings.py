"""Settings of Zarr that hold while arrays are opened."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any, Final

from zarr.core.config import config

from icefloe.forks import renew_lock_in_children


class SettingWhileOpening:
    """Changes a setting while datasets are opened, by any number of threads."""

    def __init__(self, name: str, value: Any, usual: Any) -> None:
        self._name, self._value, self._usual = name, value, usual
        self._lock = Lock()
        renew_lock_in_children(self)
        self._count = 0

    @contextmanager
    def run(self) -> Iterator[None]:
        """Change the setting in a `with` statement; users who chose another value keep it."""
        with self._lock:
            is_mine = self._count > 0 or config.get(self._name) == self._usual
            if is_mine:
                self._count += 1
                config.set({self._name: self._value})
        try:
            yield
        finally:
            if is_mine:
                with self._lock:
                    self._count -= 1
                    if self._count == 0 and config.get(self._name) == self._value:
                        config.set({self._name: self._usual})


RECTILINEAR: Final = "array.rectilinear_chunks"
"""The setting without which Zarr opens no array whose chunks have different lengths."""

with_rectilinear: Final = SettingWhileOpening(RECTILINEAR, value=True, usual=False).run
"""A context in which arrays are opened whose chunks have different lengths."""
