"""The first schema."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Create all tables; entries of the audit can then be added, but not changed."""
    op.create_table(
        "audit",
        sa.Column(
            "number",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=False,
            nullable=False,
        ),
        sa.Column("at", _MOMENT, nullable=False),
        sa.Column("person", sa.String(length=100), nullable=False),
        sa.Column("action", sa.String(length=100), nullable=False),
        sa.Column("organisation", sa.String(length=100), nullable=True),
        sa.Column("resource", sa.Text(), nullable=False),
        sa.Column("allowed", sa.Boolean(), nullable=False),
        sa.Column("details", sa.Text(), nullable=False),
        sa.Column("request_id", sa.String(length=100), nullable=False),
        sa.Column("mac", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_audit")),
    )
    op.create_index(
        op.f("ix_audit_organisation_number"), "audit", ["organisation", "number"], unique=False
    )
    op.create_table(
        "audit_head",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("mac", sa.LargeBinary(), nullable=False),
        sa.Column("seal", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_head")),
    )
    op.create_table(
        "organisations",
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("display_name", sa.Text(), nullable=False),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_organisations")),
    )
    op.create_table(
        "retired_names",
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("retired_at", _MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_retired_names")),
    )
    op.create_table(
        "secrets",
        sa.Column("name", sa.String(length=300), nullable=False),
        sa.Column("key_id", sa.String(length=100), nullable=False),
        sa.Column("wrapped_key", sa.LargeBinary(), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_secrets")),
    )
    op.create_table(
        "buckets",
        sa.Column("organisation", sa.String(length=100), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("platform", sa.String(length=20), nullable=False),
        sa.Column("bucket", sa.String(length=100), nullable=False),
        sa.Column("prefix", sa.Text(), nullable=False),
        sa.Column("region", sa.Text(), nullable=True),
        sa.Column("endpoint", sa.Text(), nullable=True),
        sa.Column("sts_endpoint", sa.Text(), nullable=True),
        sa.Column("path_style", sa.Boolean(), nullable=False),
        sa.Column("allow_http", sa.Boolean(), nullable=False),
        sa.Column("kms_key", sa.Text(), nullable=True),
        sa.Column("account", sa.Text(), nullable=True),
        sa.Column("hierarchical", sa.Boolean(), nullable=False),
        sa.Column("role", sa.Text(), nullable=True),
        sa.Column("delegation", sa.String(length=30), nullable=False),
        sa.Column("shares_static_keys", sa.Boolean(), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("state_reason", sa.Text(), nullable=False),
        sa.Column("probed_at", _MOMENT, nullable=True),
        sa.Column("probing_until", _MOMENT, nullable=True),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["organisation"],
            ["organisations.name"],
            name=op.f("fk_buckets_organisation"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("organisation", "name", name=op.f("pk_buckets")),
    )
    op.create_index(
        op.f("ix_buckets_platform_bucket"), "buckets", ["platform", "bucket"], unique=False
    )
    op.create_table(
        "people",
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("display_name", sa.Text(), nullable=False),
        sa.Column("email", sa.Text(), nullable=True),
        sa.Column("organisation", sa.String(length=100), nullable=True),
        sa.Column("operator", sa.Boolean(), nullable=False),
        sa.Column("disabled", sa.Boolean(), nullable=False),
        sa.Column("issuer", sa.Text(), nullable=True),
        sa.Column("subject", sa.Text(), nullable=True),
        sa.Column("password_hash", sa.Text(), nullable=True),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.ForeignKeyConstraint(
            ["organisation"],
            ["organisations.name"],
            name=op.f("fk_people_organisation"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_people")),
        sa.UniqueConstraint("issuer", "subject", name=op.f("uq_people_issuer_subject")),
    )
    op.create_table(
        "access_requests",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("person", sa.String(length=100), nullable=False),
        sa.Column("repository", sa.String(length=200), nullable=False),
        sa.Column("organisation", sa.String(length=100), nullable=False),
        sa.Column("container", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("answer", sa.Text(), nullable=False),
        sa.Column("decided_by", sa.String(length=100), nullable=True),
        sa.Column("granted_by", sa.String(length=40), nullable=True),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.ForeignKeyConstraint(
            ["decided_by"], ["people.name"], name=op.f("fk_access_requests_decided_by")
        ),
        sa.ForeignKeyConstraint(
            ["organisation"],
            ["organisations.name"],
            name=op.f("fk_access_requests_organisation"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["person"], ["people.name"], name=op.f("fk_access_requests_person"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_access_requests")),
    )
    op.create_index(
        op.f("ix_access_requests_organisation_state"),
        "access_requests",
        ["organisation", "state"],
        unique=False,
    )
    op.create_index(op.f("ix_access_requests_person"), "access_requests", ["person"], unique=False)
    op.create_table(
        "answers",
        sa.Column("person", sa.String(length=100), nullable=False),
        sa.Column("key", sa.String(length=200), nullable=False),
        sa.Column("request", sa.LargeBinary(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("expires_at", _MOMENT, nullable=False),
        sa.ForeignKeyConstraint(
            ["person"], ["people.name"], name=op.f("fk_answers_person"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("person", "key", name=op.f("pk_answers")),
    )
    op.create_index(op.f("ix_answers_expires_at"), "answers", ["expires_at"], unique=False)
    op.create_table(
        "logins",
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("person", sa.String(length=100), nullable=True),
        sa.Column("user_code", sa.String(length=20), nullable=True),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.Column("expires_at", _MOMENT, nullable=False),
        sa.ForeignKeyConstraint(
            ["person"], ["people.name"], name=op.f("fk_logins_person"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_logins")),
        sa.UniqueConstraint("user_code", name=op.f("uq_logins_user_code")),
    )
    op.create_index(op.f("ix_logins_expires_at"), "logins", ["expires_at"], unique=False)
    op.create_table(
        "members",
        sa.Column("organisation", sa.String(length=100), nullable=False),
        sa.Column("person", sa.String(length=100), nullable=False),
        sa.Column("role", sa.String(length=20), nullable=False),
        sa.ForeignKeyConstraint(
            ["organisation"],
            ["organisations.name"],
            name=op.f("fk_members_organisation"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["person"], ["people.name"], name=op.f("fk_members_person"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("organisation", "person", name=op.f("pk_members")),
    )
    op.create_index(op.f("ix_members_person"), "members", ["person"], unique=False)
    op.create_table(
        "policies",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("organisation", sa.String(length=100), nullable=False),
        sa.Column("bucket", sa.String(length=100), nullable=False),
        sa.Column("prefix", sa.Text(), nullable=False),
        sa.Column("scope", sa.String(length=20), nullable=False),
        sa.Column("embargoed_until", _MOMENT, nullable=True),
        sa.Column("ends_at", _MOMENT, nullable=True),
        sa.Column("shared_with", sa.JSON(), nullable=False),
        sa.Column("created_by", sa.String(length=100), nullable=True),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["created_by"], ["people.name"], name=op.f("fk_policies_created_by")
        ),
        sa.ForeignKeyConstraint(
            ["organisation", "bucket"],
            ["buckets.organisation", "buckets.name"],
            name=op.f("fk_policies_organisation_bucket"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_policies")),
    )
    op.create_index(
        op.f("ix_policies_organisation_bucket"),
        "policies",
        ["organisation", "bucket"],
        unique=False,
    )
    op.create_table(
        "policy_history",
        sa.Column(
            "number",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("organisation", sa.String(length=100), nullable=False),
        sa.Column("policy", sa.JSON(), nullable=True),
        sa.Column("changed_by", sa.String(length=100), nullable=True),
        sa.Column("changed_at", _MOMENT, nullable=False),
        sa.ForeignKeyConstraint(
            ["changed_by"], ["people.name"], name=op.f("fk_policy_history_changed_by")
        ),
        sa.ForeignKeyConstraint(
            ["organisation"],
            ["organisations.name"],
            name=op.f("fk_policy_history_organisation"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_policy_history")),
    )
    op.create_index(op.f("ix_policy_history_id"), "policy_history", ["id"], unique=False)
    op.create_table(
        "repositories",
        sa.Column("organisation", sa.String(length=100), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("bucket", sa.String(length=100), nullable=False),
        sa.Column("prefix", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("visibility", sa.String(length=20), nullable=False),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.Column("created_by", sa.String(length=100), nullable=True),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("config_version", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["created_by"], ["people.name"], name=op.f("fk_repositories_created_by")
        ),
        sa.ForeignKeyConstraint(
            ["organisation", "bucket"],
            ["buckets.organisation", "buckets.name"],
            name=op.f("fk_repositories_organisation_bucket"),
        ),
        sa.ForeignKeyConstraint(
            ["organisation"],
            ["organisations.name"],
            name=op.f("fk_repositories_organisation"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("organisation", "name", name=op.f("pk_repositories")),
    )
    op.create_index(
        op.f("ix_repositories_organisation_bucket"),
        "repositories",
        ["organisation", "bucket"],
        unique=False,
    )
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("person", sa.String(length=100), nullable=False),
        sa.Column("scope", sa.JSON(), nullable=False),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.Column("expires_at", _MOMENT, nullable=False),
        sa.Column("last_used_at", _MOMENT, nullable=True),
        sa.Column("revoked_at", _MOMENT, nullable=True),
        sa.ForeignKeyConstraint(
            ["person"], ["people.name"], name=op.f("fk_tokens_person"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
    )
    op.create_index(op.f("ix_tokens_person"), "tokens", ["person"], unique=False)
    op.create_table(
        "containers",
        sa.Column("organisation", sa.String(length=100), nullable=False),
        sa.Column("repository", sa.String(length=100), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("listed_as", sa.Text(), nullable=False),
        sa.Column("url_prefix", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=True),
        sa.Column("platform", sa.Text(), nullable=False),
        sa.Column("endpoint", sa.Text(), nullable=True),
        sa.Column("account", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["organisation", "repository"],
            ["repositories.organisation", "repositories.name"],
            name=op.f("fk_containers_organisation_repository"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint(
            "organisation", "repository", "position", name=op.f("pk_containers")
        ),
    )
    op.create_table(
        "listings",
        sa.Column("organisation", sa.String(length=100), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("repository", sa.String(length=100), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("licence", sa.Text(), nullable=False),
        sa.Column("terms", sa.Text(), nullable=False),
        sa.Column("offered_to", sa.JSON(), nullable=False),
        sa.Column("needs_approval", sa.Boolean(), nullable=False),
        sa.Column("virtual_chunks", sa.JSON(), nullable=False),
        sa.Column("filter", sa.JSON(), nullable=True),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["organisation", "repository"],
            ["repositories.organisation", "repositories.name"],
            name=op.f("fk_listings_organisation_repository"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["organisation"],
            ["organisations.name"],
            name=op.f("fk_listings_organisation"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("organisation", "name", name=op.f("pk_listings")),
    )
    op.create_index(
        op.f("ix_listings_organisation_repository"),
        "listings",
        ["organisation", "repository"],
        unique=False,
    )
    op.create_table(
        "subscriptions",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("subscriber", sa.String(length=100), nullable=False),
        sa.Column("provider", sa.String(length=100), nullable=False),
        sa.Column("listing", sa.String(length=100), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("repository", sa.String(length=100), nullable=True),
        sa.Column("filter", sa.JSON(), nullable=True),
        sa.Column("ends_at", _MOMENT, nullable=True),
        sa.Column("terms", sa.Text(), nullable=False),
        sa.Column("accepted_by", sa.String(length=100), nullable=True),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.Column("answer", sa.Text(), nullable=False),
        sa.Column("followed_version", sa.String(length=40), nullable=True),
        sa.Column("followed_at", _MOMENT, nullable=True),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["accepted_by"], ["people.name"], name=op.f("fk_subscriptions_accepted_by")
        ),
        sa.ForeignKeyConstraint(
            ["provider", "listing"],
            ["listings.organisation", "listings.name"],
            name=op.f("fk_subscriptions_provider_listing"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["subscriber"],
            ["organisations.name"],
            name=op.f("fk_subscriptions_subscriber"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_subscriptions")),
        sa.UniqueConstraint(
            "subscriber", "repository", name=op.f("uq_subscriptions_subscriber_repository")
        ),
    )
    op.create_index(
        op.f("ix_subscriptions_provider_listing"),
        "subscriptions",
        ["provider", "listing"],
        unique=False,
    )
    op.create_index(
        op.f("ix_subscriptions_subscriber"), "subscriptions", ["subscriber"], unique=False
    )
    op.create_table(
        "embargoes",
        sa.Column("organisation", sa.String(length=100), nullable=False),
        sa.Column("repository", sa.String(length=100), nullable=False),
        sa.Column("days", sa.Float(), nullable=False),
        sa.Column("bucket", sa.String(length=100), nullable=False),
        sa.Column("prefix", sa.Text(), nullable=False),
        sa.Column("dimension", sa.Text(), nullable=False),
        sa.Column("nodes", sa.JSON(), nullable=False),
        sa.Column("public_repository", sa.String(length=100), nullable=True),
        sa.Column("released_until", _MOMENT, nullable=True),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["organisation", "bucket"],
            ["buckets.organisation", "buckets.name"],
            name=op.f("fk_embargoes_organisation_bucket"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["organisation", "repository"],
            ["repositories.organisation", "repositories.name"],
            name=op.f("fk_embargoes_organisation_repository"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["organisation"],
            ["organisations.name"],
            name=op.f("fk_embargoes_organisation"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("organisation", "repository", name=op.f("pk_embargoes")),
    )
    _protect_audit()


def downgrade() -> None:
    """Delete all tables."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP TRIGGER audit_is_append_only ON audit")
        op.execute("DROP FUNCTION refuse_audit_change()")
    op.drop_table("embargoes")
    op.drop_index(op.f("ix_subscriptions_subscriber"), table_name="subscriptions")
    op.drop_index(op.f("ix_subscriptions_provider_listing"), table_name="subscriptions")
    op.drop_table("subscriptions")
    op.drop_index(op.f("ix_listings_organisation_repository"), table_name="listings")
    op.drop_table("listings")
    op.drop_table("containers")
    op.drop_index(op.f("ix_tokens_person"), table_name="tokens")
    op.drop_table("tokens")
    op.drop_index(op.f("ix_repositories_organisation_bucket"), table_name="repositories")
    op.drop_table("repositories")
    op.drop_index(op.f("ix_policy_history_id"), table_name="policy_history")
    op.drop_table("policy_history")
    op.drop_index(op.f("ix_policies_organisation_bucket"), table_name="policies")
    op.drop_table("policies")
    op.drop_index(op.f("ix_members_person"), table_name="members")
    op.drop_table("members")
    op.drop_index(op.f("ix_logins_expires_at"), table_name="logins")
    op.drop_table("logins")
    op.drop_index(op.f("ix_answers_expires_at"), table_name="answers")
    op.drop_table("answers")
    op.drop_index(op.f("ix_access_requests_person"), table_name="access_requests")
    op.drop_index(op.f("ix_access_requests_organisation_state"), table_name="access_requests")
    op.drop_table("access_requests")
    op.drop_table("people")
    op.drop_index(op.f("ix_buckets_platform_bucket"), table_name="buckets")
    op.drop_table("buckets")
    op.drop_table("secrets")
    op.drop_table("retired_names")
    op.drop_table("organisations")
    op.drop_table("audit_head")
    op.drop_index(op.f("ix_audit_organisation_number"), table_name="audit")
    op.drop_table("audit")


def _protect_audit() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            "CREATE FUNCTION refuse_audit_change() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'the audit is append-only'; END $$"
        )
        op.execute(
            "CREATE TRIGGER audit_is_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_audit_change()"
        )
        return
    for verb in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER audit_refuses_{verb.lower()} BEFORE {verb} ON audit "
            "BEGIN SELECT RAISE(ABORT, 'the audit is append-only'); END"
        )
