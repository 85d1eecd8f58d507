"""All groups of the comparisons of virtual chunks, by name: `python -m bench virtual`."""

from typing import Final

from bench import virtual_reading, virtual_telling, virtual_writing
from bench.engine_rows import Group

GROUPS: Final[dict[str, Group]] = (
    virtual_writing.GROUPS | virtual_telling.GROUPS | virtual_reading.GROUPS
)
