"""Decisions against an obvious model, and simulations against what then happens."""

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icefloe.catalog.model import (
    Bucket,
    BucketState,
    Decision,
    DeclaredContainer,
    Delegation,
    Filter,
    Listing,
    Member,
    Person,
    Platform,
    Policy,
    PolicyScope,
    Repository,
    Role,
    SharedPrefix,
    Subscription,
    SubscriptionKind,
    Visibility,
)
from icefloe.service.domain.actions import Action
from icefloe.service.domain.decide import PROVIDER_CONTAINER, Actor
from icefloe.service.domain.simulate import (
    Observer,
    PolicyChange,
    Simulation,
    simulate,
    told,
)
from icefloe.service.domain.world import World

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MOMENTS = [None, NOW - timedelta(days=1), NOW + timedelta(days=1)]
ORGANISATIONS = ["lab", "zoo", "shop"]
PEOPLE = ["ada", "bob", "eve"]
ENDPOINTS = [None, "https://minio.example", "https://other.example"]
PREFIXES = ["", "a/", "a/b/", "a2/"]
URLS = ["s3://data/", "s3://data/a/", "s3://data/a/b/", "s3://data/a2/", "s3://data2/a/"]
ODD_URLS = ["file:///home/", "s3://data/../", "s3://data/a"]

organisations = st.sampled_from(ORGANISATIONS)
moments = st.sampled_from(MOMENTS)
flags = st.booleans()


@st.composite
def containers(draw: st.DrawFn) -> DeclaredContainer:
    url = draw(st.sampled_from(URLS * 3 + ODD_URLS))
    name = draw(st.sampled_from([None] * 6 + [PROVIDER_CONTAINER]))
    return DeclaredContainer(url, url, name, endpoint=draw(st.sampled_from(ENDPOINTS)))


@st.composite
def policies(draw: st.DrawFn, buckets: list[Bucket], identifier: str) -> Policy:
    bucket = draw(st.sampled_from(buckets))
    return Policy(
        identifier,
        bucket.organisation,
        bucket.name,
        draw(st.sampled_from(PREFIXES)),
        draw(st.sampled_from(PolicyScope)),
        embargoed_until=draw(moments),
        ends_at=draw(moments),
        shared_with=tuple(draw(st.lists(organisations, max_size=1))),
    )


@st.composite
def worlds(draw: st.DrawFn) -> World:
    members = [
        Member(organisation, person, role)
        for organisation in ORGANISATIONS
        for person in PEOPLE
        if (role := draw(st.sampled_from([None, *Role]))) is not None
    ]
    buckets = [
        Bucket(
            organisation,
            f"b{number}",
            Platform.S3,
            draw(st.sampled_from(["data", "data", "data2"])),
            draw(st.sampled_from(PREFIXES)),
            endpoint=draw(st.sampled_from(ENDPOINTS)),
            delegation=draw(
                st.sampled_from([Delegation.ROLE] * 3 + [Delegation.STATIC, Delegation.ANONYMOUS])
            ),
            state=draw(st.sampled_from([BucketState.PROVEN] * 3 + [BucketState.UNPROVEN])),
        )
        for organisation in ORGANISATIONS
        for number in range(draw(st.integers(1, 2)))
    ]
    repositories = [
        Repository(
            organisation,
            f"r{number}",
            "b0",
            f"r{number}/",
            visibility=draw(st.sampled_from(Visibility)),
        )
        for organisation in ORGANISATIONS
        for number in range(2)
    ]
    listings = [
        Listing(
            organisation,
            "offer",
            "r0",
            filter=draw(st.sampled_from([None, Filter(nodes=("/x",))])),
            virtual_chunks=draw(
                st.sampled_from([(), (SharedPrefix("b0"),), (SharedPrefix("b0", "a/"),)])
            ),
        )
        for organisation in ORGANISATIONS
        if draw(flags)
    ]
    subscriptions = [
        Subscription(
            f"s{number}",
            draw(organisations),
            listing.organisation,
            listing.name,
            kind,
            draw(st.sampled_from([Decision.GRANTED, Decision.GRANTED, Decision.PENDING])),
            repository="r1" if kind is SubscriptionKind.FILTERED else None,
            ends_at=draw(moments),
        )
        for number, listing in enumerate(listings)
        if (kind := draw(st.sampled_from(SubscriptionKind)))
    ]
    # A repository stands for one subscription at most.
    filtered = {s.subscriber: s for s in subscriptions if s.repository}
    subscriptions = [s for s in subscriptions if not s.repository or filtered[s.subscriber] is s]
    return World(
        now=NOW,
        people=[Person(name, disabled=draw(st.integers(0, 5)) == 0) for name in PEOPLE],
        members=members,
        buckets=buckets,
        repositories=repositories,
        containers={
            repository.full_name: tuple(draw(st.lists(containers(), max_size=3)))
            for repository in repositories
        },
        policies=[draw(policies(buckets, f"p{i}")) for i in range(draw(st.integers(0, 4)))],
        listings=listings,
        subscriptions=subscriptions,
        allows_anonymous=draw(flags),
    )


class ObviousModel:
    """The rules once more, in nested loops over text, with no thought of speed."""

    def __init__(self, world: World) -> None:
        self.world = world

    def is_member(self, person: str, organisation: str) -> bool:
        return any(
            m.person == person and m.organisation == organisation for m in self.world.members
        )

    def subscriptions(self, person: str, repository: Repository) -> list[tuple[Any, Any, bool]]:
        """Return subscriptions of the person that concern a repository, with the listing."""
        answer = []
        for s in self.world.subscriptions:
            for listing in self.world.listings:
                if (s.provider, s.listing) != (listing.organisation, listing.name):
                    continue
                if s.state != "granted" or (s.ends_at and s.ends_at <= NOW):
                    continue
                if not self.is_member(person, s.subscriber):
                    continue
                target = f"{listing.organisation}/{listing.repository}"
                if s.kind == "direct" and target == repository.full_name:
                    answer.append((s, listing, True))
                own = f"{s.subscriber}/{s.repository}"
                if s.kind == "filtered" and own == repository.full_name:
                    answer.append((s, listing, False))
        return answer

    def opens(self, person: str, repository: Repository) -> bool:
        reads = (
            self.is_member(person, repository.organisation)
            or repository.visibility == "everyone"
            or any(
                is_direct and listing.filter is None
                for _, listing, is_direct in self.subscriptions(person, repository)
            )
        )
        declared = self.world.containers[repository.full_name]
        return (
            reads
            and not self.reaches_too_far(person, repository)
            and all(self.reads(person, repository, c) for c in declared)
        )

    def reaches_too_far(self, person: str, repository: Repository) -> bool:
        """Return whether somebody else would get static keys, which open the whole bucket."""
        return not self.is_member(person, repository.organisation) and any(
            bucket.organisation == repository.organisation
            and bucket.name == repository.bucket
            and bucket.delegation == "static"
            for bucket in self.world.buckets
        )

    def reads(self, person: str, repository: Repository, container: DeclaredContainer) -> bool:
        if container.name == PROVIDER_CONTAINER:
            return self.reads_provider(person, repository)
        if container.url_prefix in ODD_URLS:
            return False
        store = container.endpoint
        covering = []
        for bucket in self.world.buckets:
            is_home = bucket.organisation == repository.organisation
            if not (container.url_prefix + "").startswith(f"s3://{bucket.bucket}/{bucket.prefix}"):
                continue
            if not is_home:
                if bucket.endpoint != store or bucket.state != "proven":
                    continue
                if bucket.delegation == "anonymous" and store is None:
                    continue
            covering.append(bucket)
            if bucket.state == "proven" and self.allows(person, repository, container, bucket):
                return True
        return not covering and store is None and self.world.allows_anonymous

    def allows(
        self, person: str, repository: Repository, container: DeclaredContainer, bucket: Bucket
    ) -> bool:
        is_member = self.is_member(person, bucket.organisation)
        is_home = bucket.organisation == repository.organisation
        if bucket.delegation == "static" and not (is_home and is_member):
            return False
        start = f"s3://{bucket.bucket}/{bucket.prefix}"
        shares = any(
            listing.organisation == bucket.organisation
            and shared.bucket == bucket.name
            and container.url_prefix.startswith(start + shared.prefix)
            for _, listing, _ in self.subscriptions(person, repository)
            for shared in listing.virtual_chunks
        )
        return any(
            (policy.organisation, policy.bucket) == (bucket.organisation, bucket.name)
            and container.url_prefix.startswith(start + policy.prefix)
            and (policy.ends_at is None or policy.ends_at > NOW)
            and (policy.embargoed_until is None or policy.embargoed_until <= NOW)
            and (
                policy.scope == "anyone"
                or is_member
                or shares
                or any(self.is_member(person, other) for other in policy.shared_with)
            )
            for policy in self.world.policies
        )

    def reads_provider(self, person: str, repository: Repository) -> bool:
        for _, listing, is_direct in self.subscriptions(person, repository):
            provider = self.world.repositories[f"{listing.organisation}/{listing.repository}"]
            for bucket in self.world.buckets:
                key = (provider.organisation, provider.bucket)
                if not is_direct and (bucket.organisation, bucket.name) == key:
                    return bucket.state == "proven" and bucket.delegation != "static"
        return False


def opened_in_turn(world: World) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Decide for each person and each repository in turn."""
    action = Action.OPEN_REPOSITORY
    return np.array(
        [
            [
                not world.people[person].disabled and world.decide(person, action, name).allowed
                for name in world.repositories
            ]
            for person in world.people
        ]
    )


@settings(max_examples=300, deadline=None)
@given(world=worlds())
def test_decisions_agree_with_the_obvious_model(world: World) -> None:
    model = ObviousModel(world)
    for person in world.people:
        for name, repository in world.repositories.items():
            verdict = world.decide(person, Action.OPEN_REPOSITORY, name)
            assert verdict.allowed == model.opens(person, repository), (person, name)
            if verdict.allowed:
                assert len(verdict.granted) == len(world.containers[name])


@settings(max_examples=200, deadline=None)
@given(world=worlds())
def test_readers_at_once_are_readers_in_turn(world: World) -> None:
    np.testing.assert_array_equal(world.readers(), opened_in_turn(world))


def random_change(chance: random.Random, world: World) -> PolicyChange:
    bucket = chance.choice(world.buckets)
    policy = Policy(
        chance.choice([*(policy.id for policy in world.policies), "new"]),
        bucket.organisation,
        bucket.name,
        chance.choice(PREFIXES),
        chance.choice(list(PolicyScope)),
        embargoed_until=chance.choice(MOMENTS),
        ends_at=chance.choice(MOMENTS),
        shared_with=tuple(chance.sample(ORGANISATIONS, chance.randint(0, 2))),
    )
    return PolicyChange(policy, deleted=chance.random() < 0.3)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(world=worlds(), seed=st.integers(0, 2**32))
def test_a_simulation_is_what_then_happens(world: World, seed: int) -> None:
    before = opened_in_turn(world)
    people, repositories = list(world.people), list(world.repositories)
    chance = random.Random(seed)
    for _ in range(50):
        change = random_change(chance, world)
        simulation = simulate(world, change)
        world = world.with_policies(change.apply(world.policies))
        after = opened_in_turn(world)
        gains = {(people[i], repositories[j]) for i, j in np.argwhere(after & ~before)}
        losses = {(people[i], repositories[j]) for i, j in np.argwhere(before & ~after)}
        assert set(simulation.gains) == gains
        assert set(simulation.losses) == losses
        opens = {repositories[j] for j in np.flatnonzero(after.any(0) & ~before.any(0))}
        breaks = {repositories[j] for j in np.flatnonzero(before.any(0) & ~after.any(0))}
        assert set(simulation.opens) == opens
        assert set(simulation.breaks) == breaks
        check_what_admins_learn(world, simulation, chance)
        before = after


def check_what_admins_learn(world: World, simulation: Simulation, chance: random.Random) -> None:
    """Check that people are named or counted, and that nobody else's names are told."""
    own, admin = chance.choice(ORGANISATIONS), chance.choice(PEOPLE)
    pairs = [*simulation.gains, *simulation.losses]
    asked = frozenset(chance.sample(pairs, min(1, len(pairs))))
    answer = told(simulation, world, Observer(Actor(admin), own, asked))
    roles = {member.person for member in world.members if member.organisation == own}
    seen = {
        name
        for name in world.repositories
        if world.decide(admin, Action.SEE_REPOSITORY, name).allowed
    } | {name for _, name in asked}
    for changes, named, counts in (
        (simulation.gains, answer.gains, answer.other_gains),
        (simulation.losses, answer.losses, answer.other_losses),
    ):
        assert set(named) <= set(changes)
        assert all(pair in asked or pair[0] in roles for pair in named)
        assert {repository for _, repository in named} <= seen
        others = {person for person, _ in changes} - {person for person, _ in named}
        assert sum(count.people for count in counts) == len(others)
        known = {own, *world.roles_of(admin), *(name.partition("/")[0] for name in seen), ""}
        assert {count.organisation for count in counts} <= known
    for names, told_names, hidden in (
        (simulation.opens, answer.opens, answer.other_opens),
        (simulation.breaks, answer.breaks, answer.other_breaks),
    ):
        assert set(told_names) == set(names) & seen
        assert len(told_names) + hidden == len(names)
    assert {row.repository for row in answer.readers} <= seen
    assert len(answer.readers) + answer.other_repositories == len(simulation.readers)
