"""Credentials that a function of the user's hands out, and renews when they run out."""

import os
import pickle
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, Protocol, cast

from icefloe.errors import (
    ErrorKind,
    IcefloeError,
    InvalidInputError,
    StorageError,
    WrongTypeError,
)
from icefloe.records import Record

type Clock = Callable[[], datetime]

LARGEST_MARGIN: Final = timedelta(minutes=1)
"""How long before their end credentials are renewed; a tenth of a life shorter than ten minutes."""

_YOUNG_SECONDS: Final = 60.0
"""The age at which a credential that replaced a refused one may be replaced itself."""


class Expiring(Protocol):
    """A credential that may end at some time."""

    @property
    def expires_after(self) -> datetime | None:
        """The end of the credential's life; None if it never expires."""
        ...


def utc_now() -> datetime:
    """Read the clock."""
    return datetime.now(UTC)


def pickle_function(get_credentials: Callable[[], object]) -> bytes:
    """Pickle a function so that it can travel; lambdas and closures travel too."""
    if not callable(get_credentials):
        raise WrongTypeError(
            "get_credentials must be a function without parameters that returns credentials, "
            f"got {type(get_credentials).__name__}",
            ErrorKind.INVALID_CREDENTIALS,
        )
    import cloudpickle

    try:
        return cast("bytes", cloudpickle.dumps(get_credentials))
    except (pickle.PicklingError, TypeError, AttributeError) as reason:
        raise InvalidInputError(
            "the function given as get_credentials cannot be pickled, so it could not travel to "
            "workers: open files, locks and clients belong inside it, not around it",
            ErrorKind.PICKLE,
        ) from reason


class Deadline:
    """A moment some time before the end of a life, by two clocks: the first to reach it counts.

    The clock on the wall may be set back, and the other one stands still while a machine sleeps.
    """

    __slots__ = ("_moment", "_second")

    def __init__(self, end: datetime, clock: Clock) -> None:
        now = clock()
        life = max(end - now, timedelta(0))
        left = life - min(LARGEST_MARGIN, life / 10)
        self._moment = now + left
        self._second = time.monotonic() + left.total_seconds()

    def is_over(self, clock: Clock) -> bool:
        """Return whether it is past."""
        return clock() >= self._moment or time.monotonic() >= self._second


class _Lease(Record):
    credential: Any
    deadline: Deadline | None
    replaced_at: float | None = None
    """When a refused credential was replaced by this one."""

    @property
    def is_young_replacement(self) -> bool:
        replaced_at = self.replaced_at
        return replaced_at is not None and time.monotonic() < replaced_at + _YOUNG_SECONDS


class Renewal:
    """The state of a refreshable credential within a process; never pickled.

    Many threads may ask at once: one of them calls the function, the others wait for it.

    A store may refuse a credential before its end: its keys were changed, or a role was cut off.
    Then the function is called once more. If it has a method `replace_refused`, that is called
    instead, with the credential that was refused. A replacement that is refused at once is not
    replaced again: then it is the rights that are missing.
    """

    __slots__ = ("_function", "_lease", "_lock", "_process")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._lease: _Lease | None = None
        self._function: Callable[[], object] | None = None

    def __reduce__(self) -> tuple[type["Renewal"], tuple[()]]:
        return (Renewal, ())

    def get[C: Expiring](
        self, pickled_function: bytes, first: C | None, kind: type[C], clock: Clock
    ) -> C:
        """Return credentials that are good for a while yet."""
        lease = self._lease
        if lease is None or _is_over(lease, clock):
            with self._own_lock():
                lease = self._lease
                if lease is None and first is not None:
                    lease = _lease(first, clock)
                if lease is None or _is_over(lease, clock):
                    lease = _lease(self._call(pickled_function, kind), clock)
                self._lease = lease
        return cast("C", lease.credential)

    def replace[C: Expiring](
        self, pickled_function: bytes, refused: C, kind: type[C], clock: Clock
    ) -> bool:
        """Replace credentials that a store refused; return whether there are others now."""
        with self._own_lock():
            lease = self._lease
            if lease is not None and lease.credential != refused:
                return True  # another thread was first
            if lease is not None and lease.is_young_replacement:
                return False
            replacement = self._call(pickled_function, kind, refused)
            if replacement == refused:
                return False
            self._lease = _lease(replacement, clock, time.monotonic())
            return True

    def _own_lock(self) -> threading.Lock:
        # A thread of the parent may have held the lock when this process was forked.
        if self._process != os.getpid():
            self._process, self._lock = os.getpid(), threading.Lock()
        return self._lock

    def _call[C](self, pickled_function: bytes, kind: type[C], refused: C | None = None) -> C:
        if self._function is None:
            self._function = _unpickle_function(pickled_function)
        function = self._function
        if refused is not None and hasattr(function, "replace_refused"):
            function = partial(function.replace_refused, refused)
        try:
            return checked_call(function, kind)
        except IcefloeError:
            raise
        except Exception as reason:
            # Only the type: the text of a foreign exception may hold a secret.
            raise StorageError(
                f"the function that gives credentials failed with {type(reason).__name__}",
                ErrorKind.INVALID_CREDENTIALS,
            ) from reason


def checked_call[C](get_credentials: Callable[[], object], kind: type[C]) -> C:
    """Call a function that gives credentials; its own exceptions pass.

    Raise `WrongTypeError` if it returns anything but a `kind`.
    """
    credential = get_credentials()
    if not isinstance(credential, kind):
        raise WrongTypeError(
            f"the function that gives credentials must return {kind.__qualname__}, "
            f"it returned {type(credential).__name__}",
            ErrorKind.INVALID_CREDENTIALS,
        )
    return credential


def _unpickle_function(pickled_function: bytes) -> Callable[[], object]:
    try:
        # The user's own function, from the user's own process or job: never from a repository.
        function = pickle.loads(pickled_function)  # noqa: S301
    except Exception as reason:
        raise InvalidInputError(
            f"pickled_function cannot be unpickled here ({type(reason).__name__}): "
            "is the module that defines the function importable?",
            ErrorKind.PICKLE,
        ) from reason
    if not callable(function):
        raise InvalidInputError(
            f"pickled_function holds a {type(function).__name__}, not a function",
            ErrorKind.INVALID_CREDENTIALS,
        )
    return cast("Callable[[], object]", function)


def _lease(credential: Expiring, clock: Clock, replaced_at: float | None = None) -> _Lease:
    end = credential.expires_after
    deadline = None if end is None else Deadline(end, clock)
    return _Lease(credential, deadline, replaced_at)


def _is_over(lease: _Lease, clock: Clock) -> bool:
    return lease.deadline is not None and lease.deadline.is_over(clock)
