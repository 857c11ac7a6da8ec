"""Everything of one run as files that other tools read: metrics, trajectories, tokens, turns, events, and run.json."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import duckdb

from ingest.errors import RLVitalsError
from ingest.store.connection import Store

Format: TypeAlias = Literal["parquet", "csv", "jsonl"]

FORMATS: dict[Format, str] = {
    "parquet": "(FORMAT parquet, COMPRESSION zstd)",
    "csv": "(FORMAT csv, HEADER true)",
    "jsonl": "(FORMAT json)",
}

TABLES: dict[str, str] = {
    "metrics": """SELECT p.step, p.attempt, s.source_key, s.metric, p.value, s.unit, s.transform, s.estimator, s.aggregation, p.wall_time,
                         o.path AS source
                  FROM point p JOIN series s USING (series_id) JOIN source o USING (source_id)
                  WHERE s.run_id = $run ORDER BY s.source_key, p.attempt, p.step""",
    "trajectories": "SELECT * EXCLUDE (run_id, source_id) FROM trajectory WHERE run_id = $run ORDER BY step, n",
    "tokens": "SELECT * EXCLUDE (run_id, source_id) FROM token WHERE run_id = $run ORDER BY step, n",
    "turns": "SELECT * EXCLUDE (run_id, source_id) FROM turn WHERE run_id = $run ORDER BY step, n, turn",
    "events": "SELECT * EXCLUDE (run_id, source_id) FROM event WHERE run_id = $run ORDER BY step",
}


@dataclass(frozen=True)
class ExportedFile:
    """One written file; rows is None for run.json."""

    path: Path
    rows: int | None
    bytes: int


def export_run(store: Store, run_id: str, format: Format, folder: Path) -> list[ExportedFile]:
    """Writes run.json and one file a table into a folder that is new or empty.

    In CSV a text that a spreadsheet would take for a formula (it begins with = + - @, tab or return) gets a leading
    apostrophe. JSON has no NaN and no infinities: those values are null there.

    Raises:
        RLVitalsError: the folder is not empty or cannot be written, or the run is unknown.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise RLVitalsError(f"{folder} is not empty. Give a new folder with --out, so that nothing is overwritten.")
        written = [_run_json(store, run_id, folder / "run.json")]
        return written + [_table(store, name, run_id, format, folder / f"{name}.{format}") for name in TABLES]
    except OSError as error:
        raise RLVitalsError(f"{folder} cannot be written: {error.strerror}.") from None
    except duckdb.Error as error:
        raise RLVitalsError(f"{folder} cannot be written: {error}") from None


def _table(store: Store, name: str, run_id: str, format: Format, target: Path) -> ExportedFile:
    query = TABLES[name].replace("$run", _quoted(run_id))
    if format != "parquet":
        query = f"SELECT {', '.join(_columns(store, query, format))} FROM ({query})"
    store.rows(f"COPY ({query}) TO {_quoted(str(target))} {FORMATS[format]}")
    rows = store.rows(f"SELECT count(*) FROM ({query})")[0][0]
    return ExportedFile(target, int(rows), target.stat().st_size)


def _columns(store: Store, query: str, format: Format) -> list[str]:
    found = store.rows(f"DESCRIBE {query}")
    return [_column(str(name), str(kind), format) for name, kind, *_ in found]


def _column(name: str, kind: str, format: Format) -> str:
    if format == "csv" and kind in ("VARCHAR", "JSON"):
        return f"CASE WHEN regexp_matches({name}::VARCHAR, '^[-=+@\\t\\r]') THEN '''' || {name}::VARCHAR ELSE {name}::VARCHAR END AS {name}"
    if format == "csv" and kind.endswith("[]"):
        return f"to_json({name})::VARCHAR AS {name}"
    if format == "jsonl" and kind in ("DOUBLE", "FLOAT"):
        return f"CASE WHEN isfinite({name}) THEN {name} END AS {name}"
    if format == "jsonl" and kind in ("DOUBLE[]", "FLOAT[]"):
        return f"list_transform({name}, lambda x: CASE WHEN isfinite(x) THEN x END) AS {name}"
    return name


def _run_json(store: Store, run_id: str, target: Path) -> ExportedFile:
    found = store.rows(
        "SELECT run_id, project, name, framework, framework_version, root, config, created, last_seen FROM run WHERE run_id = ?", [run_id]
    )
    if not found:
        raise RLVitalsError(f"There is no run {run_id} in the home. `rlvitals runs` lists them.")
    keys = ("run_id", "project", "name", "framework", "framework_version", "root", "config", "created", "last_seen")
    values = dict(zip(keys, found[0], strict=True))
    values["config"] = json.loads(values["config"]) if values["config"] else None
    target.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    return ExportedFile(target, None, target.stat().st_size)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
