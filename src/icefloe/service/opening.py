"""Opening a repository: one request, whole or not at all.

The service reads the repository's configuration with a credential of its own, which is for this
repository only. Every container must have a grant. Only then credentials are made, all at the same
time: one for the repository, and one for all containers in the same bucket.

Nearly always, the configuration is the one that was seen last. So the containers seen last are
decided about first. If all of them have a grant, the credentials are made while the configuration
is read. A configuration that has changed is decided about again; credentials that it does not ask
for are handed out to nobody.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from icefloe.catalog.model import Bucket, BucketState, DeclaredContainer, Person, PersonKind
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
from icefloe.service.database.assets import last_containers, set_containers
from icefloe.service.database.facts import Entry, load_facts
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

WORKER: Final = Person("icefloe-service", PersonKind.SERVICE)
"""In whose name the service itself reads and writes."""
_READING_SECONDS: Final = 10.0
"""How long the configuration of a repository may take to be read."""
_ANONYMOUS: Final = Minted(CredentialAnswer("anonymous"), is_new=False)
_REFUSALS: Final = frozenset({400, 401, 403})
"""What stores answer to a credential that they do not accept."""


class Opened(Record):
    """The answer to a request, and what the audit keeps of it."""

    answer: OpenAnswer
    verdict: Verdict
    details: dict[str, Any]


type _Share = tuple[str, str, bool]
"""What containers have in common whose credential may be the same: bucket, and right to list."""


class _Plan(Record):
    """The grants that a repository is opened with."""

    own: Grant
    containers: tuple[Grant | None, ...]
    """In the order of the verdict; None for public data."""


class Opener:
    """Opens repositories of a service."""

    def __init__(self, service: Service) -> None:
        self._service: Final = service
        self._made: Final[dict[Grant, CredentialAnswer]] = {}
        """The credentials that were made for this opener, also those that nobody gets."""

    async def open(
        self,
        actor: Actor,
        caller: Caller,
        entry: Entry,
        access: Access,
        offers: Facts,
        remembered: Facts | None = None,
        refused: Mapping[str, str] = MappingProxyType({}),
        decided: Verdict | None = None,
    ) -> Opened:
        """Return all that is needed to open a repository.

        `offers` are the facts about the repository apart from its containers, `remembered` those
        with the containers that were seen last, if they are loaded. `refused` has fingerprints of
        credentials that stores refused, by the prefix of the container; that of the repository
        itself has the prefix ''. `decided` is the verdict on the remembered facts, if it is known.
        Raise `AccessDeniedError` if any container has no grant.
        """
        require_proven(entry.bucket)
        verdict = decided
        if verdict is None or not verdict.allowed:
            # Before anything is minted: may they do this at all, whatever the containers are?
            allowed = replace(offers, buckets=(entry.bucket,))
            self._require(entry, _decide(actor, entry, access, allowed))
        if verdict is None:
            if remembered is None:
                remembered = await self._service.database.run(self.facts_of, entry, None, offers)
            verdict = _decide(actor, entry, access, remembered)
        plan = self._plan(entry, verdict, caller, access)
        suspects = _suspects(plan, verdict, refused)
        # Nothing is granted unless everything is, and nothing of what was never looked at.
        is_granted = verdict.allowed and entry.config_version is not None
        reading, credentials = await asyncio.gather(
            _outcome(self._read(entry, caller)),
            self._mint_all(suspects if is_granted else {}, caller),
        )
        seen, ended = _result(reading)
        if seen.version is None and access is Access.READ:
            problem = "there is no repository in the place that the service knows"
            raise RepositoryNotFoundError(problem)
        if seen.containers is not None and seen.version != entry.config_version:
            facts = await self._service.database.run(self._remember, entry, seen, offers)
            verdict = _decide(actor, entry, access, facts)
            plan = self._plan(entry, verdict, caller, access)
            suspects = _suspects(plan, verdict, refused)
        self._require(entry, verdict)
        for grant in suspects:
            if ended and grant.bucket == entry.bucket:  # the store may have ended all of them
                suspects[grant].add(ended)
                credentials.pop(grant, None)
        others = {grant: suspects[grant] for grant in suspects if grant not in credentials}
        credentials |= await self._mint_all(others, caller)
        own = _result(credentials[plan.own])
        minted = [_result(credentials[grant]) if grant else _ANONYMOUS for grant in plan.containers]
        answers = tuple(
            _container_answer(granted, credential.credential)
            for granted, credential in zip(verdict.granted, minted, strict=True)
        )
        ends = [m.credential.expires_at for m in (own, *minted) if m.credential.expires_at]
        lives = [m.seconds_left for m in (own, *minted) if m.seconds_left is not None]
        refresh = Refresh(
            f"{self._service.settings.url}/api/v1/repos/{entry.repository.full_name}/credentials",
            min(ends) - MARGIN if ends else None,
            min(lives, default=None),
        )
        store = store_answer(entry.bucket, entry.bucket.prefix + entry.repository.prefix)
        answer = OpenAnswer(entry.repository, seen.version, store, own.credential, answers, refresh)
        details = _audited(access, own, verdict, minted)
        reader = self._own_grant(entry, WORKER.name, Access.READ)
        if (reader_credential := self._made.get(reader)) is not None:
            details["read_until"] = _end_of(reader_credential)
        if withheld := self.withheld({reader, *suspects}):
            details["withheld"] = withheld
        return Opened(answer, verdict, details)

    # The configuration

    async def _read(self, entry: Entry, caller: Caller) -> tuple[SeenConfiguration, str | None]:
        """Read the configuration with a credential of the service's own.

        Return also the fingerprint of the credential that was kept for this, if the store has
        ended it.
        """
        grant = self._own_grant(entry, WORKER.name, Access.READ)
        minted = await self._credential(grant, caller)
        try:
            return await self._read_with(minted.credential, entry, grant), None
        except StorageError as error:
            if minted.is_new or error.context.get("status") not in _REFUSALS:
                raise
        # The store has ended the credential that was kept: another one decides.
        ended = minted.credential.fingerprint
        new = await self._credential(grant, caller, {ended})
        return await self._read_with(new.credential, entry, grant), ended

    async def _read_with(
        self, credential: CredentialAnswer, entry: Entry, grant: Grant
    ) -> SeenConfiguration:
        return await self._service.rounds.ask(
            ("configuration", grant, entry.config_version, credential.fingerprint),
            lambda: self._read_now(credential, entry),
        )

    async def _read_now(self, credential: CredentialAnswer, entry: Entry) -> SeenConfiguration:
        store = store_answer(entry.bucket, entry.bucket.prefix + entry.repository.prefix)
        reader = StoreClient(self._service.client, store, credential)
        try:
            async with asyncio.timeout(_READING_SECONDS):
                return await read_configuration(reader, entry.config_version)
        except RepositoryNotFoundError:
            return SeenConfiguration(None, ())  # perhaps it is to be created
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
                containers = last_containers(connection, repository)
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

    def _require(self, entry: Entry, verdict: Verdict) -> None:
        if verdict.missing:
            name = entry.repository.full_name
            raise _refusal(self._service.settings.url, name, verdict.missing)
        if not verdict.allowed:
            raise AccessDeniedError("; ".join(verdict.reasons))

    # Credentials

    def _grant(
        self,
        bucket: Bucket,
        prefixes: Sequence[str],
        person: str,
        access: Access = Access.READ,
        *,
        may_list: bool = True,
    ) -> Grant:
        seconds = 60 * self._service.settings.credential_minutes
        return Grant(bucket, tuple(prefixes), person, access, may_list, seconds)

    def _own_grant(self, entry: Entry, person: str, access: Access) -> Grant:
        """Return the grant for a repository itself."""
        prefix = entry.bucket.prefix + entry.repository.prefix
        return self._grant(entry.bucket, (prefix,), person, access)

    def _plan(self, entry: Entry, verdict: Verdict, caller: Caller, access: Access) -> _Plan:
        """Return the grants for a repository and its containers.

        Containers in one bucket share a grant, as far as one credential can be for all of them.
        """
        person = caller.person.name
        buckets: dict[_Share, Bucket] = {}
        prefixes: defaultdict[_Share, set[str]] = defaultdict(set)
        for granted in verdict.granted:
            if granted.bucket is not None:
                share = _share_of(granted, granted.bucket)
                buckets[share] = granted.bucket
                prefixes[share].add(granted.location.prefix)
        grants: dict[tuple[_Share, str], Grant] = {}
        for share, bucket in buckets.items():
            whole = self._grant(bucket, sorted(prefixes[share]), person, may_list=share[-1])
            for part in self._service.broker.divide(whole):
                grants |= {(share, prefix): part for prefix in part.prefixes}
        containers = tuple(
            grants[_share_of(granted, granted.bucket), granted.location.prefix]
            if granted.bucket is not None
            else None
            for granted in verdict.granted
        )
        return _Plan(self._own_grant(entry, person, access), containers)

    async def _mint_all(
        self, grants: Mapping[Grant, Collection[str]], caller: Caller
    ) -> dict[Grant, Minted | IcefloeError]:
        """Return credentials for grants; those that are not kept are made at the same time.

        With each grant come the fingerprints of credentials that the store refused.
        """
        credentials: dict[Grant, Minted | IcefloeError] = {}
        missing: list[Grant] = []
        for grant, refused in grants.items():
            if (former := self._service.broker.kept(grant, refused)) is None:
                missing.append(grant)
            else:
                credentials[grant] = former
        minted = await asyncio.gather(
            *(_outcome(self._credential(grant, caller, grants[grant])) for grant in missing)
        )
        return credentials | dict(zip(missing, minted, strict=True))

    def withheld(self, used: Collection[Grant] = ()) -> list[dict[str, str | None]]:
        """Return what the audit keeps of credentials that were made, but not for the answer."""
        return [
            {
                "place": f"{grant.bucket.organisation}/{grant.bucket.name}/{prefix}",
                "until": _end_of(credential),
            }
            for grant, credential in self._made.items()
            if grant not in used
            for prefix in grant.prefixes
        ]

    async def place_credential(
        self,
        bucket: Bucket,
        prefix: str,
        caller: Caller,
        access: Access,
        refused: Collection[str] = (),
    ) -> CredentialAnswer:
        """Return a credential for a part of a bucket, for a job whose right was checked before.

        `refused` has the fingerprints of credentials that the store refused.
        """
        require_proven(bucket)
        grant = self._grant(bucket, (prefix,), caller.person.name, access)
        return (await self._credential(grant, caller, refused)).credential

    async def _credential(
        self, grant: Grant, caller: Caller, refused: Collection[str] = ()
    ) -> Minted:
        minted = await self._service.credential(grant, caller.person.name, refused)
        if minted.is_new:
            self._made[grant] = minted.credential
        return minted


def _decide(actor: Actor, entry: Entry, access: Access, facts: Facts) -> Verdict:
    writes = access is Access.WRITE
    action = Action.WRITE_REPOSITORY if writes else Action.OPEN_REPOSITORY
    resource = Resource(entry.repository.organisation, entry.repository.name)
    return decide(actor, action, resource, facts)


async def _outcome[T](work: Awaitable[T]) -> T | IcefloeError:
    """Return what work returns, or the error that it raises."""
    try:
        return await work
    except IcefloeError as error:
        return error


def _result[T](outcome: T | IcefloeError) -> T:
    """Return the result of work; raise the error if it had none."""
    if isinstance(outcome, IcefloeError):
        raise outcome
    return outcome


def _share_of(granted: Granted, bucket: Bucket) -> _Share:
    return bucket.organisation, bucket.name, granted.may_list


def _suspects(plan: _Plan, verdict: Verdict, refused: Mapping[str, str]) -> dict[Grant, set[str]]:
    """Return the grants of a plan with the fingerprints of what stores refused of each.

    `refused` has them by the prefix of the container.
    """
    suspects: dict[Grant, set[str]] = {plan.own: {refused[""]} if "" in refused else set()}
    for granted, grant in zip(verdict.granted, plan.containers, strict=True):
        if grant is not None:
            of_grant = suspects.setdefault(grant, set())
            if refused and (fingerprint := refused.get(prefix_of(granted))) is not None:
                of_grant.add(fingerprint)
    return suspects


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
    prefix = prefix_of(granted)
    return ContainerAnswer(prefix, container.name, store, credential, source, granted.difference)


def prefix_of(granted: Granted) -> str:
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


def _end_of(credential: CredentialAnswer) -> str | None:
    return str(credential.expires_at) if credential.expires_at else None


def _audited(
    access: Access, own: Minted, verdict: Verdict, minted: Sequence[Minted]
) -> dict[str, Any]:
    """Return what the audit keeps: grants and their ends, never a credential."""

    def told(source: str, credential: Minted) -> dict[str, Any]:
        return {"by": source, "until": _end_of(credential.credential), "new": credential.is_new}

    containers = {
        granted.container.url_prefix: told(f"{granted.kind} {granted.source}".strip(), credential)
        for granted, credential in zip(verdict.granted, minted, strict=True)
    }
    return {"access": access.value, "own": told("repository", own), "containers": containers}
