"""Runs the migrations on the connection that the program hands over."""

from alembic import context

connection = context.config.attributes["connection"]
# SQLite cannot alter columns in place; batch mode copies the table instead.
context.configure(connection=connection, target_metadata=None, render_as_batch=True, transactional_ddl=True)
context.run_migrations()
