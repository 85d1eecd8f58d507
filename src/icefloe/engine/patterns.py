"""Patterns of the manifest configuration, searched for in paths and names."""

from functools import lru_cache

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.arrow import pa, pc
from icefloe.format.columns import BytesColumn


@lru_cache(maxsize=4096)
def is_found(regex: str, text: str) -> bool:
    """Search text for a pattern.

    Arrow's engine takes time linear in the text, whatever the pattern: the configuration of a
    repository may have been written by anybody.
    """
    if regex == ".*":
        return True
    try:
        found = pc.match_substring_regex(BytesColumn.from_strings([text]).to_arrow_strings(), regex)
    except pa.ArrowInvalid as error:
        raise InvalidInputError(
            f"{regex!r} in the manifest configuration is no regular expression: {error}",
            ErrorKind.INVALID_CONFIG,
        ) from error
    return bool(found[0].as_py())
