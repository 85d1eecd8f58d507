"""The tables of the service.

A table of the model has the columns of its record in `icefloe.catalog.model`, under the same
names. Things refer to each other by their names, which never change; the name of an organisation
that was deleted is never used again.
"""

from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Dialect,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
)

METADATA: Final = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)
_NAME: Final = 100
_AUTO_KEY: Final = BigInteger().with_variant(Integer, "sqlite")


class Moment(TypeDecorator[datetime]):
    """A moment in UTC. SQLite keeps no time zone, so it is put back on reading."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Return the moment in UTC; refuse one without a time zone."""
        del dialect
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a moment needs a time zone")
        return value.astimezone(UTC)

    def process_result_value(self, value: Any | None, dialect: Dialect) -> datetime | None:
        """Return the stored moment with its time zone."""
        del dialect
        if value is None:
            return None
        moment: datetime = value
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _organisation(name: str = "organisation", *, primary_key: bool = False) -> Column[str]:
    to = ForeignKey("organisations.name", ondelete="CASCADE")
    return Column(name, String(_NAME), to, primary_key=primary_key, nullable=False)


def _person(name: str = "person", *, nullable: bool = False) -> Column[Any]:
    return Column(name, String(_NAME), ForeignKey("people.name"), nullable=nullable)


def _version() -> Column[int]:
    return Column("version", Integer, nullable=False, default=1)


organisations = Table(
    "organisations",
    METADATA,
    Column("name", String(_NAME), primary_key=True),
    Column("display_name", Text, nullable=False),
    Column("created_at", Moment, nullable=False),
)

retired_names = Table(
    "retired_names",
    METADATA,
    Column("name", String(_NAME), primary_key=True),
    Column("retired_at", Moment, nullable=False),
)

people = Table(
    "people",
    METADATA,
    Column("name", String(_NAME), primary_key=True),
    Column("kind", String(20), nullable=False),
    Column("display_name", Text, nullable=False),
    Column("email", Text),
    Column("organisation", String(_NAME), ForeignKey("organisations.name", ondelete="CASCADE")),
    Column("operator", Boolean, nullable=False),
    Column("disabled", Boolean, nullable=False),
    Column("issuer", Text),
    Column("subject", Text),
    Column("password_hash", Text),
    Column("created_at", Moment, nullable=False),
    UniqueConstraint("issuer", "subject"),
)

members = Table(
    "members",
    METADATA,
    _organisation(primary_key=True),
    Column(
        "person", String(_NAME), ForeignKey("people.name", ondelete="CASCADE"), primary_key=True
    ),
    Column("role", String(20), nullable=False),
    Index(None, "person"),
)

tokens = Table(
    "tokens",
    METADATA,
    Column("id", String(40), primary_key=True),
    Column("digest", LargeBinary, nullable=False),
    Column("name", Text, nullable=False),
    Column("person", String(_NAME), ForeignKey("people.name", ondelete="CASCADE"), nullable=False),
    Column("scope", JSON, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("expires_at", Moment, nullable=False),
    Column("last_used_at", Moment),
    Column("revoked_at", Moment),
    Index(None, "person"),
)

logins = Table(
    "logins",
    METADATA,
    # Browser sessions, one-time links and device codes: only digests of what people hold.
    Column("digest", LargeBinary, primary_key=True),
    Column("kind", String(20), nullable=False),
    Column("person", String(_NAME), ForeignKey("people.name", ondelete="CASCADE")),
    Column("user_code", String(20), unique=True),
    Column("details", JSON, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("expires_at", Moment, nullable=False),
    Index(None, "expires_at"),
)

buckets = Table(
    "buckets",
    METADATA,
    _organisation(primary_key=True),
    Column("name", String(_NAME), primary_key=True),
    Column("platform", String(20), nullable=False),
    Column("bucket", String(_NAME), nullable=False),
    Column("prefix", Text, nullable=False),
    Column("region", Text),
    Column("endpoint", Text),
    Column("sts_endpoint", Text),
    Column("path_style", Boolean, nullable=False),
    Column("allow_http", Boolean, nullable=False),
    Column("kms_key", Text),
    Column("account", Text),
    Column("hierarchical", Boolean, nullable=False),
    Column("role", Text),
    Column("delegation", String(30), nullable=False),
    Column("shares_static_keys", Boolean, nullable=False),
    Column("state", String(20), nullable=False),
    Column("state_reason", Text, nullable=False),
    Column("probed_at", Moment),
    # Until when one of several servers has the turn to probe the bucket.
    Column("probing_until", Moment),
    # The attempts of the last probe, as a list of `ProbeCheck`.
    Column("probe_checks", JSON(none_as_null=True)),
    _version(),
    Index(None, "platform", "bucket"),
)

secrets = Table(
    "secrets",
    METADATA,
    # Sealed by the vault: of buckets under `bucket/org/name`, of the service under `service/...`.
    Column("name", String(300), primary_key=True),
    Column("key_id", String(100), nullable=False),
    Column("wrapped_key", LargeBinary, nullable=False),
    Column("sealed", LargeBinary, nullable=False),
    Column("created_at", Moment, nullable=False),
)

repositories = Table(
    "repositories",
    METADATA,
    _organisation(primary_key=True),
    Column("name", String(_NAME), primary_key=True),
    Column("bucket", String(_NAME), nullable=False),
    Column("prefix", Text, nullable=False),
    Column("description", Text, nullable=False),
    Column("visibility", String(20), nullable=False),
    Column("status", String(20), nullable=False),
    Column("created_at", Moment, nullable=False),
    _person("created_by", nullable=True),
    _version(),
    Column("config_version", Text),
    ForeignKeyConstraint(["organisation", "bucket"], ["buckets.organisation", "buckets.name"]),
    Index(None, "organisation", "bucket"),
)

containers = Table(
    "containers",
    METADATA,
    # As the configuration of a repository had them when it was last read.
    Column("organisation", String(_NAME), primary_key=True),
    Column("repository", String(_NAME), primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("listed_as", Text, nullable=False),
    Column("url_prefix", Text, nullable=False),
    Column("name", Text),
    Column("platform", Text, nullable=False),
    Column("endpoint", Text),
    Column("account", Text),
    ForeignKeyConstraint(
        ["organisation", "repository"],
        ["repositories.organisation", "repositories.name"],
        ondelete="CASCADE",
    ),
)

policies = Table(
    "policies",
    METADATA,
    Column("id", String(40), primary_key=True),
    Column("organisation", String(_NAME), nullable=False),
    Column("bucket", String(_NAME), nullable=False),
    Column("prefix", Text, nullable=False),
    Column("scope", String(20), nullable=False),
    Column("embargoed_until", Moment),
    Column("ends_at", Moment),
    Column("shared_with", JSON, nullable=False),
    _person("created_by", nullable=True),
    Column("created_at", Moment, nullable=False),
    _version(),
    ForeignKeyConstraint(
        ["organisation", "bucket"], ["buckets.organisation", "buckets.name"], ondelete="CASCADE"
    ),
    Index(None, "organisation", "bucket"),
)

policy_history = Table(
    "policy_history",
    METADATA,
    # Every version of a policy that there was; `policy` is None where it was deleted.
    Column("number", _AUTO_KEY, primary_key=True, autoincrement=True),
    Column("id", String(40), nullable=False),
    _organisation(),
    Column("policy", JSON(none_as_null=True)),
    _person("changed_by", nullable=True),
    Column("changed_at", Moment, nullable=False),
    Index(None, "id"),
)

listings = Table(
    "listings",
    METADATA,
    _organisation(primary_key=True),
    Column("name", String(_NAME), primary_key=True),
    Column("repository", String(_NAME), nullable=False),
    Column("title", Text, nullable=False),
    Column("licence", Text, nullable=False),
    Column("terms", Text, nullable=False),
    Column("offered_to", JSON, nullable=False),
    Column("needs_approval", Boolean, nullable=False),
    Column("virtual_chunks", JSON, nullable=False),
    Column("filter", JSON(none_as_null=True)),
    _version(),
    ForeignKeyConstraint(
        ["organisation", "repository"],
        ["repositories.organisation", "repositories.name"],
        ondelete="CASCADE",
    ),
    Index(None, "organisation", "repository"),
)

subscriptions = Table(
    "subscriptions",
    METADATA,
    Column("id", String(40), primary_key=True),
    _organisation("subscriber"),
    Column("provider", String(_NAME), nullable=False),
    Column("listing", String(_NAME), nullable=False),
    Column("kind", String(20), nullable=False),
    Column("state", String(20), nullable=False),
    Column("repository", String(_NAME)),
    Column("filter", JSON(none_as_null=True)),
    Column("ends_at", Moment),
    Column("terms", Text, nullable=False),
    _person("accepted_by", nullable=True),
    Column("created_at", Moment, nullable=False),
    Column("answer", Text, nullable=False),
    Column("followed_version", String(40)),
    Column("followed_at", Moment),
    _version(),
    ForeignKeyConstraint(
        ["provider", "listing"], ["listings.organisation", "listings.name"], ondelete="CASCADE"
    ),
    UniqueConstraint("subscriber", "repository"),
    Index(None, "provider", "listing"),
    Index(None, "subscriber"),
)

embargoes = Table(
    "embargoes",
    METADATA,
    _organisation(primary_key=True),
    Column("repository", String(_NAME), primary_key=True),
    Column("days", Float, nullable=False),
    Column("bucket", String(_NAME), nullable=False),
    Column("prefix", Text, nullable=False),
    Column("dimension", Text, nullable=False),
    Column("nodes", JSON, nullable=False),
    Column("public_repository", String(_NAME)),
    Column("released_until", Moment),
    _version(),
    ForeignKeyConstraint(
        ["organisation", "repository"],
        ["repositories.organisation", "repositories.name"],
        ondelete="CASCADE",
    ),
    ForeignKeyConstraint(
        ["organisation", "bucket"], ["buckets.organisation", "buckets.name"], ondelete="CASCADE"
    ),
)

access_requests = Table(
    "access_requests",
    METADATA,
    Column("id", String(40), primary_key=True),
    Column("person", String(_NAME), ForeignKey("people.name", ondelete="CASCADE"), nullable=False),
    Column("repository", String(2 * _NAME), nullable=False),
    _organisation(),
    Column("container", Text),
    Column("reason", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("state", String(20), nullable=False),
    Column("answer", Text, nullable=False),
    _person("decided_by", nullable=True),
    Column("granted_by", String(40)),
    Column("created_at", Moment, nullable=False),
    Index(None, "organisation", "state"),
    Index(None, "person"),
)

audit = Table(
    "audit",
    METADATA,
    Column(
        "number",
        BigInteger().with_variant(Integer, "sqlite"),
        primary_key=True,
        autoincrement=False,
    ),
    Column("at", Moment, nullable=False),
    Column("person", String(_NAME), nullable=False),
    Column("action", String(_NAME), nullable=False),
    Column("organisation", String(_NAME)),
    Column("resource", Text, nullable=False),
    Column("allowed", Boolean, nullable=False),
    Column("details", Text, nullable=False),
    Column("request_id", String(_NAME), nullable=False),
    Column("mac", LargeBinary, nullable=False),
    Index(None, "organisation", "number"),
)

jobs = Table(
    "jobs",
    METADATA,
    Column("id", String(40), primary_key=True),
    _organisation(),
    Column("kind", String(20), nullable=False),
    Column("subject", String(250), nullable=False),
    Column("state", String(20), nullable=False),
    Column("created_by", String(_NAME)),
    Column("created_at", Moment, nullable=False),
    Column("started_at", Moment),
    Column("ended_at", Moment),
    Column("attempts", Integer, nullable=False),
    Column("done", BigInteger, nullable=False),
    Column("total", BigInteger),
    Column("report", JSON(none_as_null=True)),
    Column("error_code", String(_NAME)),
    Column("error", Text),
    # These two exist only while the job waits or runs: at most one of a kind and subject runs,
    # and for each organisation at most one waits.
    Column("waiting_key", String(400), unique=True),
    Column("running_key", String(300), unique=True),
    Column("lease", String(40)),
    Column("leased_until", Moment),
    Index(None, "organisation"),
    Index(None, "state"),
)

audit_head = Table(
    "audit_head",
    METADATA,
    # One row: the last entry. Without it, entries at the end could be deleted unnoticed.
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("number", BigInteger, nullable=False),
    Column("mac", LargeBinary, nullable=False),
    Column("seal", LargeBinary, nullable=False),
)

answers = Table(
    "answers",
    METADATA,
    # Answers to creations with an idempotency key, to repeat them word by word.
    Column(
        "person", String(_NAME), ForeignKey("people.name", ondelete="CASCADE"), primary_key=True
    ),
    Column("key", String(200), primary_key=True),
    Column("request", LargeBinary, nullable=False),
    Column("status", Integer, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("expires_at", Moment, nullable=False),
    Index(None, "expires_at"),
)
