"""Checks of samples with negative advantage: where the probability goes, their length, and whether they do harm."""

from __future__ import annotations

import math

import numpy as np

from server.checks.base import CheckResult, Finding, answer, cannot
from server.checks.distribution import engine_drifted, negative_mass, quality_since
from server.checks.levels import since_onset_levels
from server.checks.measure import finite, shift
from server.queries.view import RunView

ENTROPY = ("entropy.mean", "entropy.sampled", "entropy.rollout.mean")


def positives_fall(view: RunView, finding: Finding) -> CheckResult:
    """The update lowers the log-prob of responses with positive advantage too: likelihood displacement."""
    series = finite(view.series("fact.update.positive"))
    values = series.values[series.steps >= finding.onset_step][-20:]
    if len(values) < 3:
        return cannot("positives_fall", "old_logprobs", "current_logprobs", "advantage")
    mean, error = float(values.mean()), float(values.std(ddof=1)) / math.sqrt(len(values))
    z = mean / error if error > 0 else 0.0
    note = f"log-prob of positive samples {mean:+.4f} nats per update, {z:+.1f} errors"
    return answer("positives_fall", z < -2, z > 2, {"change": mean, "z": z}, note)


def probability_leaks(view: RunView, finding: Finding) -> CheckResult:
    """Entropy rose since the onset while the reward did not: probability went to nowhere in particular."""
    levels = since_onset_levels(view, ENTROPY, finding.onset_step)
    if levels is None:
        return cannot("probability_leaks", *ENTROPY)
    _, reward = quality_since(view, finding.onset_step)
    factor = levels[1] / max(levels[0], 1e-3)
    observed = {"entropy_before": levels[0], "entropy": levels[1], "reward_z": reward}
    note = f"entropy {levels[0]:.3f} to {levels[1]:.3f} nats"
    return answer("probability_leaks", factor > 1.3 and (reward or 0) < 2, factor < 1.05, observed, note)


def positives_overweighted(view: RunView, finding: Finding) -> CheckResult:
    """Positive advantages hold more than 60 % of the mass, and entropy falls."""
    mass = negative_mass(view, 20)
    levels = since_onset_levels(view, ENTROPY, finding.onset_step)
    if mass is None:
        return cannot("positives_overweighted", "advantage", "adv.abs_mean")
    falls = levels is not None and levels[1] < 0.7 * levels[0]
    note = f"{1 - mass:.0%} of the advantage's mass is positive"
    return answer("positives_overweighted", mass < 0.4 and falls, mass > 0.45, {"negative_mass_frac": mass}, note)


def no_harm(view: RunView, finding: Finding) -> CheckResult:
    """The evaluation still rises (the reward, where there is none)."""
    evaluation, reward = quality_since(view, finding.onset_step)
    z = evaluation if evaluation is not None else reward
    if z is None:
        return cannot("no_harm", "eval.heldout.score", "reward.mean")
    name = "evaluation" if evaluation is not None else "reward"
    return answer("no_harm", z > 2, z < -2, {"eval_z": evaluation, "reward_z": reward}, f"{name} {z:+.1f} errors since the onset")


def wrong_are_long(view: RunView, finding: Finding) -> CheckResult:
    """Wrong answers are so much longer than right ones that their tokens make the imbalance."""
    wrong, right = (since_onset_levels(view, (f"fact.length.{m}.mean",), finding.onset_step) for m in ("wrong", "correct"))
    mass = negative_mass(view)
    if wrong is None or right is None or mass is None:
        return cannot("wrong_are_long", "reward", "response_tokens", "advantage")
    times, excess = wrong[1] / max(right[1], 1.0), mass / max(1 - mass, 1e-3)
    observed = {"times": times, "mass_ratio": excess}
    note = f"wrong answers are {times:.2f} times as long, negative mass is {excess:.1f} times the positive"
    explains = times > 1.5 and excess < 2 * times
    return answer("wrong_are_long", explains, times < 1.2 or excess > 4 * times, observed, note)


def tasks_harder(view: RunView, finding: Finding) -> CheckResult:
    """Harder tasks than before, by the difficulty that is written with them."""
    onset = finding.onset_step
    found = shift(view, "fact.difficulty", (onset - 50, onset - 1), (onset, view.step))
    if found is None or not math.isfinite(found.error):
        return cannot("tasks_harder", "difficulty")
    note = f"difficulty {found.before:.2f} to {found.after:.2f}, {found.z:+.1f} errors"
    return answer("tasks_harder", found.z > 4, found.z < 2, {"before": found.before, "now": found.after, "z": found.z}, note)


def off_policy(view: RunView, finding: Finding) -> CheckResult:
    """Off-policy negatives: trainer and engine drifted apart, or samples are stale and no second clip bounds the negative ones."""
    drift, lag = engine_drifted(view, finding), view.first_of("lag.policy.mean", "fact.lag.mean")
    dual = view.config.get("clip_dual")
    bounded = isinstance(dual, (int, float)) and dual > 0
    recent = finite(lag[1]).tail(5).values if lag is not None else np.empty(0)
    if drift.verdict == "not_checkable" and not len(recent):
        return cannot("off_policy", *drift.missing, "policy_lag")
    stale = float(np.median(recent)) if len(recent) else None
    free = stale is not None and stale >= 2 and not bounded
    note = "; ".join(n for n in (drift.note, f"mean lag {stale:.1f}" if stale is not None else "") if n)
    refutes = drift.verdict == "refuted" and (stale is None or stale < 0.5 or bounded)
    return answer("off_policy", drift.verdict == "supported" or free, refutes, {**drift.observed, "lag": stale}, note)
