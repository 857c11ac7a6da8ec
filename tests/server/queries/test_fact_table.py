"""The rows that facts are made of: read in parts or at once, with whatever a writer left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from ingest.store.connection import Store
from server.queries import fact_table, fact_token_rows
from server.queries.fact_table import NONE, tables
from server.queries.facts import add_facts
from server.queries.incidents import derived_curve
from server.queries.run_data import load_run
from server.queries.view import RunData

Read = Callable[[Sequence[Mapping[str, Any]]], str]


def rollouts(steps: int = 9, attempts: int = 2) -> list[dict[str, Any]]:
    """Trajectories of two groups a step with texts and tokens of different lengths; a later attempt takes over at step 5."""
    chance = np.random.default_rng(3)
    rows: list[dict[str, Any]] = []
    for attempt in range(1, attempts + 1):
        for step in range(1 if attempt == 1 else 5, steps + 1):
            for n in range(8):
                size = int(chance.integers(3, 12))
                logprobs = (-chance.random(size)).round(3).tolist()
                near = [value + float(chance.normal(0, 0.01)) for value in logprobs]
                rows.append(
                    {"step": step, "attempt": attempt, "trajectory_id": f"{attempt}-{step}-{n}", "group_id": f"g{n // 4}",
                     "task": "ab"[n % 2], "difficulty": step % 3, "prompt": f"prompt {step % 4} {n // 4} ж",
                     "response": f"answer {int(chance.integers(0, 3))} " * 40, "reward": float(chance.integers(0, 2)),
                     "advantage": float(chance.normal()), "response_tokens": size, "finish_reason": "length" if n == 7 else "stop",
                     "policy_version": step - 1, "trainer_version": step - 1, "kept": n != 3,
                     "old_logprobs": logprobs, "rollout_logprobs": near, "current_logprobs": [*near[: size - 1], None],
                     "entropies": [0.5] * size, "response_mask": [1] * size, "loss_mask": [1] * (size - 1) + [0]}
                )  # fmt: skip
    return rows


def series(data: RunData) -> dict[str, tuple[list[int], list[float]]]:
    chains = {name: data.chain(name, 2) for name in data.metrics() if name.startswith("fact.")}
    return {name: (chain.steps.tolist(), chain.values.tolist()) for name, chain in chains.items()}


def test_parts_of_a_run_make_the_facts_of_the_whole(store: Store, read_rollouts: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = read_rollouts(rollouts())
    whole, parted = load_run(store, run_id), load_run(store, run_id)
    add_facts(whole)
    assert len(list(tables(whole, None))) == 1
    monkeypatch.setattr(fact_table, "MOST_ROWS", 20)
    monkeypatch.setattr(fact_token_rows, "_TOKENS_AT_ONCE", 100)
    monkeypatch.setattr(fact_token_rows, "_TOKENS_IN_CACHE", 30)
    assert len(list(tables(parted, None))) == 7
    add_facts(parted)
    told, wanted = series(parted), series(whole)
    assert told.keys() == wanted.keys()
    assert {"fact.mismatch.mean", "fact.script.foreign_frac", "fact.repeat.prompt_frac", "fact.mix.task.a"} <= told.keys()
    for name, (steps, values) in wanted.items():
        assert told[name][0] == steps, name
        assert told[name][1] == pytest.approx(values, rel=1e-9, abs=1e-12, nan_ok=True), name


def test_what_a_writer_left_out_is_unknown_and_not_0(store: Store, read_rollouts: Read) -> None:
    data = load_run(store, read_rollouts([{"step": 1, "trajectory_id": "a"}, {"step": 1, "trajectory_id": "b", "split": "eval"}]))
    (table,) = tables(data, None)
    assert len(table) == 1
    assert table.evaluated
    assert np.isnan(table["reward"][0])
    assert np.isnan(table["kept"][0])
    assert table.labels["task"].tolist() == [None]
    assert table.hashes["prompt_hash"][0] == table.hashes["group_hash"][0] == NONE
    add_facts(data)
    assert {m for m in data.metrics() if m.startswith(("fact.group", "fact.reward", "fact.prompt", "fact.duplicate"))} == set()
    assert "fact.verifier.zero_frac" not in data.metrics()


def test_answers_without_a_last_word_are_no_equal_answers(store: Store, read_rollouts: Read) -> None:
    rows = [
        {"step": 1, "trajectory_id": f"t{n}", "group_id": "g", "prompt": "p", "response": response, "reward": 1.0 * (n > 1)}
        for n, response in enumerate(["?", "!", "so 7", "is 8"])
    ]
    data = load_run(store, read_rollouts(rows))
    add_facts(data)
    assert data.chain("fact.group.answer_frac", 1).values.tolist() == [1.0]


def test_the_curve_of_an_incident_may_be_one_that_was_derived(store: Store, read_rollouts: Read) -> None:
    run_id = read_rollouts(rollouts())
    shown = derived_curve(store, run_id, "fact.mix.task.a", (2, 7), weight=0.8)
    assert shown is not None
    assert shown.smooth.tolist() == pytest.approx([0.5] * 9)
    assert (shown.attempt, shown.steps.tolist(), shown.mean.tolist()) == (2, list(range(1, 10)), [0.5] * 9)
    assert derived_curve(store, run_id, "fact.tools.error_frac", (2, 7), weight=0.8) is None
    assert derived_curve(store, run_id, "reward.mean", (2, 7), weight=0.8) is None
