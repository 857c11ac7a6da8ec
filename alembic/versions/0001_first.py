"""The first tables: incidents, judged steps, channels, outbox, settings."""

import sqlalchemy as sa

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Creates every table of the first version."""
    op.create_table(
        "incident",
        sa.Column("id", sa.String(16), primary_key=True),
        sa.Column("run_id", sa.String(32), nullable=False, index=True),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("symptom", sa.String(64), nullable=False),
        sa.Column("rule_code", sa.String(16), nullable=False),
        sa.Column("rule_version", sa.String(32), nullable=False),
        sa.Column("slice", sa.String(200)),
        sa.Column("metric", sa.String(200)),
        sa.Column("severity", sa.String(16), nullable=False),
        sa.Column("status", sa.String(16), nullable=False, index=True),
        sa.Column("onset_step", sa.Integer, nullable=False),
        sa.Column("detected_step", sa.Integer, nullable=False),
        sa.Column("last_step", sa.Integer, nullable=False),
        sa.Column("steps_by_severity", sa.JSON, nullable=False),
        sa.Column("summary", sa.String, nullable=False),
        sa.Column("body", sa.JSON, nullable=False),
        sa.Column("opened_at", sa.Float, nullable=False),
        sa.Column("updated_at", sa.Float, nullable=False),
        sa.Column("closed_at", sa.Float),
        sa.Column("acknowledged_at", sa.Float),
        sa.Column("snoozed_until", sa.Float),
        sa.Column("feedback", sa.String(32)),
        sa.Column("absorbed_by", sa.String(16)),
    )
    op.create_index(
        "incident_identity",
        "incident",
        ["run_id", "attempt", "symptom", "rule_code", sa.text("coalesce(slice, '')"), "onset_step"],
        unique=True,
    )
    op.create_table(
        "judged",
        sa.Column("run_id", sa.String(32), primary_key=True),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("step", sa.Integer, nullable=False),
        sa.Column("state", sa.JSON(none_as_null=True)),
        sa.Column("updated_at", sa.Float, nullable=False),
    )
    op.create_table(
        "channel",
        sa.Column("id", sa.String(16), primary_key=True),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("url_secret", sa.String(2048), nullable=False),
        sa.Column("url_hint", sa.String(300), nullable=False),
        sa.Column("secret", sa.String(200)),
        sa.Column("min_severity", sa.String(16), nullable=False),
        sa.Column("enabled", sa.Boolean, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("off_reason", sa.String),
        sa.Column("failures_in_row", sa.Integer, nullable=False),
    )
    op.create_table(
        "outbox",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("channel_id", sa.String(16), sa.ForeignKey("channel.id", ondelete="CASCADE"), nullable=False, index=True),
        sa.Column("incident_id", sa.String(16), index=True),
        sa.Column("type", sa.String(32), nullable=False),
        sa.Column("payload", sa.JSON, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("next_at", sa.Float, nullable=False, index=True),
        sa.Column("state", sa.String(16), nullable=False, index=True),
        sa.Column("lease_until", sa.Float),
        sa.Column("last_status", sa.Integer),
        sa.Column("last_reply", sa.String),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("updated_at", sa.Float, nullable=False),
    )
    op.create_table("setting", sa.Column("key", sa.String(100), primary_key=True), sa.Column("value", sa.JSON, nullable=False))
