"""What an incident's page shows beside the incident itself: the worst rollouts of its window, the curve behind its metric."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from ingest.store.connection import Store
from server.queries.curves import Curve, smoothed
from server.queries.facts import add_facts
from server.queries.rollouts import Rollout, RolloutFilter, condition, rollouts_at
from server.queries.run_data import open_run, refresh

_BEFORE_ONSET = 500
_MOST_ROLLOUTS = 50_000
Worst: TypeAlias = Literal["difference", "length", "verifier", "advantage", "reward"]


@dataclass(frozen=True)
class Ranked:
    """A rollout and the value it was chosen by; None where the rollout was named by the rule and holds no such value."""

    rollout: Rollout
    value: float | None


_ORDER: dict[str, tuple[str, str]] = {
    "length": ("response_tokens::DOUBLE", "DESC"),
    "verifier": ("verifier_seconds", "DESC"),
    "advantage": ("abs(advantage)", "DESC"),
    "reward": ("reward", "ASC"),
}

# The largest |trainer - engine| of one response token.
_LARGEST = """list_max(list_transform(
    list_zip(coalesce(k.old_logprobs, k.current_logprobs), k.rollout_logprobs, k.response_mask),
    lambda x: CASE WHEN coalesce(x[3], 1) = 1 AND isfinite(x[1] - x[2]) THEN abs(x[1] - x[2])::DOUBLE END))"""


def worst_rollouts(store: Store, run_id: str, steps: tuple[int, int], by: Worst, most: int = 6) -> tuple[Ranked, ...]:
    """The worst training rollouts of steps (both inclusive), worst first; ties by newest step.

    by: difference (largest |trainer - engine| of one token, nats), length (tokens), verifier (seconds), advantage
    (largest absolute), reward (lowest). Empty where the field is written nowhere in the window.
    """
    where, values = condition(store, run_id, RolloutFilter(step=steps, split="train"), "t")
    joined, (expression, direction) = "trajectory t", _ORDER.get(by, (_LARGEST, "DESC"))
    if by == "difference":
        joined = "trajectory t JOIN token k ON k.run_id = t.run_id AND k.step = t.step AND k.n = t.n"
    rows = store.rows(
        f"""SELECT t.step, t.n, {expression} AS value FROM {joined} WHERE {where} AND value IS NOT NULL AND NOT isnan(value)
            ORDER BY value {direction}, t.step DESC, t.n LIMIT {int(most)}""",
        values,
    )
    found = rollouts_at(store, run_id, [(row[0], row[1]) for row in rows])
    return tuple(Ranked(rollout, row[2]) for rollout, row in zip(found, rows, strict=True))


def named_rollouts(store: Store, run_id: str, places: Sequence[str], by: Worst) -> tuple[Ranked, ...]:
    """The rollouts at addresses `<step>.<n>` in the order given; what is not there is left out."""
    keys = [(int(left), int(right)) for left, _, right in (place.partition(".") for place in places) if left.isdigit() and right.isdigit()]
    value = {"length": "response_tokens", "verifier": "verifier_seconds", "advantage": "advantage", "reward": "reward"}.get(by)
    found = rollouts_at(store, run_id, keys)
    return tuple(Ranked(rollout, None if value is None else getattr(rollout, value)) for rollout in found)


def derived_curve(store: Store, run_id: str, metric: str, place: tuple[int, int], *, weight: float) -> Curve | None:
    """The curve of a fact (`fact.*`), which is derived from the rollouts; None if it is none or the run has no such rows.

    place: (attempt, onset) of the incident; derived from 500 steps before the onset on. None too where that is more than 50,000
    rollouts: to derive them would keep the page waiting. weight: of the past in the smoothed curve.
    """
    if not metric.startswith("fact."):
        return None
    attempt, onset = place
    data = open_run(store, run_id)
    after = (attempt, onset - _BEFORE_ONSET) if onset > _BEFORE_ONSET else None
    refresh(data, after)
    found = store.rows("SELECT count(*) FROM trajectory WHERE run_id = ? AND (attempt, step) > (?, ?)", [run_id, *(after or (-1, 0))])
    if found[0][0] > _MOST_ROLLOUTS:
        return None
    add_facts(data, after)
    if metric not in data.metrics():
        return None
    newest = max(data.attempt_starts, default=attempt)
    series = data.chain(metric, newest)
    values = series.values.astype(np.float64)
    finite = np.isfinite(values)
    shown = np.where(finite, values, np.nan)
    ones = np.ones(values.size, np.int64)
    smooth = smoothed(shown, weight)
    return Curve(metric, metric, None, newest, series.steps, shown, shown, shown, ones, series.steps[~finite], smooth)
