"""Runs and the files they were read from, as the store knows them."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import duckdb

from ingest.schema.records import Cursor, SourceState
from ingest.store.connection import Store


@dataclass(frozen=True)
class RunRow:
    """Identity of a run, fixed at its first ingest."""

    run_id: str
    project: str
    name: str
    framework: str
    root: Path
    framework_version: str | None = None


@dataclass
class SourceRow:
    """A file of a run as the store knows it; source_id -1: not stored yet."""

    source_id: int
    run_id: str
    path: Path
    reader: str
    growth: str
    precedence: int = 0
    cursor: Cursor = field(default_factory=Cursor)
    fingerprint: str | None = None
    state: SourceState = "read"
    bytes: int = 0
    rows: int = 0
    rejected: int = 0
    newest_step: int | None = None
    note: str | None = None
    mtime_ns: int | None = None


def find_source(store: Store, path: Path) -> SourceRow | None:
    """The stored state of a file, or None if it was never read."""
    found = store.rows(
        """SELECT source_id, run_id, path, reader, growth, cursor_offset, cursor_line, cursor_state, fingerprint, state,
                  bytes, rows, rejected, newest_step, note, mtime_ns FROM source WHERE path = ?""",
        [str(path)],
    )
    if not found:
        return None
    (sid, run_id, where, reader, growth, offset, line, state, print_, status, size, rows, rejected, newest, note, mtime) = found[0]
    cursor = Cursor(offset, line, json.loads(state))
    return SourceRow(sid, run_id, Path(where), reader, growth, 0, cursor, print_, status, size, rows, rejected, newest, note, mtime)


def known_run(store: Store, paths: Sequence[Path]) -> RunRow | None:
    """The run that the first already stored one of these files belongs to."""
    names = [str(path) for path in paths]
    found = store.rows(
        """SELECT r.run_id, r.project, r.name, r.framework, r.root, r.framework_version FROM source s JOIN run r USING (run_id)
           WHERE list_contains(?, s.path) ORDER BY list_position(?, s.path) LIMIT 1""",
        [names, names],
    )
    if not found:
        return None
    run_id, project, name, framework, root, version = found[0]
    return RunRow(run_id, project, name, framework, Path(root), version)


def root_of(store: Store, run_id: str) -> str | None:
    """Where the run was first read from, or None if the store does not know it."""
    found = store.rows("SELECT root FROM run WHERE run_id = ?", [run_id])
    return found[0][0] if found else None


def ensure_run(connection: duckdb.DuckDBPyConnection, run: RunRow) -> None:
    """Adds the run with its colour unless it is known."""
    now = time.time()
    connection.execute(
        """INSERT INTO run SELECT ?, ?, ?, ?, ?, ?, NULL, (SELECT count(*) FROM run), ?, ?
           WHERE NOT EXISTS (SELECT 1 FROM run WHERE run_id = ?)""",
        [run.run_id, run.project, run.name, run.framework, run.framework_version, str(run.root), now, now, run.run_id],
    )


def announce(store: Store, run: RunRow, sources: Sequence[SourceRow]) -> None:
    """Notes files of a run before the first of them is read, so that whoever judges its steps knows what is still to come."""
    names = [str(source.path) for source in sources]
    known = {path for (path,) in store.rows("SELECT path FROM source WHERE list_contains(?, path)", [names])}
    new = [source for source in sources if str(source.path) not in known]
    if not new:
        return
    with store.transaction() as connection:
        ensure_run(connection, run)
        # Another thread may have met the same file in the meantime.
        known = {path for (path,) in connection.execute("SELECT path FROM source WHERE list_contains(?, path)", [names]).fetchall()}
        for source in [source for source in new if str(source.path) not in known]:
            save_source(connection, SourceRow(new_source_id(connection), run.run_id, source.path, source.reader, source.growth))


def new_source_id(connection: duckdb.DuckDBPyConnection) -> int:
    """The next free id of a source."""
    row = connection.execute("SELECT coalesce(max(source_id), 0) + 1 FROM source").fetchone()
    assert row is not None
    return int(row[0])


def save_source(connection: duckdb.DuckDBPyConnection, s: SourceRow) -> None:
    """Writes the state of a source in the open transaction."""
    connection.execute(
        """INSERT INTO source (source_id, run_id, path, reader, growth, fingerprint, cursor_offset, cursor_line, cursor_state,
               state, bytes, rows, rejected, newest_step, updated, note, mtime_ns)
               VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
           ON CONFLICT (source_id) DO UPDATE SET fingerprint = excluded.fingerprint, cursor_offset = excluded.cursor_offset,
               cursor_line = excluded.cursor_line, cursor_state = excluded.cursor_state, state = excluded.state, bytes = excluded.bytes,
               rows = excluded.rows, rejected = excluded.rejected, newest_step = excluded.newest_step, updated = excluded.updated,
               note = excluded.note, mtime_ns = excluded.mtime_ns""",
        [
            s.source_id, s.run_id, str(s.path), s.reader, s.growth, s.fingerprint, s.cursor.offset, s.cursor.line,
            json.dumps(s.cursor.state), s.state, s.bytes, s.rows, s.rejected, s.newest_step, time.time(), s.note, s.mtime_ns,
        ],
    )  # fmt: skip


def remember_look(store: Store, source_id: int, mtime_ns: int) -> None:
    """Notes the time stamp of a file whose bytes were compared and are unchanged."""
    with store.transaction() as connection:
        connection.execute("UPDATE source SET mtime_ns = ? WHERE source_id = ?", [mtime_ns, source_id])


def note_source(store: Store, path: Path, note: str | None) -> None:
    """Puts a sentence for the Sources page on a file; None takes it away."""
    with store.transaction() as connection:
        connection.execute("UPDATE source SET note = ? WHERE path = ?", [note, str(path)])
