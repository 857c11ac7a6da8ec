"""Writing trajectories with their tokens and turns inside an open transaction."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import duckdb
import msgspec
import pyarrow as pa

from ingest.errors import StoreError
from ingest.schema.tables import TOKEN_ARRAYS, TRAJECTORY_FIELDS
from ingest.store.attempts import Attempts
from ingest.store.rows import StoredTrajectory

COLUMNS = tuple(TRAJECTORY_FIELDS)


class TokensRefused(Exception):
    """DuckDB could not read the token arrays of some rows; the transaction is void and the exact path must read them."""


@dataclass
class NewRows:
    """Trajectories in order of arrival; the maps go by place in it.

    columns: in the order of COLUMNS; given: the attempt the row itself names; spans: token arrays as JSON bytes that are
    known to be plain; tokens: token arrays as values; turns: rows of `turn`.
    """

    steps: list[int] = field(default_factory=list)
    given: list[int | None] = field(default_factory=list)
    columns: list[list[Any]] = field(default_factory=lambda: [[] for _ in COLUMNS])
    spans: dict[int, dict[str, bytes]] = field(default_factory=dict)
    tokens: dict[int, dict[str, list[Any]]] = field(default_factory=dict)
    turns: dict[int, list[dict[str, Any]]] = field(default_factory=dict)

    def add(self, step: int, attempt: int | None, row: StoredTrajectory) -> None:
        """A row that the exact path has read."""
        place = len(self.steps)
        self.steps.append(step)
        self.given.append(attempt)
        for name, column in zip(COLUMNS, self.columns, strict=True):
            column.append(row.columns[name])
        if row.turns:
            self.turns[place] = row.turns
        if row.tokens is not None:
            self.tokens[place] = row.tokens

    def extend(
        self,
        steps: Sequence[int],
        given: Sequence[int | None],
        columns: Sequence[Sequence[Any]],
        spans: Mapping[int, dict[str, bytes]],
        turns: Mapping[int, list[dict[str, Any]]],
    ) -> None:
        """Rows whose token arrays DuckDB reads itself; the maps go by place in these."""
        start = len(self.steps)
        self.steps.extend(steps)
        self.given.extend(given)
        for mine, new in zip(self.columns, columns, strict=True):
            mine.extend(new)
        self.spans.update((start + place, arrays) for place, arrays in spans.items())
        self.turns.update((start + place, rows) for place, rows in turns.items())


@dataclass(frozen=True)
class Written:
    """Rows inserted and their first and newest step; None where none was."""

    rows: int
    first_step: int | None
    newest_step: int | None


class _Placed(NamedTuple):
    """Where a row goes: its place in NewRows and its key."""

    place: int
    attempt: int
    step: int
    n: int


def insert_trajectories(connection: duckdb.DuckDBPyConnection, run_id: str, source_id: int, attempts: Attempts, new: NewRows) -> Written:
    """Inserts rows with running numbers that continue those of their step; rows that a rewritten file repeats are left out.

    Raises:
        TokensRefused: DuckDB refused the bytes of a token array.
    """
    passages = attempts.of_trajectories(new.steps, new.given)
    places = list(range(len(new.steps)))
    if attempts.comparing:
        stored, places = _compare(connection, run_id, source_id, attempts, new, passages)
    else:
        stored = attempts.stored_all(passages, new.steps)
    placed = list(_numbered(connection, run_id, new, stored, places))
    if not placed:
        return Written(0, None, None)
    _insert_main(connection, run_id, source_id, new, placed)
    _insert_spans(connection, run_id, source_id, new, placed)
    _insert_values(connection, run_id, source_id, new, placed)
    return Written(len(placed), min(p.step for p in placed), max(p.step for p in placed))


def _numbered(connection: duckdb.DuckDBPyConnection, run_id: str, new: NewRows, stored: list[int], places: list[int]) -> Iterator[_Placed]:
    if not places:
        return
    steps = [new.steps[place] for place in places]
    following = dict(
        connection.execute(
            "SELECT step, max(n) + 1 FROM trajectory WHERE run_id = ? AND step BETWEEN ? AND ? GROUP BY step",
            [run_id, min(steps), max(steps)],
        ).fetchall()
    )
    for place, step in zip(places, steps, strict=True):
        n = following.get(step, 0)
        following[step] = n + 1
        yield _Placed(place, stored[place], step, n)


def _insert_main(connection: duckdb.DuckDBPyConnection, run_id: str, source_id: int, new: NewRows, placed: list[_Placed]) -> None:
    with_tokens = [p.place in new.spans or p.place in new.tokens for p in placed]
    arrays = {**_keys(run_id, source_id, placed), "has_tokens": pa.array(with_tokens, pa.bool_())}
    arrays |= _columns(new, [p.place for p in placed])
    _insert(connection, "trajectory", pa.table(arrays))


def _columns(new: NewRows, places: Sequence[int]) -> dict[str, pa.Array]:
    every = len(places) == len(new.steps)
    return {
        name: pa.array(column if every else [column[place] for place in places], _ARROW[TRAJECTORY_FIELDS[name]])
        for name, column in zip(COLUMNS, new.columns, strict=True)
    }


def _keys(run_id: str, source_id: int, placed: list[_Placed]) -> dict[str, pa.Array]:
    return {
        "run_id": pa.array([run_id] * len(placed), pa.string()),
        "source_id": pa.array([source_id] * len(placed), pa.int32()),
        "attempt": pa.array([p.attempt for p in placed], pa.int32()),
        "step": pa.array([p.step for p in placed], pa.int64()),
        "n": pa.array([p.n for p in placed], pa.int32()),
    }


def _insert_spans(connection: duckdb.DuckDBPyConnection, run_id: str, source_id: int, new: NewRows, placed: list[_Placed]) -> None:
    """Token arrays as they stand in the file, read by DuckDB from memory."""
    chosen = [p for p in placed if p.place in new.spans]
    if not chosen:
        return
    names = [name for name in TOKEN_ARRAYS if any(name in new.spans[p.place] for p in chosen)]
    handle = os.memfd_create("tokens")
    try:
        try:
            longest = _write_lines(handle, chosen, new)
        except OSError as error:
            raise StoreError(f"Token arrays could not be handed to the store in memory: {error.strerror}.") from error
        _read_spans(connection, handle, run_id, source_id, names, longest, len(chosen))
    finally:
        os.close(handle)


def _write_lines(handle: int, chosen: list[_Placed], new: NewRows) -> int:
    """Writes one JSON line a row without copying its arrays; the bytes of the longest."""
    pieces: list[bytes] = []
    longest = 0
    for p in chosen:
        size = len(pieces)
        pieces.append(b'{"a":%d,"s":%d,"n":%d' % (p.attempt, p.step, p.n))
        for name, span in new.spans[p.place].items():
            pieces += (b',"%s":' % name.encode(), span)
        pieces.append(b"}\n")
        longest = max(longest, sum(map(len, pieces[size:])))
        if len(pieces) > _PIECES:
            _write_all(handle, pieces)
            pieces = []
    _write_all(handle, pieces)
    return longest


_PIECES = 900
"""Less than the 1,024 pieces that one call takes, by more than one row has."""


def _write_all(handle: int, pieces: list[bytes]) -> None:
    if not pieces:
        return
    written = os.writev(handle, pieces)
    if written < sum(map(len, pieces)):
        rest = memoryview(b"".join(pieces))[written:]
        while rest:
            rest = rest[os.write(handle, rest) :]


def _read_spans(
    connection: duckdb.DuckDBPyConnection, handle: int, run_id: str, source_id: int, names: list[str], longest: int, rows: int
) -> None:
    kinds = {"a": "INTEGER", "s": "BIGINT", "n": "INTEGER"} | {name: TOKEN_ARRAYS[name] for name in names}
    columns = ", ".join(f"{name}: '{kind}'" for name, kind in kinds.items())
    # The object size also sizes the read buffers, so it is no larger than the longest line needs.
    size = max(1 << 20, (longest + 1024 + 0xFFFF) & ~0xFFFF)
    try:
        row = connection.execute(
            f"""INSERT INTO token (run_id, source_id, attempt, step, n, {", ".join(names)})
                SELECT ?, ?, a, s, n, {", ".join(names)} FROM read_json('/proc/self/fd/{handle}',
                    format = 'newline_delimited', columns = {{{columns}}}, maximum_object_size = {size}, compression = 'uncompressed')""",
            [run_id, source_id],
        ).fetchone()
    except (duckdb.InvalidInputException, duckdb.ConversionException, duckdb.OutOfRangeException) as error:
        raise TokensRefused(str(error)) from error
    if row is None or row[0] != rows:
        raise TokensRefused(f"{row and row[0]} of {rows} rows were read as they stand")


def _insert_values(connection: duckdb.DuckDBPyConnection, run_id: str, source_id: int, new: NewRows, placed: list[_Placed]) -> None:
    """Token arrays and turns that were decoded in Python."""
    with_tokens = [p for p in placed if p.place in new.tokens]
    if with_tokens:
        arrays = _keys(run_id, source_id, with_tokens)
        arrays |= {
            name: pa.array([new.tokens[p.place].get(name) for p in with_tokens], _ARROW[kind]) for name, kind in TOKEN_ARRAYS.items()
        }
        _insert(connection, "token", pa.table(arrays))
    turns = [(p, turn) for p in placed for turn in new.turns.get(p.place, ())]
    if turns:
        arrays = _keys(run_id, source_id, [p for p, _ in turns])
        arrays |= {name: pa.array([turn[name] for _, turn in turns], kind) for name, kind in _TURN.items()}
        _insert(connection, "turn", pa.table(arrays))


def _insert(connection: duckdb.DuckDBPyConnection, table: str, rows: pa.Table) -> None:
    connection.register("new_rows", rows)
    connection.execute(f"INSERT INTO {table} BY NAME SELECT * FROM new_rows")
    connection.unregister("new_rows")


def _compare(
    connection: duckdb.DuckDBPyConnection, run_id: str, source_id: int, attempts: Attempts, new: NewRows, passages: list[int]
) -> tuple[list[int], list[int]]:
    """The attempt of every row of a file that is read again, and the places of those that it did not say before.

    Rows are compared with the stored rows of their attempt and step by order of arrival. The first step at which one
    differs begins a new attempt, which then holds all rows from that step on. Rows of a split that the step did not
    have before stand beside the others: a trainer writes an evaluation over the training rows of the same step.
    """
    ordinals = _ordinals(attempts, new.steps, passages)
    while True:
        stored = attempts.stored_all(passages, new.steps)
        same = _same(connection, run_id, source_id, new, stored, ordinals)
        differing = [place for place, equal in same.items() if not equal]
        if not differing:
            return stored, [place for place in range(len(stored)) if place not in same]
        passage = min(passages[place] for place in differing)
        attempts.diverged(passage, min(new.steps[place] for place in differing if passages[place] == passage))


def _ordinals(attempts: Attempts, steps: list[int], passages: list[int]) -> list[int]:
    """Place of each row among those of its step in this pass over the file."""
    found = []
    for step, passage in zip(steps, passages, strict=True):
        if passage != attempts.pass_of_rows:
            attempts.pass_rows.clear()
            attempts.pass_of_rows = passage
        place = attempts.pass_rows.get(step, 0)
        attempts.pass_rows[step] = place + 1
        found.append(place)
    return found


def _same(
    connection: duckdb.DuckDBPyConnection, run_id: str, source_id: int, new: NewRows, stored: list[int], ordinals: list[int]
) -> dict[int, bool]:
    """For each row that has a stored counterpart: whether both say the same."""
    if not stored:
        return {}
    arrays = {
        "place": pa.array(range(len(stored)), pa.int32()),
        "attempt": pa.array(stored, pa.int32()),
        "step": pa.array(new.steps, pa.int64()),
        "ordinal": pa.array(ordinals, pa.int64()),
        **_columns(new, range(len(stored))),
    }
    equal = " AND ".join(f"a.{name} IS NOT DISTINCT FROM b.{name}" for name in COLUMNS)
    connection.register("new_rows", pa.table(arrays))
    found = connection.execute(
        f"""WITH old AS (SELECT *, row_number() OVER (PARTITION BY attempt, step ORDER BY n) - 1 AS ordinal FROM trajectory
                         WHERE run_id = ? AND source_id = ? AND step IN (
                             SELECT o.step FROM trajectory o JOIN new_rows n ON n.step = o.step AND n.split IS NOT DISTINCT FROM o.split
                             WHERE o.run_id = ? AND o.source_id = ?))
            SELECT a.place, {equal} FROM new_rows a JOIN old b USING (attempt, step, ordinal) ORDER BY a.place""",
        [run_id, source_id, run_id, source_id],
    ).fetchall()
    connection.unregister("new_rows")
    return dict(found)


def encoded_texts(texts: list[str | None]) -> bytes:
    """token_texts as JSON bytes for DuckDB's reader."""
    return msgspec.json.encode(texts)


_ARROW = {
    "VARCHAR": pa.string(), "JSON": pa.string(), "DOUBLE": pa.float64(), "INTEGER": pa.int32(), "BIGINT": pa.int64(),
    "BOOLEAN": pa.bool_(), "INTEGER[]": pa.list_(pa.int32()), "VARCHAR[]": pa.list_(pa.string()),
    "TINYINT[]": pa.list_(pa.int8()), "FLOAT[]": pa.list_(pa.float32()),
}  # fmt: skip
_TURN = {
    "turn": pa.int32(), "role": pa.string(), "content": pa.string(), "tool_name": pa.string(), "tool_args": pa.string(),
    "is_error": pa.bool_(), "seconds": pa.float64(), "policy_version": pa.int32(),
    "prompt_token_ids": pa.list_(pa.int32()), "token_ids": pa.list_(pa.int32()),
}  # fmt: skip
