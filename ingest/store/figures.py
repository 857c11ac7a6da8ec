"""Figures of runs and files for reports: what the store holds, counted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ingest.store.connection import Store


@dataclass(frozen=True)
class RunFigures:
    """What the store holds of one run; first_step and last_step are None where no row has a step."""

    run_id: str
    project: str
    name: str
    framework: str
    readers: tuple[str, ...]
    first_step: int | None
    last_step: int | None
    steps: int
    attempts: int
    points: int
    series: int
    trajectories: int
    trajectories_with_tokens: int
    events: int


@dataclass(frozen=True)
class RejectRow:
    """One row that was not taken; line counts from 1, None where the format has no lines; sample: first 200 characters."""

    path: Path
    line: int | None
    offset: int | None
    reason: str
    sample: str


def run_figures(store: Store, run_id: str) -> RunFigures | None:
    """The figures of a run, or None if the store does not know it."""
    found = store.rows("SELECT project, name, framework FROM run WHERE run_id = ?", [run_id])
    if not found:
        return None
    project, name, framework = found[0]
    readers = store.rows("SELECT DISTINCT reader FROM source WHERE run_id = ? AND rows > 0 ORDER BY reader", [run_id])
    points, series, point_attempt = store.rows(
        """SELECT count(*), count(DISTINCT p.series_id), max(p.attempt) FROM point p JOIN series s USING (series_id) WHERE s.run_id = ?""",
        [run_id],
    )[0]
    trajectories, with_tokens, trajectory_attempt = store.rows(
        "SELECT count(*), count(*) FILTER (has_tokens), max(attempt) FROM trajectory WHERE run_id = ?", [run_id]
    )[0]
    first, last, steps = store.rows(
        """SELECT min(step), max(step), count(*) FROM (
               SELECT DISTINCT step FROM point WHERE series_id IN (SELECT series_id FROM series WHERE run_id = ?)
               UNION SELECT DISTINCT step FROM trajectory WHERE run_id = ?)""",
        [run_id, run_id],
    )[0]
    events = store.rows("SELECT count(*) FROM event WHERE run_id = ?", [run_id])[0][0]
    return RunFigures(
        run_id, project, name, framework, tuple(row[0] for row in readers), first, last, steps,
        max(point_attempt or 1, trajectory_attempt or 1), points, series, trajectories, with_tokens, events,
    )  # fmt: skip


def newest_rejects(store: Store, path: Path, newest: int, limit: int | None = 100) -> list[RejectRow]:
    """The first `limit` (None: all) of the `newest` latest rejects of a file, in the order in which they were met."""
    rows = store.rows(
        """SELECT line, byte_offset, reason, sample FROM (
               SELECT r.rowid AS place, r.* FROM reject r JOIN source s USING (source_id) WHERE s.path = ?
               ORDER BY r.rowid DESC LIMIT ?) ORDER BY place LIMIT ?""",
        [str(path), newest, newest if limit is None else limit],
    )
    return [RejectRow(path, *row) for row in rows]
