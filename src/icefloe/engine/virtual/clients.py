"""The storages that one process has open for virtual chunks."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, fields
from typing import Final

from icefloe.config import (
    Attribution,
    StorageConcurrencySettings,
    StorageRetriesSettings,
    StorageSettings,
    StorageTimeoutSettings,
)
from icefloe.forks import renew_lock_in_children
from icefloe.storage import Backend, Storage
from icefloe.storage.specs import LocalSpec

MOST_CLIENTS: Final = 64
_LEAST_REQUEST_BYTES: Final = 1 << 20


def settings_for_containers(given: StorageSettings, usual: StorageSettings) -> StorageSettings:
    """Give what of a repository's storage settings goes for containers: what was chosen.

    `usual` is what suits the storage of the repository, and is stored with it; containers may
    be of another kind. Whoever wrote the repository cannot have objects read in crumbs, each
    of which the reader pays for.
    """
    concurrency = _chosen(given.concurrency, usual.concurrency or StorageConcurrencySettings())
    if concurrency is not None and (size := concurrency.ideal_concurrent_request_size) is not None:
        concurrency.ideal_concurrent_request_size = max(size, _LEAST_REQUEST_BYTES)
    return StorageSettings(
        concurrency=concurrency,
        retries=_chosen(given.retries, usual.retries or StorageRetriesSettings()),
        timeouts=_chosen(given.timeouts, usual.timeouts or StorageTimeoutSettings()),
    )


def _chosen[S: StorageConcurrencySettings | StorageRetriesSettings | StorageTimeoutSettings](
    given: S | None, usual: S
) -> S | None:
    if given is None:
        return None
    values = {each.name: getattr(given, each.name) for each in fields(given)}
    return type(given)(
        **{name: value for name, value in values.items() if value != getattr(usual, name)}
    )


@dataclass(frozen=True, slots=True)
class Client:
    """An open storage, and by what it is known."""

    key: Hashable
    backend: Backend
    is_near: bool
    """Whether it reads from this machine, so that requests cost next to nothing."""


class Clients:
    """Opens each storage once, however many ask for it together.

    Only so many are kept, the most recently used: a repository may name any number of buckets.
    """

    def __init__(
        self,
        settings: StorageSettings | None = None,
        attribution: Attribution | None = None,
        *,
        most: int = MOST_CLIENTS,
    ) -> None:
        self._settings = settings
        self._attribution = attribution
        self._most = most
        self._lock = threading.Lock()
        renew_lock_in_children(self)
        self._open: OrderedDict[Hashable, Client] = OrderedDict()
        self.opened = 0
        """How many were opened so far."""

    def get(self, key: Hashable, describe: Callable[[], Storage]) -> Client:
        """Give the client that is known by a key; `describe` says what to open if there is none.

        The key stands for all that the description depends on.
        """
        with self._lock:  # opening takes milliseconds and sends no request
            client = self._open.get(key)
            if client is None:
                storage = describe()
                backend = storage.open(self._settings, self._attribution)
                client = Client(key, backend, isinstance(storage.spec, LocalSpec))
                self._open[key] = client
                self.opened += 1
                if len(self._open) > self._most:
                    self._open.popitem(last=False)
            else:
                self._open.move_to_end(key)
            return client
