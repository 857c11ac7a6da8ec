"""Checks of what a resume lost: weights, optimiser, data cursor, seeds, the engine's weights, rollouts, configuration."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from server.checks.base import CheckResult, Finding, answer, cannot
from server.checks.measure import finite
from server.checks.resume import (
    BEFORE,
    PAST,
    first_updates,
    jump,
    larger_first_updates,
    level_metrics,
    repeats,
    sides,
    spread,
    warms_up_again,
)
from server.detectors.middle import median
from server.queries.view import RunView, Values

_MISMATCH = ("mismatch.logprob_diff.mean", "mismatch.prob_diff.mean", "mismatch.kl_k3", "fact.mismatch.mean")
_CONSTANTS = ("fact.repeat.prompts", "fact.n", "fact.group.size.max", "kl.coef", "length.prompt.max")
"""What a configuration fixes: a value that never changed and is another one after the resume."""
_FIRST = 5


def weights_of_older(view: RunView, finding: Finding) -> CheckResult:
    """Weights of an older checkpoint: the levels after the resume are not those of before it but those of an earlier time."""
    start = finding.onset_step
    metrics = [m for m in level_metrics(view) if m != "grad.norm" and jump(view, m, start, 3, _FIRST) is not None]
    if len(metrics) < 2:
        return cannot("weights_of_older", "reward.mean", "entropy.mean", "length.response.mean", "kl.ref")
    now: dict[str, float] = {}
    widths: dict[str, float] = {}
    past: dict[str, Values] = {}
    for metric in metrics:
        series = finite(view.series(metric))
        past[metric] = series.values[series.steps < start]
        now[metric] = median(sides(view, metric, start, 0, _FIRST)[1])
        widths[metric] = max(spread(past[metric][-PAST:]), 1e-9)
    gap = max(abs(now[m] - median(past[m][-BEFORE:])) / widths[m] for m in metrics)
    size = min(len(values) for values in past.values())
    best, at = math.inf, 0
    for end in range(BEFORE, size - BEFORE, _FIRST):  # windows of ten points, counted back from the resume
        here = max(
            abs(now[m] - median(past[m][len(past[m]) - size + end - BEFORE : len(past[m]) - size + end])) / widths[m] for m in metrics
        )
        best, at = (here, end) if here < best else (best, at)
    first = finite(view.series(metrics[0])).steps
    observed = {"spreads_from_before": gap, "spreads_from_an_earlier_time": best if math.isfinite(best) else None, "metrics": len(metrics)}
    if gap > 3 and best < 2 and best < gap / 2:
        note = f"levels as around step {int(first[max(0, at - BEFORE)])}, {gap:.1f} spreads from those just before"
        return answer("weights_of_older", True, False, observed, note)
    return answer("weights_of_older", False, gap < 2, observed, f"levels at most {gap:.1f} spreads from those just before the resume")


def optimiser_lost(view: RunView, finding: Finding) -> CheckResult:
    """Optimiser state lost: the learning rate warms up again, or the first updates are several times the usual size and then settle."""
    start = finding.onset_step
    sizes, larger = first_updates(view, start), larger_first_updates(view, start)
    again = warms_up_again(view, start)
    if not sizes and not view.has("lr"):
        return cannot("optimiser_lost", "kl.old", "clip.frac", "ratio.max", "lr")
    observed = {m: now for m, (_, _, now) in sizes.items()}
    if again:
        past, new = sides(view, "lr", start, 1, 1)
        return answer("optimiser_lost", True, False, observed, f"the learning rate starts again at {new[0]:.3g} after {past[-1]:.3g}")
    if not sizes:
        return answer("optimiser_lost", False, False, observed, "the learning rate does not warm up again")
    metric = max(sizes, key=lambda m: sizes[m][2] / max(sizes[m][1], 1e-12))
    usual, most, largest = sizes[metric]
    alike = all(now <= most for _, most, now in sizes.values())
    grows = len(larger) >= min(2, len(sizes))
    note = f"{metric} of the first updates reaches {largest:.3g}; usual {usual:.3g}, at most {most:.3g} in the steps before"
    return answer("optimiser_lost", grows, alike and not larger, observed, note)


def cursor_reset(view: RunView, finding: Finding) -> CheckResult:
    """Data cursor reset: the prompts of the steps after the resume are those of earlier steps, in their order or far more often."""
    found = repeats(view, finding.onset_step)
    if found is None:
        return cannot("cursor_reset", "prompt")
    observed = {"repeated": found.share, "before": found.before, "in_order": found.together, "steps_back": found.distance}
    note = f"{found.share:.0%} of {found.prompts} prompts had come before, {found.before:.0%} in the steps before the resume"
    if found.moved_back:
        note += f"; they are those of {found.distance} steps earlier, in the same order"
    more = found.share - found.before > 0.05 and found.z > 4
    return answer("cursor_reset", found.moved_back or more, not more and found.together < 0.3, observed, note)


def seeds_reset(view: RunView, finding: Finding) -> CheckResult:
    """Seeds reset: a repeated prompt gets the same texts in the same places, more often than texts in other places agree."""
    start = finding.onset_step
    found, again = repeats(view, start), view.series("fact.repeat.attempt_frac").since(start)
    if found is None:
        return cannot("seeds_reset", "prompt", "response")
    if found.moved_back:
        return _in_place(view, start, found.distance, found.steps)
    if len(again) and float(again.values[:_FIRST].mean()) > 0.9:
        note = f"{again.values[0]:.0%} of the responses are those of the earlier attempt at the same steps: its state was restored"
        return answer("seeds_reset", False, True, {"same_as_attempt": float(again.values[0])}, note)
    return answer("seeds_reset", False, False, {}, "no stretch of earlier prompts came again, so texts cannot be compared")


def _in_place(view: RunView, start: int, distance: int, steps: int) -> CheckResult:
    last = start + steps - 1
    new, old = _texts(view, start, last), _texts(view, start - distance, last - distance)
    pairs = agree = 0
    expected = variance = 0.0
    for (step, prompt), now in new.items():
        then = old.get((step - distance, prompt), [])
        n = min(len(now), len(then))
        if n < 2:
            continue
        same = np.array([[a == b for b in then[:n]] for a in now[:n]])
        chance = float((same.sum() - np.trace(same)) / (n * (n - 1)))
        pairs, agree = pairs + n, agree + int(np.trace(same))
        expected, variance = expected + n * chance, variance + n * chance * (1 - chance)
    if pairs < 20:
        return cannot("seeds_reset", "response", note="too few repeated prompts with several responses")
    z = (agree - expected) / math.sqrt(max(variance, 0.25))
    observed = {"in_place": agree / pairs, "elsewhere": expected / pairs, "z": z}
    note = f"{agree / pairs:.0%} of {pairs} texts equal the earlier one in their place, {expected / pairs:.0%} by chance"
    # Weights have changed since, so the same seeds need not give the same texts: few equal ones refute nothing.
    return answer("seeds_reset", z > 4 and agree - expected > 0.05 * pairs, False, observed, note)


def _texts(view: RunView, first: int, last: int) -> dict[tuple[int, str], list[Any]]:
    rows = view.trajectories(first, last, ["prompt", "prompt_messages", "response"])
    found: dict[tuple[int, str], list[Any]] = {}
    for step, prompt, messages, response in zip(rows["step"], rows["prompt"], rows["prompt_messages"], rows["response"], strict=True):
        found.setdefault((int(step), str(prompt or messages)), []).append(response)
    return found


def engine_unsynchronised(view: RunView, finding: Finding) -> CheckResult:
    """Engine without the resumed weights: trainer and engine differ far more in the first batches, and not for good."""
    found, later = _mismatch(view, finding.onset_step, 0, 3), _mismatch(view, finding.onset_step, 3, 10)
    if found is None:
        return cannot("engine_unsynchronised", *_MISMATCH)
    metric, before, now, z = found
    stays = later is not None and later[2] > 0.5 * now
    note = f"{metric} {before:.3g} before, {now:.3g} in the first batches" + (f", {later[2]:.3g} afterwards" if later else "")
    observed = {metric: now, "before": before}
    return answer("engine_unsynchronised", z > 4 and now > 2 * before and not stays, now < 1.5 * before, observed, note)


def hardware_changed(view: RunView, finding: Finding) -> CheckResult:
    """Other hardware: the level of the mismatch is another one for good, while the reward is what it was."""
    found, reward = _mismatch(view, finding.onset_step, 3, 10), level_metrics(view)[:1]
    if found is None:
        return cannot("hardware_changed", *_MISMATCH)
    metric, before, now, z = found
    moved = jump(view, reward[0], finding.onset_step) if reward else None
    calm = moved is None or abs(moved.z) < 2
    ratio = max(now, before) / max(min(now, before), 1e-12)
    observed = {metric: now, "before": before}
    note = f"{metric} {before:.3g} before, {now:.3g} since the fourth batch"
    return answer("hardware_changed", abs(z) > 4 and ratio > 1.5 and calm, ratio < 1.2, observed, note)


def _mismatch(view: RunView, start: int, skipped: int, until: int) -> tuple[str, float, float, float] | None:
    """Mismatch metric with points on both sides: its level before, that of some points after, and their distance in spreads of log10."""
    for metric in _MISMATCH:
        past, new = sides(view, metric, start, PAST, until)
        past, new = past[past > 0], new[skipped:][new[skipped:] > 0]
        if len(past) >= BEFORE and len(new) >= 2:
            z = (math.log10(median(new)) - math.log10(median(past))) / max(spread(np.log10(past)), 0.04)
            return metric, median(past), median(new), z
    return None


def rollouts_reused(view: RunView, finding: Finding) -> CheckResult:
    """Stale rollouts: the first batches are older than any of before, or hold trajectories that were trained before."""
    start = finding.onset_step
    lag = view.first_of("lag.policy.max", "fact.lag.max", "lag.policy.mean")
    past, new = sides(view, lag[0], start, 20, 3) if lag else (np.empty(0), np.empty(0))
    rows = view.trajectories(start - BEFORE, start + 2, ["trajectory_id"])
    ids, steps = rows["trajectory_id"], rows["step"]
    old, now = (set(ids[part].tolist()) - {None} for part in (steps < start, steps >= start))
    if not (len(past) and len(new)) and not (old and now):
        return cannot("rollouts_reused", "lag.policy.max", "policy_lag", "trajectory_id")
    rose = float(new.max() - past.max()) if len(past) and len(new) else 0.0
    shared = len(old & now) / len(now) if now else 0.0
    unique = int((steps < start).sum()) == len(old)  # ids that repeat by themselves tell nothing
    note = f"lag {past.max():g} before, {new.max():g} after" if len(past) and len(new) else f"{shared:.0%} of the ids came before"
    observed = {"lag_rose": rose, "same_ids": shared}
    return answer("rollouts_reused", rose >= 2 or (unique and shared > 0.1), rose <= 0 and shared == 0, observed, note)


def config_changed(view: RunView, finding: Finding) -> CheckResult:
    """Configuration drift: an event says so, or what a configuration fixes (prompts, group size, KL weight) is another value now."""
    start = finding.onset_step
    told = [e for e in view.events(start - 5) if e.kind in ("config", "config_change") and e.step <= start + 2]
    if told:
        return answer("config_changed", True, False, {"events": len(told)}, f"step {told[-1].step}: {told[-1].text[:80]}")
    doubled = (view.series("fact.repeat.duplicate_frac").since(start).values[:3] > 0).any()
    kept: list[str] = []
    changed: list[str] = []
    for metric in _CONSTANTS:
        past, new = sides(view, metric, start, PAST, 3)
        if len(past) < BEFORE or len(new) < 2 or np.ptp(past) > 0 or (doubled and metric.startswith("fact.")):
            continue
        (changed if (new != past[-1]).all() else kept).append(f"{metric} {past[-1]:g} to {new[0]:g}")
    if not kept and not changed:
        return cannot("config_changed", "an event of kind config", note="no configuration is written for each attempt")
    note = "; ".join(changed) if changed else f"{len(kept)} settings that show in the rows are as before"
    return answer("config_changed", bool(changed), len(kept) >= 3 and not changed, {"changed": len(changed), "kept": len(kept)}, note)


def duplicated_rows(view: RunView, finding: Finding) -> CheckResult:
    """Duplicates after a resume: trajectories whose id occurs more than once in the step, as none did before."""
    series = finite(view.series("fact.repeat.duplicate_frac"))
    if not len(series):
        return cannot("duplicated_rows", "trajectory_id")
    before, now = series.values[series.steps < finding.onset_step][-PAST:], series.values[series.steps >= finding.onset_step][-3:]
    if not len(now):
        now = series.values[-1:]
    share, usual = float(np.mean(now)), float(before.max()) if len(before) else 0.0
    n = sum(1 for a in view.data.attempt_starts if a <= view.attempt)
    note = f"{share:.0%} of the trajectories are in their step twice or more; {n} attempt{'s' if n != 1 else ''}"
    return answer("duplicated_rows", share > 0 and usual == 0, share == 0, {"duplicated": share, "before": usual, "attempts": n}, note)
