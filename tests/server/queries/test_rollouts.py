from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ingest.store.connection import Store
from server.queries.rollouts import (
    RolloutFilter,
    count_rollouts,
    nearest_steps,
    reward_by_length,
    rollout_facts,
    rollout_page,
    rollouts_by_step,
)

Read = Callable[[list[dict[str, Any]]], str]


def rollout(step: int, index: int, **more: Any) -> dict[str, Any]:
    return {
        "step": step, "trajectory_id": f"t{step}-{index}", "group_id": f"g{step}", "prompt": "1+1=", "response": f"answer {index}",
        "reward": float(index % 2), "response_tokens": 10 + index, **more,
    }  # fmt: skip


def many() -> list[dict[str, Any]]:
    return [rollout(step, index, policy_lag=step % 3) for step in (1, 2, 5) for index in range(4)]


def places(store: Store, run: str, chosen: RolloutFilter, **order: Any) -> list[tuple[int, int]]:
    return [(row.step, row.n) for row in rollout_page(store, run, chosen, **order).rows]


def test_newest_step_comes_first_and_arrival_orders_a_step(store: Store, read_rollouts: Read) -> None:
    run = read_rollouts(many())
    assert places(store, run, RolloutFilter(), limit=5) == [(5, 0), (5, 1), (5, 2), (5, 3), (2, 0)]


def test_the_total_counts_every_match_and_not_the_page(store: Store, read_rollouts: Read) -> None:
    run = read_rollouts(many())
    page = rollout_page(store, run, RolloutFilter(reward=(1, 1)), offset=4, limit=10)
    assert (len(page.rows), page.total) == (2, 6)
    assert count_rollouts(store, run, RolloutFilter(reward=(1, 1))) == 6


@pytest.mark.parametrize(
    ("chosen", "count"),
    [
        (RolloutFilter(step=(2, 5)), 8),
        (RolloutFilter(length=(12, None)), 6),
        (RolloutFilter(lag=(2, 2)), 8),
        (RolloutFilter(step=(2, 2), lag=(1, 1)), 0),
        (RolloutFilter(group="g5"), 4),
        (RolloutFilter(split="eval"), 0),
        (RolloutFilter(split="train"), 12),
        (RolloutFilter(truncated=True), 0),
        (RolloutFilter(truncated=False), 12),
        (RolloutFilter(tokens=True), 0),
    ],
)
def test_each_filter_keeps_what_it_names(store: Store, read_rollouts: Read, chosen: RolloutFilter, count: int) -> None:
    assert count_rollouts(store, read_rollouts(many()), chosen) == count


def test_search_finds_any_case_in_prompt_response_and_id_and_takes_percent_as_itself(store: Store, read_rollouts: Read) -> None:
    rows = [rollout(1, 0, response="Fully 100% RIGHT"), rollout(1, 1, prompt="say right"), rollout(1, 2, response="wrong")]
    run = read_rollouts(rows)
    assert places(store, run, RolloutFilter(text="right")) == [(1, 0), (1, 1)]
    assert places(store, run, RolloutFilter(text="100%")) == [(1, 0)]
    assert places(store, run, RolloutFilter(text="%")) == [(1, 0)]
    assert places(store, run, RolloutFilter(text="T1-2")) == [(1, 2)]


def test_a_preview_shows_the_place_of_the_hit_and_otherwise_start_and_end(store: Store, read_rollouts: Read) -> None:
    run = read_rollouts([rollout(1, 0, response="start " + "x" * 500 + " needle " + "y" * 500 + " end")])
    (plain,) = rollout_page(store, run, RolloutFilter()).rows
    assert plain.response is not None and plain.response.startswith("start") and plain.response.endswith(" end")
    (hit,) = rollout_page(store, run, RolloutFilter(text="NEEDLE")).rows
    assert hit.response is not None and " needle " in hit.response


def test_sorting_puts_unwritten_values_last_both_ways(store: Store, read_rollouts: Read) -> None:
    run = read_rollouts([rollout(1, 0, reward=None), rollout(1, 1, reward=2.0), rollout(1, 2, reward=-1.0)])
    assert places(store, run, RolloutFilter(), sort="reward", descending=True) == [(1, 1), (1, 2), (1, 0)]
    assert places(store, run, RolloutFilter(), sort="reward", descending=False) == [(1, 2), (1, 1), (1, 0)]


def test_new_rows_are_seen_by_a_question_asked_before(store: Store, read_rollouts: Read) -> None:
    run = read_rollouts([rollout(1, 0)])
    assert rollout_page(store, run, RolloutFilter()).total == 1
    with store.transaction() as connection:
        connection.execute("INSERT INTO trajectory BY NAME SELECT * REPLACE (2 AS step) FROM trajectory")
    assert rollout_page(store, run, RolloutFilter()).total == 2


def test_only_the_newest_attempt_of_a_step_counts(store: Store, read_rollouts: Read) -> None:
    first = [rollout(step, 0, attempt=1, reward=0.0) for step in (1, 2, 3)]
    again = [rollout(step, 0, attempt=2, reward=1.0) for step in (2, 3)]
    run = read_rollouts(first + again)
    rows = rollout_page(store, run, RolloutFilter()).rows
    assert [(row.step, row.reward) for row in rows] == [(3, 1.0), (2, 1.0), (1, 0.0)]


def test_facts_tell_what_was_written_and_what_not(store: Store, read_rollouts: Read) -> None:
    run = read_rollouts([rollout(1, 0, task="b"), rollout(4, 1, task="a", finish_reason="length")])
    facts = rollout_facts(store, run)
    assert (facts.count, facts.first_step, facts.last_step, facts.steps) == (2, 1, 4, 2)
    assert facts.tasks == ("a", "b") and facts.finish_reasons == ("length",) and facts.splits == ("train",)
    assert facts.reward == (0.0, 1.0) and facts.length == (10, 11) and facts.lag is None
    assert (facts.with_finish, facts.with_tokens, facts.with_advantage) == (1, 0, 0)


def test_facts_of_a_run_without_rollouts_are_nothing(store: Store) -> None:
    facts = rollout_facts(store, "nobody")
    assert facts.count == 0 and facts.reward is None and facts.tasks == ()


def test_nearest_steps_keep_the_other_conditions(store: Store, read_rollouts: Read) -> None:
    run = read_rollouts(many())
    assert nearest_steps(store, run, RolloutFilter(step=(3, 3)), 3) == (2, 5)
    assert nearest_steps(store, run, RolloutFilter(step=(3, 3), lag=(1, 1)), 3) == (1, None)


def test_the_scatter_counts_all_and_draws_the_same_sample_each_time(store: Store, read_rollouts: Read) -> None:
    run = read_rollouts([*many(), rollout(9, 0, reward=None)])
    first, second = (reward_by_length(store, run, RolloutFilter(), most=5) for _ in range(2))
    assert first.total == 12 and first.length.size == 5
    assert list(zip(first.step, first.n, strict=True)) == list(zip(second.step, second.n, strict=True))


def test_steps_are_counted_in_order(store: Store, read_rollouts: Read) -> None:
    steps, counts = rollouts_by_step(store, read_rollouts(many()), RolloutFilter())
    assert steps.tolist() == [1, 2, 5] and counts.tolist() == [4, 4, 4]
