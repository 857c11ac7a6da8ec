"""Checks of the sampling distribution: sharpening, reuse, clipping sides, negatives, loops, templates, samplers."""

from __future__ import annotations

import math

import numpy as np

from ingest.schema.metrics import primary_eval
from server.checks.base import CheckResult, Finding, answer, cannot, wants_second_run
from server.checks.levels import log_factor, since_onset_levels
from server.checks.measure import finite, level, mean_of, moved, points, reward_metric, reward_range, shift
from server.checks.sampler import sampler_changed as sampler_changed
from server.detectors.middle import median
from server.queries.view import RunView

_MISMATCH = ("mismatch.logprob_diff.mean", "mismatch.prob_diff.mean", "mismatch.kl_k3")
EVALS = ("eval.heldout.score", "eval.primary.*.*")


def eval_metric(view: RunView) -> str | None:
    """The evaluation that held-out rules use, as the vocabulary chooses it."""
    ids = tuple(view.matching("eval."))
    key = ("primary eval", ids)
    if key not in view.data.memo:
        view.data.memo[key] = primary_eval(ids)
    found: str | None = view.data.memo[key]
    return found


def quality_since(view: RunView, onset: int) -> tuple[float | None, float | None]:
    """Change of evaluation and of reward since an onset against as long before, in standard errors."""
    span = max(20, view.step - onset)
    result: list[float | None] = []
    for metric in (eval_metric(view), reward_metric(view)):
        found = shift(view, metric, (onset - span, onset - 1), (max(onset, view.step - span), view.step)) if metric else None
        result.append(found.z if found is not None else None)
    return result[0], result[1]


def solved(view: RunView) -> bool:
    """With hardly a wrong response left, likeness and low entropy are what right answers have in common."""
    every = mean_of(view, "group.solve_all_frac" if view.has("group.solve_all_frac") else "fact.group.all_high_frac", 5)
    metric = reward_metric(view)
    low, high = reward_range(view)
    now = mean_of(view, metric, 5) if metric else None
    return (every is not None and every > 0.6) or (now is not None and (now - low) / (high - low) > 0.9)


def still_learning(view: RunView, finding: Finding) -> CheckResult:
    """Normal sharpening: evaluation and reward still rise, and pass@G keeps its distance from the mean."""
    evaluation, reward = quality_since(view, finding.onset_step)
    known = [z for z in (evaluation, reward) if z is not None]
    if not known:
        return cannot("still_learning", "eval.heldout.score", "reward.mean")
    observed = {"eval_z": evaluation, "reward_z": reward}
    worst, best = min(known), max(known)
    note = ", ".join(f"{name} {z:+.1f} errors" for name, z in (("evaluation", evaluation), ("reward", reward)) if z is not None)
    return answer("still_learning", worst > -1 and best > 2, worst < -2, observed, note)


def coverage_kept(view: RunView, finding: Finding) -> CheckResult:
    """Sharpening keeps coverage: groups without a success do not grow, and right responses of a group stay different."""
    none = since_onset_levels(view, ("group.solve_none_frac", "fact.group.all_low_frac"), finding.onset_step)
    positive = since_onset_levels(view, ("fact.group.distinct_positive_frac",), finding.onset_step)
    if none is None:
        return cannot("coverage_kept", "group.solve_none_frac", "group_id")
    narrow = positive is not None and positive[1] < 0.5 * positive[0]
    observed = {"all_fail_before": none[0], "all_fail": none[1], "distinct_positives": positive[1] if positive else None}
    note = f"groups without a success {none[0]:.0%} to {none[1]:.0%}"
    note += f", different right responses {positive[0]:.0%} to {positive[1]:.0%}" if positive else ""
    return answer("coverage_kept", none[1] <= none[0] and not narrow, none[1] > none[0] + 0.05, observed, note)


def many_updates(view: RunView, finding: Finding) -> CheckResult:
    """Batches used more than once, or many tokens clipped."""
    updates, clipped = view.config.get("updates_per_batch"), level(view, "clip.frac", 10)
    if not isinstance(updates, (int, float)) and clipped is None:
        return cannot("many_updates", "config.updates_per_batch", "clip.frac")
    n = float(updates) if isinstance(updates, (int, float)) else None
    much = (n is not None and n > 4) or (clipped is not None and clipped > 0.05)
    little = (n is None or n <= 2) and (clipped is None or clipped < 0.02)
    return answer(
        "many_updates",
        much,
        little,
        {"updates_per_batch": n, "clip_frac": clipped},
        f"{n or 0:g} updates per batch, {clipped or 0:.2%} clipped",
    )


def holds_with_fewer_updates(view: RunView, finding: Finding) -> CheckResult:
    """The same steps of a second run with fewer updates per batch: whether its entropy is still up."""
    other, mine = view.second_run, view.config.get("updates_per_batch")
    if other is None:
        return wants_second_run("holds_with_fewer_updates", "a run of fewer updates per batch")
    theirs = other.config.get("updates_per_batch")
    one, two = (mean_of(run, "entropy.mean", 10) for run in (view, other))
    if not isinstance(mine, (int, float)) or not isinstance(theirs, (int, float)) or one is None or two is None:
        return cannot("holds_with_fewer_updates", "config.updates_per_batch", "entropy.mean")
    observed = {"updates": mine, "second_updates": theirs, "entropy": one, "second_entropy": two}
    note = f"entropy {one:.3f} at {mine:g} updates per batch, {two:.3f} at {theirs:g} in the second run"
    fewer = theirs < mine
    return answer("holds_with_fewer_updates", fewer and two > 1.5 * one, fewer and two < 1.1 * one, observed, note)


def clipped_high(view: RunView, finding: Finding) -> CheckResult:
    """The upper side is clipped far more than the lower: rare tokens cannot grow."""
    high, low = mean_of(view, "clip.frac_high", 20), mean_of(view, "clip.frac_low", 20)
    if high is None or low is None:
        return cannot("clipped_high", "clip.frac_high", "clip.frac_low")
    return answer(
        "clipped_high", high > 0.005 and high > 3 * low, high < 0.001, {"high": high, "low": low}, f"{high:.2%} high, {low:.2%} low"
    )


def negative_mass(view: RunView, newest: int = 5) -> float | None:
    """0..1, share of negative advantages in sum of abs(advantage) over trained tokens; N/P = share / (1 - share).

    From trajectories or token rows, else from the logged mean and mean absolute value.
    """
    own = mean_of(view, "fact.advantage.negative_mass_frac", newest)
    if own is not None:
        return own
    mean, size = mean_of(view, "adv.mean", newest), mean_of(view, "adv.abs_mean", newest)
    return min(1.0, max(0.0, (size - mean) / (2 * size))) if mean is not None and size is not None and size > 1e-6 else None


def negatives_weigh(view: RunView, finding: Finding) -> CheckResult:
    """Mass of negative advantages over the tokens (a half in a sound group), and whether their rare tokens weigh more than before."""
    mass = negative_mass(view)
    share = mean_of(view, "adv.neg_frac", 5) if view.has("adv.neg_frac") else mean_of(view, "fact.advantage.negative_frac", 5)
    if mass is None and share is None:
        return cannot("negatives_weigh", "advantage", "adv.neg_frac")
    rare = since_onset_levels(view, ("fact.gradient.negative_rare_frac",), finding.onset_step)
    heavier = rare is not None and rare[1] > 0.6 and rare[1] > rare[0] + 0.2
    much = mass > 0.6 if mass is not None else (share or 0) > 0.6
    little = mass < 0.55 if mass is not None else (share or 0) < 0.45
    observed = {
        "negative_mass_frac": mass,
        "negative_frac": share,
        "rare_before": rare[0] if rare else None,
        "rare_now": rare[1] if rare else None,
    }
    of = f"{mass:.0%} of the advantage's mass" if mass is not None else f"{share:.0%} of the samples"
    return answer("negatives_weigh", much or heavier, little and not heavier, observed, f"{of} is negative")


def engine_drifted(view: RunView, finding: Finding) -> CheckResult:
    """Off-policy tokens: trainer and engine have drifted apart, against the run's past or, where short, before the onset."""
    metric = next((m for m in _MISMATCH if view.has(m)), None)
    if metric is None:
        return cannot("engine_drifted", "mismatch.logprob_diff.mean")
    found = moved(view, metric, newest=3, floor=0.1)
    if found is not None:
        note = f"{metric} {found.z:.1f} spreads from its past"
        return answer("engine_drifted", found.z > 8, found.z < 4, {metric: found.now, "z": found.z}, note)
    levels = since_onset_levels(view, (metric,), finding.onset_step)
    if levels is None or levels[0] <= 0:
        return cannot("engine_drifted", metric, note="too few points before the onset")
    times = levels[1] / levels[0]
    note = f"{metric} {times:.1f} times that of before the onset"
    return answer("engine_drifted", times > 4, times < 1.5, {metric: levels[1], "times": times}, note)


def negatives_or_drift(view: RunView, finding: Finding) -> CheckResult:
    """Negative samples that outweigh the others, or trainer and engine that drifted apart: either suffices."""
    parts = [check(view, finding) for check in (negatives_weigh, engine_drifted)]
    told = [part for part in parts if part.verdict != "not_checkable"]
    if not told:
        return cannot("negatives_or_drift", *(name for part in parts for name in part.missing))
    observed = {name: value for part in told for name, value in part.observed.items()}
    supports = any(part.verdict == "supported" for part in told)
    refutes = len(told) == len(parts) and all(part.verdict == "refuted" for part in told)
    return answer("negatives_or_drift", supports, refutes, observed, "; ".join(part.note for part in told))


def entropy_bonus(view: RunView, finding: Finding) -> CheckResult:
    """An entropy bonus, an event that names one, or a wider upper clip that is at work: far more clipped there than below.

    A wide upper clip alone is common and explains nothing.
    """
    bonus = _entropy_coefficient(view)
    low, high = view.config.get("clip_low"), view.config.get("clip_high")
    wide = isinstance(low, (int, float)) and isinstance(high, (int, float)) and high > 1.3 * low
    near = [e for e in view.events(finding.onset_step - 10) if any(w in e.text.lower() for w in ("entropy", "clip"))]
    if bonus is None and low is None and not near:
        return cannot("entropy_bonus", "config.entropy_coef", "config.clip_high")
    at_work = wide and clipped_high(view, finding).verdict == "supported"
    note = f"entropy coefficient {bonus}, {'wider upper clip' if wide else 'equal clips'}" + (
        f", event: {near[0].text[:80]}" if near else ""
    )
    return answer(
        "entropy_bonus", (bonus or 0) > 0 or at_work or bool(near), not bonus and not wide and not near, {"entropy_coef": bonus}, note
    )


def _entropy_coefficient(view: RunView) -> float | None:
    raw = view.run.raw_config
    update = raw.get("update")
    nested = update.get("entropy_coef") if isinstance(update, dict) else None
    found = (raw.get("ent_coef"), raw.get("entropy_coeff"), nested)
    return next((float(v) for v in found if isinstance(v, (int, float))), None)


def one_token(view: RunView, finding: Finding) -> CheckResult:
    """A dead policy: entropy at 0 and every response at the cap or of one length."""
    entropy, cut = level(view, "entropy.mean", 3), level(view, "length.response.truncated_frac", 3)
    repeated = mean_of(view, "fact.repetitive_frac", 3)
    if entropy is None:
        return cannot("one_token", "entropy.mean")
    dead = entropy < 1e-3 and ((cut or 0) > 0.9 or (repeated or 0) > 0.9)
    return answer("one_token", dead, entropy > 0.01, {"entropy": entropy, "truncated_frac": cut}, f"entropy {entropy:.2g}")


def template(view: RunView, finding: Finding) -> CheckResult:
    """Responses to different prompts resemble each other, against the run's own start."""
    across = mean_of(view, "fact.similarity.across", 5)
    series = finite(view.series("fact.similarity.across"))
    repeated = mean_of(view, "fact.duplicate.across_frac", 5)
    if across is None or len(series) < 10:
        return cannot("template", "response", "prompt")
    early = median(series.values[:10])
    alike = (across > 0.5 and across > 2 * early) or (repeated or 0) > 0.5
    observed = {"across": across, "at_start": early, "same_text": repeated}
    return answer(
        "template",
        alike,
        across < max(0.2, 1.5 * early) and (repeated or 0) < 0.2,
        observed,
        f"similarity across prompts {across:.2f}, {early:.2f} at the start",
    )


def entropy_rose(view: RunView, finding: Finding) -> CheckResult:
    """Whether entropy rose at all: where it fell nothing explodes."""
    return _direction(view, finding, "entropy_rose", 1.0)


def entropy_fell(view: RunView, finding: Finding) -> CheckResult:
    """Whether entropy fell at all: where it rose nothing holds rare tokens down."""
    return _direction(view, finding, "entropy_fell", -1.0)


def _direction(view: RunView, finding: Finding, name: str, sign: float) -> CheckResult:
    found = next(
        (
            v
            for m in ("entropy.mean", "entropy.sampled", "entropy.rollout.mean")
            if (v := since_onset_levels(view, (m,), finding.onset_step))
        ),
        None,
    )
    if found is None:
        return cannot(name, "entropy.mean")
    # The direction alone proves no cause; the opposite one rules it out.
    against = sign * log_factor(found) < -0.1
    return answer(name, False, against, {"before": found[0], "now": found[1]}, f"entropy {found[0]:.3f} to {found[1]:.3f} nats")


def averaging_artefact(view: RunView, finding: Finding) -> CheckResult:
    """The logged entropy moved and that of the policy's own tokens did not, or trained and own tokens differ.

    Needs token rows on both sides of the onset.
    """
    logged, own, loss = (
        since_onset_levels(view, (m,), finding.onset_step) for m in ("entropy.mean", "fact.entropy.response", "fact.entropy.loss")
    )
    if own is None or (logged is None and loss is None):
        return cannot("averaging_artefact", "entropies", "loss_mask")
    apart = loss is not None and abs(loss[1] - own[1]) > 0.1 * max(own[1], 0.01)
    factor = log_factor(own)
    far = logged is not None and abs(log_factor(logged)) > math.log(1.5) and abs(factor) < 0.3 * abs(log_factor(logged))
    together = logged is not None and abs(log_factor(logged)) > math.log(1.5) and factor / log_factor(logged) > 0.6
    observed = {"own_before": own[0], "own": own[1], "trained": loss[1] if loss else None, "logged": logged[1] if logged else None}
    note = f"own tokens {own[0]:.3f} to {own[1]:.3f} nats" + (f", logged {logged[0]:.3f} to {logged[1]:.3f}" if logged else "")
    return answer("averaging_artefact", apart or far, together and not apart, observed, note)


def rate_rose_before(view: RunView, finding: Finding) -> CheckResult:
    """Step size: the learning rate had risen within 30 steps before the onset, beyond its warm-up."""
    series = points(view, "lr")
    at = finding.onset_step
    old = series.values[(series.steps < at - 30)][-10:]
    if len(old) < 3:
        old = series.values[series.steps < at - 10][:10]
    now = series.values[(series.steps >= at - 30) & (series.steps <= at + 3)]
    if len(old) < 3 or not len(now):
        return cannot("rate_rose_before", "lr")
    before, most = median(old), float(np.max(now))
    warm = view.config.get("lr_warmup_steps")
    ramp = float(warm) if isinstance(warm, (int, float)) else 0.0
    if before <= 0 or int(series.steps[0]) + ramp > at - 20:
        return cannot("rate_rose_before", "lr", note="the learning rate was warming up")
    note = f"learning rate {most / before:.3g} times that of before"
    return answer("rate_rose_before", most > 1.5 * before, most < 1.1 * before, {"before": before, "now": most}, note)


def coefficient_negative(view: RunView, finding: Finding) -> CheckResult:
    """A coefficient of the wrong sign in the configuration: an entropy or KL term that pulls the other way."""
    entropy, brake = _entropy_coefficient(view), view.config.get("kl_coef")
    known = {"entropy": entropy, "KL": float(brake) if isinstance(brake, (int, float)) else None}
    written = {name: value for name, value in known.items() if value is not None}
    if not written:
        return cannot("coefficient_negative", "config.entropy_coef", "config.kl_coef")
    # A positive number in the file says nothing about the sign with which the code adds it.
    note = "in the configuration: " + ", ".join(f"{name} coefficient {value:g}" for name, value in written.items())
    return answer("coefficient_negative", min(written.values()) < 0, False, written, note)


def rate_or_kl(view: RunView, finding: Finding) -> CheckResult:
    """Whether KL to the reference jumped with it: the policy was pushed away."""
    found = moved(view, "kl.ref", newest=3, floor=0.2)
    if found is None:
        return cannot("rate_or_kl", "kl.ref")
    return answer(
        "rate_or_kl", found.z > 8, found.z < 3, {"kl_ref": found.now, "z": found.z}, f"reference KL {found.z:.1f} spreads from its past"
    )


def same_seed(view: RunView, finding: Finding) -> CheckResult:
    """Members of a group are copies although entropy is not low: sampling, not the policy."""
    copies, entropy = mean_of(view, "fact.group.duplicate_frac", 5), level(view, "entropy.mean", 5)
    if copies is None or entropy is None:
        return cannot("same_seed", "response", "entropy.mean")
    return answer(
        "same_seed",
        copies > 0.5 and entropy > 0.3,
        copies < 0.3 or entropy < 0.1,
        {"duplicate_frac": copies, "entropy": entropy},
        f"{copies:.0%} copies at an entropy of {entropy:.2f}",
    )


def coverage_lost(view: RunView, finding: Finding) -> CheckResult:
    """pass@G falls or closes up to the mean reward."""
    none = points(view, "group.solve_none_frac" if view.has("group.solve_none_frac") else "fact.group.all_low_frac")
    if len(none) < 20:
        return cannot("coverage_lost", "group.solve_none_frac", "group_id")
    early, now = float(none.values[: max(10, len(none) // 3)].mean()), float(none.values[-10:].mean())
    return answer(
        "coverage_lost",
        now > early + 0.05,
        now < early,
        {"all_fail_before": early, "all_fail_now": now},
        f"groups without a success {early:.0%} before, {now:.0%} now",
    )
