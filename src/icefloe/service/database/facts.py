"""The facts that decisions depend on, loaded from the database."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlalchemy import Connection, and_, or_, select

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
from icefloe.service.database.assets import containers_of
from icefloe.service.domain.decide import Facts
from icefloe.service.domain.locations import Location, screen_all
from icefloe.service.domain.world import World


class Entry(Record):
    """A repository with its bucket, as the first step of opening it needs them."""

    repository: Repository
    bucket: Bucket
    config_version: str | None
    """The version of the configuration whose containers the database knows."""


def load_entry(connection: Connection, organisation: str, name: str) -> Entry | None:
    """Return a repository and its bucket; None if there is no such repository."""
    repositories, buckets = tables.repositories, tables.buckets
    joined = repositories.join(
        buckets,
        and_(
            repositories.c.organisation == buckets.c.organisation,
            repositories.c.bucket == buckets.c.name,
        ),
    )
    query = (
        select(repositories, *(column.label(f"bucket_{column.name}") for column in buckets.c))
        .select_from(joined)
        .where(repositories.c.organisation == organisation, repositories.c.name == name)
    )
    row = connection.execute(query).first()
    if row is None:
        return None
    values = row._asdict()
    of_bucket = {column.name: values[f"bucket_{column.name}"] for column in buckets.c}
    return Entry(
        rows.convert(Repository, values), rows.convert(Bucket, of_bucket), row.config_version
    )


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
    table = tables.policies
    keys = [
        and_(table.c.organisation == bucket.organisation, table.c.bucket == bucket.name)
        for bucket in buckets
    ]
    return replace(
        offers,
        containers=tuple(containers),
        buckets=tuple(buckets),
        policies=tuple(rows.find_all(connection, table, Policy, or_(*keys))),
        allows_anonymous=allows_anonymous,
    )


def _load_buckets(
    connection: Connection,
    entry: Entry,
    containers: Sequence[DeclaredContainer],
    provider: Repository | None,
) -> list[Bucket]:
    """Return the repository's own bucket, the provider's, and all that could cover a container."""
    table = tables.buckets
    places = {
        (location.platform, location.bucket)
        for location in screen_all(containers)
        if isinstance(location, Location)
    }
    conditions = [
        and_(table.c.platform == platform, table.c.bucket == bucket) for platform, bucket in places
    ]
    if provider is not None:
        of_provider = and_(
            table.c.organisation == provider.organisation, table.c.name == provider.bucket
        )
        conditions.append(of_provider)
    if not conditions:
        return [entry.bucket]
    own = (entry.bucket.organisation, entry.bucket.name)
    others = rows.find_all(connection, table, Bucket, or_(*conditions))
    return [entry.bucket, *(b for b in others if (b.organisation, b.name) != own)]


def load_offers(
    connection: Connection, repository: Repository, roles: Mapping[str, Role], now: datetime
) -> Facts:
    """Return what a decision about a repository depends on, apart from its containers."""
    listing_table, subscription_table = tables.listings, tables.subscriptions
    listings = rows.find_all(
        connection,
        listing_table,
        Listing,
        listing_table.c.organisation == repository.organisation,
        listing_table.c.repository == repository.name,
    )
    own = rows.find(
        connection,
        subscription_table,
        Subscription,
        subscriber=repository.organisation,
        repository=repository.name,
        kind=SubscriptionKind.FILTERED,
    )
    subscriptions: list[Subscription] = []
    if listings:
        of_listings = [
            and_(
                subscription_table.c.provider == listing.organisation,
                subscription_table.c.listing == listing.name,
            )
            for listing in listings
        ]
        is_direct = subscription_table.c.kind == SubscriptionKind.DIRECT
        subscriptions = rows.find_all(
            connection, subscription_table, Subscription, is_direct, or_(*of_listings)
        )
    provider = None
    if own is not None:
        subscriptions.append(own)
        key = {"organisation": own.provider, "name": own.listing}
        behind = rows.require(connection, listing_table, Listing, **key)
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
        containers={name: tuple(of) for name, of in containers_of(connection).items()},
        policies=rows.find_all(connection, tables.policies, Policy),
        listings=rows.find_all(connection, tables.listings, Listing),
        subscriptions=rows.find_all(connection, tables.subscriptions, Subscription),
        allows_anonymous=allows_anonymous,
    )
