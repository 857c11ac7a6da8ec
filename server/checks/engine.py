"""Checks of trainer against engine: policy lag, lag-0 floor, misalignment, other contexts, sampling transforms, order of onset."""

from __future__ import annotations

import math

import numpy as np

from server.checks.base import CheckResult, Finding, answer, cannot
from server.checks.measure import finite, history, level, mean_of, moved, points, reward_fell, reward_metric, shift, trend_of
from server.checks.optimiser import clips_sequences
from server.detectors.middle import median
from server.queries.rank import rankdata
from server.queries.view import RunView, Series

ABSOLUTE = "mismatch.logprob_diff.mean"
_MOST_ROWS = 512


def lagging(view: RunView) -> bool:
    """Whether samples of the newest points are older than the trainer's policy."""
    metric = next((m for m in ("lag.policy.max", "fact.lag.max", "lag.policy.mean") if view.has(m)), None)
    return metric is not None and bool((history(view, metric).values[-5:] >= 1).any())


def floor(view: RunView, newest: int = 3) -> float | None:
    """nats, mean abs(old - rollout log-prob) of samples of lag 0: what is left when no staleness can be in it."""
    if not lagging(view) and view.has(ABSOLUTE):
        return level(view, ABSOLUTE, newest)
    return mean_of(view, "fact.mismatch.lag0", newest)


def floor_before_lag(view: RunView) -> float | None:
    """nats, median mismatch of the points at which nothing was older than the policy; None below five of them."""
    lag, mismatch = view.first_of("lag.policy.max", "fact.lag.max", "lag.policy.mean"), finite(view.series(ABSOLUTE))
    if lag is None or not len(mismatch):
        return None
    fresh = lag[1].steps[lag[1].values < 1]
    values = mismatch.values[np.isin(mismatch.steps, fresh)][-20:]
    return median(values) if len(values) >= 5 else None


def lag_zero_floor(view: RunView, finding: Finding) -> CheckResult:
    """Not staleness but the engine, if samples of lag 0 deviate as much as the others.

    Where no sample of lag 0 is left, those from before the lag rose can only refute it: an engine may have changed since.
    """
    fresh, all_of = floor(view), level(view, ABSOLUTE) or mean_of(view, "fact.mismatch.mean")
    before = floor_before_lag(view) if fresh is None else None
    if all_of is None or (fresh is None and before is None):
        return cannot("lag_zero_floor", "old_logprobs", "rollout_logprobs", "policy_lag", note="no samples of lag 0 in reach")
    if fresh is None:
        assert before is not None
        note = f"{before:.4f} nats while nothing was stale, {all_of:.4f} now"
        return answer("lag_zero_floor", False, before < 0.3 * all_of, {"before_lag": before, "all": all_of}, note)
    supports = fresh > 0.02 and fresh > 0.5 * all_of
    note = f"{fresh:.4f} nats at lag 0, {all_of:.4f} over all"
    return answer("lag_zero_floor", supports, fresh < 0.3 * all_of, {"lag_0": fresh, "all": all_of}, note)


def grows_with_lag(view: RunView, finding: Finding) -> CheckResult:
    """Older samples deviate more: within the same steps, or over the run while the lag rose."""
    within = mean_of(view, "fact.mismatch.lag_correlation", 5)
    over = _over_run(view)
    if within is None and over is None:
        return cannot("grows_with_lag", "policy_lag", "old_logprobs", "rollout_logprobs", ABSOLUTE)
    best = max(x for x in (within, over) if x is not None)
    observed = {"within_steps": within, "over_run": over}
    return answer("grows_with_lag", best > 0.3, best < 0.1, observed, f"rank correlation of lag and mismatch {best:.2f}")


def _over_run(view: RunView) -> float | None:
    """Rank correlation over steps of mean lag and mismatch; None where either is missing or constant."""
    lag, mismatch = finite(view.series("lag.policy.mean")), finite(view.series(ABSOLUTE))
    steps, a, b = np.intersect1d(lag.steps, mismatch.steps, assume_unique=False, return_indices=True)
    x, y = lag.values[a][-600:], mismatch.values[b][-600:]
    if len(steps) < 12 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    return float(np.corrcoef(rankdata(np.round(x, 2)), rankdata(y))[0, 1])


def quality_fell(view: RunView, finding: Finding) -> CheckResult:
    """Whether the reward fell after the onset; one that rose refutes harm."""
    fell = reward_fell(view, finding.onset_step)
    if fell is not None:
        note = f"reward {fell.before:.3f} to {fell.after:.3f}"
        return answer("quality_fell", True, False, {"before": fell.before, "after": fell.after}, note)
    metric = reward_metric(view)
    if metric is None:
        return cannot("quality_fell", "reward.mean")
    onset = finding.onset_step
    rose = shift(view, metric, (onset - 30, onset - 1), (max(onset, view.step - 15), view.step))
    better = rose is not None and rose.z > 3 and view.step - onset >= 20
    return answer("quality_fell", False, better, {}, "the reward rose since" if better else "no fall of the reward beyond its noise")


def old_negatives(view: RunView, finding: Finding) -> CheckResult:
    """Among rows with a negative advantage the stale ones deviate more from the engine than stale positive ones do."""
    columns = ("policy_lag", "advantage")
    found = view.tokens(max(finding.onset_step, view.step - 15), view.step, ("old_logprobs", "rollout_logprobs"), columns=columns)
    sides: dict[bool, list[float]] = {True: [], False: []}
    for row in found[:_MOST_ROWS]:
        old, rollout, lag, advantage = row["old_logprobs"], row["rollout_logprobs"], row["policy_lag"], row["advantage"]
        if old is None or rollout is None or not lag or not advantage or len(old) != len(rollout) or np.array_equal(old, rollout):
            continue
        gap = np.abs(old - rollout)
        if np.isfinite(gap).any():
            sides[advantage < 0].append(float(np.nanmean(gap)))
    if min(len(side) for side in sides.values()) < 8:
        return cannot("old_negatives", "policy_lag", "advantage", "old_logprobs", "rollout_logprobs")
    negative, positive = (median(np.array(sides[side])) for side in (True, False))
    note = f"{negative:.4f} nats in stale rows with negative advantage, {positive:.4f} in those with a positive one"
    return answer("old_negatives", negative > 2 * positive, False, {"negative": negative, "positive": positive}, note)


def mixed_versions(view: RunView, finding: Finding) -> CheckResult:
    """Responses that several policy versions wrote, without log-probs of each segment's own version."""
    span = view.first_of("fact.lag.span.max", "lag.span.max")
    if span is None:
        return cannot("mixed_versions", "lag.span.max", "policy_versions")
    # The fact counts changes of version; a trainer's own number may count versions, then it is 1 where nothing changed.
    values = finite(span[1]).values
    base = 1.0 if span[0] == "lag.span.max" and float(np.min(values, initial=1.0)) >= 1 else 0.0
    changes = float(np.max(values[-5:], initial=base)) - base
    recorded = view.config.get("old_logprobs") == "engine"
    several = changes >= 1
    note = f"up to {changes + 1:g} versions within one response" if several else "every response was written by one version"
    note += ", the engine's log-probs of each token serve as old ones" if several and recorded else ""
    return answer("mixed_versions", False, not several or recorded, {"most_versions": changes + 1}, note)


def stale_anchor(view: RunView, finding: Finding) -> CheckResult:
    """The engine's log-probs serve as old ones, and more is clipped since the lag rose."""
    old = view.config.get("old_logprobs")
    clipped = moved(view, "clip.frac", newest=5, floor=0.2, least=1e-4)
    if old is None or clipped is None:
        return cannot("stale_anchor", "config.old_logprobs", "clip.frac")
    more = clipped.now > 3 * max(clipped.base.median, 1e-4) and not clips_sequences(view)
    note = f"old log-probs from the {old}, {clipped.now:.2%} of tokens clipped, {clipped.base.median:.2%} before"
    return answer("stale_anchor", old == "engine" and more, old != "engine", {"clip_frac": clipped.now}, note)


def mix_shifted(view: RunView, finding: Finding) -> CheckResult:
    """Population stability index of task shares since the onset against before."""
    total, tasks = 0.0, 0
    for metric in view.matching("fact.mix.task."):
        series = finite(view.series(metric))
        before, after = series.values[series.steps < finding.onset_step][-50:], series.values[series.steps >= finding.onset_step]
        if len(before) >= 5 and len(after) >= 3:
            a, b = max(float(before.mean()), 1e-3), max(float(after.mean()), 1e-3)
            total, tasks = total + (b - a) * math.log(b / a), tasks + 1
    if tasks < 2:
        return cannot("mix_shifted", "task")
    return answer("mix_shifted", total > 0.2, total < 0.1, {"psi": total}, f"stability index of task shares {total:.3f}")


def _start_and_now(series: Series) -> tuple[float, float] | None:
    """Medians of the first (ten at most) and the newest points (five at most), which do not overlap; None below six points."""
    if len(series) < 6:
        return None
    first = min(10, len(series) // 2)
    return median(series.values[:first]), median(series.values[first:][-5:])


def _elsewhere(view: RunView) -> bool:
    """Whether the mismatch sits in samples of another origin."""
    other, own = mean_of(view, "fact.mismatch.other", 3), mean_of(view, "fact.mismatch.policy", 3)
    return other is not None and own is not None and other > 5 * own


def grows_from_small(view: RunView, finding: Finding) -> CheckResult:
    """Accumulated numerics: small at first, growing with training, in samples the policy wrote itself."""
    metric = _metric(view, finding)
    found = _start_and_now(finite(view.series(metric))) if metric else None
    if metric is None or found is None or len(view.series(metric)) < 10:
        return cannot("grows_from_small", ABSOLUTE, note="fewer than ten points")
    early, now = found
    jump = _jumped(view, metric, finding.onset_step)
    elsewhere = _elsewhere(view)
    grew = now > 3 * early and not jump and not elsewhere
    observed = {"early": early, "now": now, "jump": jump}
    return answer("grows_from_small", grew, now < 1.5 * early or jump or elsewhere, observed, f"{early:.3g} at first, {now:.3g} now")


def _metric(view: RunView, finding: Finding) -> str | None:
    if finding.metric and view.has(finding.metric):
        return finding.metric
    return ABSOLUTE if view.has(ABSOLUTE) else None


def _jumped(view: RunView, metric: str, onset: int) -> bool:
    """True if most of the rise happened within three points of the onset."""
    series = finite(view.series(metric))
    before, first = series.values[series.steps < onset][-10:], series.values[series.steps >= onset][:4]
    now = median(series.values[-5:])
    if len(before) < 3 or len(first) < 2:
        return False
    rise = now - median(before)
    return bool(rise > 0 and median(first) - median(before) > 0.6 * rise)


def present_from_start(view: RunView, finding: Finding) -> CheckResult:
    """Topology, template or sampling transform: as large at the start as now."""
    metric = _metric(view, finding)
    found = _start_and_now(finite(view.series(metric))) if metric else None
    if found is None:
        return cannot("present_from_start", ABSOLUTE, note="fewer than six points")
    early, now = found
    note = f"{early:.3g} at first, {now:.3g} now"
    return answer("present_from_start", 0.5 < early / now < 2 if now else False, early < 0.3 * now, {"early": early, "now": now}, note)


def sampling_transform(view: RunView, finding: Finding) -> CheckResult:
    """Temperature or truncated sampling with a constant signed difference."""
    temperature, top_p = view.config.get("temperature"), view.config.get("top_p")
    plain = (temperature in (None, 1, 1.0)) and (top_p in (None, 1, 1.0))
    if temperature is None and top_p is None:
        return cannot("sampling_transform", "config.temperature", "config.top_p")
    signed = level(view, "mismatch.kl") if view.has("mismatch.kl") else mean_of(view, "fact.mismatch.signed")
    size = level(view, ABSOLUTE) or mean_of(view, "fact.mismatch.mean")
    biased = signed is not None and size is not None and abs(signed) > 0.6 * size
    observed = {"signed": signed, "absolute": size}
    note = f"temperature {temperature}, top_p {top_p}" + ("" if signed is None else f"; bias {signed:.4g} nats of {size or 0:.4g}")
    return answer("sampling_transform", not plain and biased, plain and not biased, observed, note)


def rows_misaligned(view: RunView, finding: Finding) -> CheckResult:
    """Log-probs of one trajectory that do not correlate, or correlate only when moved by one token."""
    unrelated, shifted = mean_of(view, "fact.mismatch.unrelated_frac", 3), mean_of(view, "fact.mismatch.shifted_frac", 3)
    if unrelated is None:
        return cannot("rows_misaligned", "old_logprobs", "rollout_logprobs", note="no fresh response of six tokens with both")
    wrong = (shifted or 0) > 0.3 or (unrelated > 0.1 and not _elsewhere(view))
    observed = {"unrelated_frac": unrelated, "shifted_frac": shifted}
    return answer(
        "rows_misaligned", wrong, unrelated < 0.02, observed, f"{unrelated:.0%} unrelated, {shifted or 0:.0%} right when moved by one token"
    )


def other_context(view: RunView, finding: Finding) -> CheckResult:
    """The mismatch sits in samples that the policy did not write by itself."""
    other, own = mean_of(view, "fact.mismatch.other", 3), mean_of(view, "fact.mismatch.policy", 3)
    if other is None or own is None:
        return cannot("other_context", "origin", "old_logprobs", "rollout_logprobs")
    return answer("other_context", other > 5 * own, other < 2 * own, {"other": other, "policy": own}, f"{other:.3f} nats against {own:.4f}")


def weights_stale(view: RunView, finding: Finding) -> CheckResult:
    """Wrong weights: large at once for all tokens, with an event of synchronisation or restart at the onset."""
    metric = _metric(view, finding)
    if metric is None or len(finite(view.series(metric))) < 6:
        return cannot("weights_stale", ABSOLUTE, note="fewer than six points")
    jump = _jumped(view, metric, finding.onset_step)
    near = [e for e in view.events(finding.onset_step - 5) if e.kind in ("weight_sync", "resume", "restart")]
    unrelated = (mean_of(view, "fact.mismatch.unrelated_frac", 3) or 0) > 0.1
    observed = {"jump": jump, "rare_share": mean_of(view, "fact.mismatch.rare_share", 3), "events": len(near)}
    supports = jump and bool(near) and not unrelated
    return answer("weights_stale", supports, not jump or _elsewhere(view), observed, "large at once" if jump else "grew slowly")


def trainer_disagrees(view: RunView, finding: Finding) -> CheckResult:
    """Test (i): with one update on log-probs that the trainer itself computed, ratio 1, KL 0 and nothing clipped."""
    updates, source = view.config.get("updates_per_batch"), view.config.get("old_logprobs")
    if updates != 1 or source != "trainer":
        return cannot("trainer_disagrees", "one update per batch with the trainer's own old log-probs")
    seen = {"kl.old": level(view, "kl.old", 5), "clip.frac": level(view, "clip.frac", 5)}
    ratio = level(view, "ratio.mean", 5)
    seen["ratio.mean"] = abs(ratio - 1) if ratio is not None else None
    known = {name: abs(value) for name, value in seen.items() if value is not None}
    if not known:
        return cannot("trainer_disagrees", "ratio.mean", "kl.old", "clip.frac")
    off = (
        known.get("ratio.mean", 0.0) > 1e-3
        or known.get("kl.old", 0.0) > 1e-4
        or (known.get("clip.frac", 0.0) > 0 and not clips_sequences(view))
    )
    note = ", ".join(f"{name} {value:.2g}" for name, value in known.items()) + " on the first update (the ratio as distance from 1)"
    return answer("trainer_disagrees", off, not off, known, note)


def text_broke_first(view: RunView, finding: Finding) -> CheckResult:
    """Consequence: entropy or truncation had left its band before the mismatch did."""
    before = view.at(max(finding.onset_step, _first(view)))
    found = {m: moved(before, m, newest=3) for m in ("entropy.mean", "length.response.truncated_frac")}
    high = {m: v.z for m, v in found.items() if v is not None}
    if not high:
        return cannot("text_broke_first", "entropy.mean", "length.response.truncated_frac")
    largest = max(high.values())
    return answer("text_broke_first", largest > 5, largest < 3, high, f"largest deviation at the onset {largest:.1f} spreads")


def _first(view: RunView) -> int:
    return min((int(s.steps[0]) for m in ("reward.mean", "entropy.mean", "grad.norm") if len(s := view.series(m))), default=view.step)


def reward_trend(view: RunView, steps: float = 60) -> float:
    """Slope of the reward over the newest steps, if it is one (p < 0.05), else 0."""
    metric = next((m for m in ("reward.mean", "fact.reward.mean") if len(points(view, m))), None)
    found, _ = trend_of(view, metric, steps, int(steps)) if metric else (None, None)
    return found.slope if found is not None and found.p < 0.05 else 0.0
