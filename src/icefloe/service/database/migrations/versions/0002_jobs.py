"""Jobs that the service runs in the background."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Create the table of jobs."""
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("organisation", sa.String(length=100), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("subject", sa.String(length=250), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("created_by", sa.String(length=100), nullable=True),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.Column("started_at", _MOMENT, nullable=True),
        sa.Column("ended_at", _MOMENT, nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("done", sa.BigInteger(), nullable=False),
        sa.Column("total", sa.BigInteger(), nullable=True),
        sa.Column("report", sa.JSON(), nullable=True),
        sa.Column("error_code", sa.String(length=100), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("waiting_key", sa.String(length=400), nullable=True),
        sa.Column("running_key", sa.String(length=300), nullable=True),
        sa.Column("lease", sa.String(length=40), nullable=True),
        sa.Column("leased_until", _MOMENT, nullable=True),
        sa.ForeignKeyConstraint(
            ["organisation"],
            ["organisations.name"],
            name=op.f("fk_jobs_organisation"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
        sa.UniqueConstraint("waiting_key", name=op.f("uq_jobs_waiting_key")),
        sa.UniqueConstraint("running_key", name=op.f("uq_jobs_running_key")),
    )
    op.create_index(op.f("ix_jobs_organisation"), "jobs", ["organisation"], unique=False)
    op.create_index(op.f("ix_jobs_state"), "jobs", ["state"], unique=False)


def downgrade() -> None:
    """Delete the table of jobs."""
    op.drop_index(op.f("ix_jobs_state"), table_name="jobs")
    op.drop_index(op.f("ix_jobs_organisation"), table_name="jobs")
    op.drop_table("jobs")
