"""Errors of tasks on their way to the driver, through the text of Spark's own errors.

Spark hands on the text of what failed, with much around it. So an error of ours travels in this
text as JSON, and the driver raises it again. Nothing is unpickled: texts of errors may quote what
strangers wrote.
"""

import base64
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from icefloe import errors
from icefloe.errors import ConflictError, IcefloeError, InternalError
from icefloe.pipeline.running.worker import as_own_error

_MARK: Final = "icefloe-error"
_MARKED: Final = re.compile(rf"\[{_MARK}:([A-Za-z0-9+/=]+)\]")


class TaskError(Exception):
    """An error of ours as Spark sees it."""


@contextmanager
def as_text() -> Iterator[None]:
    """Raise what fails in a task so that the driver finds it in the text.

    >>> try:
    ...     with as_text():
    ...         raise errors.StorageError("the bucket is gone", key="a/b")
    ... except TaskError as failed:
    ...     error = error_in(str(failed))
    >>> error, error.context
    (StorageError('the bucket is gone'), {'key': 'a/b'})
    """
    try:
        with as_own_error():
            yield
    except IcefloeError as error:
        facts = {
            "type": type(error).__name__,
            "message": error.message,
            "kind": error.kind,
            "context": {name: str(value) for name, value in error.context.items()},
        }
        packed = base64.b64encode(json.dumps(facts).encode()).decode()
        raise TaskError(f"{error} [{_MARK}:{packed}]") from error


def error_in(text: str) -> IcefloeError | None:
    """Return the first error of ours in a text.

    >>> error_in("java.lang.OutOfMemoryError") is None
    True
    """
    found = _MARKED.search(text)
    if found is None:
        return None
    try:
        facts: dict[str, Any] = json.loads(base64.b64decode(found[1]))
        kind = getattr(errors, facts["type"], InternalError)
        if not issubclass(kind, IcefloeError) or issubclass(kind, ConflictError):
            kind = InternalError  # those are for the driver to raise
        error: IcefloeError = kind(str(facts["message"]), str(facts["kind"]), **facts["context"])
    except (ValueError, KeyError, TypeError):
        return None
    return error
