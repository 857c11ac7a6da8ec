"""Writing metric points inside an open transaction: attempts, repeats of a rewritten file, and the richer of two sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import duckdb
import pyarrow as pa

from ingest.schema.metrics import resolve
from ingest.schema.records import MetricRow
from ingest.store.attempts import Attempts
from ingest.store.sources import RunRow, SourceRow

_KEY = "(series_id, attempt, step)"


def insert_metrics(
    connection: duckdb.DuckDBPyConnection, run: RunRow, source: SourceRow, attempts: Attempts, rows: Sequence[MetricRow]
) -> int:
    """Inserts the values of metrics records, except those that a rewritten file repeats; the number of points added."""
    ids = series_ids(connection, run, {key for row in rows for key in row.values})
    passages: list[int] = []
    stored: list[int] = []
    for row in rows:
        passages.append(attempts.of_metrics(row))
        stored.append(attempts.stored(passages[-1], row.step))
    if attempts.comparing:
        while differing := _differing(connection, source, _table(source, rows, ids, stored)):
            passage = min(passages[place] for place in differing)
            attempts.diverged(passage, min(rows[place].step for place in differing if passages[place] == passage))
            stored = [attempts.stored(passage, row.step) for passage, row in zip(passages, rows, strict=True)]
    table = _table(source, rows, ids, stored)
    return _insert(connection, run.run_id, source, table, repeats=attempts.comparing) if len(table) else 0


def _table(source: SourceRow, rows: Sequence[MetricRow], ids: dict[str, int], stored: Sequence[int]) -> pa.Table:
    flat = [
        (place, ids[key], attempt, row.step, value, row.wall_time)
        for place, (row, attempt) in enumerate(zip(rows, stored, strict=True))
        for key, value in row.values.items()
    ]
    places, series, attempts, steps, values, walls = zip(*flat, strict=True) if flat else ((), (), (), (), (), ())
    return pa.table(
        {
            "place": pa.array(places, pa.int32()),
            "series_id": pa.array(series, pa.int32()),
            "source_id": pa.array([source.source_id] * len(flat), pa.int32()),
            "attempt": pa.array(attempts, pa.int32()),
            "step": pa.array(steps, pa.int64()),
            "value": pa.array(values, pa.float64()),
            "wall_time": pa.array(walls, pa.float64()),
        }
    )


def _differing(connection: duckdb.DuckDBPyConnection, source: SourceRow, new: pa.Table) -> list[int]:
    """Places of records with a value that this source has said otherwise for the same series, attempt and step."""
    connection.register("new_points", new)
    found = connection.execute(
        f"""SELECT DISTINCT place FROM new_points n
            WHERE {_KEY} IN (SELECT {_KEY} FROM point WHERE source_id = ?)
              AND NOT EXISTS (SELECT 1 FROM point p WHERE p.source_id = ? AND p.series_id = n.series_id AND p.attempt = n.attempt
                                AND p.step = n.step AND p.value = n.value)""",
        [source.source_id, source.source_id],
    ).fetchall()
    connection.unregister("new_points")
    return [place for (place,) in found]


def series_ids(connection: duckdb.DuckDBPyConnection, run: RunRow, keys: set[str]) -> dict[str, int]:
    """The series of each source key, made where it is new."""
    known: dict[str, int] = dict(connection.execute("SELECT source_key, series_id FROM series WHERE run_id = ?", [run.run_id]).fetchall())
    missing = sorted(keys - known.keys())
    if missing:
        row = connection.execute("SELECT coalesce(max(series_id), 0) FROM series").fetchone()
        assert row is not None
        said = connection.execute("SELECT framework_version FROM run WHERE run_id = ?", [run.run_id]).fetchone()
        for number, key in enumerate(missing, row[0] + 1):
            meaning = resolve(key, run.framework, said[0] if said else run.framework_version)
            connection.execute(
                "INSERT INTO series VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                [number, run.run_id, key, meaning.metric, meaning.transform, meaning.estimator, meaning.aggregation, meaning.unit],
            )
            known[key] = number
    return known


def learn_version(connection: duckdb.DuckDBPyConnection, run: RunRow, said: str) -> RunRow:
    """The run with what a file says about its trainer; series that are there already get their meaning anew.

    What one file said stays, unless another says the same more exactly (`verl`, then `verl v1`).
    """
    said = said.removeprefix(run.framework).strip()
    stored = connection.execute("SELECT framework_version FROM run WHERE run_id = ?", [run.run_id]).fetchone()
    known = stored[0] if stored else None
    if not said or known == said or (known is not None and not said.startswith(f"{known} ")):
        return replace(run, framework_version=known)
    learned = replace(run, framework_version=said)
    connection.execute("UPDATE run SET framework_version = ? WHERE run_id = ?", [said, run.run_id])
    for key, transform in connection.execute("SELECT source_key, transform FROM series WHERE run_id = ?", [run.run_id]).fetchall():
        meaning = resolve(key, run.framework, said)
        changed = transform if meaning.transform == "identity" and transform is not None else meaning.transform
        connection.execute(
            "UPDATE series SET metric = ?, transform = ?, estimator = ?, aggregation = ?, unit = ? WHERE run_id = ? AND source_key = ?",
            [meaning.metric, changed, meaning.estimator, meaning.aggregation, meaning.unit, run.run_id, key],
        )
    return learned


def note_transforms(connection: duckdb.DuckDBPyConnection, run_id: str, transforms: Mapping[str, str]) -> None:
    """Notes how a reader changed values on the way, where the key has no transform of its own."""
    for key, transform in transforms.items():
        connection.execute(
            "UPDATE series SET transform = ? WHERE run_id = ? AND source_key = ? AND coalesce(transform, 'identity') = 'identity'",
            [transform, run_id, key],
        )


def _insert(connection: duckdb.DuckDBPyConnection, run_id: str, source: SourceRow, new: pa.Table, *, repeats: bool) -> int:
    """Inserts points; where another source of the run has the same (series, attempt, step) the richer source wins.

    The losing source is noted as one that recorded the same. repeats: the file is read again, so its own points with
    the same key are already there.
    """
    connection.register("new_points", new)
    others = connection.execute(
        "SELECT source_id, reader, path FROM source WHERE run_id = ? AND source_id <> ? AND newest_step IS NOT NULL",
        [run_id, source.source_id],
    ).fetchall()
    if others:
        _replace_weaker(connection, source, others)
    stronger = "AND source_id <> ?" if others else "AND false AND source_id <> ?"
    row = connection.execute(
        f"""INSERT INTO point SELECT series_id, source_id, attempt, step, value, wall_time FROM new_points
            WHERE {_KEY} NOT IN (SELECT {_KEY} FROM point WHERE series_id IN (SELECT series_id FROM new_points) {stronger})
              AND (NOT ? OR {_KEY} NOT IN (SELECT {_KEY} FROM point WHERE source_id = ?))""",
        [source.source_id, repeats, source.source_id],
    ).fetchone()
    assert row is not None
    if others and row[0] < len(new) and not repeats:
        _note_also_recorded(connection, source, others)
    connection.unregister("new_points")
    return int(row[0])


def _replace_weaker(connection: duckdb.DuckDBPyConnection, source: SourceRow, others: list[tuple[int, str, str]]) -> None:
    from ingest.readers import precedence_of  # the list of readers imports the store's row checks

    weaker = [(sid, path) for sid, reader, path in others if precedence_of(reader) < source.precedence]
    if not weaker:
        return
    gone = connection.execute(
        f"""DELETE FROM point WHERE list_contains(?, source_id) AND {_KEY} IN (SELECT {_KEY} FROM new_points) RETURNING source_id""",
        [[sid for sid, _ in weaker]],
    ).fetchall()
    for sid in {sid for (sid,) in gone}:
        connection.execute("UPDATE source SET note = ? WHERE source_id = ?", [f"also recorded by {source.path.name}, which is richer", sid])


def _note_also_recorded(connection: duckdb.DuckDBPyConnection, source: SourceRow, others: list[tuple[int, str, str]]) -> None:
    found = connection.execute(
        f"""SELECT o.path FROM point p JOIN source o USING (source_id) WHERE p.source_id <> ? AND list_contains(?, p.source_id)
            AND {_KEY} IN (SELECT {_KEY} FROM new_points) LIMIT 1""".replace(_KEY, "(p.series_id, p.attempt, p.step)", 1),
        [source.source_id, [sid for sid, _, _ in others]],
    ).fetchone()
    if found:
        source.note = f"also recorded by {Path(found[0]).name}"
