"""The one decision: may somebody do something, why, and what is missing.

`decide` is a pure function of facts that were loaded before. A simulation calls it with the facts
of another world, and a test with facts that it made up.

Opening a repository asks two questions. May this person read the repository? And is every
container that the repository refers to allowed to this person by the organisation which owns the
data? A single container without an answer makes the whole verdict negative, so nobody ever gets
half of a repository.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import datetime
from enum import StrEnum
from itertools import chain
from typing import Final

from icefloe.catalog.model import (
    Bucket,
    BucketState,
    Decision,
    DeclaredContainer,
    Delegation,
    Listing,
    PersonKind,
    Policy,
    PolicyScope,
    Repository,
    RepositoryStatus,
    Role,
    Subscription,
    SubscriptionKind,
    TokenScope,
    Visibility,
)
from icefloe.records import Record
from icefloe.service.domain.actions import (
    FOR_EVERYBODY,
    FOR_OPERATORS,
    LOWEST_ROLE,
    RANK,
    Action,
)
from icefloe.service.domain.locations import (
    RESERVED_NAMES,
    Location,
    Reason,
    Refusal,
    bucket_location,
    screen_all,
)
from icefloe.service.domain.scopes import scope_allows

PROVIDER_CONTAINER: Final = f"{RESERVED_NAMES}provider"
"""The container of a filtered subscription that stands for the provider's repository."""


class Actor(Record):
    """The caller: a person or a service account, perhaps through a token with fewer rights."""

    person: str
    kind: PersonKind = PersonKind.PERSON
    operator: bool = False
    scope: TokenScope | None = None
    """What the token allows; None for somebody who logged in."""


class Resource(Record):
    """The object of an action: an organisation, or something in it."""

    organisation: str | None = None
    repository: str | None = None
    """The name within the organisation."""


class Facts(Record):
    """All facts that a decision may depend on, loaded for one actor and one resource."""

    now: datetime
    roles: Mapping[str, Role]
    """The actor's roles, by organisation."""
    repository: Repository | None = None
    containers: tuple[DeclaredContainer, ...] = ()
    buckets: tuple[Bucket, ...] = ()
    """The repository's own bucket, and all that could cover one of its containers."""
    policies: tuple[Policy, ...] = ()
    """The policies of these buckets."""
    listings: tuple[Listing, ...] = ()
    """Listings of the repository, or the one behind a filtered subscription."""
    subscriptions: tuple[Subscription, ...] = ()
    """Subscriptions to these listings."""
    provider: Repository | None = None
    """The provider's repository, if this one is a filtered subscription."""
    allows_anonymous: bool = True
    """Whether the operator lets public data be read without a policy."""
    allows_organisations: bool = False
    """Whether everybody may create organisations."""


class GrantKind(StrEnum):
    """By what a container may be read."""

    POLICY = "policy"
    SUBSCRIPTION = "subscription"
    ANONYMOUS = "anonymous"


class Granted(Record):
    """A container that may be read, and through which bucket."""

    container: DeclaredContainer
    location: Location
    kind: GrantKind
    bucket: Bucket | None = None
    """None for public data, which is read without a credential."""
    source: str = ""
    """The id of the policy or of the subscription."""
    may_list: bool = True
    """Whether the keys below the location may be listed."""
    difference: str | None = None
    """How the container's own settings differ from the bucket's, which are used."""


class Missing(Record):
    """A container that may not be read, why, and who can change that."""

    container: str
    reason: Reason
    owner: str | None
    who: str
    what_to_do: str


class Verdict(Record):
    """The answer of a decision."""

    allowed: bool
    reasons: tuple[str, ...]
    missing: tuple[Missing, ...] = ()
    granted: tuple[Granted, ...] = ()
    visible: bool = True
    """Whether the actor may know that the resource exists."""


def decide(actor: Actor, action: Action, resource: Resource, facts: Facts) -> Verdict:
    """Return whether an actor may do an action, with the reasons."""
    if not scope_allows(actor.scope, action, resource.organisation, resource.repository):
        scope_reason = f"the token's scope does not include {action} here: log in with a wider one"
        return _no(scope_reason, visible=_is_visible(actor, resource, facts))
    if action in FOR_EVERYBODY:
        return _yes("everybody who is logged in may do this")
    if action in FOR_OPERATORS and actor.operator:
        return _yes(f"{actor.person} runs this service")
    if action is Action.CREATE_ORGANISATION and facts.allows_organisations:
        if actor.kind is PersonKind.PERSON:
            return _yes("people may create organisations here")
        return _no("service accounts may not create organisations")
    if action not in LOWEST_ROLE:
        return _no("only people who run this service may do this")
    verdict = _decide_by_role(actor, action, resource, facts)
    if not verdict.allowed or action not in {Action.OPEN_REPOSITORY, Action.WRITE_REPOSITORY}:
        return verdict
    if (fault := _reaches_too_far(facts)) is not None:
        return _no(fault)
    return _decide_containers(verdict, facts)


def _yes(reason: str) -> Verdict:
    return Verdict(allowed=True, reasons=(reason,))


def _no(reason: str, *, visible: bool = True) -> Verdict:
    return Verdict(allowed=False, reasons=(reason,), visible=visible)


def _decide_by_role(actor: Actor, action: Action, resource: Resource, facts: Facts) -> Verdict:
    """Decide by the actor's role in the organisation, by visibility and by subscriptions."""
    organisation, lowest = resource.organisation or "", LOWEST_ROLE[action]
    role = facts.roles.get(organisation)
    repository = facts.repository
    if resource.repository is not None and repository is None:
        return _no("there is no such repository", visible=False)
    is_archived = repository is not None and repository.status is RepositoryStatus.ARCHIVED
    if action is Action.WRITE_REPOSITORY and is_archived:
        return _no("the repository is archived", visible=_is_visible(actor, resource, facts))
    if action is Action.WRITE_REPOSITORY and (followed := _followed(facts)) is not None:
        reason = f"the repository follows {followed}: only the service writes to it"
        return _no(reason, visible=_is_visible(actor, resource, facts))
    if role is not None and RANK[role] >= RANK[lowest]:
        return _yes(f"{actor.person} is {role} of {organisation}")
    if action is Action.SEE_LISTING and any(
        _is_offered(listing, facts) for listing in facts.listings
    ):
        return _yes("the listing is offered to them")
    if repository is not None and action in {Action.SEE_REPOSITORY, Action.OPEN_REPOSITORY}:
        if repository.visibility is Visibility.EVERYONE:
            return _yes("everybody who is logged in may read this repository")
        if (subscription := _entitling(facts, SubscriptionKind.DIRECT)) is not None:
            reason = f"{subscription.subscriber} subscribes to {subscription.listing}"
            return _yes(reason)
    reason = (
        f"{actor.person} is {role} of {organisation}, and this takes the role {lowest}"
        if role is not None
        else f"{actor.person} is not a member of {organisation}"
    )
    return _no(reason, visible=_is_visible(actor, resource, facts))


def _is_visible(actor: Actor, resource: Resource, facts: Facts) -> bool:
    """Return whether an actor may know of a resource, without any token's scope."""
    if resource.organisation is None or resource.organisation in facts.roles:
        return resource.repository is None or facts.repository is not None
    repository = facts.repository
    if resource.repository is None or repository is None:
        return False
    return (
        repository.visibility is Visibility.EVERYONE
        or _entitling(facts, SubscriptionKind.DIRECT) is not None
    )


def _entitling(facts: Facts, kind: SubscriptionKind) -> Subscription | None:
    """Return a living subscription through which the actor reads, if there is any."""
    # A part of a repository cannot be read directly: that would be all of it.
    parts = {(listing.organisation, listing.name) for listing in facts.listings if listing.filter}
    for subscription in facts.subscriptions:
        is_part = (subscription.provider, subscription.listing) in parts
        if (
            subscription.kind is kind
            and subscription.subscriber in facts.roles
            and is_living(subscription, facts.now)
            and not (is_part and kind is SubscriptionKind.DIRECT)
        ):
            return subscription
    return None


def _followed(facts: Facts) -> str | None:
    """Return the listing that a repository follows, if it is a filtered subscription."""
    for subscription in facts.subscriptions:
        if subscription.kind is SubscriptionKind.FILTERED:
            return f"{subscription.provider}/{subscription.listing}"
    return None


def _is_offered(listing: Listing, facts: Facts) -> bool:
    return "*" in listing.offered_to or not facts.roles.keys().isdisjoint(listing.offered_to)


def is_living(subscription: Subscription, now: datetime) -> bool:
    """Return whether a subscription entitles at a moment."""
    ends_at = subscription.ends_at
    return subscription.state is Decision.GRANTED and (ends_at is None or now < ends_at)


def _reaches_too_far(facts: Facts) -> str | None:
    """Return why only members may open a repository, if its credentials reach beyond it."""
    repository = facts.repository
    if repository is None or repository.organisation in facts.roles:
        return None
    key = (repository.organisation, repository.bucket)
    own = [bucket for bucket in facts.buckets if (bucket.organisation, bucket.name) == key]
    if any(not bucket.is_scoped for bucket in own):
        problem = f"credentials of the bucket {repository.bucket} reach beyond this repository"
        return f"{problem}: only members of {repository.organisation} may open it"
    return None


# Containers


def _decide_containers(verdict: Verdict, facts: Facts) -> Verdict:
    """Match every container with a grant; a single miss refuses the whole repository."""
    answers = match_containers(facts)
    missing = tuple(answer for answer in answers if isinstance(answer, Missing))
    granted = tuple(answer for answer in answers if isinstance(answer, Granted))
    if not missing:
        return Verdict(allowed=True, reasons=verdict.reasons, granted=granted)
    number = f"{len(missing)} of {len(answers)} containers"
    reasons = (f"{number} may not be read",)
    return Verdict(allowed=False, reasons=reasons, missing=missing)


def match_containers(facts: Facts) -> list[Granted | Missing]:
    """Return for every container of a repository by what it may be read, or what is missing."""
    bound = [c for c in facts.containers if c.name == PROVIDER_CONTAINER]
    declared = [c for c in facts.containers if c.name != PROVIDER_CONTAINER]
    areas = _areas_of(facts)
    return [
        *(_bind(container, facts) for container in bound),
        *(
            _missing(container, screened.reason, None, screened.detail)
            if isinstance(screened, Refusal)
            else _match(container, screened, areas, facts)
            for container, screened in zip(declared, screen_all(declared), strict=True)
        ),
    ]


def _bind(container: DeclaredContainer, facts: Facts) -> Granted | Missing:
    """Bind the reserved container of a filtered subscription to the provider's repository."""
    provider = facts.provider
    subscription = _entitling(facts, SubscriptionKind.FILTERED)
    if provider is None or subscription is None:
        detail = "no subscription entitles to it (any more)"
        owner = provider.organisation if provider else None
        return _missing(container, Reason.NO_POLICY, owner, detail)
    for bucket in facts.buckets:
        if (bucket.organisation, bucket.name) == (provider.organisation, provider.bucket):
            if bucket.state is not BucketState.PROVEN:
                return _missing(container, Reason.BUCKET_UNPROVEN, provider.organisation, "")
            if not bucket.can_hide_names:
                return _missing(container, Reason.NOT_SCOPED, provider.organisation, "")
            # Names of chunks are random: without a listing, only chunks that the subscriber's
            # manifests name can be read, so the filter holds.
            location = bucket_location(bucket).below(f"{provider.prefix}chunks/")
            kind = GrantKind.SUBSCRIPTION
            return Granted(container, location, kind, bucket, subscription.id, may_list=False)
    return _missing(container, Reason.BUCKET_UNKNOWN, provider.organisation, "")


class _Area(Record):
    """A bucket with its policies, and where they are."""

    bucket: Bucket
    location: Location
    policies: tuple[tuple[Policy, Location], ...]


def _areas_of(facts: Facts) -> list[_Area]:
    """Return the buckets with their policies, parsed once for all containers."""
    policies: defaultdict[tuple[str, str], list[Policy]] = defaultdict(list)
    for policy in facts.policies:
        policies[policy.organisation, policy.bucket].append(policy)
    areas = []
    for bucket in facts.buckets:
        location = bucket_location(bucket)
        own = policies[bucket.organisation, bucket.name]
        below = tuple((policy, location.below(policy.prefix)) for policy in own)
        areas.append(_Area(bucket, location, below))
    return areas


def _match(
    container: DeclaredContainer, location: Location, areas: list[_Area], facts: Facts
) -> Granted | Missing:
    """Find the grant for a container; organisations that the actor is closest to come first."""
    home = facts.repository.organisation if facts.repository else ""
    misses: list[Missing] = []
    for area in _covering(location, home, areas, facts):
        answer = _match_bucket(container, location, area, facts)
        if isinstance(answer, Granted):
            return answer
        misses.append(answer)
    if misses:
        return misses[0]
    if facts.allows_anonymous and location.is_well_known:
        return Granted(container, location, GrantKind.ANONYMOUS)
    return _missing(container, Reason.BUCKET_UNKNOWN, None, "")


def _covering(location: Location, home: str, areas: list[_Area], facts: Facts) -> list[_Area]:
    """Return the buckets that cover a location and whose organisation has a say in it.

    A bucket of the repository's own organisation may have another endpoint than the container
    states, for example the address inside of a network. A bucket of others must be on the very
    store that the container names, and be proven: otherwise anybody could register a bucket of
    the same name elsewhere, and serve false data.
    """
    homes: list[_Area] = []
    others: list[_Area] = []
    for area in areas:
        bucket, store = area.bucket, area.location.store
        if bucket.organisation == home:
            here = Location(location.platform, store, location.bucket, location.segments)
            if area.location.covers(here):
                homes.append(area)
        # Public data on a well-known endpoint belongs to nobody here.
        elif bucket.delegation is Delegation.ANONYMOUS and location.is_well_known:
            continue
        elif bucket.state is BucketState.PROVEN and area.location.covers(location):
            others.append(area)
    homes.sort(key=lambda area: (area.location.store != location.store, area.bucket.name))
    others.sort(
        key=lambda area: (
            area.bucket.organisation not in facts.roles,
            area.bucket.organisation,
            area.bucket.name,
        )
    )
    return list(chain(homes, others))


def _match_bucket(
    container: DeclaredContainer, location: Location, area: _Area, facts: Facts
) -> Granted | Missing:
    """Decide whether the policies of one bucket let the actor read a container."""
    bucket, store = area.bucket, area.location.store
    owner = bucket.organisation
    is_home = facts.repository is not None and owner == facts.repository.organisation
    is_member = owner in facts.roles
    if bucket.state is not BucketState.PROVEN:
        return _missing(container, Reason.BUCKET_UNPROVEN, owner, "")
    if bucket.delegation is Delegation.STATIC and not (is_home and is_member):
        return _missing(container, Reason.NOT_SCOPED, owner, "")
    here = Location(area.location.platform, store, location.bucket, location.segments)
    reason = Reason.NO_POLICY
    for policy, obstacle in _judged(area, here, facts):
        if obstacle is not None:
            reason = _worse(reason, obstacle)
            continue
        difference = None
        if store != location.store:
            difference = f"the container names {location.store}, the bucket is on {store}"
        kind, source = GrantKind.POLICY, policy.id
        # Who reads by a listing gets the chunks that manifests name, and no list of others.
        may_list = _is_reader(policy, facts)
        return Granted(
            container, here, kind, bucket, source, may_list=may_list, difference=difference
        )
    return _missing(container, reason, owner, "")


def _judged(
    area: _Area, location: Location, facts: Facts
) -> Iterator[tuple[Policy, Reason | None]]:
    """Yield the policies on a location that live, with what keeps the actor from reading by them.

    That is None for a policy that allows it.
    """
    bucket = area.bucket
    is_subscriber = _reads_by_subscription(area, location, facts)
    for policy, policy_location in area.policies:
        if not policy_location.covers(location) or _has_ended(policy, facts.now):
            continue
        is_free = bucket.organisation in facts.roles or bucket.is_scoped
        if not (_is_reader(policy, facts) or is_subscriber):
            yield policy, Reason.WRONG_SCOPE
        elif policy.embargoed_until is not None and facts.now < policy.embargoed_until:
            yield policy, Reason.EMBARGOED
        elif not (is_free or is_whole(bucket, policy.prefix)):
            yield policy, Reason.NOT_SCOPED
        else:
            yield policy, None


def _is_reader(policy: Policy, facts: Facts) -> bool:
    """Return whether a policy names the actor, apart from any listing."""
    named = {policy.organisation, *policy.shared_with}
    return policy.scope is PolicyScope.ANYONE or not facts.roles.keys().isdisjoint(named)


def allowing_policies(granted: Granted, facts: Facts) -> list[Policy]:
    """Return all policies by which the actor may read a container."""
    for area in _areas_of(facts):
        if area.bucket == granted.bucket and granted.kind is GrantKind.POLICY:
            judged = _judged(area, granted.location, facts)
            return [policy for policy, obstacle in judged if obstacle is None]
    return []


def _reads_by_subscription(area: _Area, location: Location, facts: Facts) -> bool:
    """Return whether the owner of a bucket shares a location with the actor by a listing.

    Writers cannot change a listing, so a new container in a listed repository shares nothing.
    """
    bucket = area.bucket
    listings = {
        (listing.organisation, listing.name)
        for listing in facts.listings
        if listing.organisation == bucket.organisation
        for shared in listing.virtual_chunks
        if shared.bucket == bucket.name and area.location.below(shared.prefix).covers(location)
    }
    return any(
        (subscription.provider, subscription.listing) in listings
        and subscription.subscriber in facts.roles
        and is_living(subscription, facts.now)
        for subscription in facts.subscriptions
    )


def is_whole(bucket: Bucket, prefix: str) -> bool:
    """Return whether a prefix below that of a bucket is all that the store's bucket contains."""
    return not bucket.prefix and not prefix


def _has_ended(policy: Policy, now: datetime) -> bool:
    return policy.ends_at is not None and now >= policy.ends_at


def _worse(reason: Reason, other: Reason) -> Reason:
    """Keep the reason that says most: an embargo passes, a scope can be widened."""
    order = (Reason.NO_POLICY, Reason.NOT_SCOPED, Reason.WRONG_SCOPE, Reason.EMBARGOED)
    return max(reason, other, key=order.index)


_WHAT_TO_DO: Final = {
    Reason.NO_POLICY: "ask them for a virtual chunk access policy on this prefix",
    Reason.WRONG_SCOPE: "ask them to widen their policy on this prefix, or to make you a member",
    Reason.EMBARGOED: "wait until the embargo has passed, or ask them",
    Reason.BUCKET_UNPROVEN: "ask them to let the service probe the bucket again",
    Reason.NOT_SCOPED: "ask them to keep the data where credentials can be cut to a folder",
    Reason.BUCKET_UNKNOWN: "ask the owner of the data to register the bucket",
    Reason.FORBIDDEN_SCHEME: "move the data to an object store, or open it without the service",
    Reason.INVALID: "write the container's prefix in plain letters, like s3://bucket/folder/",
}


def _missing(
    container: DeclaredContainer, reason: Reason, owner: str | None, detail: str
) -> Missing:
    what = _WHAT_TO_DO[reason]
    if reason in {Reason.FORBIDDEN_SCHEME, Reason.INVALID}:
        who = "writers of the repository"
    else:
        who = f"admins of {owner}" if owner else "the owner of the bucket"
    what_to_do = f"{detail}: {what}" if detail else what
    return Missing(container.url_prefix, reason, owner, who, what_to_do)
