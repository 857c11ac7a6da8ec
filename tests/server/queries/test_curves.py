"""Curves and states of runs from the store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ingest.discover import discover
from ingest.load import load_run
from ingest.store.connection import Store
from server.queries.curves import curve, curves, metrics_of, series_list, sparklines
from server.queries.runs import newest_attempt, run_counts, run_summaries, run_summary, state_of

LINES = (
    '{"step": 0, "reward.mean": 1, "wall_time": 1000, "tokens.generated": 10}',
    '{"step": 1, "reward.mean": 2, "wall_time": 1002, "tokens.generated": 10}',
    '{"step": 2, "reward.mean": 3, "wall_time": 1004, "tokens.generated": 10}',
    '{"step": 3, "reward.mean": NaN, "wall_time": 1006}',
    '{"step": 2, "reward.mean": 30, "wall_time": 1008, "tokens.generated": 20}',
    '{"step": 3, "reward.mean": 40, "wall_time": 1010, "odd key": 7}',
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    folder = tmp_path / "project" / "run"
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("\n".join(LINES) + "\n")
    (folder / "config.json").write_text(json.dumps({"algo": "GRPO", "steps": 100}))
    opened = Store(None)
    for run in discover([folder])[0]:
        list(load_run(opened, run))
    yield opened
    opened.close()


def test_the_newest_attempt_is_drawn_and_the_older_kept_apart(store: Store) -> None:
    (run,) = run_summaries(store)
    made = curve(store, run.run_id, "reward.mean")
    assert made is not None
    assert made.steps.tolist() == [0, 1, 2, 3]
    assert made.mean.tolist() == [1, 2, 30, 40]
    (old,) = made.superseded
    assert old.steps.tolist() == [2, 3]
    assert old.values[0] == 3
    assert np.isnan(old.values[1])


def test_one_attempt_alone_keeps_its_non_finite_steps(store: Store) -> None:
    (run,) = run_summaries(store)
    first = curve(store, run.run_id, "reward.mean", attempt=1)
    assert first is not None
    assert first.nonfinite_steps.tolist() == [3]
    assert first.n.tolist() == [1, 1, 1, 1]


def test_unknown_keys_have_curves_under_their_own_name(store: Store) -> None:
    (run,) = run_summaries(store)
    found = curves(store, run.run_id, ["odd key", "reward.mean", "nothing"])
    assert set(found) == {"odd key", "reward.mean"}
    assert found["odd key"].last == 7
    assert {row.key: row.points for row in series_list(store, run.run_id)}["odd key"] == 1
    assert metrics_of(store, run.run_id)["reward.mean"] == "reward.mean"


def test_the_summary_says_pace_tokens_and_plan(store: Store) -> None:
    (run,) = run_summaries(store, now=2000.0)
    assert (run.newest_step, run.planned_steps, run.algorithm) == (3, 100, "grpo")
    assert run.usual_step_seconds == 2.0
    assert run.last_step_at == 1010.0
    assert run.tokens == 40
    assert run.state == "finished"
    assert newest_attempt(store, run.run_id) == 2
    assert run_counts(store, run.run_id).attempts == 2
    assert run_summary(store, "nope") is None


def test_sparklines_of_all_runs_come_at_once(store: Store) -> None:
    (run,) = run_summaries(store)
    found = sparklines(store, ["reward.mean", "absent"])
    assert list(found) == [(run.run_id, "reward.mean")]
    assert found[(run.run_id, "reward.mean")][0][-1] == 3


@pytest.mark.parametrize(
    ("freshness", "quiet", "usual", "state"),
    [("followed", 30, 1, "running"), ("followed", 61, 1, "stalled"), ("followed", 200, 60, "running"), ("followed", 301, 60, "stalled"),
     ("checkpoints", 5000, 1, "running"), ("read once", 1, 1, "finished")],
)  # fmt: skip
def test_a_run_is_stalled_by_its_own_rhythm(freshness: str, quiet: float, usual: float, state: str) -> None:
    assert state_of(10, 100, freshness, quiet, usual) == state  # type: ignore[arg-type]


def test_a_run_that_reached_its_plan_is_finished() -> None:
    assert state_of(99, 100, "followed", 20, 1) == "finished"
    assert state_of(99, 100, "followed", 2, 1) == "running"
