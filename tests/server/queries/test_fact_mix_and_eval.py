"""Facts of the mix, of evaluations and of reward parts against values worked out by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from ingest.store.connection import Store
from server.queries.facts import add_facts
from server.queries.run_data import load_run
from server.queries.view import RunData

Read = Callable[[Sequence[Mapping[str, Any]]], str]


def data_of(store: Store, read: Read, rows: Sequence[Mapping[str, Any]]) -> RunData:
    data = load_run(store, read([{"trajectory_id": f"t{n}", **row} for n, row in enumerate(rows)]))
    add_facts(data)
    return data


def values(data: RunData, fact: str) -> list[float]:
    return [float(v) for v in data.chain(fact, max(data.attempt_starts)).values]


def test_shares_of_tasks_difficulties_origins_lengths_and_kept_tasks(store: Store, read_rollouts: Read) -> None:
    rows = [
        {"step": 1, "task": "a", "difficulty": 3, "origin": "policy", "prompt": "p1", "prompt_tokens": 10, "reward": 1.0, "kept": True},
        {"step": 1, "task": "a", "difficulty": 5, "origin": "policy", "prompt": "p2", "prompt_tokens": 100, "reward": 0.0, "kept": False},
        {"step": 1, "task": "b", "difficulty": 5, "origin": "synthetic", "prompt": "p2", "prompt_tokens": 11, "reward": 0.5, "kept": True},
        {"step": 1, "task": "b", "split": "eval", "difficulty": 9, "prompt": "p3", "reward": 1.0},
    ]
    data = data_of(store, read_rollouts, rows)
    expected = {
        "fact.mix.task.a": 2 / 3, "fact.mix.difficulty.5": 2 / 3, "fact.mix.origin.synthetic": 1 / 3, "fact.mix.prompt_length.8": 2 / 3,
        "fact.mix.prompt_length.91": 1 / 3, "fact.mix.kept_task.a": 0.5, "fact.mix.kept_task.b": 0.5, "fact.task.reward.a": 0.5,
        "fact.task.difficulty.a": 4, "fact.task.prompt_length.a": 55, "fact.prompt.n": 2,
    }  # fmt: skip
    assert {fact: values(data, fact) for fact in expected} == {fact: [pytest.approx(v)] for fact, v in expected.items()}
    assert "fact.mix.difficulty.9" not in data.metrics() or values(data, "fact.mix.difficulty.9") == [0]


def test_the_reward_at_a_fixed_mix_does_not_move_with_the_shares(store: Store, read_rollouts: Read) -> None:
    mixes = [*["ab"] * 50, *["aaab"] * 5, "aa", "b"]
    rows = [
        {"step": step, "task": task, "prompt": f"{step}-{n}", "reward": 1.0 if task == "a" else 0.2}
        for step, tasks in enumerate(mixes, 1)
        for n, task in enumerate(tasks)
    ]
    data = data_of(store, read_rollouts, rows)
    assert values(data, "fact.reward.fixed_mix") == [pytest.approx(0.6)] * len(mixes)
    again = load_run(store, data.run.run_id)
    add_facts(again)
    add_facts(again, after=(1, 40))
    assert values(again, "fact.reward.fixed_mix") == values(data, "fact.reward.fixed_mix")


def test_a_label_s_share_begins_with_its_first_row_and_is_0_from_then_on(store: Store, read_rollouts: Read) -> None:
    rows = [{"step": step, "task": task, "prompt": "p", "reward": 1.0} for step, tasks in ((1, "a"), (2, "ab"), (3, "a")) for task in tasks]
    data = data_of(store, read_rollouts, rows)
    assert data.chain("fact.mix.task.b", 1).steps.tolist() == [2, 3]
    assert values(data, "fact.mix.task.b") == [0.5, 0]
    again = load_run(store, data.run.run_id)
    add_facts(again)
    add_facts(again, after=(1, 2))
    assert again.chain("fact.mix.task.b", 1).steps.tolist() == [2, 3]


def test_one_task_has_no_fixed_mix(store: Store, read_rollouts: Read) -> None:
    data = data_of(store, read_rollouts, [{"step": 1, "task": "a", "reward": 1.0}])
    assert "fact.reward.fixed_mix" not in data.metrics()


def asked(step: int, prompts: str, limit: int = 100, version: str = "1") -> list[dict[str, Any]]:
    return [
        {"step": step, "split": "eval", "prompt": p, "reward": 1.0, "response_tokens": 10 * (n + 1),
         "finish_reason": "stop" if n else "length",
         "sampling": {"max_tokens": limit, "temperature": 0.5}, "verifier": {"name": "exact", "version": version, "status": "ok"}}
        for n, p in enumerate(prompts)
    ]  # fmt: skip


def test_an_evaluation_s_rows_say_how_it_was_done(store: Store, read_rollouts: Read) -> None:
    rows = [*asked(5, "aabb"), *asked(10, "abcd", 50), *asked(15, "abcd", 50, "2"), {"step": 15, "prompt": "x", "reward": 0.0}]
    data = data_of(store, read_rollouts, rows)
    assert values(data, "fact.eval.items") == [2, 4, 4]
    assert values(data, "fact.eval.attempts") == [2, 1, 1]
    assert values(data, "fact.eval.max_tokens") == [100, 50, 50]
    assert values(data, "fact.eval.temperature") == [0.5, 0.5, 0.5]
    assert values(data, "fact.eval.length.mean") == [25, 25, 25]
    assert values(data, "fact.eval.truncated_frac") == [0.25, 0.25, 0.25]
    assert values(data, "fact.eval.overlap") == [0.5, 1]
    first, second, third = values(data, "fact.eval.grader")
    assert first == second != third
    assert "fact.eval.top_p" not in data.metrics()
    again = load_run(store, data.run.run_id)
    add_facts(again)
    add_facts(again, after=(1, 5))
    assert values(again, "fact.eval.overlap") == [0.5, 1]


def test_parts_of_the_reward_are_averaged_where_they_are_written(store: Store, read_rollouts: Read) -> None:
    rows: list[dict[str, Any]] = [
        {"step": 1, "reward": 1.0, "reward_parts": {"format": 1, "exact.match": 0.5}},
        {"step": 1, "reward": 0.0, "reward_parts": {"format": 0}},
        {"step": 2, "reward": 0.0},
    ]
    data = data_of(store, read_rollouts, rows)
    assert values(data, "fact.reward.part.format") == [0.5]
    assert values(data, "fact.reward.part.exact.match") == [0.5]
