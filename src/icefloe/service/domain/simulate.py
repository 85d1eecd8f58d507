"""The effects of a policy change: who gains, who loses, what opens and what breaks.

A simulation is the same decision in two worlds, before and after. It never guesses.
"""

from collections import Counter, defaultdict

import numpy as np

from icefloe.catalog.model import Policy
from icefloe.catalog.wire import PeopleCount, ReaderCount, SimulationAnswer
from icefloe.records import Record
from icefloe.service.domain.actions import Action
from icefloe.service.domain.decide import Actor, decide
from icefloe.service.domain.world import World, resource_of


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
    readers: tuple[ReaderCount, ...] = ()
    """Repositories that depend on the buckets."""


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
            ReaderCount(name, now, then)
            for name, now, then in zip(
                repositories, before.sum(axis=0).tolist(), after.sum(axis=0).tolist(), strict=True
            )
        ),
    )


class Observer(Record):
    """The admin whom a simulation is for, and the names that they know anyway."""

    actor: Actor
    organisation: str
    """The one whose policy is changed."""
    asked: frozenset[tuple[str, str]] = frozenset()
    """People and the repositories for which they asked this organisation for access."""
    acquainted: frozenset[str] = frozenset()
    """Organisations that subscribe to listings of this one."""


def told(simulation: Simulation, world: World, observer: Observer) -> SimulationAnswer:
    """Return what an admin may learn of a simulation.

    Everything of their own organisation has its name, and so has what they know anyway. People
    and repositories of other organisations are counted.
    """
    roles = world.roles_of(observer.actor.person)
    members: defaultdict[str, set[str]] = defaultdict(set)
    for member in world.members:
        members[member.person].add(member.organisation)

    def may_see(name: str) -> bool:
        facts = world.facts(name, roles)
        return decide(observer.actor, Action.SEE_REPOSITORY, resource_of(name), facts).allowed

    repositories = {row.repository for row in simulation.readers if may_see(row.repository)}
    repositories |= {name for _, name in observer.asked}
    owners = {name.partition("/")[0] for name in repositories}
    organisations = {observer.organisation, *roles, *observer.acquainted, *owners}

    def is_named(pair: tuple[str, str]) -> bool:
        person, repository = pair
        is_own = observer.organisation in members[person]
        return pair in observer.asked or (is_own and repository in repositories)

    def counted(pairs: tuple[tuple[str, str], ...]) -> tuple[PeopleCount, ...]:
        """Count the people without a name in pairs, each once."""
        by_person: defaultdict[str, set[str]] = defaultdict(set)
        for person, repository in pairs:
            owner = repository.partition("/")[0]
            # They read it as members of its organisation, or else by one of their own.
            theirs = {owner} if owner in members[person] else members[person]
            by_person[person] |= theirs & organisations
        named = {pair[0] for pair in pairs if is_named(pair)}
        counts = Counter(
            min(known, default="") for person, known in by_person.items() if person not in named
        )
        return tuple(PeopleCount(name, number) for name, number in sorted(counts.items()))

    def known(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for name in names if name in repositories)

    opens, breaks = known(simulation.opens), known(simulation.breaks)
    readers = tuple(row for row in simulation.readers if row.repository in repositories)
    return SimulationAnswer(
        tuple(filter(is_named, simulation.gains)),
        tuple(filter(is_named, simulation.losses)),
        opens,
        breaks,
        readers,
        counted(simulation.gains),
        counted(simulation.losses),
        len(simulation.opens) - len(opens),
        len(simulation.breaks) - len(breaks),
        len(simulation.readers) - len(readers),
    )
