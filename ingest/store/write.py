"""Writing one source into the store: rows and the cursor that covers them move in one transaction."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from ingest.readers.jsonl import sample_of
from ingest.redact import without_secrets
from ingest.schema.metrics import resolve
from ingest.schema.records import Batch, Cursor, EventRow, Item, Json, JsonSlice, MetricRow, Reject, SourceState, TrajectoryRow
from ingest.schema.tables import TOKEN_ARRAYS
from ingest.store.attempts import Attempts
from ingest.store.connection import Store
from ingest.store.rows import BadRow, StoredTrajectory, stored
from ingest.store.slices import load_slice

COMMIT_BYTES = 128 << 20
COMMIT_SECONDS = 2.0
COMMIT_ROWS = 20_000


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
    """A file of a run as the store knows it."""

    source_id: int
    run_id: str
    path: Path
    reader: str
    growth: str
    precedence: int
    cursor: Cursor = field(default_factory=Cursor)
    fingerprint: str | None = None
    state: SourceState = "read"
    bytes: int = 0
    rows: int = 0
    rejected: int = 0
    newest_step: int | None = None
    note: str | None = None


def ensure_run(connection: duckdb.DuckDBPyConnection, run: RunRow) -> None:
    """Adds the run with its colour unless it is known."""
    now = time.time()
    connection.execute(
        """INSERT INTO run SELECT ?, ?, ?, ?, ?, ?, NULL, (SELECT count(*) FROM run), ?, ?
           WHERE NOT EXISTS (SELECT 1 FROM run WHERE run_id = ?)""",
        [run.run_id, run.project, run.name, run.framework, run.framework_version, str(run.root), now, now, run.run_id],
    )


def find_source(store: Store, path: Path) -> SourceRow | None:
    """The stored state of a file, or None if it was never read."""
    found = store.rows(
        """SELECT source_id, run_id, path, reader, growth, cursor_offset, cursor_line, cursor_state, fingerprint, state,
                  bytes, rows, rejected, newest_step, note FROM source WHERE path = ?""",
        [str(path)],
    )
    if not found:
        return None
    (sid, run_id, where, reader, growth, offset, line, state, print_, status, size, rows, rejected, newest, note) = found[0]
    cursor = Cursor(offset, line, json.loads(state))
    return SourceRow(sid, run_id, Path(where), reader, growth, 0, cursor, print_, status, size, rows, rejected, newest, note)


class SourceWriter:
    """Collects the items of one source and commits them in transactions of bounded size.

    commit() is called by add() when enough has gathered and by the caller at the end; between two commits nothing
    of the source is in the store, so a kill at any moment loses and doubles nothing.
    """

    def __init__(self, store: Store, run: RunRow, source: SourceRow) -> None:
        self.store, self.run, self.source = store, run, source
        self._items: list[Item] = []
        self._bytes = 0
        self._rows = 0
        self._since = time.monotonic()

    def add(self, item: Item) -> bool:
        """Takes an item; True if a transaction was committed on the way."""
        self._items.append(item)
        if isinstance(item, JsonSlice):
            self._bytes += len(item.data)
        elif isinstance(item, Batch):
            self._rows += len(item.metrics) + len(item.trajectories)
        full = self._bytes >= COMMIT_BYTES or self._rows >= COMMIT_ROWS
        if full or time.monotonic() - self._since > COMMIT_SECONDS:
            self.commit()
            return True
        return False

    def commit(self, *, fingerprint: str | None = None, size: int | None = None, state: SourceState | None = None) -> None:
        """One transaction: every gathered row, the rejects, the cursor, the source's figures."""
        with self.store.transaction() as connection:
            ensure_run(connection, self.run)
            if self.source.source_id < 0:
                row = connection.execute("SELECT coalesce(max(source_id), 0) + 1 FROM source").fetchone()
                assert row is not None
                self.source.source_id = row[0]
            changed = _Transaction(connection, self.store, self.run, replace(self.source))
            for item in self._items:
                changed.apply(item)
            after = changed.source
            after.fingerprint = fingerprint if fingerprint is not None else after.fingerprint
            after.bytes = size if size is not None else after.bytes
            after.state = state or after.state
            self.store.on_point("cursor")
            _save_source(connection, after)
            if changed.wrote:
                connection.execute("UPDATE run SET last_seen = ? WHERE run_id = ?", [time.time(), self.run.run_id])
        self.source = after
        self._items, self._bytes, self._rows, self._since = [], 0, 0, time.monotonic()


def _save_source(connection: duckdb.DuckDBPyConnection, s: SourceRow) -> None:
    connection.execute("DELETE FROM source WHERE source_id = ?", [s.source_id])
    connection.execute(
        "INSERT INTO source VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            s.source_id, s.run_id, str(s.path), s.reader, s.growth, s.fingerprint, s.cursor.offset, s.cursor.line,
            json.dumps(s.cursor.state), s.state, s.bytes, s.rows, s.rejected, s.newest_step, time.time(), s.note,
        ],
    )  # fmt: skip


class _Transaction:
    """Applies items inside one open transaction; `source` is the state to be saved with them."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, store: Store, run: RunRow, source: SourceRow) -> None:
        self.connection, self.store, self.run, self.source = connection, store, run, source
        self.attempts = Attempts.from_state(source.cursor.state)
        self.wrote = False

    def apply(self, item: Item) -> None:
        """Writes one item and moves the cursor past it."""
        if isinstance(item, Reject):
            self._reject([(item.line, item.offset, item.reason, item.sample)])
        elif isinstance(item, JsonSlice):
            self._slice(item)
        else:
            self._batch(item)
        cursor = item.cursor
        if cursor is not None:
            state = {**cursor.state, **self.attempts.to_state()}
            self.source.cursor = Cursor(cursor.offset, cursor.line, state)

    def _batch(self, batch: Batch) -> None:
        if batch.config is not None:
            self._config(batch.config)
        if batch.note is not None:
            self.source.note = batch.note
        if batch.metrics:
            self._points(batch.metrics)
            self.store.on_point("points")
        if batch.trajectories:
            self._trajectories(batch.trajectories)
            self.store.on_point("trajectories")
        self._events([*batch.events, *self.attempts.seams()])

    def _slice(self, item: JsonSlice) -> None:
        loaded = load_slice(self.connection, item, self.run.run_id, self.source.source_id, self.attempts)
        self._reject(loaded.rejects)
        self._count(loaded.rows, loaded.newest_step)
        self.store.on_point("trajectories")
        self._events(self.attempts.seams())

    def _count(self, rows: int, newest_step: int | None) -> None:
        self.source.rows += rows
        self.wrote = self.wrote or rows > 0
        if newest_step is not None:
            self.source.newest_step = max(newest_step, self.source.newest_step if self.source.newest_step is not None else newest_step)

    def _config(self, config: Mapping[str, Json]) -> None:
        clean = without_secrets(dict(config))
        self.connection.execute(
            "UPDATE run SET config = json_merge_patch(coalesce(config, '{}'), ?) WHERE run_id = ?", [json.dumps(clean), self.run.run_id]
        )
        self._count(1, None)

    def _points(self, rows: Iterable[MetricRow]) -> None:
        ids = self._series_ids({key for row in rows for key in row.values})
        table: list[tuple[int, int, int, float, float | None]] = []
        newest: int | None = None
        count = 0
        for row in rows:
            attempt = self.attempts.of_metrics(row)
            newest = row.step if newest is None else max(newest, row.step)
            count += 1
            table.extend((ids[key], attempt, row.step, value, row.wall_time) for key, value in row.values.items())
        self._count(count, newest)
        if table:
            series, attempts, steps, values, walls = zip(*table, strict=True)
            new = pa.table(
                {
                    "series_id": pa.array(series, pa.int32()),
                    "source_id": pa.array([self.source.source_id] * len(table), pa.int32()),
                    "attempt": pa.array(attempts, pa.int32()),
                    "step": pa.array(steps, pa.int64()),
                    "value": pa.array(values, pa.float64()),
                    "wall_time": pa.array(walls, pa.float64()),
                }
            )
            insert_points(self.connection, self.run.run_id, self.source, new)

    def _series_ids(self, keys: set[str]) -> dict[str, int]:
        known = dict(
            self.connection.execute("SELECT source_key, series_id FROM series WHERE run_id = ?", [self.run.run_id]).fetchall()
        )
        missing = sorted(keys - known.keys())
        if missing:
            row = self.connection.execute("SELECT coalesce(max(series_id), 0) FROM series").fetchone()
            assert row is not None
            for number, key in enumerate(missing, row[0] + 1):
                meaning = resolve(key, self.run.framework, self.run.framework_version)
                self.connection.execute(
                    "INSERT INTO series VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    [number, self.run.run_id, key, meaning.metric, meaning.transform, meaning.estimator, meaning.aggregation, meaning.unit],
                )
                known[key] = number
        return known

    def _trajectories(self, rows: Iterable[TrajectoryRow]) -> None:
        good: list[tuple[int, int, StoredTrajectory]] = []
        for row in rows:
            try:
                good.append((self.attempts.of_trajectory(row.step, row.attempt), row.step, stored(row.fields)))
            except BadRow as error:
                self._reject([(None, None, str(error), sample_of(json.dumps(dict(row.fields)).encode()))])
        insert_trajectories(self.connection, self.run.run_id, self.source.source_id, good)
        self._count(len(good), max((step for _, step, _ in good), default=None))

    def _events(self, events: Iterable[EventRow]) -> None:
        for e in events:
            self.connection.execute(
                "INSERT INTO event VALUES (?, ?, ?, ?, ?, ?, ?)",
                [self.run.run_id, self.source.source_id, e.attempt or self.attempts.current, e.step, e.kind, e.text, e.wall_time],
            )
            self._count(1, None)

    def _reject(self, rejects: Iterable[tuple[int | None, int | None, str, str]]) -> None:
        for line, offset, reason, sample in rejects:
            self.connection.execute("INSERT INTO reject VALUES (?, ?, ?, ?, ?)", [self.source.source_id, line, offset, reason, sample])
            self.source.rejected += 1


def insert_points(connection: duckdb.DuckDBPyConnection, run_id: str, source: SourceRow, new: pa.Table) -> None:
    """Inserts points; where another source of the run has the same (series, attempt, step) the richer source wins.

    A rewritten file repeats what it said before: its own points with the same value are not added again.
    """
    others = connection.execute(
        "SELECT source_id, reader FROM source WHERE run_id = ? AND source_id <> ? AND newest_step IS NOT NULL", [run_id, source.source_id]
    ).fetchall()
    own = source.growth == "whole" and source.rows > 0
    if not others and not own:
        connection.execute("INSERT INTO point SELECT series_id, source_id, attempt, step, value, wall_time FROM new")
        return
    from ingest.readers import precedence_of  # the list of readers imports the store's row checks

    weaker = [sid for sid, reader in others if precedence_of(reader) < source.precedence]
    keys = "(series_id, attempt, step)"
    if weaker:
        connection.execute(f"DELETE FROM point WHERE list_contains(?, source_id) AND {keys} IN (SELECT {keys} FROM new)", [weaker])
    connection.execute(
        f"""INSERT INTO point SELECT series_id, source_id, attempt, step, value, wall_time FROM new
            WHERE {keys} NOT IN (SELECT {keys} FROM point p JOIN series s USING (series_id)
                                 WHERE s.run_id = ? AND p.source_id <> ?)
              AND (? OR {keys} NOT IN (SELECT {keys} FROM point WHERE source_id = ?))""",
        [run_id, source.source_id, not own, source.source_id],
    )


def insert_trajectories(
    connection: duckdb.DuckDBPyConnection, run_id: str, source_id: int, rows: list[tuple[int, int, StoredTrajectory]]
) -> None:
    """Inserts (attempt, step, trajectory) rows with running numbers that continue those of their step."""
    if not rows:
        return
    steps = sorted({step for _, step, _ in rows})
    following = dict(
        connection.execute(
            "SELECT step, max(n) + 1 FROM trajectory WHERE run_id = ? AND step BETWEEN ? AND ? GROUP BY step", [run_id, steps[0], steps[-1]]
        ).fetchall()
    )
    main: list[dict[str, Any]] = []
    tokens: list[dict[str, Any]] = []
    turns: list[dict[str, Any]] = []
    for attempt, step, row in rows:
        n = following.get(step, 0)
        following[step] = n + 1
        key = {"run_id": run_id, "source_id": source_id, "attempt": attempt, "step": step, "n": n}
        main.append({**key, "has_tokens": row.tokens is not None, **row.columns})
        if row.tokens is not None:
            tokens.append({**key, **{name: row.tokens.get(name) for name in TOKEN_ARRAYS}})
        turns.extend({**key, **turn} for turn in row.turns)
    for name, records in (("trajectory", main), ("token", tokens), ("turn", turns)):
        if records:
            new = pa.Table.from_pylist(records, schema=_arrow_schema(connection, name))
            connection.register("new_rows", new)
            connection.execute(f"INSERT INTO {name} BY NAME SELECT * FROM new_rows")
            connection.unregister("new_rows")


_ARROW = {
    "VARCHAR": pa.string(), "JSON": pa.string(), "DOUBLE": pa.float64(), "INTEGER": pa.int32(), "BIGINT": pa.int64(),
    "BOOLEAN": pa.bool_(), "INTEGER[]": pa.list_(pa.int32()), "VARCHAR[]": pa.list_(pa.string()),
    "TINYINT[]": pa.list_(pa.int8()), "FLOAT[]": pa.list_(pa.float32()),
}  # fmt: skip


def _arrow_schema(connection: duckdb.DuckDBPyConnection, table: str) -> pa.Schema:
    columns = connection.execute(
        "SELECT column_name, data_type FROM duckdb_columns() WHERE database_name = 'telemetry' AND table_name = ? ORDER BY column_index", [table]
    ).fetchall()
    return pa.schema([(name, _ARROW[kind]) for name, kind in columns])

