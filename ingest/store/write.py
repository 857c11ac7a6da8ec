"""Committing what readers yield: rows, rejects and the cursor of their source in one transaction."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import duckdb

from ingest.readers.jsonl import sample_of
from ingest.redact import without_secrets
from ingest.schema.records import Batch, Cursor, EventRow, Item, Json, JsonSlice, Reject, SourceState, TrajectoryRow
from ingest.store.attempts import Attempts
from ingest.store.connection import Store, write_failure
from ingest.store.points import insert_metrics, learn_version, note_transforms
from ingest.store.rows import BadRow, stored
from ingest.store.slices import RejectedLine, SliceShape, read_slice
from ingest.store.sources import RunRow, SourceRow, ensure_run, find_source, new_source_id, save_source
from ingest.store.trajectories import NewRows, TokensRefused, insert_trajectories

__all__ = ["Commit", "CommitHook", "RunRow", "SourceRow", "SourceWriter", "ensure_run", "find_source", "no_commit_hook"]

COMMIT_BYTES = 128 << 20
COMMIT_SECONDS = 2.0
COMMIT_ROWS = 20_000


@dataclass(frozen=True)
class Commit:
    """One committed transaction of a file; first_step and newest_step are those of its rows, None where none has a step."""

    run_id: str
    path: Path
    rows: int
    first_step: int | None
    newest_step: int | None


CommitHook = Callable[[Commit], None]


def no_commit_hook(_commit: Commit) -> None:
    """Tells nobody."""


class SourceWriter:
    """Collects the items of one source and commits them in transactions of bounded size.

    add() commits when enough has gathered, finish() at the end; between two commits nothing of the source is in the
    store, so a kill at any moment loses and doubles nothing. print_of gives the fingerprint that belongs to a cursor,
    or None if only the whole file has one.
    """

    def __init__(
        self,
        store: Store,
        run: RunRow,
        source: SourceRow,
        *,
        print_of: Callable[[Cursor], str | None] = lambda _cursor: None,
        on_commit: CommitHook = no_commit_hook,
    ) -> None:
        self.store, self.run, self.source = store, run, source
        self.rows = self.rejected = 0
        self._print_of, self._on_commit = print_of, on_commit
        self._shapes: dict[str, SliceShape] = {}
        self._items: list[Item] = []
        self._bytes = self._count = 0
        self._since = time.monotonic()

    def add(self, item: Item) -> bool:
        """Takes an item; True if a transaction was committed on the way.

        Raises:
            StoreError: the store cannot be written.
        """
        self._items.append(item)
        if isinstance(item, JsonSlice):
            self._bytes += len(item.data)
        elif isinstance(item, Batch):
            self._count += len(item.metrics) + len(item.trajectories)
        # A reject may belong in the middle of what the next cursor covers.
        whole = item.cursor is not None
        full = self._bytes >= COMMIT_BYTES or self._count >= COMMIT_ROWS or time.monotonic() - self._since > COMMIT_SECONDS
        if whole and full:
            self._commit(self.source)
            return True
        return False

    def finish(self, fingerprint: str | None, size: int, state: SourceState, failure: str | None = None) -> None:
        """Commits the rest; the file is then known as read to its end. failure: why it could not be read further.

        Raises:
            StoreError: the store cannot be written.
        """
        ending = replace(self.source, bytes=size, state=state, fingerprint=fingerprint or self.source.fingerprint)
        if failure is not None:
            ending.note = failure
        self._commit(ending, failed=failure is not None)

    def _commit(self, source: SourceRow, *, failed: bool = False) -> None:
        exact: set[int] = set()
        while True:
            try:
                changed = self._transact(source, exact, failed)
                break
            except _SliceRefused as refused:
                exact.add(refused.place)
            except duckdb.Error as error:
                raise write_failure(self.store.path, source.path, error) from error
        self.source = changed.source
        self.rows += changed.rows
        self.rejected += changed.rejected
        self._items, self._bytes, self._count, self._since = [], 0, 0, time.monotonic()
        if changed.rows:
            self._on_commit(Commit(self.run.run_id, source.path, changed.rows, changed.first_step, changed.newest_step))

    def _transact(self, source: SourceRow, exact: set[int], failed: bool) -> _Transaction:
        with self.store.transaction() as connection:
            ensure_run(connection, self.run)
            started = replace(source, source_id=source.source_id if source.source_id >= 0 else new_source_id(connection))
            changed = _Transaction(connection, self.store, self.run, started, self._shapes)
            for place, item in enumerate(self._items):
                changed.apply(item, place, exact=place in exact)
            after = changed.source
            after.fingerprint = self._print_of(after.cursor) or after.fingerprint
            if failed and not after.rows:
                after.state = "rejected"
            self.store.on_point("cursor")
            save_source(connection, after)
            if changed.rows:
                connection.execute("UPDATE run SET last_seen = ? WHERE run_id = ?", [time.time(), self.run.run_id])
        return changed


class _SliceRefused(Exception):
    """The item at that place holds token arrays that must go the exact way; everything is applied again."""

    def __init__(self, place: int) -> None:
        super().__init__(place)
        self.place = place


class _Transaction:
    """Applies items inside one open transaction; `source` is the state to be saved with them."""

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, store: Store, run: RunRow, source: SourceRow, shapes: dict[str, SliceShape]
    ) -> None:
        self.connection, self.store, self.run, self.source, self._shapes = connection, store, run, source, shapes
        self.rows = self.rejected = 0
        self.first_step: int | None = None
        self.newest_step: int | None = None
        state = dict(source.cursor.state)
        rewritten = state.pop("rewritten", None)
        self.attempts = Attempts.from_state(state)
        if rewritten is not None:
            self.attempts.rewritten(rewritten)
            self._move(Cursor(source.cursor.offset, source.cursor.line, state))
            if rewritten == "compare":
                # The lines are met again, and so are their faults.
                connection.execute("DELETE FROM reject WHERE source_id = ?", [source.source_id])
                source.rejected = 0

    def apply(self, item: Item, place: int, *, exact: bool) -> None:
        """Writes one item and moves the cursor past it."""
        if isinstance(item, Reject):
            self._reject([(item.line, item.offset, item.reason, item.sample)])
        elif isinstance(item, JsonSlice):
            self._slice(item, place, exact)
        else:
            self._batch(item)
        if item.cursor is not None:
            self._move(item.cursor)

    def _move(self, cursor: Cursor) -> None:
        self.source.cursor = Cursor(cursor.offset, cursor.line, {**cursor.state, **self.attempts.to_state()})

    def _batch(self, batch: Batch) -> None:
        if batch.config is not None:
            self._config(batch.config)
        if batch.note is not None:
            self.source.note = batch.note
        if batch.framework_version is not None:
            self.run = learn_version(self.connection, self.run, batch.framework_version)
        if batch.metrics:
            self._metrics(batch)
            note_transforms(self.connection, self.run.run_id, batch.transforms)
            self.store.on_point("points")
        if batch.trajectories:
            self._trajectories(batch.trajectories)
            self.store.on_point("trajectories")
        self._events([*batch.events, *self.attempts.seams()])

    def _metrics(self, batch: Batch) -> None:
        added = insert_metrics(self.connection, self.run, self.source, self.attempts, batch.metrics)
        steps = [row.step for row in batch.metrics]
        # A file that is read again counts the records that were new in it, as far as their points tell.
        fresh = len(steps) if not self.attempts.comparing else min(added, len(steps))
        self._saw(fresh, min(steps), max(steps))

    def _slice(self, item: JsonSlice, place: int, exact: bool) -> None:
        found = read_slice(item, None if exact else self._shape(item))
        self._reject(found.rejects)
        try:
            self._rows(found.rows)
        except TokensRefused as error:
            raise _SliceRefused(place) from error
        self.store.on_point("trajectories")
        self._events(self.attempts.seams())

    def _shape(self, item: JsonSlice) -> SliceShape:
        key = json.dumps([dict(item.rename), dict(item.defaults)], sort_keys=True)
        shape = self._shapes.get(key)
        if shape is None:
            shape = self._shapes[key] = SliceShape(item.rename, item.defaults)
        return shape

    def _rows(self, rows: NewRows) -> None:
        written = insert_trajectories(self.connection, self.run.run_id, self.source.source_id, self.attempts, rows)
        self._saw(written.rows, written.first_step, written.newest_step)

    def _saw(self, rows: int, first_step: int | None, newest_step: int | None) -> None:
        self.rows += rows
        self.source.rows += rows
        if first_step is None or newest_step is None:
            return
        self.first_step = first_step if self.first_step is None else min(first_step, self.first_step)
        self.newest_step = newest_step if self.newest_step is None else max(newest_step, self.newest_step)
        self.source.newest_step = max(newest_step, self.source.newest_step if self.source.newest_step is not None else newest_step)

    def _config(self, config: Mapping[str, Json]) -> None:
        clean = json.dumps(without_secrets(dict(config)))
        known = self.connection.execute("SELECT config FROM run WHERE run_id = ?", [self.run.run_id]).fetchone()
        self.connection.execute(
            "UPDATE run SET config = json_merge_patch(coalesce(config, '{}'), ?) WHERE run_id = ?", [clean, self.run.run_id]
        )
        if known != self.connection.execute("SELECT config FROM run WHERE run_id = ?", [self.run.run_id]).fetchone():
            self._saw(1, None, None)

    def _trajectories(self, rows: Iterable[TrajectoryRow]) -> None:
        good = NewRows()
        for row in rows:
            try:
                good.add(row.step, row.attempt, stored(row.fields))
            except BadRow as error:
                self._reject([(row.line, row.offset, str(error), sample_of(json.dumps(dict(row.fields), default=str).encode()))])
        self._rows(good)

    def _events(self, events: Iterable[EventRow]) -> None:
        for e in events:
            attempt = e.attempt or self.attempts.stored(self.attempts.passage, e.step)
            row = [self.run.run_id, self.source.source_id, attempt, e.step, e.kind, e.text, e.wall_time]
            same = "SELECT 1 FROM event WHERE source_id = ? AND step = ? AND kind = ? AND text = ?"
            key = [self.source.source_id, e.step, e.kind, e.text]
            if self.attempts.comparing and self.connection.execute(same, key).fetchone():
                continue
            self.connection.execute("INSERT INTO event VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            self._saw(1, None, None)

    def _reject(self, rejects: Iterable[RejectedLine]) -> None:
        rows = [(self.source.source_id, *reject) for reject in rejects]
        if rows:
            self.connection.executemany("INSERT INTO reject VALUES (?, ?, ?, ?, ?)", rows)
        self.source.rejected += len(rows)
        self.rejected += len(rows)
