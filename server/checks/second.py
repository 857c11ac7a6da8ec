"""Checks that a second run decides: quality at equal samples, set-ups that differ, routing, denominators, the KL brake."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from ingest.schema.records import Json
from server.checks.base import CheckResult, Finding, answer, cannot, wants_second_run
from server.checks.distribution import eval_metric
from server.checks.measure import finite, noise, reward_metric
from server.detectors.middle import median
from server.queries.view import RunView, Series

_POINTS = 20
"""Newest points of each run whose means are compared."""
_FEWEST = 5
_SET_UP = ("tensor_parallel", "tensor_model_parallel", "pipeline", "expert_parallel", "attention", "attn", "backend", "dtype", "precision",
           "gpu", "enforce_eager", "quant", "fp16", "bf16", "fp32", "cuda", "vllm", "sglang")  # fmt: skip
_SCALE = ("world_size", "n_gpus", "num_gpus", "nnodes", "num_nodes", "accumulation", "micro_batch", "per_device")
_EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")


class Compared(NamedTuple):
    """A metric of this run and of the second one, with the standard error of their difference."""

    own: float
    other: float
    error: float

    @property
    def z(self) -> float:
        """This run minus the other one, in standard errors."""
        return (self.own - self.other) / self.error if 0 < self.error < math.inf else 0.0


def quality_metric(view: RunView) -> str | None:
    """The evaluation both runs have, else the reward both have."""
    other = view.second_run
    if other is None:
        return None
    for metric in (eval_metric(view), reward_metric(view)):
        if metric is not None and len(finite(other.series(metric))) >= _FEWEST and len(finite(view.series(metric))) >= _FEWEST:
            return metric
    return None


def _samples(view: RunView) -> float | None:
    """Trajectories a step by the configuration; None where it does not say."""
    prompts, group = view.config.get("prompts_per_step"), view.config.get("group_size")
    return float(prompts) * float(group) if isinstance(prompts, (int, float)) and isinstance(group, (int, float)) else None


def _near(series: Series, last: float) -> Series:
    end = int(np.searchsorted(series.steps, last, side="right"))
    return Series(series.steps[:end], series.values[:end]).tail(_POINTS)


def compare(view: RunView, metric: str, own_last: float, other_last: float) -> Compared | None:
    """The newest points up to a step of either run; None where one has fewer than five."""
    other = view.second_run
    if other is None:
        return None
    a, b = _near(finite(view.series(metric)), own_last), _near(finite(other.series(metric)), other_last)
    if len(a) < _FEWEST or len(b) < _FEWEST:
        return None
    error = math.hypot(noise(view, metric) / math.sqrt(len(a)), noise(other, metric) / math.sqrt(len(b)))
    return Compared(float(a.values.mean()), float(b.values.mean()), error)


def at_equal_samples(view: RunView, metric: str) -> Compared | None:
    """Both runs after as many trajectories as the one that has seen fewer of them."""
    other = view.second_run
    if other is None:
        return None
    own_rate, other_rate = _samples(view), _samples(other)
    if own_rate is None or other_rate is None or own_rate <= 0 or other_rate <= 0:
        return None
    shared = min(own_rate * view.step, other_rate * other.step)
    return compare(view, metric, shared / own_rate, shared / other_rate)


def no_separable_effect(view: RunView, finding: Finding) -> CheckResult:
    """Seed noise: at equal samples the run is like the other one within the noise of both.

    A run that is far better says nothing of noise: the other one is no fit reference then.
    """
    metric = quality_metric(view)
    found = at_equal_samples(view, metric) if metric else None
    if metric is None or found is None:
        return _not_at_equal_samples("no_separable_effect", view, metric)
    observed = {"own": found.own, "other": found.other, "z": found.z}
    note = f"{metric} {found.own:.3f} here and {found.other:.3f} in the second run at equal samples ({found.z:+.1f} errors)"
    return answer("no_separable_effect", abs(found.z) < 2, found.z < -3, observed, note)


def fewer_samples(view: RunView, finding: Finding) -> CheckResult:
    """Fewer updates or samples: worse at equal steps, and no longer so at equal samples."""
    metric = quality_metric(view)
    at_samples = at_equal_samples(view, metric) if metric else None
    at_steps = compare(view, metric, view.step, view.step) if metric else None
    if metric is None or at_samples is None or at_steps is None:
        return _not_at_equal_samples("fewer_samples", view, metric)
    observed = {"z_equal_steps": at_steps.z, "z_equal_samples": at_samples.z}
    note = f"{metric} {at_steps.z:+.1f} errors at equal steps, {at_samples.z:+.1f} at equal samples"
    return answer("fewer_samples", at_steps.z < -3 and at_samples.z > -2, at_samples.z < -3 or at_steps.z > -1, observed, note)


def _not_at_equal_samples(id: str, view: RunView, metric: str | None) -> CheckResult:
    """Why the two runs cannot be compared after as many samples. metric: what both have, None: nothing."""
    other = view.second_run
    sizes = () if _samples(view) is not None else ("config.prompts_per_step", "config.group_size")
    if other is None:
        return wants_second_run(id, "a run of the same task whose samples are fresh, at equal samples", *sizes)
    if metric is None:
        return cannot(id, *sizes, note="the two runs have no evaluation or reward in common with five points up to this step")
    if sizes:
        return cannot(id, *sizes)
    if _samples(other) is None:
        return cannot(id, note="the second run's configuration does not say how many samples a step has")
    return cannot(id, note=f"one of the two runs has fewer than five points of {metric} at equal samples")


def _flat(config: Mapping[str, Json], prefix: str = "") -> dict[str, Json]:
    result: dict[str, Json] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            result |= _flat(value, f"{prefix}{key}.")
        else:
            result[f"{prefix}{key}".lower()] = value
    return result


def _differences(view: RunView, other: RunView, words: tuple[str, ...]) -> list[str]:
    """Configuration keys with one of the words in their last part whose values differ between the two runs."""
    a, b = _flat(view.run.raw_config), _flat(other.run.raw_config)
    keys = sorted(key for key in a.keys() | b.keys() if any(word in key.rsplit(".", 1)[-1] for word in words))
    return [key for key in keys if a.get(key) != b.get(key)]


_MISMATCH = ("mismatch.logprob_diff.mean", "mismatch.prob_diff.mean", "mismatch.kl_k3", "fact.mismatch.lag0", "fact.mismatch.policy")


def _mismatches(view: RunView, other: RunView) -> tuple[str, float, float] | None:
    """The first mismatch metric that both have: its name and the medians of the newest points."""
    for metric in _MISMATCH:
        a, b = finite(view.series(metric)).tail(_POINTS).values, finite(other.series(metric)).tail(_POINTS).values
        if len(a) >= _FEWEST and len(b) >= _FEWEST:
            return metric, median(a), median(b)
    return None


def _no_mismatch(id: str, view: RunView, suitable: str) -> CheckResult:
    """Why the mismatch of the two runs cannot be compared."""
    if view.second_run is None:
        return wants_second_run(id, suitable)
    if not any(len(finite(view.series(metric))) >= _FEWEST for metric in _MISMATCH):
        return cannot(id, _MISMATCH[0])
    return cannot(id, note="the two runs have no measure of mismatch in common with five points up to this step")


def other_set_up(view: RunView, finding: Finding) -> CheckResult:
    """Topology or backend: the second run has another one, and far less mismatch."""
    other = view.second_run
    found = _mismatches(view, other) if other is not None else None
    if other is None or found is None:
        return _no_mismatch("other_set_up", view, "a run of another topology or backend")
    metric, own, theirs = found
    keys = _differences(view, other, _SET_UP)
    observed = {"own": own, "other": theirs, "keys_that_differ": len(keys)}
    note = f"{metric} {own:.4g} here, {theirs:.4g} in the second run; " + (f"differing: {', '.join(keys[:4])}" if keys else "same set-up")
    return answer("other_set_up", bool(keys) and own > 3 * theirs, bool(keys) and own < 1.5 * theirs, observed, note)


def _experts(view: RunView) -> float | None:
    """Experts by the configuration; None where it does not say."""
    values = [v for k, v in _flat(view.run.raw_config).items() if k.rsplit(".", 1)[-1] in _EXPERTS and isinstance(v, (int, float))]
    return float(max(values)) if values else None


def _replays(view: RunView) -> bool:
    return any("routing" in key and "replay" in key and bool(value) for key, value in _flat(view.run.raw_config).items())


def routing(view: RunView, finding: Finding) -> CheckResult:
    """Routing of experts: a dense model has none; a second run that is dense or replays the routes shows far less mismatch."""
    experts, other = _experts(view), view.second_run
    if experts is not None and experts <= 1:
        return answer("routing", False, True, {"experts": experts}, "the model is dense")
    if _replays(view):
        return answer("routing", False, True, {"experts": experts}, "the engine's routes are replayed in the trainer")
    found = _mismatches(view, other) if other is not None else None
    if experts is None:
        return cannot("routing", "config.num_experts")
    if other is None or found is None:
        return _no_mismatch("routing", view, "a dense model, or a run that replays the engine's routing")
    metric, own, theirs = found
    control = _replays(other) or (_experts(other) or 2.0) <= 1
    observed = {"experts": experts, "own": own, "other": theirs}
    note = f"{metric} {own:.4g} with {experts:g} experts, {theirs:.4g} in the second run" + ("" if control else ", which is no control")
    return answer("routing", control and own > 3 * theirs, control and own < 1.5 * theirs, observed, note)


def denominator(view: RunView, finding: Finding) -> CheckResult:
    """Local denominator: another world size or accumulation, and another gradient norm at the start of both runs."""
    other = view.second_run
    if other is None:
        return wants_second_run("denominator", "a run of another world size or gradient accumulation")
    keys = _differences(view, other, _SCALE)
    sides = [finite(run.series("grad.norm")).values for run in (view, other)]
    starts = [values[values > 0][:_POINTS] for values in sides]
    if not keys or min(len(values) for values in starts) < _FEWEST:
        note = "the second run has too few gradient norms" if keys else "the second run has the same world size and accumulation"
        return cannot("denominator", "grad.norm") if len(starts[0]) < _FEWEST else cannot("denominator", note=note)
    own, theirs = (median(values) for values in starts)
    factor = max(own, theirs) / min(own, theirs)
    note = f"gradient norm {own:.3g} at the start, {theirs:.3g} in the second run, which differs in {', '.join(keys[:3])}"
    return answer("denominator", factor > 1.8, factor < 1.25, {"own": own, "other": theirs}, note)


def brake_reversed(view: RunView, finding: Finding) -> CheckResult:
    """The KL brake has the wrong sign: the larger its coefficient, the faster the KL to the reference grows.

    Within the run by an adaptive coefficient, else against a second run with another one.
    """
    within = _coefficient_against_growth(view)
    if within is not None:
        note = f"correlation of the coefficient with the growth of KL after it {within:+.2f}"
        return answer("brake_reversed", within > 0.5, within < 0.0, {"correlation": within}, note)
    other = view.second_run
    if other is None:
        return wants_second_run("brake_reversed", "a run of another KL coefficient", "kl.coef")
    mine, theirs = view.config.get("kl_coef"), other.config.get("kl_coef")
    found = compare(view, "kl.ref", view.step, view.step)
    if not isinstance(mine, (int, float)):
        return cannot("brake_reversed", "config.kl_coef")
    if not isinstance(theirs, (int, float)) or mine == theirs:
        return cannot("brake_reversed", note=f"the second run has no other KL coefficient than {mine:g}")
    if found is None:
        return cannot("brake_reversed", "kl.ref", note="both runs need five points of KL to the reference up to this step")
    more, less = (found.own, found.other) if mine > theirs else (found.other, found.own)
    note = f"KL {more:.3g} with the coefficient {max(mine, theirs):g}, {less:.3g} with {min(mine, theirs):g}"
    return answer("brake_reversed", more > 2 * less, more < less, {"larger_coefficient": more, "smaller_coefficient": less}, note)


def _coefficient_against_growth(view: RunView) -> float | None:
    """Rank-free correlation of the logged coefficient with the growth of log KL over the ten points after it; None if it is constant."""
    coefficient, kl = finite(view.series("kl.coef")), finite(view.series("kl.ref"))
    _, a, b = np.intersect1d(coefficient.steps, kl.steps, return_indices=True)
    x, y = coefficient.values[a], np.log10(np.maximum(kl.values[b], 1e-8))
    if len(x) < 40 or np.ptp(x) < 0.2 * abs(float(np.median(x))):
        return None
    growth = y[10:] - y[:-10]
    return float(np.corrcoef(x[:-10], growth)[0, 1]) if np.ptp(x[:-10]) > 0 and np.ptp(growth) > 0 else None
