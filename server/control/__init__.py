"""The control store: incidents, channels, outbox, settings (SQLAlchemy and Alembic)."""
