"""Filtered subscriptions: repositories of manifests that follow a part of another repository.

The subscriber's repository has references to the provider's chunk objects, by a name that the
service binds when the repository is opened. The service makes it, with a credential that reads the
provider's repository and another that writes the subscriber's: nobody else ever needs both.

`derivation` makes and updates its contents, `windows` finds what a range of a coordinate means.
"""

import asyncio
import secrets as random
import weakref
from collections.abc import Callable
from typing import Any, Final

from icefloe.catalog.model import (
    Bucket,
    Listing,
    Person,
    PersonKind,
    Role,
    Subscription,
    SubscriptionKind,
)
from icefloe.catalog.stores import container_of, credentials_of, storage_of
from icefloe.catalog.wire import Access, ContainerAnswer, CredentialAnswer, FollowAnswer, OpenAnswer
from icefloe.config import RepositoryConfig
from icefloe.errors import (
    AccessDeniedError,
    ErrorKind,
    InvalidInputError,
    NotFoundError,
)
from icefloe.records import Record
from icefloe.service.database import rows, tables
from icefloe.service.database.accounts import Caller
from icefloe.service.database.facts import Entry, load_entry, load_offers
from icefloe.service.derivation import Provider, Side, derive
from icefloe.service.domain.decide import PROVIDER_CONTAINER, Actor, is_living
from icefloe.service.domain.locations import bucket_location, location_url
from icefloe.service.opening import Opener, store_answer
from icefloe.service.progress import Progress
from icefloe.service.runtime import Service
from icefloe.storage import Storage

_PREFIX: Final = f"vcc://{PROVIDER_CONTAINER}/"
WORKER: Final = Person("icefloe-service", PersonKind.SERVICE)


class FollowInputs(Record):
    """The inputs of an update."""

    subscription: Subscription
    listing: Listing
    provider: Entry
    subscriber: Entry


async def follow(
    service: Service, identifier: str, progress: Progress | None = None
) -> FollowAnswer:
    """Bring the repository of a filtered subscription to the provider's newest version."""
    job = await asyncio.to_thread(load_follow, service, identifier)
    source, containers = await reading_side(service, job.provider)
    config = RepositoryConfig.default()
    for container in (_provider_container(job.provider), *containers):
        if container.name == PROVIDER_CONTAINER and container.prefix != _provider_url(job.provider):
            problem = f"{job.provider.repository.full_name} follows another repository itself"
            raise InvalidInputError(f"{problem}: subscribe to that one", ErrorKind.INVALID_REQUEST)
        config.set_virtual_chunk_container(container_of(container))
    target = await writing_side(service, job.subscriber, config)
    answer = await asyncio.to_thread(_follow, job, source, target, progress)
    await asyncio.to_thread(_remember, service, identifier, answer.version)
    return answer


def load_follow(service: Service, identifier: str) -> FollowInputs:
    """Load what an update depends on; raise an error if the subscription does not live."""
    now = service.clock()
    with service.database.reading() as connection:
        key = {"id": identifier, "kind": SubscriptionKind.FILTERED}
        subscription = rows.require(connection, tables.subscriptions, Subscription, **key)
        if not is_living(subscription, now):
            problem = f"the subscription {identifier} is {subscription.state}, or at its end"
            raise AccessDeniedError(f"{problem}: ask admins of {subscription.provider}")
        key = {"organisation": subscription.provider, "name": subscription.listing}
        listing = rows.require(connection, tables.listings, Listing, **key)
        provider = load_entry(connection, listing.organisation, listing.repository)
        subscriber = load_entry(connection, subscription.subscriber, subscription.repository or "")
    if provider is None or subscriber is None:
        problem = "the repository of the provider or of the subscriber does not exist any more"
        raise NotFoundError(problem, ErrorKind.ENTRY_NOT_FOUND)
    return FollowInputs(subscription, listing, provider, subscriber)


def _remember(service: Service, identifier: str, version: str) -> None:
    table = tables.subscriptions
    query = table.update().where(table.c.id == identifier)
    with service.database.writing() as connection:
        values = {"followed_version": version, "followed_at": service.clock()}
        connection.execute(query.values(values))


async def reading_side(service: Service, entry: Entry) -> tuple[Side, tuple[ContainerAnswer, ...]]:
    """Open a repository for reading as a member of its organisation would."""
    caller = Caller(WORKER, {entry.repository.organisation: Role.READER})
    actor, now = Actor(WORKER.name, PersonKind.SERVICE), service.clock()

    def load() -> Any:
        with service.database.reading() as connection:
            return load_offers(connection, entry.repository, caller.roles, now)

    offers = await asyncio.to_thread(load)
    opened = (await Opener(service).open(actor, caller, entry, Access.READ, offers)).answer
    return side_of(opened), opened.containers


def side_of(answer: OpenAnswer) -> Side:
    """Return what an answer of the service lets one open: its containers, and no others."""
    config = RepositoryConfig(virtual_chunk_containers={})
    credentials = {}
    for container in answer.containers:
        config.set_virtual_chunk_container(container_of(container))
        credentials[container.prefix] = credentials_of(
            container.credential, container.store.platform, None
        )
    return Side(storage_of(answer.store, answer.credential), config, credentials)


async def writing_side(service: Service, entry: Entry, config: RepositoryConfig) -> Side:
    """Open a repository for writing in the name of the service itself."""
    prefix = entry.bucket.prefix + entry.repository.prefix
    return Side(await writing_storage(service, entry.bucket, prefix), config, {})


async def writing_storage(service: Service, bucket: Bucket, prefix: str) -> Storage:
    """Return a part of a bucket for a job of the service that writes there.

    Its credential is renewed for as long as the job lasts, with every check made again.
    """
    caller = Caller(WORKER, {bucket.organisation: Role.WRITER})
    loop, key = asyncio.get_running_loop(), random.token_hex(8)

    def load() -> Bucket:
        names = {"organisation": bucket.organisation, "name": bucket.name}
        with service.database.reading() as connection:
            return rows.require(connection, tables.buckets, Bucket, **names)

    async def mint(refused: str | None = None) -> CredentialAnswer:
        now = await asyncio.to_thread(load)
        return await Opener(service).place_credential(now, prefix, caller, Access.WRITE, refused)

    first = await mint()
    _RENEWALS[key] = lambda refused: asyncio.run_coroutine_threadsafe(mint(refused), loop).result()
    storage = storage_of(store_answer(bucket, prefix), first, _Renewal(key))
    weakref.finalize(storage, _RENEWALS.pop, key, None)
    return storage


_RENEWALS: Final[dict[str, Callable[[str | None], CredentialAnswer]]] = {}


class _Renewal:
    """Finds a function of this process that renews a credential, as functions cannot travel."""

    def __init__(self, key: str) -> None:
        self._key = key

    def __call__(self) -> CredentialAnswer:
        return _RENEWALS[self._key](None)

    def replace(self, is_refused: Callable[[CredentialAnswer], bool]) -> CredentialAnswer:
        """Return another credential than one that the store refused."""
        credential = self()
        return (
            _RENEWALS[self._key](credential.fingerprint) if is_refused(credential) else credential
        )


def _provider_url(entry: Entry) -> str:
    return location_url(bucket_location(entry.bucket).below(f"{entry.repository.prefix}chunks/"))


def _provider_container(entry: Entry) -> ContainerAnswer:
    prefix = f"{entry.bucket.prefix}{entry.repository.prefix}chunks/"
    store, nothing = store_answer(entry.bucket, prefix), CredentialAnswer("anonymous")
    return ContainerAnswer(_provider_url(entry), PROVIDER_CONTAINER, store, nothing, "")


def _follow(
    job: FollowInputs, source: Side, target: Side, progress: Progress | None
) -> FollowAnswer:
    name = job.provider.repository.full_name
    filters = (job.listing.filter, job.subscription.filter)
    message = f"Follow {job.subscription.provider}/{job.subscription.listing}"
    return derive(Provider(name, source.open()), target, *filters, _PREFIX, message, progress)
