"""Who may do what, why, and what is missing."""

from datetime import UTC, datetime, timedelta

import pytest

from icefloe.catalog.model import (
    Bucket,
    BucketState,
    Decision,
    DeclaredContainer,
    Delegation,
    Filter,
    Listing,
    PersonKind,
    Platform,
    Policy,
    PolicyScope,
    Repository,
    RepositoryStatus,
    Role,
    SharedPrefix,
    Subscription,
    SubscriptionKind,
    TokenScope,
    Visibility,
)
from icefloe.records import replace
from icefloe.service.domain.actions import (
    FOR_EVERYBODY,
    FOR_OPERATORS,
    LOWEST_ROLE,
    RANK,
    Action,
)
from icefloe.service.domain.decide import (
    PROVIDER_CONTAINER,
    Actor,
    Facts,
    GrantKind,
    Resource,
    Verdict,
    decide,
)
from icefloe.service.domain.locations import Reason

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
ADA = Actor("ada")
SST = Resource("lab", "sst")
REPOSITORY = Repository("lab", "sst", "main", "sst/")
HOME = Bucket("lab", "main", Platform.S3, "lab-data", state=BucketState.PROVEN)
ARCHIVE = Bucket("archive", "tapes", Platform.S3, "tapes", "era5/", state=BucketState.PROVEN)
POLICY = Policy("p1", "archive", "tapes", "daily/")
DAILY = DeclaredContainer("s3://tapes/era5/daily/", "s3://tapes/era5/daily/")
READER = {"lab": Role.READER}
MEMBER_OF_BOTH = {"lab": Role.READER, "archive": Role.READER}


def opened(facts: Facts, actor: Actor = ADA) -> Verdict:
    return decide(actor, Action.OPEN_REPOSITORY, SST, facts)


def facts_with(**fields: object) -> Facts:
    base = Facts(
        now=NOW,
        roles=MEMBER_OF_BOTH,
        repository=REPOSITORY,
        containers=(DAILY,),
        buckets=(HOME, ARCHIVE),
        policies=(POLICY,),
    )
    return replace(base, **fields)


def reasons(verdict: Verdict) -> list[Reason]:
    assert not verdict.allowed
    assert not verdict.granted
    return [missing.reason for missing in verdict.missing]


# Roles


def test_every_action_has_a_rule() -> None:
    rules = [*LOWEST_ROLE, *FOR_EVERYBODY, *FOR_OPERATORS]
    assert set(rules) == set(Action)


@pytest.mark.parametrize("action", LOWEST_ROLE)
@pytest.mark.parametrize("role", [None, *Role])
def test_a_role_may_what_lower_roles_may(action: Action, role: Role | None) -> None:
    roles = {} if role is None else {"lab": role}
    facts = Facts(NOW, roles, repository=REPOSITORY, buckets=(HOME,))
    verdict = decide(ADA, action, SST, facts)
    assert verdict.allowed == (role is not None and RANK[role] >= RANK[LOWEST_ROLE[action]])
    assert verdict.visible == (role is not None)
    assert verdict.reasons


@pytest.mark.parametrize("action", LOWEST_ROLE)
def test_a_role_elsewhere_is_no_role_here(action: Action) -> None:
    facts = Facts(NOW, {"archive": Role.ADMIN}, repository=REPOSITORY, buckets=(HOME,))
    verdict = decide(ADA, action, SST, facts)
    assert not verdict.allowed
    assert not verdict.visible


def test_operators_run_the_service_and_read_no_data() -> None:
    operator = Actor("root", operator=True)
    facts = Facts(NOW, {}, repository=REPOSITORY, buckets=(HOME,))
    allowed = {action for action in Action if decide(operator, action, SST, facts).allowed}
    assert allowed == FOR_OPERATORS | FOR_EVERYBODY


def test_organisations_are_created_by_operators_unless_open_to_people() -> None:
    action, nowhere = Action.CREATE_ORGANISATION, Resource()
    closed, open_ = Facts(NOW, {}), Facts(NOW, {}, allows_organisations=True)
    assert not decide(ADA, action, nowhere, closed).allowed
    assert decide(Actor("root", operator=True), action, nowhere, closed).allowed
    assert decide(ADA, action, nowhere, open_).allowed
    assert not decide(Actor("bot", PersonKind.SERVICE), action, nowhere, open_).allowed


def test_absent_and_forbidden_repositories_look_the_same() -> None:
    absent = decide(ADA, Action.OPEN_REPOSITORY, SST, Facts(NOW, {}))
    forbidden = decide(ADA, Action.OPEN_REPOSITORY, SST, Facts(NOW, {}, repository=REPOSITORY))
    assert not absent.visible
    assert not forbidden.visible


def test_a_repository_for_everyone() -> None:
    public = replace(REPOSITORY, visibility=Visibility.EVERYONE)
    facts = Facts(NOW, {}, repository=public, buckets=(HOME,))
    assert opened(facts).allowed
    assert decide(ADA, Action.SEE_REPOSITORY, SST, facts).allowed
    refused = decide(ADA, Action.WRITE_REPOSITORY, SST, facts)
    assert (refused.allowed, refused.visible) == (False, True)


def test_an_archived_repository_is_not_written() -> None:
    archived = replace(REPOSITORY, status=RepositoryStatus.ARCHIVED)
    facts = Facts(NOW, {"lab": Role.ADMIN}, repository=archived, buckets=(HOME,))
    assert opened(facts).allowed
    assert not decide(ADA, Action.WRITE_REPOSITORY, SST, facts).allowed


# Tokens


@pytest.mark.parametrize(
    ("scope", "allowed"),
    [
        (TokenScope(("read",), ("lab/sst",)), {Action.OPEN_REPOSITORY}),
        (TokenScope(("write",), ("lab/*",)), {Action.OPEN_REPOSITORY, Action.WRITE_REPOSITORY}),
        (TokenScope(("admin",), ("lab/other",)), set()),
        (TokenScope(("admin",), ("labs/*", "la/*")), set()),
        (TokenScope(("repositories:write",), ("*/*",)), {Action.WRITE_REPOSITORY}),
        (TokenScope((), ("*/*",)), set()),
    ],
)
def test_a_token_does_no_more_than_its_scope(scope: TokenScope, allowed: set[Action]) -> None:
    facts = Facts(NOW, {"lab": Role.ADMIN}, repository=REPOSITORY, buckets=(HOME,))
    actor = replace(ADA, scope=scope)
    actions = [Action.OPEN_REPOSITORY, Action.WRITE_REPOSITORY]
    assert {action for action in actions if decide(actor, action, SST, facts).allowed} == allowed


def test_a_token_for_a_repository_is_none_for_the_organisation() -> None:
    actor = replace(ADA, scope=TokenScope(("admin",), ("lab/sst",)))
    facts = Facts(NOW, {"lab": Role.ADMIN})
    assert not decide(actor, Action.CHANGE_POLICIES, Resource("lab"), facts).allowed


def test_a_token_does_no_more_than_its_person() -> None:
    actor = replace(ADA, scope=TokenScope(("admin",)))
    assert not decide(actor, Action.WRITE_REPOSITORY, SST, facts_with(roles=READER)).allowed


# Containers


def test_a_member_reads_what_the_organisation_allows_to_its_own() -> None:
    verdict = opened(facts_with())
    assert verdict.allowed
    (granted,) = verdict.granted
    assert (granted.kind, granted.bucket, granted.source) == (GrantKind.POLICY, ARCHIVE, "p1")
    assert granted.location.prefix == "era5/daily/"


def test_who_is_not_a_member_is_told_whom_to_ask() -> None:
    verdict = opened(facts_with(roles=READER))
    assert reasons(verdict) == [Reason.WRONG_SCOPE]
    (missing,) = verdict.missing
    assert (missing.container, missing.owner) == ("s3://tapes/era5/daily/", "archive")
    assert missing.who == "admins of archive"


def test_a_policy_for_anyone() -> None:
    public = replace(POLICY, scope=PolicyScope.ANYONE)
    assert opened(facts_with(roles=READER, policies=(public,))).allowed


@pytest.mark.parametrize("prefix", ["daily2/", "daily/x/", "hourly/", "dail/"])
def test_a_policy_for_another_prefix_does_not_count(prefix: str) -> None:
    other = replace(POLICY, prefix=prefix)
    assert reasons(opened(facts_with(policies=(other,)))) == [Reason.NO_POLICY]


def test_a_policy_of_another_bucket_does_not_count() -> None:
    other = replace(POLICY, bucket="disks")
    assert reasons(opened(facts_with(policies=(other,)))) == [Reason.NO_POLICY]
    foreign = replace(POLICY, organisation="lab", scope=PolicyScope.ANYONE)
    assert reasons(opened(facts_with(policies=(foreign,)))) == [Reason.NO_POLICY]


def test_embargo_and_end() -> None:
    later = replace(POLICY, embargoed_until=NOW + DAY)
    assert reasons(opened(facts_with(policies=(later,)))) == [Reason.EMBARGOED]
    assert opened(facts_with(policies=(later,), now=NOW + DAY)).allowed
    ended = replace(POLICY, ends_at=NOW)
    assert reasons(opened(facts_with(policies=(ended,)))) == [Reason.NO_POLICY]
    assert opened(facts_with(policies=(ended,), now=NOW - DAY)).allowed
    assert opened(facts_with(policies=(ended, replace(POLICY, id="p2")))).allowed


@pytest.mark.parametrize("state", [BucketState.UNPROVEN, BucketState.REFUSED])
def test_only_a_proven_bucket_grants(state: BucketState) -> None:
    doubtful = replace(ARCHIVE, state=state)
    public = replace(POLICY, scope=PolicyScope.ANYONE)
    verdict = opened(
        facts_with(buckets=(HOME, doubtful), policies=(public,), allows_anonymous=False)
    )
    assert reasons(verdict) == [Reason.BUCKET_UNKNOWN]  # a claim of others that nothing proves
    own = replace(doubtful, organisation="lab")
    verdict = opened(
        facts_with(buckets=(HOME, own), policies=(replace(public, organisation="lab"),))
    )
    assert reasons(verdict) == [Reason.BUCKET_UNPROVEN]


def test_one_missing_container_refuses_all() -> None:
    secret = DeclaredContainer("s3://tapes/era5/secret/", "s3://tapes/era5/secret/")
    wallet = DeclaredContainer("file:///home/", "file:///home/", platform="file")
    verdict = opened(facts_with(containers=(DAILY, secret, wallet)))
    assert reasons(verdict) == [Reason.NO_POLICY, Reason.FORBIDDEN_SCHEME]


def test_the_own_organisation_comes_first_then_the_closest() -> None:
    mirror = Bucket("lab", "mirror", Platform.S3, "tapes", state=BucketState.PROVEN)
    own = Policy("own", "lab", "mirror")
    others = Bucket("zoo", "tapes", Platform.S3, "tapes", state=BucketState.PROVEN)
    public = Policy("zoo", "zoo", "tapes", scope=PolicyScope.ANYONE)
    everything = facts_with(buckets=(others, ARCHIVE, mirror), policies=(public, POLICY, own))
    assert opened(everything).granted[0].source == "own"
    assert opened(replace(everything, policies=(public, POLICY))).granted[0].source == "p1"
    assert opened(replace(everything, policies=(public,))).granted[0].source == "zoo"


def test_a_bucket_of_others_on_another_store_is_another_bucket() -> None:
    elsewhere = replace(ARCHIVE, endpoint="https://evil.example")
    public = replace(POLICY, scope=PolicyScope.ANYONE)
    verdict = opened(facts_with(buckets=(elsewhere,), policies=(public,), allows_anonymous=False))
    assert reasons(verdict) == [Reason.BUCKET_UNKNOWN]
    verdict = opened(facts_with(buckets=(elsewhere,), policies=(public,)))
    assert [granted.kind for granted in verdict.granted] == [GrantKind.ANONYMOUS]


def test_the_own_bucket_wins_over_the_stored_endpoint_and_says_so() -> None:
    inside = replace(ARCHIVE, organisation="lab", endpoint="http://inside.example:9000")
    own = replace(POLICY, organisation="lab")
    (granted,) = opened(facts_with(buckets=(inside,), policies=(own,))).granted
    assert granted.location.store == "inside.example:9000"
    assert granted.difference is not None
    assert "inside.example:9000" in granted.difference


def test_public_data_needs_no_policy_unless_the_operator_says_so() -> None:
    public = DeclaredContainer("s3://noaa/goes/", "s3://noaa/goes/")
    (granted,) = opened(facts_with(containers=(public,))).granted
    assert (granted.kind, granted.bucket) == (GrantKind.ANONYMOUS, None)
    strict = facts_with(containers=(public,), allows_anonymous=False)
    assert reasons(opened(strict)) == [Reason.BUCKET_UNKNOWN]
    own_endpoint = replace(public, endpoint="https://minio.example")
    assert reasons(opened(facts_with(containers=(own_endpoint,)))) == [Reason.BUCKET_UNKNOWN]


def test_nobody_can_shut_others_out_of_public_data() -> None:
    public = DeclaredContainer("s3://noaa/goes/", "s3://noaa/goes/")
    claim = Bucket("zoo", "noaa", Platform.S3, "noaa", delegation=Delegation.ANONYMOUS)
    for state in BucketState:
        facts = facts_with(containers=(public,), buckets=(replace(claim, state=state),))
        assert opened(facts).allowed
    unproven = replace(claim, delegation=Delegation.ROLE)
    assert opened(facts_with(containers=(public,), buckets=(unproven,))).allowed


def test_static_keys_are_for_the_own_organisation_only() -> None:
    static = replace(ARCHIVE, delegation=Delegation.STATIC)
    public = replace(POLICY, scope=PolicyScope.ANYONE)
    verdict = opened(facts_with(buckets=(static,), policies=(public,)))
    assert reasons(verdict) == [Reason.NOT_SCOPED]
    own = replace(static, organisation="lab")
    facts = facts_with(buckets=(own,), policies=(replace(public, organisation="lab"),))
    assert opened(facts).allowed
    visible = replace(REPOSITORY, visibility=Visibility.EVERYONE)
    assert reasons(opened(replace(facts, roles={}, repository=visible))) == [Reason.NOT_SCOPED]


# Listings and subscriptions

LISTING = Listing("lab", "ocean", "sst")
SUBSCRIPTION = Subscription("s1", "shop", "lab", "ocean", state=Decision.GRANTED)
SUBSCRIBED = Facts(
    NOW,
    {"shop": Role.READER},
    repository=REPOSITORY,
    buckets=(HOME,),
    listings=(LISTING,),
    subscriptions=(SUBSCRIPTION,),
)


def test_a_subscriber_reads_and_does_nothing_else() -> None:
    allowed = {action for action in LOWEST_ROLE if decide(ADA, action, SST, SUBSCRIBED).allowed}
    assert allowed == {Action.OPEN_REPOSITORY, Action.SEE_REPOSITORY, Action.SEE_LISTING}


@pytest.mark.parametrize("state", [Decision.PENDING, Decision.DECLINED, Decision.ENDED])
def test_a_subscription_counts_while_it_is_granted(state: Decision) -> None:
    other = replace(SUBSCRIPTION, state=state)
    assert not opened(replace(SUBSCRIBED, subscriptions=(other,))).allowed
    ends = replace(SUBSCRIPTION, ends_at=NOW)
    assert not opened(replace(SUBSCRIBED, subscriptions=(ends,))).allowed
    assert opened(replace(SUBSCRIBED, subscriptions=(ends,), now=NOW - DAY)).allowed
    assert not opened(replace(SUBSCRIBED, roles={"zoo": Role.ADMIN})).allowed


def test_a_part_of_a_repository_is_not_read_directly() -> None:
    part = replace(LISTING, filter=Filter(nodes=("/temperature",)))
    assert not opened(replace(SUBSCRIBED, listings=(part,))).allowed


def test_subscribers_read_virtual_chunks_that_the_listing_shares() -> None:
    own = Bucket("lab", "tapes", Platform.S3, "tapes", "era5/", state=BucketState.PROVEN)
    policies = (Policy("p", "lab", "tapes", "daily/"), Policy("q", "lab", "tapes", "secret/"))
    secret = DeclaredContainer("s3://tapes/era5/secret/", "s3://tapes/era5/secret/")
    facts = replace(SUBSCRIBED, buckets=(HOME, own), policies=policies, containers=(DAILY,))
    assert reasons(opened(facts)) == [Reason.WRONG_SCOPE]
    shared = replace(LISTING, virtual_chunks=(SharedPrefix("tapes", "daily/"),))
    assert opened(replace(facts, listings=(shared,))).allowed
    widened = replace(facts, listings=(shared,), containers=(DAILY, secret))
    assert reasons(opened(widened)) == [Reason.WRONG_SCOPE]
    assert reasons(opened(replace(facts, listings=(shared,), policies=()))) == [Reason.NO_POLICY]


PART = Facts(
    NOW,
    {"shop": Role.READER},
    repository=Repository("shop", "my-ocean", "shop", "ocean/"),
    containers=(DeclaredContainer("s3://x/", "s3://x/", name=PROVIDER_CONTAINER),),
    buckets=(HOME,),
    listings=(replace(LISTING, filter=Filter(nodes=("/temperature",))),),
    subscriptions=(replace(SUBSCRIPTION, kind=SubscriptionKind.FILTERED, repository="my-ocean"),),
    provider=REPOSITORY,
)


def test_a_filtered_subscription_is_bound_to_the_providers_chunks() -> None:
    resource = Resource("shop", "my-ocean")
    (granted,) = decide(ADA, Action.OPEN_REPOSITORY, resource, PART).granted
    assert (granted.kind, granted.bucket) == (GrantKind.SUBSCRIPTION, HOME)
    assert granted.location.prefix == "sst/chunks/"
    assert not granted.may_list  # chunks have random names: only those of the manifests are found
    for change in (
        {"subscriptions": ()},
        {"provider": None},
        {"now": NOW + DAY, "subscriptions": (replace(PART.subscriptions[0], ends_at=NOW),)},
        {"buckets": (replace(HOME, state=BucketState.UNPROVEN),)},
        {"buckets": ()},
    ):
        refused = decide(ADA, Action.OPEN_REPOSITORY, resource, replace(PART, **change))
        assert not refused.allowed, change


def test_the_reserved_name_is_bound_for_subscriptions_only() -> None:
    stolen = DeclaredContainer("s3://x/", "s3://x/", name=PROVIDER_CONTAINER)
    verdict = opened(facts_with(containers=(stolen,)))
    assert reasons(verdict) == [Reason.NO_POLICY]


def test_a_listing_is_seen_by_those_it_is_offered_to() -> None:
    def sees(listing: Listing, roles: dict[str, Role]) -> bool:
        facts = Facts(NOW, roles, listings=(listing,))
        return decide(ADA, Action.SEE_LISTING, Resource("lab"), facts).allowed

    assert sees(LISTING, {})
    narrow = replace(LISTING, offered_to=("shop",))
    assert not sees(narrow, {})
    assert not sees(narrow, {"zoo": Role.ADMIN})
    assert sees(narrow, {"shop": Role.READER})
    assert sees(narrow, {"lab": Role.READER})
