"""Who shares the data of a repository with its reader, as far as the reader may know.

A reader learns which organisation owns the data, and by what of it they read themselves. Only
members of an organisation learn whom else it shares with.
"""

from datetime import datetime

from icefloe.catalog.model import Policy, PolicyScope
from icefloe.records import Record
from icefloe.service.domain.decide import (
    Facts,
    Granted,
    GrantKind,
    Missing,
    allowing_policies,
    match_containers,
)


class Source(Record):
    """A policy, a subscription or the openness of data, by which somebody reads."""

    id: str
    """Empty for public data."""
    readers: str
    """Who may read by it."""
    until: datetime | None = None
    policy: bool = False
    """Whether it is a policy that the reader may look at."""


class Share(Record):
    """Who shares a container, and by what."""

    owner: str | None
    """The organisation; None for public data that no organisation has registered."""
    sources: tuple[Source, ...]


def shares_of(facts: Facts) -> list[tuple[Granted, Share] | Missing]:
    """Return who shares each container of a repository, or what is missing."""
    return [
        answer if isinstance(answer, Missing) else (answer, _share(answer, facts))
        for answer in match_containers(facts)
    ]


def _share(granted: Granted, facts: Facts) -> Share:
    owner = granted.bucket.organisation if granted.bucket else None
    if granted.kind is GrantKind.ANONYMOUS:
        return Share(owner, (Source("", "everybody: the data is public"),))
    if granted.kind is GrantKind.SUBSCRIPTION:
        ends = [s.ends_at for s in facts.subscriptions if s.id == granted.source]
        subscriber = facts.repository.organisation if facts.repository else ""
        source = Source(granted.source, f"members of {subscriber}", ends[0] if ends else None)
        return Share(owner, (source,))
    policies = allowing_policies(granted, facts)
    return Share(owner, tuple(_source(policy, facts) for policy in policies))


def _source(policy: Policy, facts: Facts) -> Source:
    is_member = policy.organisation in facts.roles
    if policy.scope is PolicyScope.ANYONE:
        readers = "everybody on this service"
    else:
        named = [name for name in policy.shared_with if is_member or name in facts.roles]
        names = [policy.organisation, *named] if is_member else named
        readers = f"members of {', '.join(names)}" if names else "subscribers"
    return Source(policy.id, readers, policy.ends_at, is_member)
