"""How much is stored of every run, in one question, and what a run said of itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from ingest.schema.records import Json
from ingest.store.connection import Store


@dataclass(frozen=True, slots=True)
class Totals:
    """Number of points and of trajectories of one run, all attempts."""

    points: int
    trajectories: int


def totals(store: Store) -> dict[str, Totals]:
    """Run id to its totals, for every run."""
    rows = store.rows(
        """WITH p AS (SELECT s.run_id, count(*) AS n FROM point JOIN series s USING (series_id) GROUP BY s.run_id),
                t AS (SELECT run_id, count(*) AS n FROM trajectory GROUP BY run_id)
           SELECT r.run_id, coalesce(p.n, 0), coalesce(t.n, 0) FROM run r LEFT JOIN p USING (run_id) LEFT JOIN t USING (run_id)"""
    )
    return {run_id: Totals(points, trajectories) for run_id, points, trajectories in rows}


def logged_config(store: Store, run_id: str) -> Mapping[str, Json]:
    """The configuration as the trainer wrote it, secrets removed before storing; empty where no file holds one."""
    rows = store.rows("SELECT config FROM run WHERE run_id = ? AND config IS NOT NULL", [run_id])
    found: Mapping[str, Json] = json.loads(rows[0][0]) if rows else {}
    return found
