"""Checks of the update: learning rate, reuse of the batch, degenerate batches, scale changes."""

from __future__ import annotations

import bisect

import numpy as np
from numpy.typing import NDArray

from server.checks.base import CheckResult, Finding, answer, cannot
from server.checks.measure import finite, finite_chain, level, moved, points
from server.detectors.baseline import rolling
from server.detectors.middle import median
from server.detectors.spike import spikes
from server.queries.view import RunView, Series

WITHOUT_CRITIC = frozenset({"grpo", "dr_grpo", "drgrpo", "rloo", "dapo", "gspo", "cispo", "gmpo", "bnpo", "sapo"})
"""Algorithms whose advantages sum to 0 within a group, and which have no critic."""
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


def jumps(view: RunView, metric: str, z: float, factor: float) -> tuple[Series, NDArray[np.bool_], NDArray[np.float64]]:
    """A metric's positive points since the planned event, which of them are spikes, and the baseline's median of each.

    A gradient of exactly 0 is a batch without a signal (every group equal), no scale that a later one could exceed.
    """
    start = view.baseline_start
    chain = finite_chain(view, metric, start)
    keep = chain.values > 0
    chain = Series(chain.steps[keep], chain.values[keep])

    def make(position: int) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
        middle, _ = rolling(np.log10(chain.values), start=position)
        return spikes(chain.values, z, factor, start=position), 10**middle

    hits, middle = view.data.grown(metric, view.attempt, ("jumps", start, z, factor), chain.steps, make)
    end = int(chain.steps.searchsorted(view.step, "right"))
    return Series(chain.steps[:end], chain.values[:end]), hits[:end], middle[:end]


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
    """The learning rate had just risen, KL had climbed before the onset, or updates were too large from the first one on."""
    rate, climbed = rate_rose(view, finding), _kl_climb(view, finding.onset_step)
    if climbed is None:
        return _large_from_start(view, finding, rate)
    observed = {**rate.observed, "kl_factor": climbed}
    supports = rate.verdict == "supported" or climbed > 2
    refutes = rate.verdict in ("refuted", "not_checkable") and climbed < 1.3
    said = f"{rate.note}; " if rate.note else ""
    return answer("step_too_large", supports, refutes and not supports, observed, f"{said}KL {climbed:.2g} times that of 15 points before")


def _large_from_start(view: RunView, finding: Finding, rate: CheckResult) -> CheckResult:
    """Where nothing lies before the onset: KL of one update against the .01 to .02 that PPO aims at (symptoms 5)."""
    series = points(view, "kl.old")
    values = np.abs(series.values[series.steps >= finding.onset_step][:20])
    if len(values) < 3:
        return CheckResult("step_too_large", rate.verdict, rate.observed, rate.missing or ("kl.old",), rate.note)
    now, apart = median(values), level(view, "mismatch.logprob_diff.mean", 5)
    observed = {**rate.observed, "kl_old": now, "mismatch": apart}
    # Against the engine's log-probs a KL of the update holds the mismatch and the age of the samples too.
    own = apart is None or apart < 0.5 * now
    note = f"KL of one update {now:.3g} nats from step {finding.onset_step} on, without calm steps before it"
    return answer("step_too_large", rate.verdict == "supported" or (now > 0.05 and own), now < 0.01, observed, note)


def _kl_climb(view: RunView, onset: int) -> float | None:
    """Largest factor of the last five points' KL over the 15 before, up to an onset; None with too few points.

    KL to a fixed reference grows with the square of the way gone, in a sound run too; only what exceeds that counts.
    """
    factors = []
    for metric in ("kl.old", "kl.ref"):
        series = points(view, metric)
        end = int(np.searchsorted(series.steps, onset))
        if end >= 20:
            values, steps = np.abs(series.values[end - 20 : end]), series.steps[end - 20 : end] - int(series.steps[0]) + 1
            old, new = median(values[:15]), median(values[15:])
            usual = (median(steps[15:]) / median(steps[:15])) ** 2 if metric == "kl.ref" else 1.0
            factors.append(new / old / usual if old > 0 else 1.0)
    return max(factors, default=None)


def batch_reused(view: RunView, finding: Finding) -> CheckResult:
    """More than one update per batch, and tokens clipped by it. GSPO clips whole sequences by construction: its share says nothing."""
    updates, clipped = view.config.get("updates_per_batch"), level(view, "clip.frac", 5)
    if not isinstance(updates, (int, float)):
        return cannot("batch_reused", "config.updates_per_batch")
    observed = {"updates_per_batch": updates, "clip_frac": clipped}
    if updates <= 1:
        return answer("batch_reused", False, True, observed, "one update per batch")
    if clipped is None or clips_sequences(view):
        return answer("batch_reused", False, False, observed, f"{updates:g} updates per batch")
    much = clipped > (0.02 if updates > 4 else 0.1)
    # Old log-probs that are wrong from the start are clipped in the first minibatch already, which no log shows by itself.
    apart = level(view, "mismatch.logprob_diff.mean", 5) or level(view, "fact.mismatch.mean", 1) or 0.0
    note = f"{updates:g} updates per batch, {clipped:.2%} of tokens clipped"
    note += f"; but trainer and engine are {apart:.2g} nats apart" if apart > 0.05 else ""
    return answer("batch_reused", much and apart <= 0.05, clipped < 0.005, observed, note)


def clips_sequences(view: RunView) -> bool:
    """Whether the clip works on sequence ratios (GSPO), whose share is about 15 % in sound runs (symptoms 0.2)."""
    return view.run.algorithm == "gspo" or view.config.get("ratio_level") == "sequence"


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


NO_CHANGE = frozenset({"checkpoint", "save", "eval", "note", "comment", "weight_sync"})
"""Kinds of events that leave the scale of gradients as it is."""


def scale_changed(view: RunView, finding: Finding) -> CheckResult:
    """An event or a change of the batch at the onset."""
    near = [e for e in view.events(finding.onset_step - 3) if e.step <= finding.onset_step + 1 and e.kind not in NO_CHANGE]
    tokens = moved(view, "tokens.trained", newest=3)
    jump = abs(tokens.z) if tokens else 0.0
    observed = {"events": len(near), "trained_tokens_z": jump if tokens else None}
    note = near[0].text[:120] if near else "no event at the onset"
    return answer("scale_changed", bool(near), not near and jump < 4, observed, note)


def critic_first(view: RunView, finding: Finding) -> CheckResult:
    """Whether the critic's loss left its band before the onset."""
    if not view.has("loss.value"):
        if view.run.algorithm in WITHOUT_CRITIC:
            return answer("critic_first", False, True, {}, f"{view.run.algorithm} has no critic")
        return cannot("critic_first", "loss.value")
    before = view.at(max(finding.onset_step - 1, first_step(view)))
    found = moved(before, "loss.value", newest=3, floor=0.1)
    if found is None:
        return answer("critic_first", False, False, {}, "no baseline of the critic's loss")
    return answer("critic_first", found.z > 6, found.z < 3, {"z": found.z}, f"critic's loss {found.z:.1f} spreads from its past")


def values_finite(view: RunView, finding: Finding) -> CheckResult:
    """Numerics: whether a loss, gradient, KL or ratio was NaN or infinite within ten steps of the onset."""
    watched = [m for m in ("loss.policy", "loss.total", "loss.value", "grad.norm", "kl.old", "kl.ref", "ratio.mean") if view.has(m)]
    if not watched:
        return cannot("values_finite", "grad.norm", "loss.policy")
    bad = []
    for metric in watched:
        series = view.series(metric).since(finding.onset_step - 10)
        if len(series) and not np.isfinite(series.values).all():
            bad.append(metric)
    note = f"not finite: {', '.join(bad)}" if bad else f"{len(watched)} metrics stayed finite"
    return answer("values_finite", bool(bad), not bad, {"not_finite": len(bad)}, note)
