"""What a second run decides, each with a run that supports and one that refutes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from server.checks import second
from server.checks.base import SECOND_RUN, Finding

Build = Callable[..., Any]
See = Callable[..., Finding]
SIZE = {"prompts_per_step": 16, "group_size": 8}


def flat(value: float, steps: int = 60, noise: float = 0.01, seed: int = 0) -> dict[int, float]:
    values = value + np.random.default_rng(seed).normal(0, noise, steps)
    return {step: float(x) for step, x in enumerate(values, 1)}


def rising(last: float, steps: int = 60) -> dict[int, float]:
    return {step: last * step / steps + 0.001 * (-1) ** step for step in range(1, steps + 1)}


def pair(view: Build, own: dict[str, Any], other: dict[str, Any], a: dict[str, Any] | None = None, b: dict[str, Any] | None = None) -> Any:
    return view(series=own, config=a or SIZE, second=view(series=other, config=b or SIZE))


@pytest.mark.parametrize(("own", "expected"), [(0.6, "supported"), (0.4, "refuted"), (0.9, "inconclusive")])
def test_like_the_reference_at_equal_samples_is_no_effect(view: Build, seen: See, own: float, expected: str) -> None:
    run = pair(view, {"reward.mean": flat(own)}, {"reward.mean": flat(0.6, seed=1)})
    assert second.no_separable_effect(run, seen()).verdict == expected


@pytest.mark.parametrize(("prompts", "expected"), [(8, "supported"), (16, "refuted")])
def test_worse_at_equal_steps_and_not_at_equal_samples_is_fewer_samples(view: Build, seen: See, prompts: int, expected: str) -> None:
    half = {"prompts_per_step": prompts, "group_size": 8}
    run = pair(view, {"reward.mean": rising(0.3)}, {"reward.mean": rising(0.6)}, half)
    assert second.fewer_samples(run, seen()).verdict == expected


@pytest.mark.parametrize(
    ("theirs", "backend", "expected"), [(0.01, "flash", "supported"), (0.09, "flash", "refuted"), (0.01, "eager", "inconclusive")]
)
def test_another_set_up_with_far_less_mismatch_points_to_the_backend(
    view: Build, seen: See, theirs: float, backend: str, expected: str
) -> None:
    metric = "mismatch.logprob_diff.mean"
    run = pair(
        view, {metric: flat(0.1)}, {metric: flat(theirs, noise=0.001)}, {"attention_backend": "eager"}, {"attention_backend": backend}
    )
    assert second.other_set_up(run, seen()).verdict == expected


@pytest.mark.parametrize(
    ("own", "other", "theirs", "expected"),
    [
        ({"num_experts": 64}, {"num_experts": 1}, 0.01, "supported"),
        ({"num_experts": 64}, {"num_experts": 64, "routing_replay": True}, 0.01, "supported"),
        ({"num_experts": 64}, {"num_experts": 1}, 0.1, "refuted"),
        ({"num_experts": 64}, {"num_experts": 64}, 0.01, "inconclusive"),
        ({"num_experts": 1}, {}, 0.01, "refuted"),
        ({"num_experts": 64, "routing_replay": True}, {}, 0.01, "refuted"),
        ({}, {}, 0.01, "not_checkable"),
    ],
)
def test_routing_needs_experts_and_a_control(view: Build, seen: See, own: Any, other: Any, theirs: float, expected: str) -> None:
    metric = "mismatch.logprob_diff.mean"
    run = view(series={metric: flat(0.1)}, config=own, second=view(series={metric: flat(theirs, noise=0.001)}, config=other))
    assert second.routing(run, seen()).verdict == expected


@pytest.mark.parametrize(("theirs", "world", "expected"), [(4.0, 8, "supported"), (1.05, 8, "refuted"), (4.0, 1, "not_checkable")])
def test_the_gradient_norm_must_not_hang_on_the_world_size(view: Build, seen: See, theirs: float, world: int, expected: str) -> None:
    run = pair(view, {"grad.norm": flat(1.0)}, {"grad.norm": flat(theirs)}, {"world_size": 1}, {"world_size": world})
    assert second.denominator(run, seen()).verdict == expected


@pytest.mark.parametrize(("sign", "expected"), [(1, "supported"), (-1, "refuted")])
def test_a_coefficient_that_speeds_kl_up_has_the_wrong_sign(view: Build, seen: See, sign: int, expected: str) -> None:
    coefficient = [0.1 + 0.09 * np.sin(step / 8) for step in range(120)]
    kl = np.exp(np.cumsum([0.03 + sign * 0.2 * (c - 0.1) for c in coefficient]) - 4)
    run = view(series={"kl.coef": dict(enumerate(coefficient)), "kl.ref": dict(enumerate(kl.tolist()))})
    assert second.brake_reversed(run, seen()).verdict == expected


@pytest.mark.parametrize(("own", "expected"), [(0.4, "supported"), (0.05, "refuted")])
def test_a_second_run_with_a_smaller_coefficient_decides_the_sign(view: Build, seen: See, own: float, expected: str) -> None:
    run = pair(view, {"kl.ref": flat(own)}, {"kl.ref": flat(0.1)}, {"kl_coef": 0.2}, {"kl_coef": 0.01})
    assert second.brake_reversed(run, seen()).verdict == expected


CHECKS = (second.no_separable_effect, second.fewer_samples, second.other_set_up, second.denominator, second.brake_reversed)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_without_a_second_run_or_its_metrics_nothing_is_decided(view: Build, seen: See, check: Any) -> None:
    alone = view(series={"reward.mean": flat(0.5), "grad.norm": flat(1.0)}, config=SIZE)
    assert check(alone, seen()).verdict == "not_checkable"
    empty = view(series={"reward.mean": flat(0.5), "grad.norm": flat(1.0)}, config=SIZE, second=view(series={"other": flat(1.0)}))
    assert check(empty, seen()).verdict == "not_checkable"


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_without_a_second_run_each_check_says_which_one_would_decide(view: Build, seen: See, check: Any) -> None:
    found = check(view(series={"reward.mean": flat(0.5), "grad.norm": flat(1.0)}, config=SIZE), seen())
    assert SECOND_RUN in found.missing and found.note.startswith("compares with a ")


@pytest.mark.parametrize(
    ("check", "other", "config", "note"),
    [
        (second.fewer_samples, {"loss": flat(1.0)}, SIZE, "no evaluation or reward in common"),
        (second.fewer_samples, {"reward.mean": flat(0.5)}, {"seed": 1}, "does not say how many samples"),
        (second.other_set_up, {"loss": flat(1.0)}, SIZE, "no measure of mismatch in common"),
        (second.denominator, {"grad.norm": flat(1.0)}, SIZE, "same world size"),
        (second.brake_reversed, {"kl.ref": flat(0.1)}, {"kl_coef": 0.2}, "no other KL coefficient than 0.2"),
    ],
)
def test_a_second_run_that_decides_nothing_is_told_why_and_not_called_missing(
    view: Build, seen: See, check: Any, other: Any, config: Any, note: str
) -> None:
    own = {"reward.mean": flat(0.5), "grad.norm": flat(1.0), "kl.ref": flat(0.2), "mismatch.kl_k3": flat(0.1)}
    found = check(pair(view, own, other, {**SIZE, "kl_coef": 0.2}, config), seen())
    assert (found.verdict, found.missing) == ("not_checkable", ()) and note in found.note
