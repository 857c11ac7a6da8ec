"""Migrations of the control store, run at start."""

from __future__ import annotations

from pathlib import Path

from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy.engine import Connection

from alembic import command
from ingest.errors import StoreError, StoreNewer


def migrations_folder() -> Path:
    """The folder with env.py and versions/: inside the installed package, else beside it in the source tree."""
    server = Path(__file__).resolve().parent.parent
    for folder in (server / "_migrations", server.parent / "alembic"):
        if (folder / "env.py").is_file():
            return folder
    raise StoreError(f"The migrations of the control store are missing beside {server}. Install RLVitals again.")


def upgrade(connection: Connection, shown: str) -> None:
    """Applies every migration that the store does not have yet, in one transaction.

    Raises:
        StoreNewer: the store has a migration that this program does not know.
    """
    config = Config()
    config.set_main_option("script_location", str(migrations_folder()).replace("%", "%%"))
    config.attributes["connection"] = connection
    script = ScriptDirectory.from_config(config)
    with connection.begin():
        current = MigrationContext.configure(connection).get_current_heads()
        for revision in current:
            try:
                script.get_revision(revision)
            except CommandError:
                raise StoreNewer(
                    f"{shown} was written by a newer RLVitals (revision {revision} is unknown here). Install the newer version."
                ) from None
        if set(current) != set(script.get_heads()):
            command.upgrade(config, "head")
