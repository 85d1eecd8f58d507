"""Opening a repository: one request, whole or not at all.

The service reads the repository's configuration with a credential for this repository only, while
it loads the policies that could matter. Every container must have a grant. Only then credentials
are made, for all containers at the same time.
"""

import asyncio
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from icefloe.catalog.model import Bucket, BucketState, DeclaredContainer
from icefloe.catalog.wire import (
    Access,
    ContainerAnswer,
    CredentialAnswer,
    MissingGrant,
    OpenAnswer,
    Refresh,
    StoreAnswer,
)
from icefloe.errors import (
    AccessDeniedError,
    ErrorKind,
    IcefloeError,
    RepositoryNotFoundError,
    StorageError,
)
from icefloe.records import Record, replace
from icefloe.service.configuration import SeenConfiguration, read_configuration
from icefloe.service.database.accounts import Caller
from icefloe.service.database.assets import containers_of, set_containers
from icefloe.service.database.facts import Entry, load_facts
from icefloe.service.database.tables import containers as container_table
from icefloe.service.domain.actions import Action
from icefloe.service.domain.decide import (
    Actor,
    Facts,
    Granted,
    GrantKind,
    Missing,
    Resource,
    Verdict,
    decide,
)
from icefloe.service.domain.locations import location_url
from icefloe.service.runtime import Service
from icefloe.service.vending.broker import MARGIN, Minted
from icefloe.service.vending.grants import Grant
from icefloe.service.vending.objects import StoreClient

_READING_SECONDS: Final = 10.0
"""How long the configuration of a repository may take to be read."""
_ANONYMOUS: Final = CredentialAnswer("anonymous")
_REFUSALS: Final = frozenset({400, 401, 403})
"""What stores answer to a credential that they do not accept."""


class Opened(Record):
    """The answer to a request, and what the audit keeps of it."""

    answer: OpenAnswer
    verdict: Verdict
    details: dict[str, Any]


class Opener:
    """Opens repositories of a service."""

    def __init__(self, service: Service) -> None:
        self._service: Final = service

    async def open(
        self,
        actor: Actor,
        caller: Caller,
        entry: Entry,
        access: Access,
        offers: Facts,
        refused: Mapping[str, str] = MappingProxyType({}),
    ) -> Opened:
        """Return all that is needed to open a repository.

        `offers` are the facts about the repository apart from its containers. `refused` has
        fingerprints of credentials that stores refused, by the prefix of the container; that of
        the repository itself has the prefix ''. Raise `AccessDeniedError` if any container has no
        grant.
        """
        require_proven(entry.bucket)
        # Before anything is minted: may they do this at all?
        self._decide(actor, entry, access, replace(offers, buckets=(entry.bucket,)))
        prefix = entry.bucket.prefix + entry.repository.prefix
        grant = self._grant(entry.bucket, prefix, caller, access)
        (own, seen), facts = await asyncio.gather(
            self._read(entry, grant, refused.get("")),
            asyncio.to_thread(self.facts_of, entry, None, offers),
        )
        if seen.containers is not None and seen.version != entry.config_version:
            facts = await asyncio.to_thread(self._remember, entry, seen, offers)
        verdict = self._decide(actor, entry, access, facts)
        minted = await asyncio.gather(
            *(
                self._mint(granted, caller, refused.get(_prefix_of(granted)))
                for granted in verdict.granted
            )
        )
        answers = tuple(
            _container_answer(granted, credential.credential)
            for granted, credential in zip(verdict.granted, minted, strict=True)
        )
        store = store_answer(entry.bucket, prefix)
        ends = [m.credential.expires_at for m in (own, *minted) if m.credential.expires_at]
        lives = [m.seconds_left for m in (own, *minted) if m.seconds_left is not None]
        refresh = Refresh(
            f"{self._service.settings.url}/api/v1/repos/{entry.repository.full_name}/credentials",
            min(ends) - MARGIN if ends else None,
            min(lives, default=None),
        )
        answer = OpenAnswer(entry.repository, seen.version, store, own.credential, answers, refresh)
        return Opened(answer, verdict, _audited(access, own, verdict, minted))

    # The configuration

    async def _read(
        self, entry: Entry, grant: Grant, refused: str | None
    ) -> tuple[Minted, SeenConfiguration]:
        """Make the credential of the repository, and read its configuration with it."""
        own = await self._credential(grant, refused)
        try:
            return own, await self._read_with(own, entry, grant)
        except StorageError as error:
            if own.is_new or error.context.get("status") not in _REFUSALS:
                raise
        # The store has ended the credential that was kept: another one decides.
        own = await self._credential(grant, own.credential.fingerprint)
        return own, await self._read_with(own, entry, grant)

    async def _read_with(self, own: Minted, entry: Entry, grant: Grant) -> SeenConfiguration:
        store = store_answer(entry.bucket, grant.prefix)
        reader = StoreClient(self._service.client, store, own.credential)
        try:
            async with asyncio.timeout(_READING_SECONDS):
                return await read_configuration(reader, entry.config_version)
        except RepositoryNotFoundError:
            if grant.access is Access.READ:
                raise
            return SeenConfiguration(None, ())  # to be created by the writer
        except TimeoutError:
            problem = f"the bucket of {entry.repository.full_name} did not answer in time"
            raise StorageError(problem, retryable=True) from None

    def facts_of(
        self, entry: Entry, containers: Sequence[DeclaredContainer] | None, offers: Facts
    ) -> Facts:
        """Load what the decision depends on, with the containers last seen unless others are."""
        repository, settings = entry.repository, self._service.settings
        with self._service.database.reading() as connection:
            if containers is None:
                conditions = (
                    container_table.c.organisation == repository.organisation,
                    container_table.c.repository == repository.name,
                )
                seen = containers_of(connection, *conditions)
                containers = seen.get(repository.full_name, [])
            return load_facts(
                connection,
                entry,
                containers,
                offers,
                allows_anonymous=settings.allows_anonymous,
            )

    def _remember(self, entry: Entry, seen: SeenConfiguration, offers: Facts) -> Facts:
        """Keep the containers of a new configuration, and load the facts for them."""
        containers = seen.containers or ()
        with self._service.database.writing() as connection:
            set_containers(connection, entry.repository, seen.version, containers)
        return self.facts_of(entry, containers, offers)

    # The decision

    def _decide(self, actor: Actor, entry: Entry, access: Access, facts: Facts) -> Verdict:
        repository = entry.repository
        writes = access is Access.WRITE
        action = Action.WRITE_REPOSITORY if writes else Action.OPEN_REPOSITORY
        resource = Resource(repository.organisation, repository.name)
        verdict = decide(actor, action, resource, facts)
        if verdict.missing:
            raise _refusal(self._service.settings.url, repository.full_name, verdict.missing)
        if not verdict.allowed:
            raise AccessDeniedError("; ".join(verdict.reasons))
        return verdict

    # Credentials

    def _grant(
        self,
        bucket: Bucket,
        prefix: str,
        caller: Caller,
        access: Access = Access.READ,
        *,
        may_list: bool = True,
    ) -> Grant:
        seconds = 60 * self._service.settings.credential_minutes
        return Grant(bucket, prefix, caller.person.name, access, may_list, seconds)

    async def _mint(self, granted: Granted, caller: Caller, refused: str | None) -> Minted:
        if granted.bucket is None:
            return Minted(_ANONYMOUS, is_new=False)
        prefix = granted.location.prefix
        grant = self._grant(granted.bucket, prefix, caller, may_list=granted.may_list)
        return await self._credential(grant, refused)

    async def own_credential(
        self, entry: Entry, caller: Caller, access: Access
    ) -> CredentialAnswer:
        """Return a credential for a repository itself, for a job whose right was checked before."""
        prefix = entry.bucket.prefix + entry.repository.prefix
        return await self.place_credential(entry.bucket, prefix, caller, access)

    async def place_credential(
        self, bucket: Bucket, prefix: str, caller: Caller, access: Access
    ) -> CredentialAnswer:
        """Return a credential for a part of a bucket, for a job whose right was checked before."""
        require_proven(bucket)
        return (await self._credential(self._grant(bucket, prefix, caller, access))).credential

    async def _credential(self, grant: Grant, refused: str | None = None) -> Minted:
        bucket, service = grant.bucket, self._service
        external_id = service.external_id(bucket.organisation)
        return await service.broker.get(
            grant, lambda: service.bucket_secret(bucket), external_id, refused=refused
        )


def store_answer(bucket: Bucket, prefix: str) -> StoreAnswer:
    """Return the settings of a registered bucket that a client needs."""
    return StoreAnswer(
        bucket.platform,
        bucket.bucket,
        prefix,
        bucket.region,
        bucket.endpoint,
        bucket.path_style,
        bucket.allow_http,
        bucket.account,
    )


def _container_answer(granted: Granted, credential: CredentialAnswer) -> ContainerAnswer:
    container, location = granted.container, granted.location
    if granted.bucket is None:
        store = StoreAnswer(
            location.platform, location.bucket, location.prefix, account=container.account
        )
        source = GrantKind.ANONYMOUS.value
    else:
        store = store_answer(granted.bucket, location.prefix)
        source = f"{granted.kind} {granted.source} of {granted.bucket.organisation}"
    prefix = _prefix_of(granted)
    return ContainerAnswer(prefix, container.name, store, credential, source, granted.difference)


def _prefix_of(granted: Granted) -> str:
    """Return the prefix by which clients know a container."""
    # The name of a provider's container is bound now: the stored prefix says nothing.
    is_bound = granted.kind is GrantKind.SUBSCRIPTION
    return location_url(granted.location) if is_bound else granted.container.url_prefix


def require_proven(bucket: Bucket) -> None:
    """Raise `AccessDeniedError` for a bucket that no credential is made for at present."""
    if bucket.state is BucketState.SUSPENDED:
        problem = f"the bucket {bucket.name} of {bucket.organisation} is suspended"
        raise AccessDeniedError(f"{problem}: ask admins of {bucket.organisation} to resume it")
    if bucket.state is not BucketState.PROVEN:
        problem = f"the bucket {bucket.name} of {bucket.organisation} is {bucket.state}"
        advice = f"ask admins of {bucket.organisation} to let the service probe it"
        raise AccessDeniedError(f"{problem} ({bucket.state_reason}): {advice}")


def _refusal(url: str, name: str, missing: Sequence[Missing]) -> IcefloeError:
    grants = tuple(
        MissingGrant(
            grant.container,
            grant.reason,
            grant.owner,
            grant.who,
            grant.what_to_do,
            f"{url}/requests/new?repository={name}" if grant.owner else None,
        )
        for grant in missing
    )
    lines = [f"  {g.container}: {g.reason}; {g.who}: {g.what_to_do}" for g in grants]
    text = "\n".join([f"{name} refers to data that you may not read:", *lines])
    return AccessDeniedError(text, ErrorKind.VIRTUAL_ACCESS_REQUIRED, missing=grants)


def _audited(
    access: Access, own: Minted, verdict: Verdict, minted: Sequence[Minted]
) -> dict[str, Any]:
    """Return what the audit keeps: grants and their ends, never a credential."""

    def told(source: str, credential: Minted) -> dict[str, Any]:
        end = credential.credential.expires_at
        return {"by": source, "until": str(end) if end else None, "new": credential.is_new}

    containers = {
        granted.container.url_prefix: told(f"{granted.kind} {granted.source}".strip(), credential)
        for granted, credential in zip(verdict.granted, minted, strict=True)
    }
    return {"access": access.value, "own": told("repository", own), "containers": containers}
