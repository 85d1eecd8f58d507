"""The one place that turns errors of `obstore` into ours.

Classes decide. The exception is `GenericError`, which stands for everything from a refused
connection to `400 Bad Request` and carries no data but its text. There the HTTP status is
read from the fixed phrase that precedes it. What hangs on it is only whether trying again is
worth while (and that a range past the end is the caller's mistake): should the phrase change,
hopeless requests are repeated in vain, and nothing else goes wrong.

Messages of `obstore` quote URLs, which may be signed, and answers of servers. Ours are made
of the verb, the key, the status and the server's error code only, and do not chain the
original.
"""

import re
from typing import Final

from obstore import exceptions as foreign

from icefloe.errors import (
    ErrorKind,
    IcefloeError,
    InvalidInputError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
)

_STATUS: Final = re.compile(r"non-2xx status code: (\d{3})\b")
_CODE: Final = re.compile(r"<Code>([A-Za-z0-9.]{1,64})</Code>")
_CODE_OF_KEY: Final = re.compile(r"request failed for key .*\(code: ([A-Za-z0-9.]{1,64})\)")
"""What a server answers for a single key of a batch of deletions, in an answer of status 200."""
_PASSING_CODES: Final = frozenset(
    {"InternalError", "OperationAborted", "RequestTimeout", "ServiceUnavailable", "SlowDown"}
)
_CODES_OF_CREDENTIALS: Final = frozenset({"ExpiredToken", "InvalidToken", "TokenRefreshRequired"})
"""What S3 says with status 400 about a credential; other storages say 401 or 403."""
_TRANSPORT: Final = re.compile(r" - HTTP error: ([A-Za-z ]{1,64})")
_KINDS: Final = {
    429: ErrorKind.THROTTLED,
    503: ErrorKind.THROTTLED,
    507: ErrorKind.STORAGE_FULL,
}
_BAD_REQUEST: Final = 400
_NOT_ALLOWED: Final = frozenset({401, 403})
_CONFLICT: Final = 409
_PASSING: Final = frozenset({408, _CONFLICT, 425, 429})
_LASTING: Final = frozenset({501, 505, 507})
_RANGE_NOT_SATISFIABLE: Final = 416
_STARTS_PAST_END: Final = "Wanted range starting at "  # found by `obstore` in a 2xx answer

FOREIGN_ERRORS: Final = (
    foreign.BaseError,
    FileNotFoundError,
    ValueError,
    TypeError,
    OverflowError,
    OSError,
    TimeoutError,
)
"""Everything `obstore` raises; `PanicException` is no `Exception` and passes through."""


_REASONS: Final[dict[type[Exception], tuple[str, ErrorKind, bool]]] = {
    foreign.PermissionDeniedError: (
        "the credentials do not allow it",
        ErrorKind.OBJECT_STORE,
        False,
    ),
    foreign.UnauthenticatedError: (
        "the credentials are missing, could not be obtained or were not accepted",
        ErrorKind.OBJECT_STORE,
        False,
    ),
    foreign.NotSupportedError: (
        "this storage does not offer that",
        ErrorKind.UNIMPLEMENTED,
        False,
    ),
    foreign.JoinError: ("the transfer was interrupted", ErrorKind.OBJECT_STORE, True),
}
"""Reason, code, and whether trying again may help."""

_ABSENT: Final = (FileNotFoundError, foreign.NotFoundError)
_CONDITION: Final = (
    foreign.AlreadyExistsError,
    foreign.PreconditionError,
    foreign.NotModifiedError,
)


def translate(error: Exception, verb: str, key: str) -> IcefloeError:
    """Return the error of ours that says the same.

    The caller raises it `from None`: see above.
    """
    what = f"cannot {verb} {key!r}"
    if isinstance(error, _ABSENT):
        return ObjectNotFoundError(f"no object {key!r}{_detail(error)}", key=key)
    if isinstance(error, _CONDITION):
        text = f"{key!r} is not in the expected state{_detail(error)}"
        return PreconditionFailedError(text, key=key)
    for kind, (reason, code, is_passing) in _REASONS.items():
        if isinstance(error, kind):
            text = f"{what}: {reason}{_detail(error)}"
            return StorageError(text, code, retryable=is_passing, key=key)
    if isinstance(error, foreign.UnknownConfigurationKeyError):
        text = f"{what}: {str(error).partition('\n')[0]}"
        return InvalidInputError(text, ErrorKind.STORAGE_CONFIG)
    if isinstance(error, foreign.BaseError) and not isinstance(error, foreign.InvalidPathError):
        return _generic(error, what, key)
    if isinstance(error, OSError):
        text = f"{what}: {error.strerror or type(error).__name__}"
        return StorageError(text, ErrorKind.IO, retryable=True, key=key)
    # InvalidPathError, ValueError, TypeError, OverflowError
    reason = str(error).partition("\n")[0][:200]
    text = f"{what}: the storage does not allow such a key or argument ({reason})"
    return InvalidInputError(text, ErrorKind.INVALID_KEY, key=key)


def _generic(error: Exception, what: str, key: str) -> IcefloeError:
    status = _status(error)
    if status == _RANGE_NOT_SATISFIABLE or _STARTS_PAST_END in str(error):
        return InvalidInputError(
            f"{what}: the byte range lies past the end of the object",
            ErrorKind.INVALID_BYTE_RANGE,
            key=key,
        )
    if (of_key := _CODE_OF_KEY.search(str(error))) is not None:
        is_passing = of_key[1] in _PASSING_CODES
        text = f"{what}: the storage refused ({of_key[1]})"
        return StorageError(text, ErrorKind.OBJECT_STORE, retryable=is_passing, key=key)
    if status is None:
        match = _TRANSPORT.search(str(error))
        reason = f" ({match.group(1)})" if match else ""
        return StorageError(
            f"{what}: no usable answer{reason}; check the address and the network",
            ErrorKind.OBJECT_STORE,
            retryable=True,
            key=key,
        )
    return refusal(status, what, key, _detail(error))


def may_be_of_credentials(error: Exception) -> bool:
    """Return whether a storage may have refused a request because of its credentials.

    Such a request was not carried out. An answer without a body has no code: that is what S3 sends
    when somebody looks at an object with a credential that has ended.
    """
    if isinstance(error, (foreign.PermissionDeniedError, foreign.UnauthenticatedError)):
        return True
    status, code = _status(error), _CODE.search(str(error))
    is_told = code is None or code.group(1) in _CODES_OF_CREDENTIALS
    return status in _NOT_ALLOWED or (status == _BAD_REQUEST and is_told)


def refusal(status: int, what: str, key: str, detail: str) -> StorageError:
    """Describe an answer with a status that says no."""
    is_passing = status in _PASSING or (status >= 500 and status not in _LASTING)
    return StorageError(
        f"{what}: the storage refused{detail}",
        _KINDS.get(status, ErrorKind.OBJECT_STORE),
        retryable=is_passing,
        key=key,
        status=status,
    )


def plain_conflict(error: Exception, verb: str, key: str) -> StorageError:
    """Describe a 409 on a request without a condition: others were at the object as well."""
    return refusal(_status(error) or _CONFLICT, f"cannot {verb} {key!r}", key, _detail(error))


def _status(error: Exception) -> int | None:
    match = _STATUS.search(str(error))
    return int(match.group(1)) if match else None


def _detail(error: Exception) -> str:
    """Return the status and the server's error code; neither can contain a secret."""
    text = str(error)
    status, code = _STATUS.search(text), _CODE.search(text)
    parts = [f"status {status.group(1)}"] if status else []
    parts += [code.group(1)] if code else []
    return f" ({', '.join(parts)})" if parts else ""
