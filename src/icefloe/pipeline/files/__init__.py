"""Sources to what is known of them: which there are, what they contain, where their chunks lie."""

from typing import Final

FILES_CHECKED: Final = 2
"""The default of `ValueCheck`; here because commands load this module quickly."""

RECORDS_GROUP: Final = "icefloe/sources"
"""The group below which datasets have the records of their files."""
