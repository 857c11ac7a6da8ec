"""DuckDB's own side of the ingest measurement, and the comparison of what both stored.

The file is read once by a strict typed read_json into a temporary table and from there into the two tables, or twice,
once for each table; the faster of the two is the baseline.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path

import duckdb

from benchmarks.rollouts import Made
from ingest.schema.tables import TABLES, TOKEN_ARRAYS

_LIGHT = {
    "step": "BIGINT",
    "trajectory_id": "VARCHAR",
    "group_id": "VARCHAR",
    "task": "VARCHAR",
    "prompt": "VARCHAR",
    "response": "VARCHAR",
    "reward": "DOUBLE",
    "reward_parts": "JSON",
    "response_tokens": "INTEGER",
    "finish_reason": "VARCHAR",
    "policy_version": "INTEGER",
}
_ARRAYS = {name: TOKEN_ARRAYS[name] for name in ("token_ids", "response_mask", "rollout_logprobs", "old_logprobs", "entropies")}
_KEY = "'run', 1, 1, step, n"


def main() -> int:
    """Arguments: the store, the file, and optionally `twice`."""
    connection = _open(Path(sys.argv[1]))
    for table in ("trajectory", "token"):
        connection.execute(TABLES[table])
    load = _twice if sys.argv[3:] == ["twice"] else _staged
    connection.execute("BEGIN")
    load(connection, sys.argv[2])
    connection.execute("COMMIT")
    connection.close()
    return 0


def _open(path: Path) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(":memory:", config={"memory_limit": "4GB", "threads": 1})
    connection.execute(f"ATTACH '{path}' AS telemetry (ROW_GROUP_SIZE 2048, STORAGE_VERSION 'v1.2.0')")
    connection.execute("USE telemetry")
    return connection


def _reading(source: str, columns: Mapping[str, str]) -> str:
    kinds = ", ".join(f"{name}: '{kind}'" for name, kind in columns.items())
    return f"read_json('{source}', format = 'newline_delimited', columns = {{{kinds}}}, maximum_object_size = 4194304)"


def _staged(connection: duckdb.DuckDBPyConnection, source: str) -> None:
    connection.execute(f"CREATE TEMP TABLE staged AS SELECT row_number() OVER () - 1 AS n, * FROM {_reading(source, _LIGHT | _ARRAYS)}")
    _trajectories(connection, "staged")
    _tokens(connection, "staged")


def _twice(connection: duckdb.DuckDBPyConnection, source: str) -> None:
    _trajectories(connection, f"(SELECT row_number() OVER () - 1 AS n, * FROM {_reading(source, _LIGHT)})")
    _tokens(connection, f"(SELECT row_number() OVER () - 1 AS n, * FROM {_reading(source, {'step': 'BIGINT'} | _ARRAYS)})")


def _trajectories(connection: duckdb.DuckDBPyConnection, source: str) -> None:
    names = [name for name in _LIGHT if name not in ("step", "policy_version")]
    connection.execute(
        f"""INSERT INTO trajectory (run_id, source_id, attempt, step, n, has_tokens, {", ".join(names)},
                policy_version_first, policy_version_last)
            SELECT {_KEY}, true, {", ".join(names)}, policy_version, policy_version FROM {source}"""
    )


def _tokens(connection: duckdb.DuckDBPyConnection, source: str) -> None:
    names = ", ".join(_ARRAYS)
    connection.execute(f"INSERT INTO token (run_id, source_id, attempt, step, n, {names}) SELECT {_KEY}, {names} FROM {source}")


def compare(ours: Path, base: Path, made: Made) -> list[str]:
    """Every way in which our store says otherwise than the file: sound rows by value, the other lines by their fate."""
    connection = duckdb.connect(":memory:", config={"memory_limit": "2GB", "threads": 1})
    for name, path in (("ours", ours), ("base", base)):
        connection.execute(f"ATTACH '{path}' AS {name} (READ_ONLY)")
    faults = _compare_sound(connection, made.lines)
    rejected = {line for (line,) in connection.execute("SELECT line FROM ours.reject").fetchall()}
    for line, case in made.cases.items():
        if case.kept == (line in rejected):
            faults.append(f"line {line}, {case.name}: {'rejected' if case.kept else 'not rejected'}")
    faults += [f"line {line} was rejected although it is sound" for line in rejected - made.cases.keys()]
    faults += _compare_kept(connection, made)
    connection.close()
    return faults


def _compare_sound(connection: duckdb.DuckDBPyConnection, lines: int) -> list[str]:
    light = [name for name in (*_LIGHT, "policy_version_first", "policy_version_last") if name not in ("policy_version", "reward_parts")]
    same = " AND ".join(
        [f"o.{name} IS NOT DISTINCT FROM b.{name}" for name in light]
        + [f"ot.{name} IS NOT DISTINCT FROM bt.{name}" for name in _ARRAYS]
        + ["o.extra IS NULL", "(o.reward_parts->>'format')::DOUBLE = (b.reward_parts->>'format')::DOUBLE"]
    )
    row = connection.execute(
        f"""SELECT count(*), count(*) FILTER (NOT ({same})) FROM base.trajectory b JOIN base.token bt USING (step, n)
            JOIN ours.trajectory o ON o.trajectory_id = b.trajectory_id JOIN ours.token ot ON ot.step = o.step AND ot.n = o.n"""
    ).fetchone()
    assert row is not None
    faults = [f"{row[1]} sound rows differ from the baseline's"] if row[1] else []
    return faults + ([f"{row[0]} of {lines} sound rows are stored"] if row[0] != lines else [])


def _compare_kept(connection: duckdb.DuckDBPyConnection, made: Made) -> list[str]:
    faults = []
    for line, case in made.cases.items():
        if not case.kept:
            continue
        found = connection.execute(
            """SELECT t.reward, t.extra, k.old_logprobs[1] FROM ours.trajectory t JOIN ours.token k USING (step, n)
               WHERE t.trajectory_id = ?""",
            [f"case {line}"],
        ).fetchall()
        if len(found) != 1 or not _kept_right(case.name, found[0]):
            faults.append(f"line {line}, {case.name}: stored as {found}")
    return faults


def _kept_right(name: str, row: tuple[float | None, str | None, float | None]) -> bool:
    reward, extra, first = row
    if name == "an unknown key":
        return extra is not None and "unheard_of" in extra
    if name == "a number written as a text":
        return reward == 0.5
    value = first if name.endswith("array") else reward
    return value is not None and math.isnan(value)


if __name__ == "__main__":
    sys.exit(main())
