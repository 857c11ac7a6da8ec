"""Checks of the sampling distribution: sharpening, reuse, clipping sides, negatives, loops, templates, samplers."""

from __future__ import annotations

from ingest.schema.metrics import primary_eval
from server.checks.base import CheckResult, Finding, answer, cannot
from server.checks.measure import finite, level, mean_of, moved, points, reward_metric, shift
from server.detectors.middle import median
from server.queries.view import RunView

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


def clipped_high(view: RunView, finding: Finding) -> CheckResult:
    """The upper side is clipped far more than the lower: rare tokens cannot grow."""
    high, low = mean_of(view, "clip.frac_high", 20), mean_of(view, "clip.frac_low", 20)
    if high is None or low is None:
        return cannot("clipped_high", "clip.frac_high", "clip.frac_low")
    return answer(
        "clipped_high", high > 0.005 and high > 3 * low, high < 0.001, {"high": high, "low": low}, f"{high:.2%} high, {low:.2%} low"
    )


def negatives_weigh(view: RunView, finding: Finding) -> CheckResult:
    """Share of negative advantages, and whether it rose before."""
    share = mean_of(view, "adv.neg_frac", 5) if view.has("adv.neg_frac") else mean_of(view, "fact.advantage.negative_frac", 5)
    if share is None:
        return cannot("negatives_weigh", "adv.neg_frac", "advantage")
    return answer("negatives_weigh", share > 0.6, share < 0.45, {"negative_frac": share}, f"{share:.0%} of samples have negative advantage")


def engine_drifted(view: RunView, finding: Finding) -> CheckResult:
    """Off-policy tokens: trainer and engine had drifted apart by the onset."""
    metric = next((m for m in ("mismatch.logprob_diff.mean", "mismatch.prob_diff.mean", "mismatch.kl_k3") if view.has(m)), None)
    found = moved(view, metric, newest=3, floor=0.1) if metric else None
    if metric is None or found is None:
        return cannot("engine_drifted", "mismatch.logprob_diff.mean")
    return answer(
        "engine_drifted", found.z > 8, found.z < 4, {metric: found.now, "z": found.z}, f"{metric} {found.z:.1f} spreads from its past"
    )


def entropy_bonus(view: RunView, finding: Finding) -> CheckResult:
    """An entropy bonus or a wider upper clip in the configuration, or an event that names it."""
    raw = view.run.raw_config
    update = raw.get("update")
    nested = update.get("entropy_coef") if isinstance(update, dict) else None
    bonus = next((v for v in (raw.get("ent_coef"), raw.get("entropy_coeff"), nested) if isinstance(v, (int, float))), None)
    low, high = view.config.get("clip_low"), view.config.get("clip_high")
    wide = isinstance(low, (int, float)) and isinstance(high, (int, float)) and high > 1.3 * low
    if bonus is None and low is None:
        return cannot("entropy_bonus", "config.entropy_coef", "config.clip_high")
    return answer(
        "entropy_bonus",
        bool(bonus) or wide,
        not bonus and not wide,
        {"entropy_coef": bonus},
        f"entropy coefficient {bonus}, wider upper clip: {wide}",
    )


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


def sampler_changed(view: RunView, finding: Finding) -> CheckResult:
    """Sampled entropy moved while the full one did not: another temperature or truncation."""
    sampled = next((m for m in ("entropy.rollout.mean", "entropy.sampled") if view.has(m)), None)
    if sampled is None or not view.has("entropy.mean"):
        return cannot("sampler_changed", "entropy.rollout.mean", "entropy.mean")
    one, both = moved(view, sampled, newest=3), moved(view, "entropy.mean", newest=3)
    if one is None or both is None:
        return cannot("sampler_changed", sampled, note="no baseline yet")
    observed = {"sampled_z": one.z, "full_z": both.z}
    return answer(
        "sampler_changed",
        abs(one.z) > 6 and abs(both.z) < 2,
        abs(one.z - both.z) < 3,
        observed,
        f"sampled {one.z:+.1f}, full {both.z:+.1f} spreads",
    )


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
