"""A whole service as plain records, and who may open what in it.

A world answers for everybody at once. People with the same roles in the organisations that matter
to a repository get the same verdict, so one decision serves all of them: a thousand people and a
thousand repositories take a few thousand decisions, not a million.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icefloe.catalog.model import (
    Bucket,
    DeclaredContainer,
    Listing,
    Member,
    Person,
    Policy,
    Repository,
    Role,
    Subscription,
    SubscriptionKind,
)
from icefloe.records import Record
from icefloe.service.domain.actions import RANK, Action
from icefloe.service.domain.decide import Actor, Facts, Resource, Verdict, decide
from icefloe.service.domain.locations import Location, bucket_location, screen_all

_ROLES = {rank: role for role, rank in RANK.items()}
type _Division = tuple[list[dict[str, Role]], NDArray[np.int64]]
"""The different roles that people have in some organisations, and whose are which."""


class _Offer(Record):
    """The listings of a repository, their subscriptions, and the repository behind it."""

    listings: tuple[Listing, ...]
    subscriptions: tuple[Subscription, ...]
    provider: Repository | None = None


class World:
    """All facts that decisions about repositories depend on, indexed for many of them."""

    def __init__(
        self,
        *,
        now: datetime,
        people: Iterable[Person] = (),
        members: Iterable[Member] = (),
        buckets: Iterable[Bucket] = (),
        repositories: Iterable[Repository] = (),
        containers: Mapping[str, tuple[DeclaredContainer, ...]] | None = None,
        policies: Iterable[Policy] = (),
        listings: Iterable[Listing] = (),
        subscriptions: Iterable[Subscription] = (),
        allows_anonymous: bool = True,
    ) -> None:
        self.now = now
        self.people = {person.name: person for person in people}
        self.members = tuple(members)
        self.buckets = tuple(buckets)
        self.repositories = {repository.full_name: repository for repository in repositories}
        self.containers = dict(containers or {})
        self.policies = tuple(policies)
        self.listings = tuple(listings)
        self.subscriptions = tuple(subscriptions)
        self.allows_anonymous = allows_anonymous

    def with_policies(self, policies: Iterable[Policy]) -> "World":
        """Return the same world with other policies."""
        other = World.__new__(World)
        other.__dict__.update(self.__dict__)
        other.__dict__.pop("_policies_by_bucket", None)
        other.policies = tuple(policies)
        return other

    def roles_of(self, person: str) -> dict[str, Role]:
        """Return a person's roles, by organisation."""
        return {
            member.organisation: member.role for member in self.members if member.person == person
        }

    def facts(self, repository_name: str, roles: Mapping[str, Role]) -> Facts:
        """Return what a decision about a repository depends on, for somebody with these roles."""
        repository = self.repositories.get(repository_name)
        if repository is None:
            return Facts(self.now, roles, allows_anonymous=self.allows_anonymous)
        containers = self.containers.get(repository_name, ())
        buckets = self._relevant_buckets[repository_name]
        policies = self._policies_by_bucket
        offer = self._offers[repository_name]
        return Facts(
            now=self.now,
            roles=roles,
            repository=repository,
            containers=containers,
            buckets=buckets,
            policies=tuple(
                policy
                for bucket in buckets
                for policy in policies.get((bucket.organisation, bucket.name), ())
            ),
            listings=offer.listings,
            subscriptions=offer.subscriptions,
            provider=offer.provider,
            allows_anonymous=self.allows_anonymous,
        )

    def decide(self, person: str, action: Action, repository_name: str) -> Verdict:
        """Decide for one person and one repository."""
        actor = _actor(self.people[person])
        facts = self.facts(repository_name, self.roles_of(person))
        return decide(actor, action, resource_of(repository_name), facts)

    def repositories_with(self, buckets: Collection[tuple[str, str]]) -> list[str]:
        """Return the repositories whose verdict may depend on one of these buckets.

        Buckets are named by organisation and name.
        """
        return [
            name
            for name, relevant in self._relevant_buckets.items()
            if any((bucket.organisation, bucket.name) in buckets for bucket in relevant)
        ]

    def readers(self, repositories: Iterable[str] | None = None) -> NDArray[np.bool_]:
        """Return who may open what: a row for each person, a column for each repository.

        Rows have the order of `people`, columns that of the repositories named, or of all.
        """
        names = list(self.repositories if repositories is None else repositories)
        _, columns = self._rank_table
        is_able = np.array([not person.disabled for person in self.people.values()], np.bool_)
        answer = np.zeros((len(names), len(self.people)), np.bool_)
        divisions: dict[tuple[str, ...], _Division] = {}
        for index, name in enumerate(names):
            organisations = tuple(org for org in self._organisations_in(name) if org in columns)
            if organisations not in divisions:
                divisions[organisations] = self._divide(organisations)
            kinds, kind_of_person = divisions[organisations]
            allowed = [self._is_open(name, roles) for roles in kinds]
            answer[index] = np.array(allowed, np.bool_)[kind_of_person]
        return (answer & is_able).T

    def _divide(self, organisations: tuple[str, ...]) -> _Division:
        """Divide people by their roles in organisations: who has the same is decided about once."""
        ranks, columns = self._rank_table
        kind_of_person = np.zeros(len(ranks), np.int64)
        for organisation in organisations:
            codes = kind_of_person * (len(RANK) + 1) + ranks[:, columns[organisation]]
            _, kind_of_person = np.unique(codes, return_inverse=True)
        _, examples = np.unique(kind_of_person, return_index=True)
        kinds = [
            {org: _ROLES[rank] for org in organisations if (rank := int(ranks[row, columns[org]]))}
            for row in examples
        ]
        return kinds, kind_of_person

    def _is_open(self, name: str, roles: Mapping[str, Role]) -> bool:
        facts = self.facts(name, roles)
        return decide(_ANYBODY, Action.OPEN_REPOSITORY, resource_of(name), facts).allowed

    def _organisations_in(self, name: str) -> list[str]:
        """Return the organisations in which a role matters for opening a repository."""
        buckets = self._relevant_buckets[name]
        policies = chain.from_iterable(
            self._policies_by_bucket.get((bucket.organisation, bucket.name), ())
            for bucket in buckets
        )
        return sorted(
            {self.repositories[name].organisation}
            | {bucket.organisation for bucket in buckets}
            | {subscription.subscriber for subscription in self._offers[name].subscriptions}
            | {organisation for policy in policies for organisation in policy.shared_with}
        )

    @cached_property
    def _rank_table(self) -> tuple[NDArray[np.int64], dict[str, int]]:
        """A row for each person, a column for each organisation, and which column that is."""
        columns = {org: i for i, org in enumerate(sorted({m.organisation for m in self.members}))}
        rows = {name: i for i, name in enumerate(self.people)}
        ranks = np.zeros((len(rows), len(columns)), np.int64)
        for member in self.members:
            if member.person in rows:
                ranks[rows[member.person], columns[member.organisation]] = RANK[member.role]
        return ranks, columns

    @cached_property
    def _policies_by_bucket(self) -> dict[tuple[str, str], list[Policy]]:
        index: defaultdict[tuple[str, str], list[Policy]] = defaultdict(list)
        for policy in self.policies:
            index[policy.organisation, policy.bucket].append(policy)
        return dict(index)

    @cached_property
    def _relevant_buckets(self) -> dict[str, tuple[Bucket, ...]]:
        """For each repository its own bucket, the provider's, and all with a name it refers to."""
        by_place: defaultdict[tuple[Any, str], list[Bucket]] = defaultdict(list)
        by_name = {(bucket.organisation, bucket.name): bucket for bucket in self.buckets}
        for bucket in self.buckets:
            by_place[bucket_location(bucket).platform, bucket.bucket].append(bucket)
        relevant: dict[str, tuple[Bucket, ...]] = {}
        for name, repository in self.repositories.items():
            chosen: dict[tuple[str, str], Bucket] = {}
            provider = self._offers[name].provider
            for owner in (repository, provider):
                key = (owner.organisation, owner.bucket) if owner else ("", "")
                if key in by_name:
                    chosen[key] = by_name[key]
            for location in screen_all(self.containers.get(name, ())):
                if isinstance(location, Location):
                    for bucket in by_place.get((location.platform, location.bucket), ()):
                        chosen[bucket.organisation, bucket.name] = bucket
            relevant[name] = tuple(chosen.values())
        return relevant

    @cached_property
    def _offers(self) -> dict[str, _Offer]:
        """For each repository what it offers, or the offer behind a filtered subscription."""
        by_repository: defaultdict[str, list[Listing]] = defaultdict(list)
        by_name = {(listing.organisation, listing.name): listing for listing in self.listings}
        for listing in self.listings:
            by_repository[f"{listing.organisation}/{listing.repository}"].append(listing)
        direct: defaultdict[tuple[str, str], list[Subscription]] = defaultdict(list)
        filtered: dict[str, Subscription] = {}
        for subscription in self.subscriptions:
            if subscription.kind is SubscriptionKind.DIRECT:
                direct[subscription.provider, subscription.listing].append(subscription)
            elif subscription.repository is not None:
                filtered[f"{subscription.subscriber}/{subscription.repository}"] = subscription
        offers = {}
        for name in self.repositories:
            listings = tuple(by_repository.get(name, ()))
            keys = [(listing.organisation, listing.name) for listing in listings]
            subscriptions = tuple(chain.from_iterable(direct.get(key, ()) for key in keys))
            provider = None
            if (own := filtered.get(name)) is not None:
                subscriptions = (*subscriptions, own)
                if (behind := by_name.get((own.provider, own.listing))) is not None:
                    listings = (*listings, behind)
                    full_name = f"{behind.organisation}/{behind.repository}"
                    provider = self.repositories.get(full_name)
            offers[name] = _Offer(listings, subscriptions, provider)
        return offers


_ANYBODY = Actor("anybody")


def resource_of(full_name: str) -> Resource:
    """Return the resource of a repository named `org/name`."""
    organisation, _, name = full_name.partition("/")
    return Resource(organisation, name)


def _actor(person: Person) -> Actor:
    return Actor(person.name, person.kind, person.operator)
