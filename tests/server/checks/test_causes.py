"""Checks of steps, numerics, staleness, the critic and the collapse: every outcome of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from server.checks import collapse, engine, integrity, optimiser, value
from server.checks.base import Finding

Build = Callable[..., Any]
See = Callable[..., Finding]


def line(*parts: tuple[float, int], first: int = 1, noise: float = 0.0) -> dict[int, float]:
    """Stretches of (value, points), end to end."""
    values = np.concatenate([np.full(n, x) for x, n in parts])
    values = values + np.random.default_rng(3).normal(0, noise, len(values))
    return {first + at: float(x) for at, x in enumerate(values)}


@pytest.mark.parametrize(("kl", "mismatch", "expected"), [(0.3, 0.001, "supported"), (0.3, 0.3, "inconclusive"), (0.002, 0.001, "refuted")])
def test_updates_that_are_large_from_the_first_on_are_a_large_step(
    view: Build, seen: See, kl: float, mismatch: float, expected: str
) -> None:
    run = view(series={"kl.old": line((kl, 8)), "mismatch.logprob_diff.mean": line((mismatch, 8))})
    assert optimiser.step_too_large(run, seen(1)).verdict == expected


def test_the_square_of_the_way_gone_is_no_climb_of_the_reference_kl(view: Build, seen: See) -> None:
    learning = {step: 1e-5 * step**2 for step in range(1, 61)}
    jump = {step: kl * (1 if step < 55 else 4) for step, kl in learning.items()}
    rate = {"lr": line((1e-4, 60))}
    assert optimiser.step_too_large(view(series={"kl.ref": learning, **rate}), seen(60)).verdict == "refuted"
    assert optimiser.step_too_large(view(series={"kl.ref": jump, **rate}), seen(60)).verdict == "supported"


@pytest.mark.parametrize(
    ("config", "clipped", "apart", "expected"),
    [
        ({"updates_per_batch": 8}, 0.05, 0.001, "supported"),
        ({"updates_per_batch": 8}, 0.05, 0.5, "inconclusive"),
        ({"updates_per_batch": 8}, 0.001, 0.001, "refuted"),
        ({"updates_per_batch": 1}, 0.2, 0.001, "refuted"),
        ({"updates_per_batch": 8, "ratio_level": "sequence"}, 0.15, 0.001, "inconclusive"),
        ({}, 0.2, 0.001, "not_checkable"),
    ],
)
def test_reuse_needs_several_updates_and_clipped_tokens(
    view: Build, seen: See, config: dict[str, Any], clipped: float, apart: float, expected: str
) -> None:
    run = view(series={"clip.frac": line((clipped, 9)), "mismatch.logprob_diff.mean": line((apart, 9))}, config=config)
    assert optimiser.batch_reused(run, seen(9)).verdict == expected


@pytest.mark.parametrize(("kind", "expected"), [("config", "supported"), ("checkpoint", "refuted"), (None, "refuted")])
def test_a_checkpoint_does_not_change_the_scale(view: Build, seen: See, kind: str | None, expected: str) -> None:
    run = view(series={"grad.norm": line((1, 30))}, events=[(29, kind)] if kind else [])
    assert optimiser.scale_changed(run, seen(30)).verdict == expected
    assert collapse.event_near(run, seen(30)).verdict == expected


@pytest.mark.parametrize(
    ("broken", "expected"),
    [(("grad.norm",), "supported"), (("kl.ref", "loss.policy", "grad.norm"), "supported"), (("loss.policy", "grad.norm"), "inconclusive"),
     (("reward.mean", "loss.policy"), "refuted")],
)  # fmt: skip
def test_the_first_nan_says_where_it_was_born(view: Build, seen: See, broken: tuple[str, ...], expected: str) -> None:
    names = ("grad.norm", "loss.policy", "kl.ref", "reward.mean")
    series = {name: line((1, 20), (float("nan") if name in broken else 1, 1)) for name in names}
    assert integrity.born_in_log_probs(view(series=series), seen(21)).verdict == expected
    assert optimiser.values_finite(view(series=series), seen(21)).verdict == "supported"


def test_finite_values_refute_numerics(view: Build, seen: See) -> None:
    run = view(series={"grad.norm": line((1, 20))})
    assert optimiser.values_finite(run, seen(20)).verdict == "refuted"
    assert integrity.born_in_log_probs(run, seen(20)).verdict == "not_checkable"
    assert optimiser.values_finite(view(series={"reward.mean": line((1, 20))}), seen(20)).verdict == "not_checkable"


@pytest.mark.parametrize(("trained", "expected"), [(0.0, "supported"), (900.0, "refuted"), (None, "not_checkable")])
def test_a_batch_of_no_trained_token_is_a_denominator_of_zero(view: Build, seen: See, trained: float | None, expected: str) -> None:
    series = {"grad.norm": line((1, 9))} | ({"tokens.trained": line((900, 8), (trained, 1))} if trained is not None else {})
    assert integrity.nothing_trained(view(series=series), seen(9)).verdict == expected


@pytest.mark.parametrize(
    ("critic", "algorithm", "expected"), [(False, "grpo", "refuted"), (False, None, "not_checkable"), (True, "ppo", "supported")]
)
def test_without_a_critic_it_cannot_have_moved_first(view: Build, seen: See, critic: bool, algorithm: str | None, expected: str) -> None:
    series = {"grad.norm": line((1, 40))} | ({"loss.value": line((1, 33), (50, 7), noise=0.02)} if critic else {})
    run = view(series=series, config={"algorithm": algorithm} if algorithm else {})
    assert optimiser.critic_first(run, seen(40)).verdict == expected


def test_before_the_lag_rose_the_engine_agreed_so_it_is_not_the_engine(view: Build, seen: See) -> None:
    lag, apart = line((0, 20), (6, 20)), line((0.002, 20), (0.2, 20))
    run = view(series={"lag.policy.max": lag, "lag.policy.mean": lag, "mismatch.logprob_diff.mean": apart})
    assert engine.lag_zero_floor(run, seen(21)).verdict == "refuted"
    high = view(series={"lag.policy.max": lag, "lag.policy.mean": lag, "mismatch.logprob_diff.mean": line((0.2, 40))})
    assert engine.lag_zero_floor(high, seen(21)).verdict == "inconclusive"


@pytest.mark.parametrize(
    ("series", "config", "expected", "text"),
    [
        ({"fact.lag.span.max": 0.0}, {}, "refuted", "one version"),
        ({"fact.lag.span.max": 2.0}, {}, "inconclusive", "up to 3 versions"),
        ({"fact.lag.span.max": 2.0}, {"old_logprobs": "engine"}, "refuted", "serve as old ones"),
        ({"lag.span.max": 1.0}, {}, "refuted", "one version"),
    ],
)
def test_versions_within_a_response_are_counted_from_one(
    view: Build, seen: See, series: dict[str, float], config: dict[str, str], expected: str, text: str
) -> None:
    run = view(series={name: line((x, 9)) for name, x in series.items()}, config=config)
    found = engine.mixed_versions(run, seen(9))
    assert found.verdict == expected
    assert text in found.note


@pytest.mark.parametrize(("before", "after", "expected"), [(0.6, 0.3, "supported"), (0.3, 0.6, "refuted"), (0.5, 0.5, "inconclusive")])
def test_harm_is_a_reward_that_fell(view: Build, seen: See, before: float, after: float, expected: str) -> None:
    run = view(series={"reward.mean": line((before, 40), (after, 30), noise=0.01)})
    assert engine.quality_fell(run, seen(41)).verdict == expected


@pytest.mark.parametrize(
    ("config", "kl", "expected"),
    [
        ({"updates_per_batch": 1, "old_logprobs": "trainer"}, 0.01, "supported"),
        ({"updates_per_batch": 1, "old_logprobs": "trainer"}, 0.0, "refuted"),
        ({"updates_per_batch": 4, "old_logprobs": "trainer"}, 0.01, "not_checkable"),
        ({"updates_per_batch": 1, "old_logprobs": "engine"}, 0.01, "not_checkable"),
    ],
)
def test_a_trainer_that_disagrees_with_itself(view: Build, seen: See, config: dict[str, Any], kl: float, expected: str) -> None:
    assert engine.trainer_disagrees(view(series={"kl.old": line((kl, 9))}, config=config), seen(9)).verdict == expected


@pytest.mark.parametrize(("before", "now", "expected"), [(0.02, 0.4, "supported"), (0.4, 0.4, "inconclusive"), (0.0, 0.0, "refuted")])
def test_truncation_taken_for_the_end_must_have_risen(view: Build, seen: See, before: float, now: float, expected: str) -> None:
    run = view(series={"length.response.truncated_frac": line((before, 30), (now, 15))})
    assert value.cut_as_end(run, seen(31)).verdict == expected


@pytest.mark.parametrize(("conflict", "twins", "expected"), [(0.4, 9, "supported"), (0.0, 9, "refuted"), (0.4, 1, "not_checkable")])
def test_equal_responses_with_other_rewards_bound_what_a_critic_explains(
    view: Build, seen: See, conflict: float, twins: float, expected: str
) -> None:
    run = view(series={"fact.reward.conflict_frac": line((conflict, 12)), "fact.reward.twin_n": line((twins, 12))})
    assert value.rewards_conflict(run, seen(9)).verdict == expected


def test_death_by_nan_and_by_one_token(view: Build, seen: See) -> None:
    nan = view(series={"loss.policy": line((1, 20), (float("nan"), 1), (1, 9))})
    token = view(series={"entropy.mean": line((0.4, 20), (0.0, 9)), "length.response.truncated_frac": line((0.1, 20), (1.0, 9))})
    alive = view(series={"entropy.mean": line((0.4, 30)), "loss.policy": line((1, 30))})
    told = [collapse.death_by_nan(run, seen(21)).verdict for run in (nan, token, alive, view(series={"x": line((1, 9))}))]
    assert told == ["supported", "supported", "refuted", "not_checkable"]


def test_an_epoch_that_ends_at_the_onset(view: Build, seen: See) -> None:
    epoch = {step: step / 40 for step in range(1, 60)}
    told = [collapse.epoch_border(view(series={"epoch": epoch}), seen(onset)).verdict for onset in (41, 20)]
    assert told == ["supported", "refuted"]
    assert collapse.epoch_border(view(series={"x": line((1, 9))}, events=[(8, "epoch")]), seen(9)).verdict == "supported"
    assert collapse.epoch_border(view(series={"x": line((1, 9))}), seen(9)).verdict == "not_checkable"


@pytest.mark.parametrize(("evaluation", "expected"), [((0.6, 0.5), "supported"), ((0.5, 0.7), "refuted")])
def test_a_reward_that_rose_without_the_evaluation_was_hacked(
    view: Build, seen: See, evaluation: tuple[float, float], expected: str
) -> None:
    reward = line((0.4, 30), (0.8, 30), noise=0.02)
    scores = line((evaluation[0], 30), (evaluation[1], 30), noise=0.02)
    run = view(series={"reward.mean": reward, "eval.heldout.score": scores})
    assert collapse.hacked_before(run, seen(61)).verdict == expected


def test_a_gradient_of_zero_is_no_scale_for_later_ones(view: Build) -> None:
    zeros = {step: 0.0 if step % 3 else 0.8 for step in range(1, 60)} | {60: 1.1}
    _, hits, _ = optimiser.jumps(view(series={"grad.norm": zeros}), "grad.norm", 6.0, 3.0)
    assert not hits.any()
    _, hits, _ = optimiser.jumps(view(series={"grad.norm": zeros | {60: 30.0}}), "grad.norm", 6.0, 3.0)
    assert hits.tolist()[-1] is True
    assert hits.sum() == 1
