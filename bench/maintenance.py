"""Keeping repositories healthy. `python -m bench maintenance`."""

from typing import Final

from bench import maintenance_collect, maintenance_migrate, maintenance_verify
from bench.engine_rows import Group

GROUPS: Final[dict[str, Group]] = {
    **maintenance_verify.GROUPS,
    **maintenance_collect.GROUPS,
    **maintenance_migrate.GROUPS,
}
