"""All groups of the engine's comparisons, by name."""

from typing import Final

from bench import engine_changes, engine_chunks, engine_commits, engine_nodes
from bench.engine_rows import Group

GROUPS: Final[dict[str, Group]] = (
    engine_chunks.GROUPS | engine_nodes.GROUPS | engine_commits.GROUPS | engine_changes.GROUPS
)
