"""State that a forked child must not inherit unchanged.

A child has one thread: a copy of the one that forked. What the other threads of its parent were
about to do is never finished in it: a lock that one of them held stays taken, and a module that
one of them was importing stays half imported, for ever. So locks are renewed in children, and a
fork waits for the imports that we make on first use.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final
from weakref import WeakValueDictionary

_LONGEST_IMPORT_SECONDS: Final = 60.0
"""For so long a fork waits for an import."""

_owners: Final = WeakValueDictionary[tuple[int, str], object]()
_factories: Final[dict[str, Callable[[], object]]] = {
    "Lock": threading.Lock,
    "RLock": threading.RLock,
}


def renew_lock_in_children(owner: object, kind: str = "Lock") -> None:
    """Replace the `_lock` of an object in every forked child.

    What the lock protects must be of use in whatever state it is found.
    """
    _owners[id(owner), kind] = owner


class _Imports:
    """Makes a fork wait until running imports end."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Forget who is importing."""
        self.lock = threading.RLock()
        self._is_held = False

    def wait(self) -> None:
        """Wait until nobody else imports, and let nobody begin."""
        self._is_held = self.lock.acquire(timeout=_LONGEST_IMPORT_SECONDS)

    def go_on(self) -> None:
        """Allow imports again."""
        if self._is_held:
            self._is_held = False
            self.lock.release()


_imports: Final = _Imports()


@contextmanager
def importing() -> Iterator[None]:
    """Import something in a function, where other threads may fork meanwhile."""
    with _imports.lock:
        yield


def _renew() -> None:
    _imports.renew()
    for (_, kind), owner in list(_owners.items()):
        owner._lock = _factories[kind]()  # type: ignore[attr-defined] # noqa: SLF001 - as asked for


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_imports.wait, after_in_parent=_imports.go_on, after_in_child=_renew)
