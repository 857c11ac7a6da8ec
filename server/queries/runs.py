"""Which runs there are and how each stands."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from ingest.schema.config_keys import canonical
from ingest.schema.records import Json
from ingest.store.connection import Store

RunState: TypeAlias = Literal["running", "stalled", "finished"]
Freshness: TypeAlias = Literal["followed", "checkpoints", "read once"]

_QUIET_SECONDS = 60.0
_QUIET_INTERVALS = 5.0
_LATE_STEPS = 40
_STAGES = ("time.rollout_s", "time.verify_s", "time.logprob_old_s", "time.update_s", "time.sync_s")


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run as lists and headers show it.

    config: canonical keys. newest_step: null before the first row with a step. planned_steps: null where the
    configuration does not say. last_step_at: Unix seconds of the newest step as logged, else of the arrival of the newest row.
    usual_step_seconds: median of the last steps, null where nothing says it. tokens: sum of generated tokens, null
    where they are not logged. freshness: followed (a growing file), checkpoints (only files written whole now and
    then), read once (nothing is followed).
    """

    run_id: str
    project: str
    name: str
    framework: str
    framework_version: str | None
    algorithm: str | None
    config: Mapping[str, Json]
    colour: int
    state: RunState
    freshness: Freshness
    newest_step: int | None
    planned_steps: int | None
    last_step_at: float
    usual_step_seconds: float | None
    last_seen: float
    tokens: float | None

    def age_seconds(self, now: float | None = None) -> float:
        """Seconds since the newest step."""
        return max(0.0, (time.time() if now is None else now) - self.last_step_at)


@dataclass(frozen=True, slots=True)
class RunCounts:
    """How much of a run is stored."""

    points: int
    series: int
    trajectories: int
    trajectories_with_tokens: int
    events: int
    attempts: int
    rejected: int


def run_summaries(store: Store, *, now: float | None = None, run_id: str | None = None) -> list[RunSummary]:
    """Every run (or the one), in order of first ingest; `now` is Unix seconds, default the clock."""
    moment = time.time() if now is None else now
    rows = store.rows(
        """SELECT r.run_id, r.project, r.name, r.framework, r.framework_version, r.config, r.colour, r.last_seen,
                  max(s.newest_step),
                  coalesce(bool_or(s.state = 'followed'), false),
                  coalesce(bool_or(s.state = 'followed' AND s.growth = 'append'), false)
           FROM run r LEFT JOIN source s USING (run_id)
           WHERE ? IS NULL OR r.run_id = ?
           GROUP BY ALL ORDER BY min(r.created), r.run_id""",
        [run_id, run_id],
    )
    paces = _paces(store, run_id)
    tokens = _token_sums(store, run_id)
    found = []
    for rid, project, name, framework, version, config_text, colour, last_seen, newest, followed, growing in rows:
        config = canonical(json.loads(config_text), framework) if config_text else {}
        wall, usual = paces.get(rid, (None, None))
        at = wall if wall is not None else last_seen
        planned = _whole(config.get("planned_steps"))
        freshness: Freshness = "followed" if growing else "checkpoints" if followed else "read once"
        state = state_of(newest, planned, freshness, moment - max(at, last_seen if followed else at), usual)
        found.append(
            RunSummary(
                rid, project, name, framework, version, _text(config.get("algorithm")), config, colour, state, freshness,
                newest, planned, at, usual, last_seen, tokens.get(rid),
            )
        )  # fmt: skip
    return found


def run_summary(store: Store, run_id: str, *, now: float | None = None) -> RunSummary | None:
    """One run, or None if the store has none of that id."""
    found = run_summaries(store, now=now, run_id=run_id)
    return found[0] if found else None


def run_counts(store: Store, run_id: str) -> RunCounts:
    """How much of a run is stored; zeros for an unknown run."""
    points, attempts = store.rows(
        "SELECT count(*), coalesce(max(attempt), 1) FROM point WHERE series_id IN (SELECT series_id FROM series WHERE run_id = ?)", [run_id]
    )[0]
    series = store.rows("SELECT count(*) FROM series WHERE run_id = ?", [run_id])[0][0]
    trajectories, with_tokens, later = store.rows(
        "SELECT count(*), count(*) FILTER (has_tokens), coalesce(max(attempt), 1) FROM trajectory WHERE run_id = ?", [run_id]
    )[0]
    events = store.rows("SELECT count(*) FROM event WHERE run_id = ?", [run_id])[0][0]
    rejected = store.rows("SELECT coalesce(sum(rejected), 0) FROM source WHERE run_id = ?", [run_id])[0][0]
    return RunCounts(points, series, trajectories, with_tokens, events, max(attempts, later), int(rejected))


def newest_attempt(store: Store, run_id: str) -> int:
    """Number of the newest attempt of a run, 1 where nothing says more."""
    rows = store.rows(
        """SELECT greatest((SELECT max(attempt) FROM event WHERE run_id = $run),
                           (SELECT max(p.attempt) FROM point p JOIN series s USING (series_id)
                            WHERE s.run_id = $run AND p.step > (SELECT max(newest_step) FROM source WHERE run_id = $run) - $late))""",
        {"run": run_id, "late": _LATE_STEPS},
    )
    return int(rows[0][0] or 1)


def state_of(
    newest_step: int | None, planned_steps: int | None, freshness: Freshness, quiet_seconds: float, usual_step_seconds: float | None
) -> RunState:
    """Running, stalled or finished.

    A run that nothing follows, or that reached its planned steps, is finished. Files written only at checkpoints tell
    nothing about the pace, so such a run is never called stalled.
    """
    if freshness == "read once":
        return "finished"
    if newest_step is not None and planned_steps is not None and newest_step >= planned_steps - 1 and quiet_seconds > _QUIET_SECONDS / 4:
        return "finished"
    if freshness == "checkpoints":
        return "running"
    return "stalled" if quiet_seconds > max(_QUIET_SECONDS, _QUIET_INTERVALS * (usual_step_seconds or 0.0)) else "running"


def _whole(value: Json) -> int | None:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else None


def _text(value: Json) -> str | None:
    return value if isinstance(value, str) and value else None


def _paces(store: Store, run_id: str | None) -> dict[str, tuple[float | None, float | None]]:
    """Run to (Unix seconds of the newest step or None, median seconds of the last steps or None)."""
    # Only the newest steps are asked for: row groups with older steps are never read.
    walls = store.rows(
        """WITH newest AS (SELECT run_id, max(newest_step) AS step FROM source WHERE ? IS NULL OR run_id = ? GROUP BY run_id),
                late AS (SELECT s.run_id, p.step, max(p.wall_time) AS wall
                         FROM newest n JOIN series s USING (run_id) JOIN point p USING (series_id)
                         WHERE p.step > n.step - ? AND p.wall_time IS NOT NULL GROUP BY s.run_id, p.step)
           SELECT run_id, list(wall ORDER BY step), list(step ORDER BY step) FROM late GROUP BY run_id""",
        [run_id, run_id, _LATE_STEPS],
    )
    stages = store.rows(
        """WITH late AS (SELECT s.run_id, s.metric, p.value, p.step, max(p.step) OVER (PARTITION BY s.run_id, s.metric) AS newest
                         FROM point p JOIN series s USING (series_id)
                         WHERE (? IS NULL OR s.run_id = ?) AND isfinite(p.value)
                               AND (s.metric = 'time.step_s' OR list_contains(?, s.metric))),
                typical AS (SELECT run_id, metric, median(value) AS seconds FROM late WHERE step > newest - 20 GROUP BY ALL)
           SELECT run_id, coalesce(max(seconds) FILTER (metric = 'time.step_s'), sum(seconds)) FROM typical GROUP BY run_id""",
        [run_id, run_id, list(_STAGES)],
    )
    found: dict[str, tuple[float | None, float | None]] = {rid: (None, seconds) for rid, seconds in stages}
    for rid, wall, step in walls:
        gaps = np.diff(np.asarray(wall, dtype=float)) / np.maximum(np.diff(np.asarray(step, dtype=float)), 1.0)
        usual = float(np.median(gaps)) if gaps.size else found.get(rid, (None, None))[1]
        found[rid] = (float(wall[-1]), usual if usual is None or usual > 0 else None)
    return found


def _token_sums(store: Store, run_id: str | None) -> dict[str, float]:
    """Run to the sum of generated tokens over its steps, each step of the newest attempt once."""
    rows = store.rows(
        """WITH step_value AS (SELECT s.run_id, p.step, arg_max(p.value, p.attempt) AS value
                               FROM point p JOIN series s USING (series_id)
                               WHERE s.metric = 'tokens.generated' AND (? IS NULL OR s.run_id = ?) AND isfinite(p.value) GROUP BY ALL)
           SELECT run_id, sum(value) FROM step_value GROUP BY run_id""",
        [run_id, run_id],
    )
    return {rid: float(total) for rid, total in rows}
