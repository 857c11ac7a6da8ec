"""Checks of the update: learning rate, reuse of the batch, degenerate batches, scale changes."""

from __future__ import annotations

import bisect

import numpy as np
from numpy.typing import NDArray

from server.checks.base import CheckResult, Finding, answer, cannot
from server.checks.measure import finite, finite_chain, level, moved, points
from server.detectors.middle import median
from server.detectors.spike import spikes
from server.queries.view import RunView

_WATCHED = ("loss.", "grad.norm", "kl.", "entropy.", "ratio.", "reward.mean")


def not_finite_at(view: RunView) -> list[tuple[str, int]]:
    """Metrics that are NaN or infinite at the judged step, each with the first step of the stretch."""
    key = ("not finite", view.attempt)
    stretches: dict[int, list[tuple[str, int]]] | None = view.data.memo.get(key)
    if stretches is None:
        stretches = view.data.memo[key] = _stretches(view)
    return stretches.get(view.step, [])


def _stretches(view: RunView) -> dict[int, list[tuple[str, int]]]:
    """By step of the whole chain: the watched metrics that are not finite there, each with the first step of its stretch."""
    found: dict[int, list[tuple[str, int]]] = {}
    for metric in view.data.metrics():
        if metric.startswith(_WATCHED) and not metric.endswith("coef"):
            chain = view.data.chain(metric, view.attempt)
            before = first = -1
            for at in np.flatnonzero(~np.isfinite(chain.values)).tolist():
                first = first if at == before + 1 and before >= 0 else at
                before = at
                found.setdefault(int(chain.steps[at]), []).append((metric, int(chain.steps[first])))
    return found


def spike_hits(view: RunView, metric: str, z: float, factor: float) -> NDArray[np.bool_]:
    """Which finite points of a metric since the planned event are spikes; of the whole chain, cut it at the judged step."""
    start = view.baseline_start
    chain = finite_chain(view, metric, start)

    def make(position: int) -> tuple[NDArray[np.bool_]]:
        return (spikes(chain.values, z, factor, start=position),)

    return view.data.grown(metric, view.attempt, ("spikes", start, z, factor), chain.steps, make)[0]


def first_step(view: RunView) -> int:
    """First step of the run with a metric that is watched for NaN."""
    starts = [int(s.steps[0]) for m in ("loss.policy", "grad.norm", "reward.mean", "kl.ref") if len(s := view.series(m))]
    return min(starts, default=view.step)


def rate_rose(view: RunView, finding: Finding) -> CheckResult:
    """The learning rate at the onset against the ten steps before."""
    lr = finite(view.series("lr"))
    at = bisect.bisect_left(lr.steps.tolist(), finding.onset_step)
    if at < 3 or at >= len(lr):
        return cannot("rate_rose", "lr")
    before, now = median(lr.values[max(0, at - 10) : at]), float(np.max(lr.values[max(0, at - 2) : at + 4]))
    if before <= 0:
        return answer("rate_rose", False, False, {"before": before, "now": now}, "the rate was 0 before")
    factor = now / before
    return answer("rate_rose", factor > 1.5, factor < 1.1, {"before": before, "now": now}, f"learning rate {factor:.3g} times that before")


def step_too_large(view: RunView, finding: Finding) -> CheckResult:
    """The learning rate had just risen, or KL had climbed already before the onset."""
    rate, climbed = rate_rose(view, finding), _kl_climb(view, finding.onset_step)
    if climbed is None:
        return CheckResult("step_too_large", rate.verdict, rate.observed, rate.missing, rate.note)
    observed = {**rate.observed, "kl_factor": climbed}
    supports = rate.verdict == "supported" or climbed > 2
    refutes = rate.verdict in ("refuted", "not_checkable") and climbed < 1.3
    return answer(
        "step_too_large", supports, refutes and not supports, observed, f"{rate.note}; KL {climbed:.2g} times that of 15 points before"
    )


def _kl_climb(view: RunView, onset: int) -> float | None:
    """Largest factor of the last five points' KL over the 15 before, up to an onset; None with too few points."""
    factors = []
    for metric in ("kl.old", "kl.ref"):
        series = points(view, metric)
        before = np.abs(series.values[series.steps < onset])
        if len(before) >= 20:
            old, new = float(np.median(before[-20:-5])), float(np.median(before[-5:]))
            factors.append(new / old if old > 0 else 1.0)
    return max(factors, default=None)


def batch_reused(view: RunView, finding: Finding) -> CheckResult:
    """More than one update per batch, and tokens clipped by it."""
    updates, clipped = view.config.get("updates_per_batch"), level(view, "clip.frac", 5)
    if not isinstance(updates, (int, float)):
        return cannot("batch_reused", "config.updates_per_batch")
    observed = {"updates_per_batch": updates, "clip_frac": clipped}
    much = updates > 4 or (updates > 1 and (clipped or 0) > 0.1)
    return answer("batch_reused", much, updates <= 1, observed, f"{updates:g} updates per batch, {clipped or 0:.2%} of tokens clipped")


def degenerate_batch(view: RunView, finding: Finding) -> CheckResult:
    """One response with most of the loss, empty responses, or hardly a group with any variance."""
    at = view.at(max(finding.onset_step, first_step(view)))
    share, zero, empty = level(at, "fact.loss_share.largest", 1), level(at, "group.zero_std_frac", 1), level(at, "response.empty_frac", 1)
    if share is None and zero is None:
        return cannot("degenerate_batch", "response_tokens", "group.zero_std_frac")
    n = level(at, "fact.n", 1) or 0
    bad = (share is not None and n >= 8 and share > 0.25) or (zero is not None and zero > 0.95) or (empty or 0) > 0.5
    good = (share is None or share < 0.1) and (zero is None or zero < 0.8)
    observed = {"largest_share": share, "zero_std_frac": zero}
    return answer("degenerate_batch", bad, good, observed, f"heaviest response holds {share or 0:.1%} of the loss")


def scale_changed(view: RunView, finding: Finding) -> CheckResult:
    """An event or a change of the batch at the onset."""
    near = [e for e in view.events(finding.onset_step - 3) if e.step <= finding.onset_step + 1]
    tokens = moved(view, "tokens.trained", newest=3)
    jump = abs(tokens.z) if tokens else 0.0
    observed = {"events": len(near), "trained_tokens_z": jump if tokens else None}
    note = near[0].text[:120] if near else "no event at the onset"
    return answer("scale_changed", bool(near), not near and jump < 4, observed, note)


def critic_first(view: RunView, finding: Finding) -> CheckResult:
    """Whether the critic's loss left its band before the onset."""
    if not view.has("loss.value"):
        return cannot("critic_first", "loss.value")
    before = view.at(max(finding.onset_step - 1, first_step(view)))
    found = moved(before, "loss.value", newest=3, floor=0.1)
    if found is None:
        return answer("critic_first", False, False, {}, "no baseline of the critic's loss")
    return answer("critic_first", found.z > 6, found.z < 3, {"z": found.z}, f"critic's loss {found.z:.1f} spreads from its past")


def mismatch_first(view: RunView, finding: Finding) -> CheckResult:
    """Whether trainer and engine drifted apart before the onset: few extreme tokens then carry the jump."""
    metric = next((m for m in ("mismatch.logprob_diff.mean", "mismatch.prob_diff.mean", "mismatch.kl_k3") if view.has(m)), None)
    if metric is None:
        return cannot("mismatch_first", "mismatch.logprob_diff.mean")
    found = moved(view.at(max(finding.onset_step, first_step(view))), metric, newest=3, floor=0.1)
    if found is None:
        return answer("mismatch_first", False, False, {}, "no baseline of the mismatch")
    return answer(
        "mismatch_first", found.z > 8, found.z < 4, {metric: found.now, "z": found.z}, f"{metric} {found.z:.1f} spreads from its past"
    )
