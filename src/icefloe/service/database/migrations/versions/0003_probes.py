"""The attempts of the last probe of each bucket."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add a column for the attempts."""
    op.add_column("buckets", sa.Column("probe_checks", sa.JSON(), nullable=True))


def downgrade() -> None:
    """Delete the column."""
    op.drop_column("buckets", "probe_checks")
