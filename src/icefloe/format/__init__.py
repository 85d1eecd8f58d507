"""Bytes to values and back, as the Icechunk format lays them out.

Pure: no I/O, no clock, no asynchronous code. Bulk contents are numpy columns.
"""

from typing import Final

DEFAULT_MAX_ROWS: Final = 1000
"""So many entries of a list are described; here because commands load this module quickly."""
