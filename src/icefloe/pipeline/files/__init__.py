"""Sources to what is known of them: which there are, what they contain, where their chunks lie."""

from typing import Final

__all__ = ["FILES_CHECKED", "RECORDS_GROUP", "is_record"]

FILES_CHECKED: Final = 2
"""The default of `ValueCheck`; here because commands load this module quickly."""

RECORDS_GROUP: Final = "icefloe/sources"
"""The group below which datasets have the records of their files."""


def is_record(path: str) -> bool:
    """Return whether a path is that of a record, or of something in it.

    >>> is_record("icefloe/sources/root"), is_record("icefloe")
    (True, False)
    """
    return path == RECORDS_GROUP or path.startswith(f"{RECORDS_GROUP}/")
