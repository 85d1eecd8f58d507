"""Every error of `obstore` becomes one of ours, with the right advice about trying again."""

import inspect

import pytest
from obstore import exceptions as foreign

from icefloe.errors import (
    ErrorKind,
    IcefloeError,
    InvalidInputError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
)
from icefloe.storage.obstore_errors import FOREIGN_ERRORS, translate

EXPECTED: dict[type[Exception], tuple[type[IcefloeError], bool | None]] = {
    FileNotFoundError: (ObjectNotFoundError, False),
    ValueError: (InvalidInputError, None),
    TypeError: (InvalidInputError, None),
    OverflowError: (InvalidInputError, None),
    OSError: (StorageError, True),
    TimeoutError: (StorageError, True),
    foreign.BaseError: (StorageError, True),
    foreign.GenericError: (StorageError, True),
    foreign.NotFoundError: (ObjectNotFoundError, False),
    foreign.AlreadyExistsError: (PreconditionFailedError, False),
    foreign.PreconditionError: (PreconditionFailedError, False),
    foreign.NotModifiedError: (PreconditionFailedError, False),
    foreign.PermissionDeniedError: (StorageError, False),
    foreign.UnauthenticatedError: (StorageError, False),
    foreign.NotSupportedError: (StorageError, False),
    foreign.InvalidPathError: (InvalidInputError, None),
    foreign.JoinError: (StorageError, True),
    foreign.UnknownConfigurationKeyError: (InvalidInputError, None),
}

SIGNED = (
    "Generic S3 error: Error performing PUT"
    " https://host/bucket/key?X-Amz-Signature=c0ffee&sig=s3cr3t in 5ms - Server returned non-2xx"
    " status code: {status}: <Error><Code>SlowDown</Code><Message>s3cr3t</Message></Error>"
)


def foreign_classes() -> list[type[Exception]]:
    found = [each for _, each in inspect.getmembers(foreign, inspect.isclass)]
    return [each for each in found if issubclass(each, Exception)]


def test_every_class_is_mapped() -> None:
    assert set(foreign_classes()) | set(FOREIGN_ERRORS) == set(EXPECTED)


@pytest.mark.parametrize("kind", EXPECTED, ids=lambda kind: kind.__name__)
def test_mapping(kind: type[Exception]) -> None:
    wanted, is_retryable = EXPECTED[kind]
    error = translate(kind("something"), "read", "some/key")
    assert type(error) is wanted
    assert getattr(error, "retryable", None) is is_retryable
    assert "some/key" in str(error)
    assert isinstance(kind("x"), FOREIGN_ERRORS)


@pytest.mark.parametrize(
    ("status", "is_retryable", "code"),
    [
        ("400 Bad Request", False, ErrorKind.OBJECT_STORE),
        ("405 Method Not Allowed", False, ErrorKind.OBJECT_STORE),
        ("408 Request Timeout", True, ErrorKind.OBJECT_STORE),
        ("429 Too Many Requests", True, ErrorKind.THROTTLED),
        ("500 Internal Server Error", True, ErrorKind.OBJECT_STORE),
        ("501 Not Implemented", False, ErrorKind.OBJECT_STORE),
        ("502 Bad Gateway", True, ErrorKind.OBJECT_STORE),
        ("503 Service Unavailable", True, ErrorKind.THROTTLED),
    ],
)
def test_statuses(status: str, is_retryable: bool, code: ErrorKind) -> None:
    error = translate(foreign.GenericError(SIGNED.format(status=status)), "write", "key")
    assert isinstance(error, StorageError)
    assert error.retryable is is_retryable
    assert error.kind == code
    assert f"status {status[:3]}, SlowDown" in str(error)


def test_unsatisfiable_range_is_the_callers_mistake() -> None:
    error = translate(foreign.GenericError(SIGNED.format(status="416 Range")), "read", "key")
    assert isinstance(error, InvalidInputError)
    assert error.kind == ErrorKind.INVALID_BYTE_RANGE


@pytest.mark.parametrize("kind", foreign_classes(), ids=lambda kind: kind.__name__)
def test_nothing_secret_gets_through(kind: type[Exception]) -> None:
    text = SIGNED.format(status="400 Bad Request")
    if kind in {foreign.UnknownConfigurationKeyError, foreign.InvalidPathError}:
        return  # raised before there is a request; they quote keys and names of options
    error = translate(kind(text), "write", "key")
    assert "s3cr3t" not in repr(error) + str(error) + str(error.context)
    assert "c0ffee" not in repr(error) + str(error) + str(error.context)


@pytest.mark.parametrize(("code", "is_passing"), [("AccessDenied", False), ("SlowDown", True)])
def test_a_refused_deletion_of_a_batch_says_why(code: str, is_passing: bool) -> None:
    text = f"Generic S3 error: DeleteObjects request failed for key a/b: s3cr3t. (code: {code})"
    error = translate(foreign.GenericError(text), "delete", "a/b")
    assert isinstance(error, StorageError)
    assert error.retryable is is_passing
    assert str(error) == f"cannot delete 'a/b': the storage refused ({code})"
