"""Bodies of requests and answers between client and service, beside the records of the model."""

import hashlib
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

from msgspec import Meta

from icefloe.catalog.model import (
    AccessRequest,
    Audience,
    Bucket,
    BucketLabel,
    BucketState,
    Delegation,
    Filter,
    NodePath,
    OrganisationName,
    PersonName,
    Platform,
    Policy,
    PolicyScope,
    Prefix,
    Repository,
    RepositoryName,
    RepositoryStatus,
    Role,
    SharedPrefix,
    Subscription,
    SubscriptionKind,
    Terms,
    Text,
    TokenScope,
    Visibility,
)
from icefloe.records import Record, field

type Secrets = Annotated[dict[str, Annotated[str, Meta(max_length=10_000)]], Meta(max_length=10)]
type Days = Annotated[int, Meta(ge=1, le=366)]
type Hours = Annotated[int, Meta(ge=1, le=168)]
type Fingerprint = Annotated[str, Meta(max_length=64)]
type Refused = Annotated[
    dict[Annotated[str, Meta(max_length=2000)], Fingerprint], Meta(max_length=1000)
]


class Problem(Record):
    """An error, in the one shape that all errors have."""

    code: str
    """A stable code, like `access-denied`."""
    message: str
    request_id: str
    missing: tuple["MissingGrant", ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)


class MissingGrant(Record):
    """A container that may not be read, why, and who can change that."""

    container: str
    reason: str
    owner: str | None
    who: str
    what_to_do: str
    url: str | None = None
    """Where to ask for access."""


class Page[T](Record):
    """A part of a list."""

    items: tuple[T, ...]
    next: str | None = None
    """The cursor of the next page; None at the end."""


# What is sent to create or change something


class NewOrganisation(Record, forbid_unknown_fields=True):
    """An organisation to create."""

    name: OrganisationName
    display_name: Text = ""


class OrganisationChange(Record, forbid_unknown_fields=True):
    """Fields of an organisation to change."""

    display_name: Text


class MemberRole(Record, forbid_unknown_fields=True):
    """The role that somebody is to have."""

    role: Role


class NewServiceAccount(Record, forbid_unknown_fields=True):
    """A service account to create in an organisation."""

    name: PersonName
    role: Role
    display_name: Text = ""


class NewToken(Record, forbid_unknown_fields=True):
    """A token to create."""

    name: Annotated[str, Meta(min_length=1, max_length=100, examples=["nightly ingest"])]
    scope: TokenScope = TokenScope(("read",), ("*/*",))
    days: Days = 90
    """How long it lives."""


class NewDelegation(Record, forbid_unknown_fields=True):
    """A token for a job that works with one repository, for hours."""

    access: "Access"
    name: Annotated[str, Meta(min_length=1, max_length=100, examples=["spark job"])]
    hours: Hours = 24
    """How long it lives, at most: it ends with the token that asked for it."""


class CreatedToken(Record):
    """A token with its secret, which is shown this once."""

    id: str
    secret: str
    expires_at: datetime | None

    def __repr__(self) -> str:
        return f"CreatedToken(id={self.id!r}, secret='***', expires_at={self.expires_at!r})"


class NewInvitation(Record, forbid_unknown_fields=True):
    """An invitation to the service."""

    person: PersonName | None = None
    """The name of the new account; None to let the invited person choose."""
    operator: bool = False
    """Whether they are to run the service."""


class NewMemberInvitation(Record, forbid_unknown_fields=True):
    """An invitation to an organisation, for somebody who has no account yet."""

    role: Role = Role.READER
    person: PersonName | None = None


class CreatedInvitation(Record):
    """A link that works once, for the person who opens it first."""

    link: str
    expires_at: datetime

    def __repr__(self) -> str:
        return f"CreatedInvitation(link='***', expires_at={self.expires_at!r})"


class BucketSettings(Record, forbid_unknown_fields=True):
    """All settings of a bucket. Secrets are write-only; they are never shown."""

    platform: Platform
    bucket: Annotated[str, Meta(max_length=63, examples=["ocean-data"])]
    prefix: Prefix = ""
    region: Text | None = None
    endpoint: Text | None = None
    sts_endpoint: Text | None = None
    path_style: bool = False
    allow_http: bool = False
    kms_key: Text | None = None
    account: Text | None = None
    hierarchical: bool = False
    role: Text | None = None
    delegation: Delegation = Delegation.ROLE
    shares_static_keys: bool = False
    secrets: Secrets = field(default_factory=dict)
    """By name; empty to keep the present ones."""

    def __repr__(self) -> str:
        shown = [
            f"{name}={'***' if name == 'secrets' else repr(getattr(self, name))}"
            for name in self.__struct_fields__
        ]
        return f"BucketSettings({', '.join(shown)})"


class NewBucket(BucketSettings, forbid_unknown_fields=True, kw_only=True):
    """A bucket to register."""

    name: BucketLabel


class ProbeCheck(Record):
    """One attempt of a probe."""

    name: str
    passed: bool
    detail: str = ""


class ProbeReport(Record):
    """The result of a bucket's probe."""

    state: BucketState
    reason: str
    checks: tuple[ProbeCheck, ...]


class NewRepository(Record, forbid_unknown_fields=True):
    """A repository to create, or an existing one to import."""

    name: RepositoryName
    bucket: BucketLabel
    prefix: Prefix | None = None
    """Below the prefix of the bucket; None for a new place. An import needs it."""
    description: Text = ""
    visibility: Visibility = Visibility.ORGANISATION
    imports: bool = False
    """Whether the repository exists in the bucket already."""


class RepositoryChange(Record, forbid_unknown_fields=True):
    """Fields of a repository to change; None to keep a field."""

    description: Text | None = None
    visibility: Visibility | None = None
    status: RepositoryStatus | None = None


class PolicySettings(Record, forbid_unknown_fields=True):
    """All settings of a policy."""

    bucket: BucketLabel
    prefix: Prefix = ""
    scope: PolicyScope = PolicyScope.ORGANISATION
    embargoed_until: datetime | None = None
    ends_at: datetime | None = None
    shared_with: tuple[OrganisationName, ...] = ()
    """Other organisations whose members may read, too."""
    confirm_prefix: Text | None = None
    """For everybody: the whole prefix once more, like `s3://bucket/folder/`."""


class PolicyTrial(Record, forbid_unknown_fields=True):
    """A change of a policy to simulate."""

    settings: PolicySettings | None = None
    """None to simulate its deletion."""
    id: str | None = None
    """The policy to change; None for a new one."""


class PeopleCount(Record):
    """A number of people of an organisation."""

    organisation: str
    """Empty for organisations that the reader has nothing to do with."""
    people: int


class ReaderCount(Record):
    """The numbers of people who can open a repository now, and who could after a change."""

    repository: str
    now: int
    then: int


class SimulationAnswer(Record):
    """The people who would gain or lose access, and the repositories that would open or break.

    Names are those that admins of the organisation know anyway: of their own people, of
    repositories that they may see, and of requests to them. All others are counted.
    """

    gains: tuple[tuple[str, str], ...]
    """People and the repositories that they could then open."""
    losses: tuple[tuple[str, str], ...]
    opens: tuple[str, ...]
    """Repositories that nobody can open now, and somebody could then."""
    breaks: tuple[str, ...]
    readers: tuple[ReaderCount, ...] = ()
    """Repositories that depend on the buckets."""
    other_gains: tuple[PeopleCount, ...] = ()
    """The numbers of other people who would gain access, by organisation."""
    other_losses: tuple[PeopleCount, ...] = ()
    other_opens: int = 0
    other_breaks: int = 0
    other_repositories: int = 0
    """The number of other repositories that depend on the buckets."""


class PolicyVersionAnswer(Record):
    """A policy as it was after a change; `policy` is None after its deletion."""

    id: str
    policy: Policy | None
    changed_by: str | None
    changed_at: datetime


# Listings, subscriptions and requests


class ListingSettings(Record, forbid_unknown_fields=True):
    """All settings of a listing."""

    repository: RepositoryName
    title: Text = ""
    licence: Text = ""
    terms: Terms = ""
    offered_to: tuple[Audience, ...] = ("*",)
    needs_approval: bool = False
    virtual_chunks: tuple[SharedPrefix, ...] = ()
    filter: Filter | None = None


class NewListing(ListingSettings, forbid_unknown_fields=True, kw_only=True):
    """A listing to create."""

    name: RepositoryName


class NewSubscription(Record, forbid_unknown_fields=True):
    """A listing to subscribe to, in the name of an organisation."""

    provider: OrganisationName
    listing: RepositoryName
    kind: SubscriptionKind = SubscriptionKind.DIRECT
    accepts_version: int | None = None
    """The version of the listing whose licence and terms are accepted."""
    repository: RepositoryName | None = None
    """For a filtered subscription: the repository to create."""
    bucket: BucketLabel | None = None
    """For a filtered subscription: the subscriber's bucket for it."""
    filter: Filter | None = None
    """For a filtered subscription: the part that is wanted."""


class SubscriptionDecision(Record, forbid_unknown_fields=True):
    """A provider's decision about a subscription."""

    grants: bool
    ends_at: datetime | None = None
    answer: Text = ""


class FollowAnswer(Record):
    """The result of an update of a filtered subscription."""

    version: str
    """The snapshot of the provider that is followed now."""
    snapshot: str
    """The newest snapshot of the subscriber's repository."""
    changed: bool
    written: int = 0
    """Arrays whose references were written."""
    kept: int = 0
    """Arrays that were up to date."""
    references: int = 0
    """References that were set or deleted, and chunks of coordinates that were copied."""


class EmbargoSettings(Record, forbid_unknown_fields=True):
    """All settings of a rolling embargo."""

    days: Annotated[float, Meta(ge=0, le=36_600)]
    bucket: BucketLabel
    prefix: Prefix
    dimension: Annotated[str, Meta(min_length=1, max_length=255)] = "time"
    nodes: tuple[NodePath, ...] = ()
    public_repository: RepositoryName | None = None


class ReleaseAnswer(Record):
    """The result of a release."""

    until: datetime
    """Data up to this moment is public."""
    chunks: int
    """Chunks that became public."""
    size_bytes: int
    snapshot: str
    """The newest snapshot of the private repository."""
    public_snapshot: str | None = None
    """The newest snapshot of the public repository."""


class NewAccessRequest(Record, forbid_unknown_fields=True):
    """A request for access to what a repository refers to."""

    container: Text | None = None
    """The container to ask for; None for all that are missing."""
    message: Text = ""


class RequestProposal(Record):
    """A request, and what a grant would make: shown before anything is made."""

    request: AccessRequest
    policy: PolicySettings | None = None
    """The policy that is missing. Send it back, or a changed one, to grant the request."""
    subscription: Subscription | None = None
    """The subscription that a grant would begin again."""
    obstacle: str | None = None
    """Why the request cannot be granted at present."""
    simulation: SimulationAnswer | None = None
    """Who would gain access by the policy."""


class RequestDecision(Record, forbid_unknown_fields=True):
    """An admin's decision about a request."""

    grants: bool
    policy: PolicySettings | None = None
    """The policy of the proposal, perhaps changed; None if a subscription is missing."""
    ends_at: datetime | None = None
    """The end of a subscription that begins again."""
    answer: Text = ""


# Opening a repository


class Access(StrEnum):
    """The purpose of opening a repository: reading or writing."""

    READ = "read"
    WRITE = "write"


class OpenRequest(Record, forbid_unknown_fields=True):
    """The options for opening a repository."""

    access: Access = Access.READ
    refused: Refused = field(default_factory=dict)
    """Fingerprints of credentials that a store refused before their end, by the prefix of the
    container; that of the repository itself has the prefix ''."""


class StoreAnswer(Record):
    """The address of a stored object tree: settings that the service vouches for."""

    platform: Platform
    bucket: str
    prefix: str
    region: str | None = None
    endpoint: str | None = None
    path_style: bool = False
    allow_http: bool = False
    account: str | None = None


class CredentialAnswer(Record):
    """A credential that ends soon; its values depend on its kind."""

    kind: str
    """`s3`, `gcs-token`, `azure-sas` or `anonymous`."""
    values: Mapping[str, str] = field(default_factory=dict)
    expires_at: datetime | None = None

    @property
    def fingerprint(self) -> Fingerprint:
        """A name of this credential that tells nothing about its values."""
        text = "\n".join(f"{name}={self.values[name]}" for name in sorted(self.values))
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def __repr__(self) -> str:
        return f"CredentialAnswer(kind={self.kind!r}, values=***, expires_at={self.expires_at!r})"


class ContainerAnswer(Record):
    """A container with its trusted settings and its credential."""

    prefix: str
    name: str | None
    store: StoreAnswer
    credential: CredentialAnswer
    granted_by: str
    """A policy, a subscription, or `anonymous`."""
    difference: str | None = None
    """How the stored settings differ from the trusted ones, which are used."""


class Refresh(Record):
    """The address for the renewal of credentials, and its time."""

    url: str
    after: datetime | None
    seconds_left: float | None = None
    """How long all credentials live yet, whatever the clock of the client says."""


class OpenAnswer(Record):
    """The settings and credentials that opening a repository takes."""

    repo: Repository
    config_version: str | None
    """None if there is no repository yet in the place that a writer gets."""
    store: StoreAnswer
    credential: CredentialAnswer
    containers: tuple[ContainerAnswer, ...]
    refresh: Refresh

    def credential_of(self, container: str | None) -> CredentialAnswer | None:
        """Return the credential for a container by its prefix, or for the repository itself.

        Return None if the repository does not refer to the container.
        """
        if container is None:
            return self.credential
        credentials = (part.credential for part in self.containers if part.prefix == container)
        return next(credentials, None)


class BucketCredentialRequest(Record, forbid_unknown_fields=True):
    """The rights that a credential for a bucket should have."""

    access: Access = Access.READ
    prefix: Prefix = ""
    """Below the prefix of the bucket."""


class BucketCredential(Record):
    """A credential for a bucket, or for a folder of it."""

    store: StoreAnswer
    credential: CredentialAnswer
    is_scoped: bool
    """Whether it reaches the folder only; otherwise it reaches the whole bucket of the store."""


class Suspension(Record):
    """A bucket that is cut off."""

    bucket: Bucket
    issued_until: datetime
    """Until when credentials that were issued before may live, at the latest."""


class OwnershipProof(Record):
    """The proof that a bucket belongs to an organisation."""

    external_id: str
    """The id that the trust policy of a role must demand."""
    challenge_key: str
    """The object that the owner of a public bucket writes."""
    challenge: str
    """Its content."""


class Me(Record):
    """The caller, as the service knows them."""

    person: str
    display_name: str
    operator: bool
    roles: Mapping[str, Role]
    token: str | None = None
    """The id of the token that was used."""


# The audit


class AuditEntry(Record):
    """Somebody did something, or was refused."""

    at: datetime
    person: str
    action: str
    resource: str
    allowed: bool
    request_id: str
    organisation: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    """The reasons, the grants and until when they live; never a secret."""
    number: int = 0
    """The place in the chain, from 1; 0 before the entry is written."""


class AuditHead(Record):
    """The last entry of the audit: its number and its code."""

    number: int
    code: str


# Logging in a program without a browser (RFC 8628)


class DeviceCode(Record):
    """The codes for a program that wants to be logged in."""

    device_code: str
    """The secret of the program."""
    user_code: str
    """What its user types on the page."""
    verification_uri: str
    verification_uri_complete: str
    expires_in: int
    """Seconds until both codes end."""
    interval: int
    """Seconds between two questions."""

    def __repr__(self) -> str:
        return f"DeviceCode(device_code='***', user_code={self.user_code!r})"


class DeviceToken(Record):
    """A token for a program that somebody approved."""

    access_token: str
    token_type: str
    expires_in: int
    """Seconds until the token ends."""
    scope: str
    """What the token may be used for: actions and repositories, with spaces between."""
    person: str

    def __repr__(self) -> str:
        return f"DeviceToken(access_token='***', person={self.person!r})"


class DeviceProblem(Problem, kw_only=True):
    """Why a program has no token yet: the shape of all errors, with the fields of RFC 6749."""

    error: str
    """`authorization_pending`, `slow_down`, `expired_token`, `access_denied`, and others."""
    error_description: str


class Health(Record):
    """Whether the service works."""

    status: str
    version: str
