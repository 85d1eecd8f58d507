"""The effects of a policy change: who gains, who loses, what opens and what breaks.

A simulation is the same decision in two worlds, before and after. It never guesses.
"""

import numpy as np

from icefloe.catalog.model import Policy
from icefloe.records import Record
from icefloe.service.domain.world import World


class Simulation(Record):
    """The difference that a change of policies makes."""

    gains: tuple[tuple[str, str], ...]
    """People and the repositories that they could then open."""
    losses: tuple[tuple[str, str], ...]
    """People and the repositories that they could not open any more."""
    opens: tuple[str, ...]
    """Repositories that nobody can open now, and somebody could then."""
    breaks: tuple[str, ...]
    """Repositories that somebody can open now, and nobody could then."""
    readers: tuple[tuple[str, int, int], ...] = ()
    """Repositories that depend on the buckets, with the numbers of people who can open them now,
    and who could then."""


class PolicyChange(Record):
    """A policy that is created, replaced or deleted."""

    policy: Policy
    deleted: bool = False

    def apply(self, policies: tuple[Policy, ...]) -> tuple[Policy, ...]:
        """Return the policies after this change."""
        others = tuple(policy for policy in policies if policy.id != self.policy.id)
        return others if self.deleted else (*others, self.policy)


def simulate(world: World, change: PolicyChange) -> Simulation:
    """Return what a change of a policy would do to everybody."""
    changed = [policy for policy in world.policies if policy.id == change.policy.id]
    buckets = {(policy.organisation, policy.bucket) for policy in (*changed, change.policy)}
    people, repositories = list(world.people), world.repositories_with(buckets)
    before = world.readers(repositories)
    after = world.with_policies(change.apply(world.policies)).readers(repositories)

    def pairs(
        table: np.ndarray[tuple[int, int], np.dtype[np.bool_]],
    ) -> tuple[tuple[str, str], ...]:
        rows, columns = np.nonzero(table)
        return tuple(
            (people[row], repositories[column])
            for row, column in zip(rows.tolist(), columns.tolist(), strict=True)
        )

    had, has = before.any(axis=0), after.any(axis=0)
    return Simulation(
        gains=pairs(after & ~before),
        losses=pairs(before & ~after),
        opens=tuple(repositories[index] for index in np.flatnonzero(has & ~had).tolist()),
        breaks=tuple(repositories[index] for index in np.flatnonzero(had & ~has).tolist()),
        readers=tuple(
            zip(
                repositories,
                before.sum(axis=0).tolist(),
                after.sum(axis=0).tolist(),
                strict=True,
            )
        ),
    )
