"""A process of the pool: reads tasks from its standard input, and writes what came of them.

Values with secrets reach it through the pipe only: they are never part of a task, and never lie on
a disk.
"""

import os
import pickle
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import cloudpickle

from icefloe.errors import IcefloeError, InternalError
from icefloe.records import Record

_values: Final[dict[str, Any]] = {}
"""Values that tasks of this process may use, by name."""


class Shared(Record):
    """The name of a value; calling it returns the value, in every process that has it."""

    name: str

    def __call__(self) -> Any:
        """Return the value."""
        return _values[self.name]


@contextmanager
def sharing(name: str, value: Any) -> Iterator[Shared]:
    """Make a value available in this process for a while."""
    _values[name] = value
    try:
        yield Shared(name)
    finally:
        del _values[name]


class Request(Record, kw_only=True):
    """A task, and what the process needs for it that it does not have yet."""

    names: frozenset[str]
    """Of all values that are still shared."""
    values: dict[str, bytes]
    stage: bytes | None
    """The function of a task's input, unless it is that of the task before."""
    task: bytes


@contextmanager
def as_own_error() -> Iterator[None]:
    """Raise what fails in a task as an error of this package."""
    try:
        yield
    except IcefloeError:
        raise
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        raise InternalError(f"a task of the job failed: {text}") from error


def main() -> None:
    """Run tasks until nobody sends any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver decides who ends, and when
    # What libraries print must not be taken for an answer.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    stage: Any = None
    while True:
        try:
            request: Request = pickle.load(sys.stdin.buffer)  # noqa: S301 - from our driver
        except EOFError:
            return
        try:
            with as_own_error():
                _share(request)
                if request.stage is not None:
                    stage = pickle.loads(request.stage)  # noqa: S301 - the same
                outcome = stage(pickle.loads(request.task))  # noqa: S301 - the same
            answer = (True, cloudpickle.dumps(outcome))
        except IcefloeError as error:
            answer = (False, _pickled(error))
        pickle.dump(answer, answers)
        answers.flush()


def _share(request: Request) -> None:
    for name in set(_values) - request.names:
        del _values[name]
    for name, pickled in request.values.items():
        # Tokens come first: what is unpickled after them asks a service with them.
        _tokens, value = pickle.loads(pickled)  # noqa: S301 - from our driver
        _values[name] = pickle.loads(value)  # noqa: S301 - the same


def _pickled(error: IcefloeError) -> bytes:
    try:
        pickled: bytes = cloudpickle.dumps(error)
    except Exception:  # noqa: BLE001 - whatever the context of an error holds
        return pickle.dumps(InternalError(str(error), error.kind))
    return pickled
