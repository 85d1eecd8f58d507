"""The repositories that need data of an organisation: whom does a change of its bucket concern?"""

from collections.abc import Mapping

from icefloe.catalog.model import Bucket, Role
from icefloe.records import Record, replace
from icefloe.service.domain.actions import Action
from icefloe.service.domain.decide import PROVIDER_CONTAINER, Actor, decide
from icefloe.service.domain.locations import Location, bucket_location, screen_all
from icefloe.service.domain.world import World, resource_of


class Need(Record):
    """A repository that refers to data below a prefix."""

    repository: str
    containers: tuple[str, ...]
    """Its containers above or below the prefix, as its configuration writes them."""
    shares: tuple[str, ...]
    """The ids of policies that cover these containers, of subscriptions, and names of listings."""
    readers: int
    """How many people can open it now."""


class Needs(Record):
    """The repositories that need a prefix."""

    known: tuple[Need, ...]
    """Those that the actor may see."""
    others: int
    """The number of those that the actor may not know of."""


def find_needs(
    world: World, actor: Actor, roles: Mapping[str, Role], bucket: Bucket, prefix: str
) -> Needs:
    """Return the repositories of all organisations that refer to a prefix of a bucket.

    The actor learns only the names of repositories that they may see anyway.
    """
    known: list[Need] = []
    others = 0
    for name in world.repositories_with({(bucket.organisation, bucket.name)}):
        references = _references(world, name, bucket, prefix)
        if not references:
            continue
        facts = world.facts(name, roles)
        if not decide(actor, Action.SEE_REPOSITORY, resource_of(name), facts).allowed:
            others += 1
            continue
        containers = tuple(references)
        shares = dict.fromkeys(
            share
            for reference in references.values()
            for share in _shares(world, name, bucket, reference)
        )
        readers = int(world.readers([name]).sum())
        known.append(Need(name, containers, tuple(shares), readers))
    return Needs(tuple(known), others)


def _references(world: World, name: str, bucket: Bucket, prefix: str) -> dict[str, Location]:
    """Return where the containers of a repository overlap with a prefix, by their URLs."""
    area = bucket_location(bucket)
    target = area.below(prefix)
    is_home = world.repositories[name].organisation == bucket.organisation
    containers = world.containers.get(name, ())
    references: dict[str, Location] = {}
    for container, location in zip(containers, screen_all(containers), strict=True):
        if container.name == PROVIDER_CONTAINER:
            provider = world.facts(name, {}).provider
            if provider is None or (provider.organisation, provider.bucket) != (
                bucket.organisation,
                bucket.name,
            ):
                continue
            location = area.below(provider.prefix)  # noqa: PLW2901 - bound by the service
        if not isinstance(location, Location):
            continue
        # Repositories of the same organisation may name another address of the same store.
        here = replace(location, store=target.store) if is_home else location
        if target.covers(here) or here.covers(target):
            references[container.url_prefix] = here
    return references


def _shares(world: World, name: str, bucket: Bucket, location: Location) -> list[str]:
    """Return by what the owner of a bucket shares a location with the readers of a repository."""
    area, key = bucket_location(bucket), (bucket.organisation, bucket.name)
    policies = [
        policy.id
        for policy in world.policies
        if (policy.organisation, policy.bucket) == key
        and area.below(policy.prefix).covers(location)
    ]
    listings = [
        f"{listing.organisation}/{listing.name}"
        for listing in world.facts(name, {}).listings
        if listing.organisation == bucket.organisation
        for shared in listing.virtual_chunks
        if shared.bucket == bucket.name and area.below(shared.prefix).covers(location)
    ]
    subscriptions = [
        subscription.id
        for subscription in world.facts(name, {}).subscriptions
        if subscription.provider == bucket.organisation and subscription.repository is not None
    ]
    return [*policies, *listings, *subscriptions]
