"""The facts that decisions depend on, loaded from the database."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from sqlalchemy import Connection, and_, bindparam, or_, select

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
from icefloe.records import Record, replace
from icefloe.service.database import rows, tables
from icefloe.service.database.assets import all_containers
from icefloe.service.domain.decide import Facts
from icefloe.service.domain.locations import Location, screen_all
from icefloe.service.domain.world import World


class Entry(Record):
    """A repository with its bucket, as the first step of opening it needs them."""

    repository: Repository
    bucket: Bucket
    config_version: str | None
    """The version of the configuration whose containers the database knows."""


# The queries are made once: that takes longer than running them.
_ENTRY: Final = (
    select(tables.repositories, *rows.labelled(tables.buckets, Bucket))
    .join(
        tables.buckets,
        and_(
            tables.repositories.c.organisation == tables.buckets.c.organisation,
            tables.repositories.c.bucket == tables.buckets.c.name,
        ),
    )
    .where(
        tables.repositories.c.organisation == bindparam("organisation"),
        tables.repositories.c.name == bindparam("name"),
    )
)
_POLICIES: Final = (
    select(tables.policies)
    .where(
        tables.policies.c.organisation.in_(bindparam("organisations", expanding=True)),
        tables.policies.c.bucket.in_(bindparam("buckets", expanding=True)),
    )
    .order_by(tables.policies.c.id)
)
_POLICIES_OF_BUCKET: Final = (
    select(tables.policies)
    .where(
        tables.policies.c.organisation == bindparam("organisation"),
        tables.policies.c.bucket == bindparam("bucket"),
    )
    .order_by(tables.policies.c.id)
)
"""The same for one bucket: most repositories need no more, and a list takes longer."""
_BUCKETS: Final = (
    select(tables.buckets)
    .where(
        or_(
            and_(
                tables.buckets.c.platform.in_(bindparam("platforms", expanding=True)),
                tables.buckets.c.bucket.in_(bindparam("buckets", expanding=True)),
            ),
            and_(
                tables.buckets.c.organisation == bindparam("organisation"),
                tables.buckets.c.name == bindparam("name"),
            ),
        )
    )
    .order_by(tables.buckets.c.organisation, tables.buckets.c.name)
)
_BUCKETS_AT_PLACE: Final = (
    select(tables.buckets)
    .where(
        tables.buckets.c.platform == bindparam("platform"),
        tables.buckets.c.bucket == bindparam("bucket"),
    )
    .order_by(tables.buckets.c.organisation, tables.buckets.c.name)
)
_LISTINGS: Final = (
    select(tables.listings)
    .where(
        tables.listings.c.organisation == bindparam("organisation"),
        tables.listings.c.repository == bindparam("repository"),
    )
    .order_by(tables.listings.c.name)
)
_SUBSCRIPTIONS: Final = (
    select(tables.subscriptions)
    .where(
        tables.subscriptions.c.kind == SubscriptionKind.DIRECT,
        tables.subscriptions.c.provider == bindparam("provider"),
        tables.subscriptions.c.listing.in_(bindparam("listings", expanding=True)),
    )
    .order_by(tables.subscriptions.c.id)
)


def load_entry(connection: Connection, organisation: str, name: str) -> Entry | None:
    """Return a repository and its bucket; None if there is no such repository."""
    row = connection.execute(_ENTRY, {"organisation": organisation, "name": name}).first()
    if row is None:
        return None
    repository = rows.record_of(Repository, row)
    return Entry(repository, rows.record_of(Bucket, row, tables.buckets), row.config_version)


def load_facts(
    connection: Connection,
    entry: Entry,
    containers: Sequence[DeclaredContainer],
    offers: Facts,
    *,
    allows_anonymous: bool = True,
) -> Facts:
    """Add the containers of a repository, and what they depend on, to the facts about it."""
    buckets = _load_buckets(connection, entry, containers, offers.provider)
    names = {(bucket.organisation, bucket.name) for bucket in buckets}
    if len(names) == 1:
        ((organisation, name),) = names
        key = {"organisation": organisation, "bucket": name}
        matches = connection.execute(_POLICIES_OF_BUCKET, key)
    else:
        choice = {
            "organisations": sorted({organisation for organisation, _ in names}),
            "buckets": sorted({bucket for _, bucket in names}),
        }
        matches = connection.execute(_POLICIES, choice)
    policies = rows.records_of(Policy, matches)
    return replace(
        offers,
        containers=tuple(containers),
        buckets=tuple(buckets),
        policies=tuple(p for p in policies if (p.organisation, p.bucket) in names),
        allows_anonymous=allows_anonymous,
    )


def _load_buckets(
    connection: Connection,
    entry: Entry,
    containers: Sequence[DeclaredContainer],
    provider: Repository | None,
) -> list[Bucket]:
    """Return the repository's own bucket, the provider's, and all that could cover a container."""
    places = {
        (location.platform, location.bucket)
        for location in screen_all(containers)
        if isinstance(location, Location)
    }
    if not places and provider is None:
        return [entry.bucket]
    own = (entry.bucket.organisation, entry.bucket.name)
    behind = (provider.organisation, provider.bucket) if provider else ("", "")
    if len(places) == 1 and provider is None:
        ((platform, bucket_name),) = places
        matches = connection.execute(
            _BUCKETS_AT_PLACE, {"platform": platform, "bucket": bucket_name}
        )
    else:
        choice = {
            "platforms": sorted({platform for platform, _ in places}),
            "buckets": sorted({bucket for _, bucket in places}),
            "organisation": behind[0],
            "name": behind[1],
        }
        matches = connection.execute(_BUCKETS, choice)
    others = [
        bucket
        for bucket in rows.records_of(Bucket, matches)
        if (bucket.platform, bucket.bucket) in places
        or (bucket.organisation, bucket.name) == behind
    ]
    return [entry.bucket, *(b for b in others if (b.organisation, b.name) != own)]


def load_offers(
    connection: Connection, repository: Repository, roles: Mapping[str, Role], now: datetime
) -> Facts:
    """Return what a decision about a repository depends on, apart from its containers."""
    key = {"organisation": repository.organisation, "repository": repository.name}
    listings = rows.records_of(Listing, connection.execute(_LISTINGS, key))
    own = rows.find(
        connection,
        tables.subscriptions,
        Subscription,
        subscriber=repository.organisation,
        repository=repository.name,
        kind=SubscriptionKind.FILTERED,
    )
    subscriptions: list[Subscription] = []
    if listings:
        names = [listing.name for listing in listings]
        choice = {"provider": repository.organisation, "listings": names}
        result = connection.execute(_SUBSCRIPTIONS, choice)
        subscriptions = rows.records_of(Subscription, result)
    provider = None
    if own is not None:
        subscriptions.append(own)
        key = {"organisation": own.provider, "name": own.listing}
        behind = rows.require(connection, tables.listings, Listing, **key)
        listings.append(behind)
        key = {"organisation": behind.organisation, "name": behind.repository}
        provider = rows.find(connection, tables.repositories, Repository, **key)
    return Facts(
        now,
        roles,
        repository,
        listings=tuple(listings),
        subscriptions=tuple(subscriptions),
        provider=provider,
    )


def load_world(connection: Connection, now: datetime, *, allows_anonymous: bool = True) -> World:
    """Return the whole service, to decide for everybody at once."""
    return World(
        now=now,
        people=rows.find_all(connection, tables.people, Person),
        members=rows.find_all(connection, tables.members, Member),
        buckets=rows.find_all(connection, tables.buckets, Bucket),
        repositories=rows.find_all(connection, tables.repositories, Repository),
        containers={name: tuple(of) for name, of in all_containers(connection).items()},
        policies=rows.find_all(connection, tables.policies, Policy),
        listings=rows.find_all(connection, tables.listings, Listing),
        subscriptions=rows.find_all(connection, tables.subscriptions, Subscription),
        allows_anonymous=allows_anonymous,
    )
