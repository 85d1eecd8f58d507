"""Errors keep their words, codes and context, wherever they travel."""

import pickle

import pytest

from icefloe import errors
from icefloe.errors import (
    ConflictError,
    ErrorKind,
    IcefloeError,
    NotFoundError,
    ObjectNotFoundError,
    RebaseFailedError,
    StorageError,
)

EVERY = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, IcefloeError) and kind is not RebaseFailedError
]


@pytest.mark.parametrize("kind", EVERY)
def test_errors_survive_pickling(kind: type[IcefloeError]) -> None:
    error = kind(message="what went wrong", key="snapshots/x")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert str(copy) == str(error) == "what went wrong"
    assert copy.kind == error.kind
    assert copy.context == {"key": "snapshots/x"}
    assert copy.__notes__ == [f"kind: {error.kind}", "key: snapshots/x"]
    assert copy.args == error.args


def test_a_given_kind_wins_over_the_usual_one() -> None:
    assert StorageError("x").kind == ErrorKind.STORAGE_OTHER
    assert StorageError("x", ErrorKind.THROTTLED).kind == "throttled"


def test_what_handlers_ask_survives_too() -> None:
    assert pickle.loads(pickle.dumps(StorageError("x", retryable=True))).retryable
    conflict = pickle.loads(pickle.dumps(ConflictError("A", "B")))
    assert (conflict.expected_parent, conflict.actual_parent) == ("A", "B")
    assert "expected parent A, found B" in str(conflict)


def test_a_failed_rebase_lists_its_conflicts_and_what_to_do() -> None:
    error = RebaseFailedError("SNAPSHOT", [f"conflict {number}" for number in range(12)])
    assert isinstance(error, ConflictError)
    assert error.kind == "rebase-failed"
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.snapshot, copy.conflicts) == ("SNAPSHOT", error.conflicts)
    assert str(copy) == str(error)
    assert "12 conflicts" in str(error)
    assert "  conflict 9\n  … and 2 more" in str(error)
    assert "BasicConflictSolver" in str(error)


def test_absence_is_caught_as_a_mapping_would_raise_it() -> None:
    for kind in (NotFoundError, ObjectNotFoundError):
        with pytest.raises(KeyError) as caught:
            raise kind("no object 'a'")
        assert str(caught.value) == "no object 'a'"  # a plain KeyError would quote it
