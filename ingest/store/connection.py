"""The only opener of the DuckDB file. One process owns it; one thread writes; queries run on cursors of their own."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import duckdb
import numpy as np
from numpy.typing import NDArray

from ingest.errors import StoreError, StoreNewer, StoreOwned
from ingest.schema.tables import MIGRATIONS, SCHEMA_VERSION, TABLES

Columns: TypeAlias = dict[str, NDArray[Any]]


def _nothing(_name: str) -> None:
    return None


class Store:
    """The telemetry tables of one home, or of one throw-away in-memory store (path None).

    on_point is called with the name of each point a transaction passes (begin, points, trajectories, cursor,
    before-commit, after-commit), so that a test can end the process there.

    Raises:
        StoreOwned: another process has the file open.
        StoreNewer: the file was written by a newer program.
        StoreError: the file cannot be opened for another reason.
    """

    def __init__(
        self, path: Path | None, *, memory_limit: str = "512MB", threads: int = 1, on_point: Callable[[str], None] = _nothing
    ) -> None:
        self.path = path
        self.on_point = on_point
        self._write_lock = threading.RLock()
        self._reading: dict[Path, threading.Lock] = {}
        self._reading_lock = threading.Lock()
        self._local = threading.local()
        self._closed = False
        self._root = duckdb.connect(":memory:", config={"memory_limit": memory_limit, "threads": threads})
        try:
            self._attach()
            self._root.execute("USE telemetry")
            self._migrate()
        except BaseException:
            self._root.close()
            raise

    def _attach(self) -> None:
        # Token rows are tens of kB: default row groups never fill and are rewritten at each checkpoint; the default
        # storage version for new files has no ZSTD for text.
        target = ":memory:" if self.path is None else str(self.path).replace("'", "''")
        options = "" if self.path is None else " (ROW_GROUP_SIZE 2048, STORAGE_VERSION 'v1.2.0')"
        try:
            self._root.execute(f"ATTACH '{target}' AS telemetry{options}")
        except duckdb.IOException as error:
            if "lock" in str(error).lower():
                raise StoreOwned(f"{self.path} is open in another process. Stop it, or hand the path to the running server.") from None
            raise StoreError(f"{self.path} cannot be opened: {error}") from error
        except duckdb.Error as error:
            raise StoreError(f"{self.path} cannot be opened as a telemetry store: {error}") from error

    def _migrate(self) -> None:
        found = self._root.execute(
            "SELECT count(*) FROM duckdb_tables() WHERE database_name = 'telemetry' AND table_name = 'meta'"
        ).fetchone()
        if not found or not found[0]:
            with self.transaction() as connection:
                for statement in TABLES.values():
                    connection.execute(statement)
                connection.execute("INSERT INTO meta VALUES ('schema_version', ?), ('created', ?)", [str(SCHEMA_VERSION), str(time.time())])
            return
        row = self._root.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone()
        version = int(row[0]) if row else 0
        if version > SCHEMA_VERSION:
            raise StoreNewer(
                f"{self.path} was written by a newer RLVitals (schema {version}, this one knows {SCHEMA_VERSION}). "
                "Install the newer version."
            )
        while version < SCHEMA_VERSION:
            self._step_forward(version)
            version += 1

    def _step_forward(self, version: int) -> None:
        try:
            with self.transaction() as connection:
                for statement in MIGRATIONS[version]:
                    connection.execute(statement)
                connection.execute("UPDATE meta SET value = ? WHERE key = 'schema_version'", [str(version + 1)])
        except duckdb.Error as error:
            first = str(error).splitlines()[0]
            raise StoreError(
                f"{self.path} could not be brought from schema {version} to {version + 1} and is as it was: {first}. "
                "Keep the file, and run the program that wrote it."
            ) from error

    @contextmanager
    def transaction(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """The writing connection inside one transaction; one writer at a time, rolled back on any error."""
        with self._write_lock:
            connection = self._root
            connection.execute("BEGIN TRANSACTION")
            self.on_point("begin")
            try:
                yield connection
                self.on_point("before-commit")
                connection.execute("COMMIT")
            except BaseException:
                # A failed COMMIT (full disk) has already ended the transaction.
                with contextlib.suppress(duckdb.Error):
                    connection.execute("ROLLBACK")
                raise
            self.on_point("after-commit")

    @contextmanager
    def reading(self, path: Path) -> Iterator[None]:
        """Keeps a file to one reader: a followed path that is also handed in by hand must not be read twice at once."""
        with self._reading_lock:
            lock = self._reading.setdefault(path, threading.Lock())
        with lock:
            yield

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """This thread's reading connection."""
        cursor: duckdb.DuckDBPyConnection | None = getattr(self._local, "cursor", None)
        if cursor is None:
            cursor = self._root.cursor()
            cursor.execute("USE telemetry")
            self._local.cursor = cursor
        return cursor

    def rows(self, sql: str, parameters: Sequence[object] | dict[str, object] = ()) -> list[tuple[Any, ...]]:
        """All rows of a query, as tuples."""
        return self.cursor().execute(sql, parameters).fetchall()

    def columns(self, sql: str, parameters: Sequence[object] | dict[str, object] = ()) -> Columns:
        """All rows of a query as one numpy array a column; nulls of numbers become NaN, of text None."""
        fetched = self.cursor().execute(sql, parameters).fetchnumpy()
        return {name: _plain(array) for name, array in fetched.items()}

    def close(self) -> None:
        """Checkpoints and releases the file."""
        if not self._closed:
            self._closed = True
            with self._write_lock:
                self._root.close()


def _plain(array: Any) -> NDArray[Any]:
    """A plain array: masked numbers become NaN, masked text None."""
    if not isinstance(array, np.ma.MaskedArray):
        return np.asarray(array)
    if array.dtype.kind in "iufb":
        return np.asarray(np.ma.filled(array.astype(np.float64), np.nan)) if array.mask.any() else np.asarray(array.data)
    objects = np.asarray(array.data, dtype=object)
    objects[np.ma.getmaskarray(array)] = None
    return objects


def write_failure(store: Path | None, reading: Path, error: duckdb.Error) -> StoreError:
    """The sentence for a write that failed; nothing of its transaction is in the store."""
    text = str(error)
    place = store or "The store"
    if any(sign in text for sign in ("No space left", "File too large", "Disk quota", "disk is full")):
        return StoreError(
            f"{place} cannot be written: the disk is full. {reading} was read up to its last commit; free some space and read it again."
        )
    return StoreError(f"{place} could not be written while reading {reading}: {text.splitlines()[0]}")
