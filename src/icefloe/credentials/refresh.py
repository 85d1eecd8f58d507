"""Credentials that a function of the user's hands out, and renews when they run out."""

import os
import pickle
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
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


class _Lease(Record):
    credential: Any
    renew_at: datetime | None


class Renewal:
    """The state of a refreshable credential within a process; never pickled.

    Many threads may ask at once: one of them calls the function, the others wait for it.
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

    def _own_lock(self) -> threading.Lock:
        # A thread of the parent may have held the lock when this process was forked.
        if self._process != os.getpid():
            self._process, self._lock = os.getpid(), threading.Lock()
        return self._lock

    def _call[C](self, pickled_function: bytes, kind: type[C]) -> C:
        if self._function is None:
            self._function = _unpickle_function(pickled_function)
        try:
            return checked_call(self._function, kind)
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


def _lease(credential: Expiring, clock: Clock) -> _Lease:
    end = credential.expires_after
    if end is None:
        return _Lease(credential, None)
    life = max(end - clock(), timedelta(0))
    return _Lease(credential, end - min(LARGEST_MARGIN, life / 10))


def _is_over(lease: _Lease, clock: Clock) -> bool:
    return lease.renew_at is not None and clock() >= lease.renew_at
