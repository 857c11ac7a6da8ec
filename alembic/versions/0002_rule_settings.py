"""What people change about rules, and channels that ask for preview rules too."""

import sqlalchemy as sa

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the table of rule settings and the channels' wish; channels that exist hear of stable rules alone."""
    op.create_table(
        "rule_setting",
        sa.Column("scope", sa.String(8), primary_key=True),
        sa.Column("target", sa.String(200), primary_key=True),
        sa.Column("rule_code", sa.String(16), primary_key=True),
        sa.Column("enabled", sa.Boolean),
        sa.Column("params", sa.JSON, nullable=False),
        sa.Column("status", sa.String(16)),
        sa.Column("updated_at", sa.Float, nullable=False),
    )
    with op.batch_alter_table("channel") as channel:
        channel.add_column(sa.Column("preview", sa.Boolean, nullable=False, server_default=sa.false()))
