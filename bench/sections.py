"""The sections of comparisons that run both sides as workers, each with its groups."""

from collections.abc import Mapping
from typing import Final

from bench import engine_groups, fairness, maintenance, manifests, pipeline, virtual
from bench.engine_rows import Group

SECTIONS: Final[Mapping[str, dict[str, Group]]] = {
    "engine": engine_groups.GROUPS,
    "fairness": fairness.GROUPS,
    "virtual": virtual.GROUPS,
    "manifests": manifests.GROUPS,
    "maintenance": maintenance.GROUPS,
    "pipeline": pipeline.GROUPS,
}


def group_named(name: str) -> Group:
    """Find a group in whichever section it is."""
    return next(groups[name] for groups in SECTIONS.values() if name in groups)
