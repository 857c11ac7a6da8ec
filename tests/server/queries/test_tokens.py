from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ingest.store.connection import Store
from server.queries.incidents import named_rollouts, worst_rollouts
from server.queries.tokens import (
    first_at,
    group_members,
    neighbour_steps,
    place_of,
    same_prompt,
    summary,
    token_arrays,
    token_steps_near,
    trajectory,
    turns,
)

Read = Callable[[list[dict[str, Any]]], str]


def member(step: int, name: str, response: str, ids: list[int] | None = None, **more: Any) -> dict[str, Any]:
    row: dict[str, Any] = {"step": step, "trajectory_id": name, "group_id": f"g{step}", "prompt": "ab", "response": response, **more}
    if ids is not None:
        row |= {"token_ids": ids, "response_mask": [0, 0] + [1] * (len(ids) - 2), "prompt_tokens": 2}
        row |= {"rollout_logprobs": [None, None] + [-1.0] * (len(ids) - 2)}
        row |= {"old_logprobs": [None, None, *more.get("old", [-1.0] * (len(ids) - 2))]}
    row.pop("old", None)
    return row


def test_texts_are_cut_from_the_response_where_the_whole_group_confirms_it(store: Store, read_rollouts: Read) -> None:
    run = read_rollouts([member(1, "x", "cd", [1, 2, 3, 4, 0]), member(1, "y", "dc", [1, 2, 4, 3, 0])])
    arrays = token_arrays(store, run, 1, 0)
    assert arrays is not None and arrays.derived_texts and arrays.texts == ("a", "b", "c", "d", None) and arrays.prompt_tokens == 2


def test_texts_are_not_invented_where_one_id_would_be_two_characters(store: Store, read_rollouts: Read) -> None:
    run = read_rollouts([member(1, "x", "cd", [1, 2, 3, 4]), member(1, "y", "dd", [1, 2, 3, 4])])
    arrays = token_arrays(store, run, 1, 0)
    assert arrays is not None and arrays.texts is None and not arrays.derived_texts


def test_members_say_where_they_first_differ_from_the_one_shown(store: Store, read_rollouts: Read) -> None:
    same, other, longer = ([1, 2, 3, 4], [1, 2, 4, 3], [1, 2, 3, 4, 3])
    run = read_rollouts([member(1, "x", "cd", same), member(1, "y", "dc", other), member(1, "z", "cdc", longer), member(1, "w", "cd")])
    shown = trajectory(store, run, 1, 0)
    assert shown is not None
    assert [m.diverges_at for m in group_members(store, shown)] == [None, 2, 4, None]


def test_a_trajectory_without_a_group_stands_alone(store: Store, read_rollouts: Read) -> None:
    run = read_rollouts([member(1, "x", "c", group_id=None), member(1, "y", "d", group_id=None)])
    shown = trajectory(store, run, 1, 1)
    assert shown is not None and [m.trajectory_id for m in group_members(store, shown)] == ["y"]


def test_the_summary_is_over_response_tokens_and_names_the_worst(store: Store, read_rollouts: Read) -> None:
    run = read_rollouts([member(1, "x", "cde", [1, 2, 3, 4, 5], old=[-1.0, -3.0, -1.5])])
    arrays = token_arrays(store, run, 1, 0)
    assert arrays is not None and arrays.differences() == (None, None, 0.0, -2.0, -0.5)
    told = summary(arrays)
    assert told.mean_difference == pytest.approx(2.5 / 3) and told.below_half == 1 and told.compared == 3 and told.worst == (3, 4)


def test_what_was_not_written_is_nothing(store: Store, read_rollouts: Read) -> None:
    run = read_rollouts([member(1, "x", "cd")])
    shown = trajectory(store, run, 1, 0)
    assert shown is not None and shown.reward is None and shown.truncated is None and shown.reward_parts is None
    assert token_arrays(store, run, 1, 0) is None and turns(store, run, 1, 0) == () and trajectory(store, run, 1, 9) is None


def test_turns_keep_arguments_errors_and_lengths(store: Store, read_rollouts: Read) -> None:
    spoken = [
        {"role": "assistant", "content": "go", "tool_name": "add", "tool_args": {"n": 1}, "prompt_token_ids": [1, 2], "token_ids": [3]},
        {"role": "tool", "content": "no", "is_error": True, "seconds": 0.5},
    ]
    first, second = turns(store, read_rollouts([member(1, "x", "c", turns=spoken)]), 1, 0)
    assert (first.tool_name, first.tool_args, first.given_tokens, first.own_tokens) == ("add", {"n": 1}, 2, 1)
    assert second.is_error is True and second.seconds == 0.5 and second.tool_args is None


def test_neighbours_lead_to_steps_with_tokens_from_one_that_has_them(store: Store, read_rollouts: Read) -> None:
    ids = [1, 2, 3]
    run = read_rollouts([member(s, f"x{s}", "c", ids if s in (1, 4, 9) else None, task="t") for s in (1, 3, 4, 6, 9)])
    with_tokens, without = trajectory(store, run, 4, 0), trajectory(store, run, 6, 0)
    assert with_tokens is not None and without is not None
    near, far = neighbour_steps(store, with_tokens), neighbour_steps(store, without)
    assert (near.before, near.after) == (1, 9) and (far.before, far.after) == (4, 9)
    tokens = token_steps_near(store, run, 6)
    assert (tokens.before, tokens.after) == (4, 9)
    assert first_at(store, run, 9, tokens=True, task="other") == 0 and first_at(store, run, 3, tokens=True) is None


def test_the_same_prompt_is_found_at_every_step(store: Store, read_rollouts: Read) -> None:
    run = read_rollouts([member(1, "x", "c", reward=0.0), member(1, "y", "c", reward=1.0), member(7, "z", "c", reward=1.0)])
    shown = trajectory(store, run, 1, 0)
    assert shown is not None
    assert [(o.step, o.reward, o.n) for o in same_prompt(store, shown)] == [(1, 0.5, 2), (7, 1.0, 1)]
    assert place_of(store, run, "z") == (7, 0) and place_of(store, run, "nobody") is None


def test_the_worst_rollouts_come_by_the_strongest_token_inside_the_window(store: Store, read_rollouts: Read) -> None:
    run = read_rollouts(
        [member(1, "x", "cd", [1, 2, 3, 4], old=[-9.0, -1.0]), member(2, "y", "cd", [1, 2, 3, 4], old=[-1.0, -4.0]), member(3, "z", "cd")]
    )
    ranked = worst_rollouts(store, run, (2, 3), "difference")
    assert [(r.rollout.trajectory_id, r.value) for r in ranked] == [("y", 3.0)]
    assert [r.rollout.step for r in named_rollouts(store, run, ["3.0", "1.0", "8.0", "bad"], "reward")] == [3, 1]
