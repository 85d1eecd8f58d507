"""The things that a service keeps, as its API shows them and as its decisions read them.

Names are checked, never escaped: a name that reaches a policy of a cloud consists of a few plain
characters. No record here has a secret in it.
"""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Final

from msgspec import Meta

from icefloe.records import Record, field

# A pattern ends in `$(?!\n)`: in Python, `$` alone matches before a line feed at the end.
ORGANISATION_NAME: Final = r"^[a-z0-9][a-z0-9-]{0,37}[a-z0-9]$(?!\n)"
REPOSITORY_NAME: Final = r"^[a-z0-9]([a-z0-9._-]{0,98}[a-z0-9])?$(?!\n)"
PERSON_NAME: Final = r"^[a-z0-9]([a-z0-9._-]{0,62}[a-z0-9])?$(?!\n)"
BUCKET_NAME: Final = r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$(?!\n)"
PREFIX: Final = r"^((?!\.{1,2}/)[A-Za-z0-9._=,:@+~-]{1,255}/)*$(?!\n)"

type OrganisationName = Annotated[str, Meta(pattern=ORGANISATION_NAME, examples=["ocean-lab"])]
type PersonName = Annotated[str, Meta(pattern=PERSON_NAME, examples=["ada"])]
type RepositoryName = Annotated[str, Meta(pattern=REPOSITORY_NAME, examples=["sea-surface"])]
type BucketLabel = Annotated[str, Meta(pattern=ORGANISATION_NAME, examples=["archive"])]
type Prefix = Annotated[str, Meta(pattern=PREFIX, max_length=1024, examples=["era5/daily/"])]
type Text = Annotated[str, Meta(max_length=2000)]
type Terms = Annotated[str, Meta(max_length=50_000)]
type Audience = Annotated[
    str, Meta(pattern=rf"^\*$(?!\n)|{ORGANISATION_NAME}", examples=["*", "ocean-lab"])
]
type NodePath = Annotated[
    str, Meta(pattern=r"^/[^\x00-\x1f]*$(?!\n)", max_length=1024, examples=["/sea/temperature"])
]


class Role(StrEnum):
    """The rights of a member; each role includes the rights of the role before it."""

    READER = "reader"
    WRITER = "writer"
    ADMIN = "admin"


class PersonKind(StrEnum):
    """Whether somebody logs in, or only tokens act in this name."""

    PERSON = "person"
    SERVICE = "service"


class Platform(StrEnum):
    """The protocol of an object store."""

    S3 = "s3"
    GCS = "gcs"
    AZURE = "azure"


class Delegation(StrEnum):
    """The method by which the service makes short-lived credentials for a bucket."""

    ROLE = "role"
    """AssumeRole with a session policy: AWS and other stores that speak STS."""
    DOWNSCOPED_TOKEN = "downscoped-token"  # noqa: S105 - the name of a method
    """A credential access boundary of Google Cloud Storage."""
    SAS = "sas"
    """A signed URL query of Azure, from a user delegation key or an account key."""
    R2_TEMPORARY = "r2-temporary"
    """Temporary access credentials of Cloudflare R2."""
    ANONYMOUS = "anonymous"
    """No credential: everybody may read the bucket."""
    STATIC = "static"
    """The long-lived keys themselves, for members of the organisation only."""


class BucketState(StrEnum):
    """The result of the last probe of a bucket."""

    UNPROVEN = "unproven"
    PROVEN = "proven"
    REFUSED = "refused"
    SUSPENDED = "suspended"
    """Admins cut it off: no credential is made for it until they resume it."""


class Visibility(StrEnum):
    """The people who may find and read a repository."""

    ORGANISATION = "organisation"
    EVERYONE = "everyone"
    """Everybody who is logged in."""


class RepositoryStatus(StrEnum):
    """Whether a repository may be opened."""

    ACTIVE = "active"
    ARCHIVED = "archived"
    """Readable, not writable."""


class PolicyScope(StrEnum):
    """Whom a policy allows to read virtual chunks below its prefix."""

    ORGANISATION = "organisation"
    ANYONE = "anyone"


class SubscriptionKind(StrEnum):
    """The way in which a subscriber reads a listing."""

    DIRECT = "direct"
    """The provider's repository itself."""
    FILTERED = "filtered"
    """A repository of manifests in the subscriber's own bucket."""


class Decision(StrEnum):
    """The state of something that somebody asked for."""

    PENDING = "pending"
    GRANTED = "granted"
    DECLINED = "declined"
    ENDED = "ended"


class Person(Record):
    """Somebody who logs in, or a service account, in whose name only tokens act."""

    name: PersonName
    kind: PersonKind = PersonKind.PERSON
    display_name: Text = ""
    email: Text | None = None
    organisation: OrganisationName | None = None
    """The organisation of a service account."""
    operator: bool = False
    """Whether this person runs the service: makes organisations, and reads no data by it."""
    disabled: bool = False


class Organisation(Record):
    """A group of people with buckets and repositories of its own."""

    name: OrganisationName
    display_name: Text = ""
    created_at: datetime | None = None


class Member(Record):
    """A person in an organisation, with a role."""

    organisation: OrganisationName
    person: PersonName
    role: Role


class TokenScope(Record):
    """The limits of a token: it never allows more than its person may do."""

    actions: tuple[str, ...] = ("admin",)
    """Actions, or the bundles `read`, `write` and `admin`."""
    repositories: tuple[str, ...] = ("*/*",)
    """Repositories as `org/name`, `org/*` or `*/*`."""


class Token(Record):
    """A key for programs: who it acts for, what for, and until when. Its secret is shown once."""

    id: str
    name: Text
    person: PersonName
    scope: TokenScope = TokenScope()
    created_at: datetime | None = None
    expires_at: datetime | None = None
    last_used_at: datetime | None = None
    revoked_at: datetime | None = None


class Bucket(Record):
    """A part of an object store that an organisation has registered; its secrets stay inside."""

    organisation: OrganisationName
    name: BucketLabel
    platform: Platform
    bucket: Annotated[str, Meta(pattern=BUCKET_NAME, examples=["ocean-data"])]
    prefix: Prefix = ""
    region: Text | None = None
    endpoint: Text | None = None
    """None for the platform's own endpoint."""
    sts_endpoint: Text | None = None
    path_style: bool = False
    allow_http: bool = False
    kms_key: Text | None = None
    account: Text | None = None
    """The storage account of Azure, or the account id of R2."""
    hierarchical: bool = False
    """Whether an Azure account has a hierarchical namespace, with folders of its own."""
    role: Text | None = None
    """The role to assume, for delegation by role."""
    delegation: Delegation = Delegation.ROLE
    shares_static_keys: bool = False
    """Whether static keys may be handed to members at all."""
    state: BucketState = BucketState.UNPROVEN
    state_reason: Text = "no probe has run yet"
    probed_at: datetime | None = None
    version: int = 1

    @property
    def is_scoped(self) -> bool:
        """Return whether a credential can be cut down to a folder of the bucket.

        Without folders, Azure signs for a whole container, and static keys have no scope at all.
        """
        if self.delegation is Delegation.SAS:
            return self.hierarchical
        return self.delegation is not Delegation.STATIC

    @property
    def can_hide_names(self) -> bool:
        """Return whether a credential can read objects without listing their names."""
        return self.is_scoped and self.delegation is not Delegation.R2_TEMPORARY


class DeclaredContainer(Record):
    """A virtual chunk container as a repository's configuration states it: not trusted."""

    listed_as: str
    """The prefix under which the configuration lists it."""
    url_prefix: str
    name: str | None = None
    platform: str = "s3"
    """The kind of store: s3, gcs, azure, or a kind that is refused (file, memory, http)."""
    endpoint: str | None = None
    account: str | None = None


class Repository(Record):
    """A repository by name, and where it is stored."""

    organisation: OrganisationName
    name: RepositoryName
    bucket: BucketLabel
    prefix: Prefix
    """Below the prefix of the bucket."""
    description: Text = ""
    visibility: Visibility = Visibility.ORGANISATION
    status: RepositoryStatus = RepositoryStatus.ACTIVE
    created_at: datetime | None = None
    created_by: PersonName | None = None
    version: int = 1

    @property
    def full_name(self) -> str:
        """The name with the organisation: `org/name`."""
        return f"{self.organisation}/{self.name}"


class Policy(Record):
    """A virtual chunk access policy: who may read below a prefix of a bucket through references.

    Policies only allow. Only admins of the bucket's organisation change them.
    """

    id: str
    organisation: OrganisationName
    bucket: BucketLabel
    prefix: Prefix = ""
    """Below the prefix of the bucket."""
    scope: PolicyScope = PolicyScope.ORGANISATION
    embargoed_until: datetime | None = None
    ends_at: datetime | None = None
    shared_with: tuple[OrganisationName, ...] = ()
    """Other organisations whose members may read, too."""
    created_by: PersonName | None = None
    created_at: datetime | None = None
    version: int = 1


class Filter(Record):
    """The part of a repository that a filtered subscription contains."""

    nodes: tuple[NodePath, ...] = ()
    """Exact paths of arrays and groups; empty for all of them."""
    ranges: Mapping[str, tuple[float | str | None, float | str | None]] = field(
        default_factory=dict
    )
    """First and last value of coordinates, by dimension."""


class SharedPrefix(Record):
    """A part of a bucket."""

    bucket: BucketLabel
    prefix: Prefix = ""
    """Below the prefix of the bucket."""


class Listing(Record):
    """A repository, or a part of it, that an organisation offers to others."""

    organisation: OrganisationName
    name: RepositoryName
    repository: RepositoryName
    title: Text = ""
    licence: Text = ""
    terms: Terms = ""
    offered_to: tuple[Audience, ...] = ("*",)
    """Organisations that may subscribe; `*` for all."""
    needs_approval: bool = False
    virtual_chunks: tuple[SharedPrefix, ...] = ()
    """Where subscribers may also read virtual chunks, as the organisation's policies allow."""
    filter: Filter | None = None
    """The part that is offered; None for all of it."""
    version: int = 1


class Subscription(Record):
    """An organisation's entitlement to a listing."""

    id: str
    subscriber: OrganisationName
    provider: OrganisationName
    listing: RepositoryName
    kind: SubscriptionKind = SubscriptionKind.DIRECT
    state: Decision = Decision.PENDING
    repository: RepositoryName | None = None
    """The subscriber's own repository of manifests, for a filtered subscription."""
    filter: Filter | None = None
    ends_at: datetime | None = None
    terms: Terms = ""
    """The licence and the terms that were accepted, word by word."""
    accepted_by: PersonName | None = None
    created_at: datetime | None = None
    answer: Text = ""
    """What the provider says to its decision."""
    followed_version: str | None = None
    """The snapshot of the provider that the subscriber's repository was made from."""
    followed_at: datetime | None = None
    version: int = 1


class Embargo(Record):
    """A rolling embargo: data of a repository becomes public when it is old enough."""

    organisation: OrganisationName
    repository: RepositoryName
    """The private repository, which has all data."""
    days: Annotated[float, Meta(ge=0, le=36_600)]
    """How old data must be."""
    bucket: BucketLabel
    """The bucket for public data."""
    prefix: Prefix
    """Below the prefix of this bucket."""
    dimension: Annotated[str, Meta(min_length=1, max_length=255)] = "time"
    """The coordinate that tells how old data is."""
    nodes: tuple[NodePath, ...] = ()
    """Exact paths of arrays and groups that become public; empty for all of them."""
    public_repository: RepositoryName | None = None
    """A repository of manifests for the public data, if there is to be one."""
    released_until: datetime | None = None
    """The age limit of the last release."""
    version: int = 1


class JobKind(StrEnum):
    """The kinds of work that the service does in the background."""

    FOLLOW = "follow"
    """Bring the repository of a filtered subscription to the provider's newest version."""
    RELEASE = "release"
    """Make public what a rolling embargo does not hold back any more."""


class JobState(StrEnum):
    """The states of a job."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class Job(Record):
    """Work that the service does in the background."""

    id: str
    organisation: OrganisationName
    """Whose members see the job."""
    kind: JobKind
    subject: str
    """The id of the subscription, or the repository with the embargo as `org/name`."""
    state: JobState = JobState.WAITING
    created_by: PersonName | None = None
    """Who asked for it; None if the service did, by its schedule."""
    created_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    attempts: int = 0
    """How often the job was begun; it is begun again after a server stopped."""
    done: int = 0
    """Arrays that are up to date, or chunks that are public already."""
    total: int | None = None
    """How many there are; None while this is not known."""
    report: Mapping[str, Any] | None = None
    """The result of a job that is done."""
    error_code: str | None = None
    error: str | None = None
    """The reason why a job failed."""

    @property
    def is_over(self) -> bool:
        """Return whether the job is done, or failed."""
        return self.state in {JobState.DONE, JobState.FAILED}


class AccessRequest(Record):
    """Somebody was refused and asks for access; admins of the owner grant or decline it."""

    id: str
    person: PersonName
    repository: str
    """The repository that did not open, as `org/name`."""
    organisation: OrganisationName
    """Whose admins decide."""
    container: str | None = None
    reason: str = ""
    message: Text = ""
    state: Decision = Decision.PENDING
    answer: Text = ""
    decided_by: PersonName | None = None
    granted_by: str | None = None
    """The id of the policy or of the subscription that the decision made."""
    created_at: datetime | None = None
