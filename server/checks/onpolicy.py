"""Where a batch is used for one update, the policy that is trained is the one that wrote it: what the ratio must be, and why it is not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import server.checks.engine as engine
from server.checks.base import Check, CheckResult, Finding, answer, cannot
from server.checks.engine import ABSOLUTE, lagging
from server.checks.measure import finite, level, mean_of, moved, since_onset
from server.detectors.middle import median
from server.queries.view import RunView, Series

HISTORY = 20
"""Points that were exactly on-policy, where no configuration says how often a batch is used."""
_EXACT = (("kl.old", 0.0), ("clip.frac", 0.0), ("ratio.max", 1.0))


def one_update(view: RunView) -> bool:
    """Whether a batch is used for one update: by the configuration, else by ratios that were exact in the run's first points."""
    configured = view.config.get("updates_per_batch")
    if isinstance(configured, (int, float)):
        return configured == 1
    known = [(finite(view.series(m)).values[:HISTORY], value) for m, value in _EXACT if view.has(m)]
    return len(known) >= 2 and all(len(values) == HISTORY and bool((values == value).all()) for values, value in known)


def from_engine(view: RunView) -> bool:
    """Whether the old log-probs of the ratio are those that the engine gave."""
    return view.config.get("old_logprobs") == "engine"


def must_be_one(view: RunView) -> bool:
    """Whether the first ratio of every token must be 1: one update a batch, and no sample older than the trainer's policy."""
    return one_update(view) and not lagging(view)


def kl_is_of_first_pass(view: RunView, limit: float, points: int = 10) -> bool:
    """Whether the logged KL compares the policies before the update: it once was within a limit of 0.

    Some trainers measure it after the update; then it is never 0, and the ratios are.
    """
    first = finite(view.series("kl.old")).values[:points]
    return len(first) == points and median(np.abs(first)) <= limit


def distance(series: Series, rest: float) -> Series:
    """Absolute distance of every point from the value that an exact ratio gives."""
    return Series(series.steps, np.abs(series.values - rest))


def off_steps(chain: Series, rest: float, limit: float, of: int, held: float) -> list[int]:
    """Steps at which at least `held` of the last `of` finite points are further from rest than a limit."""
    series = finite(chain)
    off = np.concatenate(([0], np.cumsum(np.abs(series.values - rest) > limit)))
    first = np.maximum(np.arange(len(series)) + 1 - of, 0)
    counts = off[1:] - off[first]
    return [int(step) for step in series.steps[counts >= held]]


def trainer_disagrees(view: RunView, finding: Finding) -> CheckResult:
    """The trainer's two passes differ: one of them fits the engine's log-probs, and the other does not."""
    if from_engine(view) or not one_update(view):
        why = "old log-probs are the engine's" if from_engine(view) else "batches are used several times"
        return answer("trainer_disagrees", False, True, {}, why)
    unrelated = mean_of(view, "fact.mismatch.unrelated_frac", 3)
    if unrelated is not None and unrelated > 0.1:
        return answer("trainer_disagrees", False, True, {"unrelated_frac": unrelated}, "old log-probs do not belong to their tokens")
    onset = finding.onset_step
    own, outside = since_onset(view, "fact.update.mean", onset), since_onset(view, "fact.update.outside_frac", onset)
    gap = level(view, ABSOLUTE) if view.has(ABSOLUTE) else mean_of(view, "fact.mismatch.mean")
    if own is None or gap is None or not _of_first_pass(view, onset):
        return _engine_calm(view)
    third = since_onset(view, "fact.update.engine", onset)
    least = gap if third is None else min(gap, third)
    note = f"update against old log-probs {own:.4f} nats, the one of them that fits the engine better {least:.4f}"
    if outside is not None:
        note += f"; {outside:.1%} of the tokens outside 0.9 to 1.1"
    observed = {"update": own, "old_to_engine": gap, "update_to_engine": third, "outside_frac": outside}
    return answer("trainer_disagrees", own > 3 * least or (outside or 0) > 0.02, own < 0.5 * least, observed, note)


def _of_first_pass(view: RunView, onset: int) -> bool:
    """Whether the current log-probs in token rows are those that the update began with: they once were equal to the old ones.

    Some writers put there what the update made of them; then they differ in a sound run too.
    """
    series = finite(view.series("fact.update.mean"))
    before = series.values[series.steps < onset]
    return len(before) > 0 and median(before) < 1e-4


def _engine_calm(view: RunView) -> CheckResult:
    """Without token rows: old log-probs are the trainer's and the mismatch with the engine is what it was."""
    found = moved(view, ABSOLUTE, newest=3)
    if found is None or view.config.get("old_logprobs") is None:
        return cannot("trainer_disagrees", "old_logprobs", "current_logprobs", ABSOLUTE)
    note = f"old log-probs are the trainer's own; {ABSOLUTE} {found.z:.1f} spreads from its past"
    return answer("trainer_disagrees", abs(found.z) < 3, False, {"z": found.z}, note)


def batch_reused(view: RunView, finding: Finding) -> CheckResult:
    """Several updates a batch: then clipping is normal from the second one on."""
    configured = view.config.get("updates_per_batch")
    if not isinstance(configured, (int, float)):
        return cannot("batch_reused", "config.updates_per_batch")
    return answer("batch_reused", configured > 1, configured == 1, {"updates_per_batch": configured}, f"{configured:g} update a batch")


def mismatch_from_start(view: RunView, finding: Finding) -> CheckResult:
    """Topology or backend: trainer and engine differed as much in the first points as now."""
    return _of_engine("mismatch_from_start", engine.present_from_start, view, finding)


def mismatch_after_sync(view: RunView, finding: Finding) -> CheckResult:
    """Wrong weights in the engine: the mismatch was large at once, with a synchronisation or restart."""
    return _of_engine("mismatch_after_sync", engine.weights_stale, view, finding)


def mismatch_of_others(view: RunView, finding: Finding) -> CheckResult:
    """Another context: the mismatch sits in samples that the policy did not write by itself."""
    return _of_engine("mismatch_of_others", engine.other_context, view, finding)


def _of_engine(id: str, check: Check, view: RunView, finding: Finding) -> CheckResult:
    """A check of the mismatch with the engine; refuted where the ratio is made of the trainer's own log-probs."""
    old = view.config.get("old_logprobs")
    if old not in (None, "engine"):
        return answer(id, False, True, {"old_logprobs": str(old)}, f"old log-probs from the {old}: the engine's do not enter the ratio")
    return replace(check(view, replace(finding, metric=None)), id=id)


def engine_drifted(view: RunView, finding: Finding) -> CheckResult:
    """With the engine's log-probs as old ones: the mismatch was small at first and has grown."""
    metric = ABSOLUTE if view.has(ABSOLUTE) else "fact.mismatch.mean"
    series = finite(view.series(metric))
    if len(series) < 10:
        return cannot("engine_drifted", ABSOLUTE)
    early, now = median(series.values[:10]), median(series.values[-3:])
    enters = view.config.get("old_logprobs") in (None, "engine")
    grew, calm = now > 2 * early and from_engine(view), now < 1.3 * early or not enters
    note = f"{metric} {early:.3g} at first, {now:.3g} now" + ("" if enters else "; the ratio is made of the trainer's own log-probs")
    return answer("engine_drifted", grew, calm, {"early": early, "now": now}, note)


def transform_differs(view: RunView, finding: Finding) -> CheckResult:
    """One of the two log-probs is taken before temperature or truncated sampling: a difference of constant sign."""
    temperature, top_p = view.config.get("temperature"), view.config.get("top_p")
    if temperature is None and top_p is None:
        return cannot("transform_differs", "config.temperature", "config.top_p")
    plain = temperature in (None, 1, 1.0) and top_p in (None, 1, 1.0)
    kind = "mismatch" if from_engine(view) else "update"
    signed, size = (since_onset(view, f"fact.{kind}.{part}", finding.onset_step) for part in ("signed", "mean"))
    if plain or signed is None or size is None:
        return answer("transform_differs", False, plain, {}, f"temperature {temperature}, top_p {top_p}")
    observed = {"signed": signed, "absolute": size}
    biased = abs(signed) > 0.6 * size
    note = f"temperature {temperature}, top_p {top_p}; signed difference {signed:.3f} of {size:.3f} nats"
    return answer("transform_differs", biased, abs(signed) < 0.2 * size, observed, note)
