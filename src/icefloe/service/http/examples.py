"""Examples of all bodies in the OpenAPI document: one small world, written down once.

Ada is an admin of the organisation `ocean-lab`, Bob a writer. The organisation `zoo` subscribes to
data of theirs, and Zoe of the zoo asks for more. The requests are accepted in this world; a test
sends them.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from icefloe.catalog.model import (
    AccessRequest,
    Bucket,
    BucketState,
    Decision,
    Embargo,
    Job,
    JobKind,
    JobState,
    Listing,
    Member,
    Organisation,
    Person,
    PersonKind,
    Platform,
    Policy,
    Repository,
    Role,
    SharedPrefix,
    Subscription,
    Token,
    TokenScope,
)
from icefloe.catalog.wire import (
    Access,
    AuditEntry,
    AuditHead,
    BucketCredential,
    BucketCredentialRequest,
    BucketSettings,
    ContainerAnswer,
    CreatedInvitation,
    CreatedToken,
    CredentialAnswer,
    DeviceCode,
    DeviceProblem,
    DeviceToken,
    EmbargoSettings,
    FollowAnswer,
    Health,
    ListingSettings,
    Me,
    MemberRole,
    MissingGrant,
    NewAccessRequest,
    NewBucket,
    NewDelegation,
    NewInvitation,
    NewListing,
    NewMemberInvitation,
    NewOrganisation,
    NewRepository,
    NewServiceAccount,
    NewSubscription,
    NewToken,
    OpenAnswer,
    OpenRequest,
    OrganisationChange,
    OwnershipProof,
    Page,
    PeopleCount,
    PolicySettings,
    PolicyTrial,
    PolicyVersionAnswer,
    ProbeCheck,
    ProbeReport,
    Problem,
    ReaderCount,
    Refresh,
    RepositoryChange,
    RequestDecision,
    RequestProposal,
    SimulationAnswer,
    StoreAnswer,
    SubscriptionDecision,
    Suspension,
)
from icefloe.errors import ErrorKind
from icefloe.records import Record, asdict
from icefloe.version import VERSION

_SERVICE: Final = "https://data.example.org"
_REQUEST_ID: Final = "5f0c1a7be2d94c36"
_NOW: Final = datetime(2026, 1, 1, 12, tzinfo=UTC)
_END: Final = datetime(2027, 1, 1, tzinfo=UTC)
_SOON: Final = datetime(2026, 1, 1, 13, tzinfo=UTC)
_SNAPSHOT: Final = "1CECHNKREP0F1RSTCMT0"
_ROLE: Final = "arn:aws:iam::123456789012:role/icefloe"
_TAPES: Final = "s3://ocean-tapes/"

PARAMETERS: Final[Mapping[str, Any]] = {
    "org": "ocean-lab",
    "name": "sea-surface",
    "person": "bob",
    "account": "nightly-ingest",
    "bucket": "tapes",
    "policy": "policy-3f9b2c7d1e5a8046",
    "listing": "daily-sst",
    "subscription": "subscription-8a1d4e6f0b2c7359",
    "request": "request-c4e80a1b6d2f9357",
    "job": "job-2b7e151628aed2a6",
    "token": "4fGh1jK2mN3pQ4rS",
    "confirm": "ocean-lab",
    "limit": 100,
    "cursor": "WyJvY2Vhbi1sYWIiXQ==",
    "before": 1200,
    "action": "policies:change",
    "resource": "bucket",
    "allowed": True,
    "since": "2026-01-01T00:00:00Z",
    "until": "2027-01-01T00:00:00Z",
    "state": "pending",
    "jobs/state": "done",
    "search": "sea surface",
    "path": "sst",
    "version": "main",
    "variables": "sst,ice",
    "format": "json",
    "decode": True,
    "method": "nearest",
    "selection": {"lat": "52.1", "time": "2024-01-01:2024-02-01"},
    "zoom": 0,
    "column": 0,
    "row": 0,
    "colours": "viridis",
    "data/range": "270,310",
    "key": "sst/zarr.json",
    "range": "bytes=0-99",
    "if-match": '"1"',
    "idempotency-key": "8c1f0e52-7d1b-4f0a-9a55-3f1f6f6f0b7d",
}
"""Values of parameters, by name; a tag before the name is that of the routes they are for."""

# What the organisation has

_ORGANISATION: Final = Organisation("ocean-lab", "The Ocean Lab", _NOW)
_MEMBER: Final = Member("ocean-lab", "bob", Role.WRITER)
_ACCOUNT: Final = Person(
    "nightly-ingest", PersonKind.SERVICE, "Nightly ingest", organisation="ocean-lab"
)
_SCOPE: Final = TokenScope(("write",), ("ocean-lab/*",))
_TOKEN: Final = Token(PARAMETERS["token"], "laptop", "ada", _SCOPE, _NOW, _END)
_SECRETS: Final = {
    "access_key_id": "AKIAIOSFODNN7EXAMPLE",
    "secret_access_key": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
}
_BUCKET: Final = Bucket(
    "ocean-lab",
    "tapes",
    Platform.S3,
    "ocean-tapes",
    region="eu-west-1",
    role=_ROLE,
    state=BucketState.PROVEN,
    state_reason="2 checks passed",
    probed_at=_NOW,
)
_REPOSITORY: Final = Repository(
    "ocean-lab",
    "sea-surface",
    "main",
    "sea-surface-1f3a9c20/",
    "Sea surface temperature, daily",
    created_at=_NOW,
    created_by="ada",
)
_POLICY: Final = Policy(
    PARAMETERS["policy"],
    "ocean-lab",
    "tapes",
    "daily/",
    ends_at=_END,
    created_by="ada",
    created_at=_NOW,
)
_LISTING: Final = Listing(
    "ocean-lab",
    "daily-sst",
    "sea-surface",
    "Daily sea surface temperature",
    "CC-BY-4.0",
    "Cite the lab.",
    offered_to=("zoo",),
    needs_approval=True,
    virtual_chunks=(SharedPrefix("tapes", "daily/"),),
)
_SUBSCRIPTION: Final = Subscription(
    PARAMETERS["subscription"],
    "zoo",
    "ocean-lab",
    "daily-sst",
    state=Decision.PENDING,
    terms="CC-BY-4.0\n\nCite the lab.",
    accepted_by="zoe",
    created_at=_NOW,
)
_EMBARGO: Final = Embargo("ocean-lab", "sea-surface", 30, "main", "released/", nodes=("/sst",))
_REQUEST: Final = AccessRequest(
    PARAMETERS["request"],
    "zoe",
    "zoo/reef",
    "ocean-lab",
    f"{_TAPES}hourly/",
    "no_policy",
    "for the yearly report",
    created_at=_NOW,
)
_NEW_POLICY: Final = PolicySettings("tapes", "hourly/", ends_at=_END, shared_with=("zoo",))
_SIMULATION: Final = SimulationAnswer(
    gains=(("zoe", "zoo/reef"),),
    losses=(),
    opens=("zoo/reef",),
    breaks=(),
    readers=(ReaderCount("zoo/reef", 0, 3),),
    other_gains=(PeopleCount("zoo", 2),),
)
_CREDENTIAL: Final = CredentialAnswer(
    "s3",
    {
        "access_key_id": "ASIAIOSFODNN7EXAMPLE",
        "secret_access_key": "je7MtGbClwBF/2Zp9Utk/h3yCo8nvbEXAMPLEKEY",
        "session_token": "IQoJb3JpZ2luX2VjEXAMPLETOKEN",
    },
    _SOON,
)
_TAPES_STORE: Final = StoreAnswer(Platform.S3, "ocean-tapes", "daily/", "eu-west-1")
_CREATED_TOKEN: Final = CreatedToken(
    PARAMETERS["token"], "icefloe_4fGh1jK2mN3pQ4rS_EXAMPLE_SECRET", _END
)

_RECORDS: Final[tuple[Record, ...]] = (
    # Requests
    NewOrganisation("reef-lab", "The Reef Lab"),
    OrganisationChange("The Ocean Lab"),
    MemberRole(Role.WRITER),
    NewServiceAccount("weekly-report", Role.READER, "Weekly report"),
    NewToken("nightly ingest", _SCOPE, 90),
    NewDelegation(Access.READ, "monthly means", 2),
    NewInvitation("emil"),
    NewMemberInvitation(Role.WRITER, "dora"),
    NewBucket(
        name="disks",
        platform=Platform.S3,
        bucket="ocean-disks",
        prefix="shared/",
        region="eu-west-1",
        role=_ROLE,
        secrets=_SECRETS,
    ),
    BucketSettings(Platform.S3, "ocean-tapes", region="eu-west-1", role=_ROLE, secrets=_SECRETS),
    NewRepository("wind", "main", description="Wind, hourly"),
    RepositoryChange("Sea surface temperature, daily means"),
    _NEW_POLICY,
    PolicyTrial(_NEW_POLICY),
    NewListing(name="all-sst", repository="sea-surface", licence="CC-BY-4.0"),
    ListingSettings(
        "sea-surface", "Daily sea surface temperature", "CC-BY-4.0", offered_to=("zoo", "archive")
    ),
    NewSubscription("archive", "winds", accepts_version=1),
    SubscriptionDecision(grants=True, ends_at=_END, answer="Welcome."),
    EmbargoSettings(30, "main", "released/", nodes=("/sst",)),
    NewAccessRequest(message="for the yearly report"),
    RequestDecision(grants=True, policy=_NEW_POLICY, answer="Of course."),
    OpenRequest(Access.READ),
    BucketCredentialRequest(Access.READ, "daily/"),
    # Answers
    _ORGANISATION,
    _MEMBER,
    _ACCOUNT,
    _TOKEN,
    _CREATED_TOKEN,
    CreatedInvitation(f"{_SERVICE}/join/Zk3vEXAMPLE", datetime(2026, 1, 4, 12, tzinfo=UTC)),
    Me("ada", "Ada", operator=False, roles={"ocean-lab": Role.ADMIN}, token=_TOKEN.id),
    _BUCKET,
    ProbeReport(
        BucketState.PROVEN,
        "2 checks passed",
        (
            ProbeCheck("read inside", passed=True, detail="status 200"),
            ProbeCheck("read outside", passed=True),
        ),
    ),
    OwnershipProof(
        "3d1f0c6b9a2e47581b6d0f3c8a5e9274",
        ".icefloe-challenge",
        "icefloe-challenge-9b2e41d07c6f8a35e1b09d24c7f3a6580e1d2b4c",
    ),
    Suspension(_BUCKET, _SOON),
    BucketCredential(_TAPES_STORE, _CREDENTIAL, is_scoped=True),
    _REPOSITORY,
    OpenAnswer(
        _REPOSITORY,
        "7",
        StoreAnswer(Platform.S3, "ocean-data", _REPOSITORY.prefix, "eu-west-1"),
        _CREDENTIAL,
        (
            ContainerAnswer(
                f"{_TAPES}daily/",
                "tapes",
                _TAPES_STORE,
                _CREDENTIAL,
                f"policy {_POLICY.id} of ocean-lab",
            ),
        ),
        Refresh(f"{_SERVICE}/api/v1/repos/ocean-lab/sea-surface/credentials", _SOON),
    ),
    _POLICY,
    PolicyVersionAnswer(_POLICY.id, _POLICY, "ada", _NOW),
    _SIMULATION,
    _LISTING,
    _SUBSCRIPTION,
    _EMBARGO,
    Job(
        PARAMETERS["job"],
        "ocean-lab",
        JobKind.FOLLOW,
        _SUBSCRIPTION.id,
        JobState.DONE,
        "ada",
        _NOW,
        _NOW,
        _NOW,
        attempts=1,
        done=3,
        total=3,
        report=asdict(FollowAnswer(_SNAPSHOT, _SNAPSHOT, changed=True, written=2, kept=1)),
    ),
    _REQUEST,
    RequestProposal(_REQUEST, _NEW_POLICY, simulation=_SIMULATION),
    AuditEntry(
        _NOW,
        "ada",
        "members:change",
        "member bob",
        allowed=True,
        request_id=_REQUEST_ID,
        organisation="ocean-lab",
        details={"reasons": ["ada is admin of ocean-lab"], "role": "writer"},
        number=1200,
    ),
    AuditHead(1200, "b7c0e9d1f2a34856"),
    DeviceCode(
        "GmRhmhcxhwAzkoEqiMEg",
        "BCDF-GHJK",
        f"{_SERVICE}/device",
        f"{_SERVICE}/device?user_code=BCDF-GHJK",
        900,
        5,
    ),
    DeviceToken(_CREATED_TOKEN.secret, "Bearer", 2_592_000, "write */*", "ada"),
    DeviceProblem(
        "authorization-pending",
        "nobody has approved this program yet: ask again after the interval",
        _REQUEST_ID,
        error="authorization_pending",
        error_description="nobody has approved this program yet: ask again after the interval",
    ),
    Health("alive", VERSION),
)
RECORDS: Final[Mapping[str, Record]] = {type(record).__name__: record for record in _RECORDS}
"""An example of each record, by the name of its class."""


def _problem(code: str, message: str, *missing: MissingGrant) -> Problem:
    return Problem(code, message, _REQUEST_ID, missing)


PROBLEMS: Final[Mapping[int, Problem]] = {
    400: _problem(ErrorKind.INVALID_REQUEST, "There was an error parsing the body"),
    401: _problem(
        ErrorKind.NOT_LOGGED_IN,
        "send a token that is still valid, like `Authorization: Bearer icefloe_...`",
    ),
    403: _problem(
        ErrorKind.ACCESS_DENIED, "bob is writer of ocean-lab, and this takes the role admin"
    ),
    404: _problem(
        ErrorKind.ENTRY_NOT_FOUND, "there is no organisation ocean-lab, or you may not see it"
    ),
    409: _problem(ErrorKind.ENTRY_ALREADY_EXISTS, "reef-lab exists already: choose another name"),
    412: _problem(
        ErrorKind.ENTRY_CHANGED,
        "somebody changed it first: it has version 2 now; read it again",
    ),
    413: _problem("request-too-large", "the body of a request has at most 1048576 bytes"),
    416: _problem(ErrorKind.INVALID_REQUEST, "the file has 800 bytes"),
    422: _problem(
        ErrorKind.INVALID_REQUEST,
        "body: Value error, Object missing required field `name`",
    ),
    429: _problem(
        ErrorKind.TOO_MANY_REQUESTS, "too many requests of this kind: try again in 20 seconds"
    ),
    500: _problem(
        ErrorKind.UNKNOWN, "the service failed; its operators find the reason in the log"
    ),
    502: _problem(
        ErrorKind.INVALID_CREDENTIALS, "the STS of bucket ocean-lab/tapes cannot be reached"
    ),
    503: _problem(
        ErrorKind.SERVICE_UNAVAILABLE,
        "the schema of the database is that of another version of the service: run"
        " `icefloe service migrate`",
    ),
}
"""An example of each error, by the status of the answer."""

_MISSING: Final = MissingGrant(
    f"{_TAPES}hourly/",
    "no_policy",
    "ocean-lab",
    "admins of ocean-lab",
    "ask them for a virtual chunk access policy on this prefix",
    f"{_SERVICE}/requests/new?repository=zoo/reef",
)
REFUSED_OPENING: Final = _problem(
    ErrorKind.VIRTUAL_ACCESS_REQUIRED,
    "zoo/reef refers to data that you may not read:\n"
    f"  {_MISSING.container}: {_MISSING.reason}; {_MISSING.who}: {_MISSING.what_to_do}",
    _MISSING,
)
"""The error of a repository that does not open whole."""


_POSITION: Final = {"dims": [], "shape": [], "dtype": "float64"}
DATA: Final[Mapping[str, Any]] = {
    "json": {
        "path": "/sst",
        "version": "main",
        "snapshot": _SNAPSHOT,
        "dims": {},
        "coords": {"lat": {**_POSITION, "units": "degrees_north", "values": 52.0}},
        "variables": {"sst": {**_POSITION, "dtype": "float32", "units": "K", "values": 281.5}},
    },
    "csv": "lat,sst\r\n52.0,281.5\r\n",
    "arrow": "a stream of Arrow record batches",
    "netcdf": "a file",
    "tilejson": {
        "tilejson": "3.0.0",
        "name": "/sst",
        "scheme": "xyz",
        "tiles": [f"{_SERVICE}/api/v1/repos/ocean-lab/sea-surface/tiles/sst/{{z}}/{{x}}/{{y}}.png"],
        "minzoom": 0,
        "maxzoom": 4,
        "bounds": [-180.0, -85.05, 180.0, 85.05],
    },
    "tile": "a picture",
    "plan": {
        "path": "/sst",
        "version": "main",
        "snapshot": _SNAPSHOT,
        "shape": [365, 180, 360],
        "dimensions": ["time", "lat", "lon"],
        "selection": {"time": {"start": 0, "stop": 1, "step": 1}},
        "data_type": "float32",
        "chunk_grid": {
            "name": "regular",
            "configuration": {"chunk_shape": [1, 180, 360]},
        },
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        "fill_value": "NaN",
        "zarr": f"{_SERVICE}/zarr/ocean-lab/sea-surface@{_SNAPSHOT}",
        "expires_at": "2026-01-01T12:05:00+00:00",
        "chunks": [
            {
                "index": [0, 0, 0],
                "kind": "virtual",
                "length": 259200,
                "url": "https://ocean-tapes.s3.eu-west-1.amazonaws.com/daily/1.nc?X-Amz-Expires=300",
                "signed": True,
                "headers": {"Range": "bytes=4096-263295", "If-Match": '"9b2e41d0"'},
            }
        ],
    },
    "document": {"zarr_format": 3, "node_type": "group", "attributes": {}},
    "chunk": "the bytes of a chunk",
}
"""Examples of answers with data, which no records describe."""


def example_of(name: str) -> Any:
    """Return the example of a record by the name of its schema; a page contains one entry.

    >>> example_of("Page_Member_")["items"]
    [{'organisation': 'ocean-lab', 'person': 'bob', 'role': 'writer'}]
    """
    if name.startswith("Page_"):
        return plain(Page((RECORDS[name.removeprefix("Page_").removesuffix("_")],)))
    return plain(RECORDS[name])


def plain(record: Record) -> Any:
    """Return a record as the plain values of its JSON."""
    return msgspec.json.decode(msgspec.json.encode(record))
