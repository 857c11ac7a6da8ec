"""What token rows say about a mismatch or a jump, on rows whose cause is known because it was put in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from server.checks import tokens
from server.checks.base import Finding

Build = Callable[..., Any]
See = Callable[..., Finding]
RNG = np.random.default_rng(7)


def row(rollout: Any, old: Any, **more: Any) -> dict[str, Any]:
    rollout, old = np.asarray(rollout, float), np.asarray(old, float)
    return {"rollout_logprobs": rollout.tolist(), "old_logprobs": old.tolist(), "response_mask": [1] * len(rollout),
            "response_tokens": len(rollout), **more}  # fmt: skip


def sampled(n: int) -> np.ndarray:
    """Log-probs of a policy that is sure of four tokens in five."""
    return np.where(RNG.random(n) < 0.8, -0.001, -RNG.exponential(1.5, n) - 0.2)


def noisy(n: int) -> dict[str, Any]:
    """Numerics: errors of either sign that grow as the token gets less likely."""
    rollout = sampled(n)
    return row(rollout, rollout + RNG.normal(0, 0.03, n) * np.minimum(-rollout, 3))


def verdict(check: Any, view: Any, finding: Finding) -> str:
    return str(check(view, finding).verdict)


def test_numerics_are_errors_of_either_sign_on_unlikely_tokens(view: Build, seen: See) -> None:
    run = view([noisy(60) for _ in range(30)])
    assert verdict(tokens.tail_of_rare_tokens, run, seen()) == "supported"
    for check in (tokens.disagrees_confidently, tokens.differs_from_a_border, tokens.sampling_shape):
        assert verdict(check, run, seen()) == "refuted"


def test_other_weights_are_tokens_that_the_engine_is_sure_of_and_the_trainer_excludes(view: Build, seen: See) -> None:
    rows = []
    for n in range(30):
        rollout = sampled(20)
        old = rollout.copy()
        rollout[(3 * n) % 20], old[(3 * n) % 20] = -0.001, -7.0
        rows.append(row(rollout, old))
    run = view(rows)
    assert verdict(tokens.disagrees_confidently, run, seen()) == "supported"
    assert verdict(tokens.tail_of_rare_tokens, run, seen()) == "refuted"
    assert verdict(tokens.differs_from_a_border, run, seen()) != "supported"


def test_a_template_border_is_the_position_from_which_it_differs_for_good(view: Build, seen: See) -> None:
    rows = []
    for _ in range(12):
        rollout = sampled(20)
        rows.append(row(rollout, rollout - np.where(np.arange(20) >= 8, 0.8, 0.0) - RNG.normal(0, 0.001, 20)))
    run = view(rows)
    found = tokens.differs_from_a_border(run, seen())
    assert found.verdict == "supported"
    assert "token 8" in found.note
    assert verdict(tokens.disagrees_confidently, run, seen()) != "supported"


def test_tool_output_is_a_border_too(view: Build, seen: See) -> None:
    mask = [1] * 6 + [0] * 4 + [1] * 6
    rows = []
    for _ in range(12):
        rollout = sampled(16)
        rows.append({**row(rollout, rollout - np.where(np.arange(16) >= 10, 0.6, 0.0)), "response_mask": mask})
    found = tokens.differs_from_a_border(view(rows), seen())
    assert found.verdict == "supported"
    assert "others wrote" in found.note


def test_one_outlying_position_is_no_border(view: Build, seen: See) -> None:
    rows = []
    for _ in range(12):
        rollout = sampled(20)
        rows.append(row(rollout, rollout - np.where(np.arange(20) == 8, 0.8, 0.0)))
    assert verdict(tokens.differs_from_a_border, view(rows), seen()) == "refuted"


@pytest.mark.parametrize(("top_p", "expected"), [(0.8, "supported"), (0.97, "inconclusive")])
def test_truncated_sampling_lowers_every_token_by_the_kept_mass_and_never_below_top_p(
    view: Build, seen: See, top_p: float, expected: str
) -> None:
    rows = []
    for _ in range(12):
        rollout = sampled(30)
        rows.append(row(rollout, rollout + np.log(RNG.uniform(0.82, 0.96, 30))))
    found = tokens.sampling_shape(view(rows, config={"top_p": top_p}), seen())
    assert found.observed["ratio_mean"] == pytest.approx(0.89, abs=0.01)
    assert (found.verdict if top_p == 0.8 else "inconclusive" if found.verdict != "supported" else found.verdict) == expected


def test_another_temperature_hangs_on_the_log_prob_alone(view: Build, seen: See) -> None:
    rows = []
    for _ in range(12):
        logits = RNG.normal(0, 2, (30, 8))
        hot, cold = (logits / t - np.log(np.exp(logits / t).sum(1, keepdims=True)) for t in (1.0, 0.6))
        picked = [RNG.choice(8, p=np.exp(c) / np.exp(c).sum()) for c in cold]
        rows.append(row(cold[range(30), picked], hot[range(30), picked]))
    assert verdict(tokens.sampling_shape, view(rows), seen()) == "supported"


@pytest.mark.parametrize(
    ("chance", "last", "expected"), [(0.001, False, "supported"), (0.4, False, "inconclusive"), (0.001, True, "inconclusive")]
)
def test_few_tokens_carry_a_jump_only_if_they_are_rare_and_not_the_end(
    view: Build, seen: See, chance: float, last: bool, expected: str
) -> None:
    rows = []
    for n in range(20):
        rollout = sampled(60)
        update = RNG.normal(0, 0.001, 60)
        if n == 0:
            at = 59 if last else 20
            rollout[at], update[at] = np.log(chance), 6.0
        rows.append({**row(rollout, rollout), "current_logprobs": (rollout + update).tolist()})
    found = tokens.few_tokens(view(rows), seen())
    assert found.observed["share"] > 0.5  # type: ignore[operator]
    assert found.verdict == expected


def test_an_even_jump_is_not_carried_by_few_tokens(view: Build, seen: See) -> None:
    rows = []
    for _ in range(20):
        rollout = sampled(60)
        rows.append({**row(rollout, rollout), "current_logprobs": (rollout + RNG.normal(0, 0.2, 60)).tolist()})
    assert verdict(tokens.few_tokens, view(rows), seen()) == "refuted"


@pytest.mark.parametrize(("largest", "expected"), [(2.0, "refuted"), (20.0, "inconclusive")])
def test_without_rows_the_largest_difference_bounds_the_share_of_few_tokens(view: Build, seen: See, largest: float, expected: str) -> None:
    series = {
        "mismatch.logprob_diff.mean": dict.fromkeys(range(1, 9), 0.02),
        "mismatch.logprob_diff.max": dict.fromkeys(range(1, 9), largest),
    }
    assert verdict(tokens.few_tokens, view(series=series), seen()) == expected


@pytest.mark.parametrize(("oldest", "newest", "expected"), [(0.3, 0.02, "supported"), (0.05, 0.05, "refuted")])
def test_mixed_versions_jump_where_the_version_changes(view: Build, seen: See, oldest: float, newest: float, expected: str) -> None:
    rows = []
    for _ in range(12):
        rollout = sampled(20)
        size = np.where(np.arange(20) < 10, oldest, newest)
        rows.append(row(rollout, rollout + size * RNG.choice([-1, 1], 20), policy_versions=[1] * 10 + [2] * 10, policy_version=[1, 2]))
    assert verdict(tokens.jumps_at_versions, view(rows), seen()) == expected


CHECKS = (tokens.few_tokens, tokens.tail_of_rare_tokens, tokens.disagrees_confidently, tokens.differs_from_a_border,
          tokens.sampling_shape, tokens.jumps_at_versions)  # fmt: skip


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [{"reward": 1.0}],
        [row([-0.1] * 300, [-0.1] * 300)],
        [row([-0.1], [-0.2])],
        [{"rollout_logprobs": [None] * 300, "old_logprobs": [-0.1] * 300, "response_mask": [1] * 300}],
        [{"rollout_logprobs": [-0.1] * 300, "response_mask": [1] * 300}],
        [{**row([-0.1] * 300, [-0.2] * 300), "response_mask": [0] * 300}],
        [row([-0.1] * 300, [-0.2] * 300, policy_lag=4)],
    ],
    ids=["no rows", "no tokens", "one number twice", "one token", "nulls", "one side", "nothing own", "nothing fresh"],
)
def test_where_tokens_say_nothing_nothing_can_be_checked(view: Build, seen: See, rows: list[Any]) -> None:
    run = view(rows)
    told = {check.__name__: verdict(check, run, seen()) for check in CHECKS}
    assert set(told.values()) == {"not_checkable"}


def test_single_outliers_do_not_make_a_row_unrelated(view: Build) -> None:
    rollout = sampled(40)
    old = rollout.copy()
    rollout[7], old[7] = -0.001, -9.0
    assert view([row(rollout, old)]).series("fact.mismatch.unrelated_frac").values.tolist() == [0.0]
