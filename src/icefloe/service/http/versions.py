"""Headers of entries: versions as ETags, by which who changes an entry says what they saw; and
until when credentials live.
"""

import re
from typing import Annotated, Any, Final

from fastapi import Header

from icefloe.errors import ErrorKind, InvalidInputError

IfMatch = Annotated[
    str | None, Header(description='The ETag of the version to change, like `"3"`', max_length=100)
]
ISSUED_UNTIL: Final[dict[int | str, dict[str, Any]]] = {
    204: {
        "headers": {
            "X-Issued-Until": {
                "description": "Until when credentials that were made before may live",
                "required": True,
                "schema": {"type": "string"},
            }
        }
    }
}
"""The description of an answer after which no further credential is made."""
_ETAG: Final = re.compile(r'(?:W/)?"([0-9]{1,9})"')


def etag(version: int) -> dict[str, str]:
    """Return the header that names a version."""
    return {"etag": f'"{version}"'}


def expected_version(if_match: str | None) -> int | None:
    """Return the version that a request wants to change; None for any."""
    if if_match is None or if_match == "*":
        return None
    match = _ETAG.fullmatch(if_match)
    if match is None:
        problem = 'If-Match must be the ETag of an earlier answer, like "3"'
        raise InvalidInputError(problem, ErrorKind.INVALID_REQUEST)
    return int(match[1])
