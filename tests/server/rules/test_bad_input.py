"""Whatever a trainer writes, the rules say quiet or cannot tell: they never stop with an error, and no gap makes them fire."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ingest.discover import discover
from ingest.load import identify, load_run
from ingest.schema.metrics import METRICS
from ingest.store.connection import Store
from server.engine.judge import RuleSet
from server.engine.replay import Diagnosis, diagnose, replay
from server.queries.fact_list import FACTS
from server.queries.view import Event, RunData, RunFacts
from server.rules import RULES

Floats = NDArray[np.float64]

STRICT = RuleSet(RULES, strict=True)
IDS = sorted({re.sub(r"\{[^}]*\}", "one", metric) for metric in METRICS} | set(FACTS))
CONFIGS: Sequence[Mapping[str, Any]] = (
    {},
    {"algorithm": "ppo", "group_size": 1},
    {"algorithm": "grpo", "group_size": 8, "updates_per_batch": 1, "clip_low": 0.2, "clip_high": 0.28},
    {"algorithm": "gspo", "lr_warmup_steps": 10, "loss_aggregation": "token-mean", "lag_limit": 2},
)


def _constant(n: int, rng: np.random.Generator) -> Floats:
    return np.full(n, float(rng.choice([0.0, 1.0, -1.0, 0.5, 1e-12, 1e9])))


def _noise(n: int, rng: np.random.Generator) -> Floats:
    return rng.normal(0.5, 0.2, n)


def _wild(n: int, rng: np.random.Generator) -> Floats:
    return np.asarray(rng.choice([0.0, 1.0, -5.0, 1e300, -1e300, 1e-300, 3.0], n))


def _forward_filled(n: int, rng: np.random.Generator) -> Floats:
    return np.repeat(rng.normal(0.5, 0.2, n // 7 + 1), 7)[:n]


def _not_numbers(n: int, rng: np.random.Generator) -> Floats:
    values = _noise(n, rng)
    values[int(rng.integers(0, n)) :] = rng.choice([np.nan, np.inf, -np.inf])
    return values


def _every(n: int, rng: np.random.Generator) -> Floats:
    values = np.full(n, np.nan)
    values[:: int(rng.integers(2, 15))] = 0.5
    return values


def _one_point(n: int, rng: np.random.Generator) -> Floats:
    values = np.full(n, np.nan)
    values[int(rng.integers(0, n))] = float(rng.choice([0.5, np.inf, 1e30]))
    return values


KINDS: Sequence[Callable[[int, np.random.Generator], Floats]] = (
    _constant, _noise, _wild, _forward_filled, _not_numbers, _every, _one_point,
)  # fmt: skip


@pytest.fixture(scope="module")
def store() -> Any:
    opened = Store(None)
    yield opened
    opened.close()


def _made(store: Store, seed: int, n: int, first: int, share: float, back: bool) -> RunData:
    """A run of random series of the whole vocabulary; `back`: a second attempt begins before the first one ended."""
    rng = np.random.default_rng(seed)
    config = CONFIGS[int(rng.integers(len(CONFIGS)))]
    starts = {1: first, 2: first + n // 2} if back else {1: first}
    events = [Event(1, first + n // 3, "curriculum", "stage 2")] if rng.random() < 0.3 else []
    data = RunData(store, RunFacts("0123456789ab", "p", "bad", "native", None, config, config), tuple(events), starts)
    for metric in IDS:
        if rng.random() > share:
            continue
        kind = KINDS[int(rng.integers(len(KINDS)))]
        values, steps = kind(n, rng), first + np.arange(n)
        # What is absent was not logged; what is not a number was.
        kept = ~np.isnan(values) | (kind is _not_numbers)
        begin, end = sorted(rng.integers(0, n + 1, 2).tolist()) if rng.random() < 0.3 else (0, n)
        kept[:begin] = False
        kept[end:] = False
        attempts = np.where(steps >= starts.get(2, first + n), 2, 1)
        data.add(metric, attempts[kept], steps[kept], values[kept])
    return data


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 70),
    first=st.sampled_from([0, 1, 999_950, 10**9]),
    share=st.sampled_from([0.05, 0.4, 0.9]),
    back=st.booleans(),
)
def test_no_series_of_any_kind_stops_a_rule_or_a_check(store: Store, seed: int, n: int, first: int, share: float, back: bool) -> None:
    json.dumps(diagnose(_made(store, seed, n, first, share, back), None, STRICT).to_json(), allow_nan=False)


HEALTHY: Mapping[str, tuple[float, float]] = {
    "reward.mean": (0.5, 0.03), "reward.std": (0.3, 0.01), "reward.min": (0.0, 0.0), "reward.max": (1.0, 0.0),
    "eval.heldout.score": (0.5, 0.02),
    "entropy.mean": (0.6, 0.01), "length.response.mean": (300.0, 8.0), "length.response.max": (900.0, 30.0),
    "length.response.truncated_frac": (0.02, 0.005), "grad.norm": (0.8, 0.1), "loss.policy": (0.01, 0.01), "kl.ref": (0.02, 0.002),
    "kl.old": (0.002, 0.0002), "clip.frac": (0.01, 0.002), "ratio.mean": (1.0, 0.001), "group.zero_std_frac": (0.3, 0.05),
    "mismatch.logprob_diff.mean": (0.006, 0.0005), "mismatch.prob_diff.mean": (0.003, 0.0003), "lag.policy.mean": (0.5, 0.1),
    "value.explained_var": (0.6, 0.04), "time.step_s": (60.0, 3.0), "time.rollout_s": (30.0, 2.0), "tokens.generated": (1e5, 3e3),
}  # fmt: skip
"""Level and noise of a run in which nothing happens. Its reward does not rise, so that reward-flat is right to say so."""


def _healthy(store: Store, seed: int, thin: Callable[[NDArray[np.int64], np.random.Generator], NDArray[np.bool_]]) -> Diagnosis:
    rng = np.random.default_rng(seed)
    data = RunData(store, RunFacts("0123456789ab", "p", "healthy", "native", None, {"updates_per_batch": 2}, {}), (), {1: 1})
    steps = np.arange(1, 201)
    for metric, (middle, noise) in HEALTHY.items():
        values = rng.normal(middle, noise, len(steps))
        if 0 <= middle <= 1:
            values = np.clip(values, 0, 1)
        kept = thin(steps, rng)
        data.add(metric, np.ones(int(kept.sum())), steps[kept], values[kept])
    return diagnose(data, None, STRICT)


THINNED: Mapping[str, Callable[[NDArray[np.int64], np.random.Generator], NDArray[np.bool_]]] = {
    "every step": lambda steps, rng: np.ones(len(steps), bool),
    "every 10th step": lambda steps, rng: steps % 10 == 0,
    "each metric at its own rhythm": lambda steps, rng: steps % int(rng.integers(1, 12)) == 0,
    "a gap of 60 steps": lambda steps, rng: (steps < 80) | (steps > 140),
    "each metric with its own gap": lambda steps, rng: np.abs(steps - int(rng.integers(20, 180))) > 25,
    "half of the points lost": lambda steps, rng: rng.random(len(steps)) < 0.5,
    "each metric begins late": lambda steps, rng: steps > int(rng.integers(0, 100)),
    "each metric stops": lambda steps, rng: steps < int(rng.integers(60, 200)),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("thinned", THINNED)
def test_a_gap_makes_no_rule_fire(store: Store, thinned: str, seed: int) -> None:
    told = _healthy(store, seed, THINNED[thinned])
    loud = [(c.symptom, c.severity, c.summary) for c in told.cases if c.severity in ("warn", "critical") and c.symptom != "reward-flat"]
    assert loud == []


def test_forward_filled_values_make_no_rule_fire(store: Store) -> None:
    data = RunData(store, RunFacts("0123456789ab", "p", "filled", "native", None, {}, {}), (), {1: 1})
    rng = np.random.default_rng(5)
    for metric, (middle, noise) in HEALTHY.items():
        values = np.repeat(np.clip(rng.normal(middle, noise, 20), 0, None), 10)
        data.add(metric, np.ones(200), np.arange(1, 201), values)
    loud = [(c.symptom, c.severity) for c in diagnose(data, None, STRICT).cases if c.severity in ("warn", "critical")]
    assert [one for one in loud if one[0] != "reward-flat"] == []


def _trajectory(step: int, i: int, rng: np.random.Generator) -> dict[str, Any]:
    return {
        "step": step, "trajectory_id": f"{step}-{i}", "group_id": f"{step}-{i // 4}", "prompt": f"what is {i // 4} + {step}?",
        "response": f"it is {rng.integers(0, 99)}", "reward": float(rng.integers(0, 2)), "response_tokens": int(rng.integers(3, 9)),
        "finish_reason": "stop", "task": "sum", "policy_version": step - 1, "policy_lag": 0,
    }  # fmt: skip


ODD: Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "as usual": lambda row: row,
    "groups of one": lambda row: row | {"group_id": row["trajectory_id"]},
    "no groups": lambda row: row | {"group_id": None},
    "no rewards": lambda row: row | {"reward": None},
    "one reward": lambda row: row | {"reward": 0.0},
    "no task": lambda row: row | {"task": None},
    "a task for each": lambda row: row | {"task": row["trajectory_id"]},
    "empty responses": lambda row: row | {"response": "", "response_tokens": 0},
    "rewards that are no numbers": lambda row: row | {"reward": "nan"},
    "nothing but text": lambda row: {k: row[k] for k in ("step", "trajectory_id", "response")},
    "nothing but a step": lambda row: {k: row[k] for k in ("step", "trajectory_id")},
    "empty token arrays": lambda row: row | {"token_ids": [], "rollout_logprobs": [], "response_mask": [], "advantage": 0.0},
    "tokens without a value": lambda row: (
        row | {"token_ids": [1, 2, 3], "rollout_logprobs": [None] * 3, "old_logprobs": [None] * 3, "response_mask": [0, 1, 1]}
    ),
    "one token": lambda row: (
        row | {"token_ids": [1], "rollout_logprobs": [-0.1], "old_logprobs": [-0.1], "current_logprobs": [-0.2], "advantage": -1.0}
    ),
    "turns without anything": lambda row: row | {"turns": [{"role": "assistant"}, {"role": "tool"}, {}]},
    "turns that repeat": lambda row: (
        row | {"turns": [{"role": "assistant", "tool_name": "t", "tool_args": {"a": 1}}, {"role": "tool", "is_error": True}] * 5}
    ),
}  # fmt: skip


@pytest.mark.parametrize("odd", ODD)
def test_trajectories_of_any_kind_stop_no_rule(tmp_path: Path, odd: str) -> None:
    folder, rng = tmp_path / "run", np.random.default_rng(3)
    folder.mkdir()
    rows = [ODD[odd](_trajectory(step, i, rng)) for step in range(1, 41) for i in range(8)]
    (folder / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "metrics.jsonl").write_text("".join(json.dumps({"step": s, "grad.norm": 1.0}) + "\n" for s in range(1, 41)))
    store = Store(None)
    (found,), _ = discover([folder])
    list(load_run(store, found))
    told = replay(store, identify(store, found).run_id, strict=True).to_json()
    store.close()
    assert told["steps"] == {"first": 1, "last": 40}
    json.dumps(told, allow_nan=False)
