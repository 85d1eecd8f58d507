"""Filtered subscriptions: repositories of manifests that follow a part of another repository.

The subscriber's repository has references to the provider's chunk objects, by a name that the
service binds when the repository is opened. The service makes it, with a credential that reads the
provider's repository and another that writes the subscriber's: nobody else ever needs both.

`derivation` makes and updates its contents, `windows` finds what a range of a coordinate means.
"""

import asyncio
import secrets as random
import weakref
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from icefloe.catalog.model import (
    Bucket,
    Listing,
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
from icefloe.service.domain.decide import PROVIDER_CONTAINER, Actor, Facts, is_living
from icefloe.service.domain.locations import bucket_location, location_url
from icefloe.service.opening import WORKER, Opener, store_answer
from icefloe.service.progress import Progress
from icefloe.service.runtime import Service
from icefloe.storage import Storage

_PREFIX: Final = f"vcc://{PROVIDER_CONTAINER}/"


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
    source, containers = await reading_side(
        service, job.provider, lambda: load_follow(service, identifier)
    )
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


async def reading_side(
    service: Service, entry: Entry, check: Callable[[], object] = lambda: None
) -> tuple[Side, tuple[ContainerAnswer, ...]]:
    """Open a repository for reading as a member of its organisation would.

    Its credentials are renewed for as long as the side is in use, with every check made again.
    `check` is one of them: it raises an error if the job may not go on.
    """
    organisation, name = entry.repository.organisation, entry.repository.name
    caller = Caller(WORKER, {organisation: Role.READER})
    actor = Actor(WORKER.name, PersonKind.SERVICE)

    def load() -> tuple[Entry, Facts]:
        with service.database.reading() as connection:
            present = load_entry(connection, organisation, name)
            if present is None:
                key = {"organisation": organisation, "name": name}
                raise rows.not_found(tables.repositories, key)
            now = service.clock()
            return present, load_offers(connection, present.repository, caller.roles, now)

    async def open_now(refused: Mapping[str, str]) -> OpenAnswer:
        present, offers = await asyncio.to_thread(load)
        opener = Opener(service)
        opened = await opener.open(actor, caller, present, Access.READ, offers, refused=refused)
        return opened.answer

    answer = await open_now({})

    async def renew(container: str | None, refused: str | None) -> CredentialAnswer:
        nonlocal answer
        after = answer.refresh.after
        if refused is not None or (after is not None and service.clock() >= after):
            await asyncio.to_thread(check)
            answer = await open_now({} if refused is None else {container or "": refused})
        return credential_in(answer, container)

    return side_of(answer, renew), answer.containers


type Renewing = Callable[[str | None, str | None], Coroutine[Any, Any, CredentialAnswer]]
"""Returns the credential of a container; another one than that with a fingerprint, if given."""


def credential_in(answer: OpenAnswer, container: str | None) -> CredentialAnswer:
    """Return the credential of a container, by prefix, or of the repository itself."""
    if (credential := answer.credential_of(container)) is not None:
        return credential
    problem = f"{answer.repo.full_name} does not refer to {container} any more"
    raise AccessDeniedError(f"{problem}: open it again")


def side_of(answer: OpenAnswer, renew: Renewing | None = None) -> Side:
    """Return what an answer of the service lets one open: its containers, and no others.

    `renew` is called in the present loop, for as long as the side is in use; without it,
    credentials are not renewed.
    """
    key, anchor = None, _Anchor()
    if renew is not None:
        key = _register(renew)
        weakref.finalize(anchor, _RENEWALS.pop, key, None)
    config = RepositoryConfig(virtual_chunk_containers={})
    credentials = {}
    for container in answer.containers:
        config.set_virtual_chunk_container(container_of(container))
        renewal = _Renewal(key, container.prefix) if key else None
        platform = container.store.platform
        credentials[container.prefix] = credentials_of(container.credential, platform, renewal)
    storage = storage_of(answer.store, answer.credential, _Renewal(key, None) if key else None)
    return Side(storage, config, credentials, anchor)


async def writing_side(service: Service, entry: Entry, config: RepositoryConfig) -> Side:
    """Open a repository for writing in the name of the service itself."""
    prefix = entry.bucket.prefix + entry.repository.prefix
    return Side(await writing_storage(service, entry.bucket, prefix), config, {})


async def writing_storage(service: Service, bucket: Bucket, prefix: str) -> Storage:
    """Return a part of a bucket for a job of the service that writes there.

    Its credential is renewed for as long as the job lasts, with every check made again.
    """
    caller = Caller(WORKER, {bucket.organisation: Role.WRITER})

    def load() -> Bucket:
        names = {"organisation": bucket.organisation, "name": bucket.name}
        with service.database.reading() as connection:
            return rows.require(connection, tables.buckets, Bucket, **names)

    async def mint(_container: str | None, refused: str | None) -> CredentialAnswer:
        now = await asyncio.to_thread(load)
        known = () if refused is None else (refused,)
        return await Opener(service).place_credential(now, prefix, caller, Access.WRITE, known)

    first, key = await mint(None, None), _register(mint)
    storage = storage_of(store_answer(bucket, prefix), first, _Renewal(key, None))
    weakref.finalize(storage, _RENEWALS.pop, key, None)
    return storage


_RENEWALS: Final[dict[str, Callable[[str | None, str | None], CredentialAnswer]]] = {}


class _Anchor:
    """Lives as long as the side of a repository: then its renewals are forgotten."""


def _register(renew: Renewing) -> str:
    """Keep a function that renews credentials in the present loop; return its key."""
    loop, key = asyncio.get_running_loop(), random.token_hex(8)

    def call(container: str | None, refused: str | None) -> CredentialAnswer:
        return asyncio.run_coroutine_threadsafe(renew(container, refused), loop).result()

    _RENEWALS[key] = call
    return key


class _Renewal:
    """Finds a function of this process that renews a credential, as functions cannot travel."""

    def __init__(self, key: str, container: str | None) -> None:
        self._key = key
        self._container = container

    def __call__(self) -> CredentialAnswer:
        return _RENEWALS[self._key](self._container, None)

    def replace(self, is_refused: Callable[[CredentialAnswer], bool]) -> CredentialAnswer:
        """Return another credential than one that the store refused."""
        credential = self()
        if not is_refused(credential):
            return credential
        return _RENEWALS[self._key](self._container, credential.fingerprint)


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
