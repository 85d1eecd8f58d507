"""Patterns of the manifest configuration, searched for in paths and names."""

from collections.abc import Sequence
from functools import lru_cache

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.arrow import pa, pc
from icefloe.format.columns import BytesColumn


@lru_cache(maxsize=4096)
def is_found(regex: str, text: str) -> bool:
    """Search text for a pattern."""
    return regex == ".*" or _search(regex, [text], f"{regex!r} in the manifest")[0]


def matches(pattern: str, texts: Sequence[str]) -> list[bool]:
    """Say which texts a pattern matches from end to end.

    >>> matches(".*/(lat|lon)", ["/lat", "/group/lon", "/latitude"])
    [True, True, False]
    """
    return _search(rf"\A(?s:{pattern})\z", texts, f"{pattern!r} in the chunk-manifests")


def _search(regex: str, texts: Sequence[str], origin: str) -> list[bool]:
    """Search texts for a pattern; `origin` says how it was written, and where.

    Arrow's engine takes time linear in the text, whatever the pattern: the configuration of a
    repository may have been written by anybody.
    """
    try:
        found = pc.match_substring_regex(BytesColumn.from_strings(texts).to_arrow_strings(), regex)
    except pa.ArrowInvalid as error:
        raise InvalidInputError(
            f"{origin} configuration is no regular expression: {error}",
            ErrorKind.INVALID_CONFIG,
        ) from error
    answers: list[bool] = found.to_pylist()
    return answers
