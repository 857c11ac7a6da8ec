from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ingest.store.connection import Store
from server.queries.rollouts import RolloutFilter, count_rollouts
from server.queries.slices import MEASURES, bin_width, slice_change, slice_grid

_NUMBERS = itertools.count()
Read = Callable[[list[dict[str, Any]]], str]


def rollout(step: int, length: int, reward: float | None, **more: Any) -> dict[str, Any]:
    made = {"step": step, "prompt": "p", "response": "r", "response_tokens": length, "reward": reward, **more}
    return {**made, "trajectory_id": str(next(_NUMBERS))}


def labels(grid: Any) -> list[str]:
    return [bucket.label for bucket in grid.buckets]


@pytest.mark.parametrize(("first", "last", "width"), [(1, 40, 1), (1, 41, 2), (1, 200, 5), (0, 400, 20), (0, 9999, 500), (7, 7, 1)])
def test_bins_are_round_and_few(first: int, last: int, width: int) -> None:
    assert bin_width(first, last) == width
    assert (last - first) // width + 1 <= 40


def test_a_cell_is_the_mean_of_its_rollouts_with_their_number(store: Store, read_rollouts: Read) -> None:
    run = read_rollouts([rollout(1, 4, 1.0), rollout(1, 4, 0.0), rollout(1, 5, 1.0), rollout(2, 5, 0.5)])
    grid = slice_grid(store, run, "reward", "length")
    assert labels(grid) == ["4", "5"] and grid.bins == ((1, 1), (2, 2))
    assert grid.n.tolist() == [[2, 0], [1, 1]] and grid.total.tolist() == [3, 1]
    assert grid.value[0, 0] == 0.5 and math.isnan(grid.value[0, 1]) and grid.value[1].tolist() == [1.0, 0.5]


def test_a_rollout_without_the_value_is_counted_but_not_averaged(store: Store, read_rollouts: Read) -> None:
    run = read_rollouts([rollout(1, 4, 1.0), rollout(1, 4, None), rollout(1, 4, float("nan"))])
    grid = slice_grid(store, run, "reward", "length")
    assert grid.value.tolist() == [[1.0]] and grid.n.tolist() == [[1]] and grid.rollouts.tolist() == [[3]]


def test_every_rollout_is_in_a_bucket_or_counted_as_in_none(store: Store, read_rollouts: Read) -> None:
    rows = [rollout(step, length, 1.0) for step in range(1, 90) for length in (3, 8, 40, 900)] + [rollout(89, 1, 0.0, response_tokens=None)]
    grid = slice_grid(store, read_rollouts(rows), "reward", "length")
    assert grid.rollouts.sum() + grid.without_bucket == grid.count == len(rows)
    assert grid.without_bucket == 1 and len(grid.bins) <= 40


def test_the_rollouts_behind_a_cell_are_exactly_its_number(store: Store, read_rollouts: Read) -> None:
    rows = [rollout(step, length, 1.0) for step in range(1, 30) for length in range(2, 40, step % 5 + 1)]
    run = read_rollouts(rows)
    grid = slice_grid(store, run, "reward", "length", bin_steps=5)
    for row, bucket in enumerate(grid.buckets):
        for column, steps in enumerate(grid.bins):
            chosen = RolloutFilter(step=steps, length=(bucket.low, bucket.high))
            assert count_rollouts(store, run, chosen) == grid.rollouts[row, column]


def test_lag_buckets_are_the_shared_ones(store: Store, read_rollouts: Read) -> None:
    run = read_rollouts([rollout(1, 4, 1.0, policy_lag=lag) for lag in (0, 1, 3, 4, 20)])
    assert labels(slice_grid(store, run, "reward", "lag")) == ["0", "1", "3 to 4", "17 to 20"]


def test_labels_are_in_natural_order(store: Store, read_rollouts: Read) -> None:
    run = read_rollouts([rollout(1, 4, 1.0, difficulty=d) for d in ("10", "9", "hard")])
    assert labels(slice_grid(store, run, "reward", "difficulty")) == ["9", "10", "hard"]


def test_shares_are_of_all_rollouts_of_the_bin(store: Store, read_rollouts: Read) -> None:
    run = read_rollouts([rollout(1, 4, 1.0, task="a"), rollout(1, 4, 1.0, task="a"), rollout(1, 4, 1.0, task="b"), rollout(1, 4, 1.0)])
    grid = slice_grid(store, run, "share", "task")
    assert grid.value.tolist() == [[0.5], [0.25]] and grid.without_bucket == 1


def test_truncated_share_is_only_of_rollouts_that_say_how_they_ended(store: Store, read_rollouts: Read) -> None:
    run = read_rollouts([rollout(1, 4, 1.0, finish_reason=reason) for reason in ("length", "stop", "stop", "stop")] + [rollout(1, 4, 1.0)])
    grid = slice_grid(store, run, "truncated", "length")
    assert grid.value.tolist() == [[0.25]] and grid.n.tolist() == [[4]]


def test_a_group_of_equal_rewards_has_no_variance_and_a_lone_rollout_is_no_group(store: Store, read_rollouts: Read) -> None:
    equal = [rollout(1, 4, 1.0, group_id="a") for _ in range(2)]
    mixed = [rollout(1, 5, reward, group_id="b") for reward in (0.0, 1.0)]
    grid = slice_grid(store, read_rollouts([*equal, *mixed, rollout(1, 6, 1.0, group_id="c")]), "zero", "length")
    assert grid.value.tolist() == [[1.0], [0.0], [0.0]]


def test_the_mismatch_is_a_mean_over_response_tokens_with_both_values(store: Store, read_rollouts: Read) -> None:
    row = rollout(
        1, 4, 1.0, policy_lag=0, token_ids=[1, 2, 3, 4, 5], response_mask=[0, 1, 1, 1, 1],
        rollout_logprobs=[-9.0, -1.0, -1.0, None, -2.0], old_logprobs=[0.0, -1.5, -0.5, -1.0, -4.0],
    )  # fmt: skip
    grid = slice_grid(store, read_rollouts([row, rollout(1, 4, 1.0, policy_lag=0)]), "mismatch", "lag")
    assert grid.value[0, 0] == pytest.approx((0.5 + 0.5 + 2.0) / 3)
    assert grid.n.tolist() == [[1]] and grid.rollouts.tolist() == [[2]]


def test_before_and_after_are_compared_bucket_by_bucket(store: Store, read_rollouts: Read) -> None:
    before = [rollout(step, 4, 1.0, task="a") for step in (1, 2)] + [rollout(2, 4, 0.0, task="b") for _ in range(2)]
    after = [rollout(5, 4, 0.0, task="a"), rollout(9, 4, 0.5, task="a")]
    a, b = slice_change(store, read_rollouts([*before, *after]), "reward", "task", (1, 2), (8, 9))
    assert (a.share_before, a.share_after, a.value_before, a.value_after) == (0.5, 1.0, 1.0, 0.5)
    assert (a.n_before, a.n_after, b.n_before, b.n_after) == (2, 1, 2, 0) and math.isnan(b.value_after)


def test_evaluations_are_left_out_of_training_slices(store: Store, read_rollouts: Read) -> None:
    run = read_rollouts([rollout(1, 4, 1.0), rollout(1, 4, 0.0, split="eval")])
    assert slice_grid(store, run, "reward", "length", RolloutFilter(split="train")).value.tolist() == [[1.0]]


@pytest.mark.parametrize("measure", sorted(MEASURES))
def test_a_run_without_rollouts_gives_an_empty_map_for_every_measure(store: Store, measure: str) -> None:
    grid = slice_grid(store, "nobody", measure, "length")
    assert grid.buckets == () and grid.bins == () and grid.count == 0 and np.size(grid.value) == 0
