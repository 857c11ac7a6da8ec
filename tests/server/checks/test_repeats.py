"""Doubled rows, prompts of every spike and what is dropped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from server.checks import repeats
from server.checks.base import Finding

Build = Callable[..., Any]
See = Callable[..., Finding]


def batch(step: int, *, texts: Callable[[int, int], str], groups: int = 4, size: int = 4, **more: Any) -> list[dict[str, Any]]:
    return [
        {
            "step": step,
            "trajectory_id": f"{step}-{g}-{i}",
            "group_id": f"{step}-{g}",
            "prompt": f"question {step} {g}",
            "response": texts(g, i),
            **more,
        }
        for g in range(groups)
        for i in range(size)
    ]


def test_a_batch_that_was_appended_twice_is_recognised(view: Build, seen: See) -> None:
    rows = batch(5, texts=lambda g, i: f"answer {g} {i % 4}", size=8)
    found = repeats.duplicated(view(rows), seen(5))
    assert found.verdict == "supported"
    assert found.observed["groups_all_even"] == 1.0


def test_a_batch_of_an_earlier_step_is_recognised(view: Build, seen: See) -> None:
    old = batch(5, texts=lambda g, i: f"answer {g} {i}")
    again = [{**row, "step": 7, "trajectory_id": f"again {n}"} for n, row in enumerate(old)]
    found = repeats.duplicated(view([*old, *again]), seen(7))
    assert found.verdict == "supported"
    assert found.observed["earlier_step"] == 5


def test_low_diversity_is_no_duplication(view: Build, seen: See) -> None:
    rows = [row for step in (4, 5) for row in batch(step, texts=lambda g, i: f"answer {(1, 1, 1, 2, 2, 3, 4, 4)[i]}", size=8)]
    assert repeats.duplicated(view(rows), seen(5)).verdict == "refuted"


@pytest.mark.parametrize("rows", [[], [{"reward": 1.0}], [{"prompt": "p", "response": "r", "group_id": "g"}]])
def test_without_texts_nothing_is_called_a_duplicate(view: Build, seen: See, rows: list[Any]) -> None:
    assert repeats.duplicated(view(rows), seen()).verdict in ("not_checkable", "refuted")


@pytest.mark.parametrize(
    ("everywhere", "bad_in_spikes", "expected"), [(False, True, "supported"), (False, False, "refuted"), (True, True, "inconclusive")]
)
def test_a_prompt_in_every_spike_and_seldom_between_is_an_outlier(
    view: Build, seen: See, everywhere: bool, bad_in_spikes: bool, expected: str
) -> None:
    spikes = (30, 40, 50)
    rows = []
    for step in range(15, 56):
        bad = everywhere or (bad_in_spikes and step in spikes)
        rows += [{"step": step, "trajectory_id": f"{step}-{n}", "prompt": "bad" if bad and n == 0 else f"p {step} {n}"} for n in range(3)]
    norms = {step: 30.0 if step in spikes else 1.0 + 0.01 * (step % 3) for step in range(1, 56)}
    assert repeats.same_prompt(view(rows, {"grad.norm": norms}), seen(50)).verdict == expected


def test_two_spikes_are_too_few_to_share_a_prompt(view: Build, seen: See) -> None:
    norms = {step: 30.0 if step in (30, 40) else 1.0 for step in range(1, 45)}
    assert repeats.same_prompt(view(series={"grad.norm": norms}), seen(40)).verdict == "not_checkable"


@pytest.mark.parametrize(("length", "task", "expected"), [(60, "a", "supported"), (20, "b", "supported"), (20, "a", "refuted")])
def test_dropped_responses_are_compared_with_kept_ones(view: Build, seen: See, length: int, task: str, expected: str) -> None:
    kept = [{"kept": True, "response_tokens": 20, "task": "a"} for _ in range(60)]
    dropped = [{"kept": False, "response_tokens": length, "task": task} for _ in range(40)]
    assert repeats.dropped_differ(view([*kept, *dropped]), seen()).verdict == expected


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([{"response_tokens": 5}] * 50, "not_checkable"),
        ([{"kept": True, "response_tokens": 5}] * 50, "refuted"),
        ([{"kept": n > 4, "response_tokens": 5} for n in range(50)], "inconclusive"),
    ],
)
def test_few_or_no_dropped_responses_support_nothing(view: Build, seen: See, rows: list[Any], expected: str) -> None:
    assert repeats.dropped_differ(view(rows), seen()).verdict == expected
