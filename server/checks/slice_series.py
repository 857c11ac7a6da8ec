"""Series of a run's slices (tasks): training reward and evaluation of each, with the samples behind every point."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ingest.schema.metrics import eval_parts
from server.checks.measure import finite
from server.detectors.baseline import Floats
from server.detectors.falls import Falls, falls
from server.queries.view import RunView, Series

SAMPLES, PROMPTS = 200, 30
"""What a slice needs on both sides of a comparison: so many responses, or so many prompts (symptoms 19)."""
POINTS = 20
"""Points that stand for it where nothing says how many responses a point has."""
EVALUATIONS = 4
"""Evaluations that stand for it."""
_WIDE = 4
"""The wide window holds so many times as much: for falls that are slow or small."""
_GAPS = (0, 50, 200)
_FIRST = 10
"""Points from which a run's habits are read: they do not change while it goes on."""
_TOGETHER = frozenset({"heldout", "overall", "primary", "all", "mean", "avg", "average", "total"})
"""Names under which an evaluation of everything is logged."""


class Slice(NamedTuple):
    """One series of a slice. samples [n]: weight of each point, in responses where they are known, else 1."""

    name: str
    metric: str
    series: Series
    samples: Floats
    falls: Falls


def training_slices(view: RunView) -> list[Slice]:
    """Training rewards of the slices since the planned event, over the whole chain; causal point by point."""
    return _remembered(view, "training")


def eval_slices(view: RunView) -> list[Slice]:
    """The same of the evaluations."""
    return _remembered(view, "eval")


def _remembered(view: RunView, kind: str) -> list[Slice]:
    key = ("slices", kind, view.attempt, view.baseline_start)
    found: list[Slice] | None = view.data.memo.get(key)
    if found is None:
        made = _training(view) if kind == "training" else _evaluations(view)
        found = view.data.memo[key] = [one for one in made if len(one.series)]
    return found


def _chain(view: RunView, metric: str) -> Series:
    return finite(view.data.chain(metric, view.attempt).since(view.baseline_start))


def _training(view: RunView) -> list[Slice]:
    result = []
    names = view.data.metrics()
    logged = {
        m.removeprefix("reward.task.").removesuffix(".mean"): m for m in names if m.startswith("reward.task.") and m.endswith(".mean")
    }
    derived = {m.removeprefix("fact.task.reward."): m for m in names if m.startswith("fact.task.reward.")}
    for name in sorted(logged.keys() | derived.keys()):
        # A logged mean is of the whole batch; rows may be written less often.
        metric = logged.get(name) or derived[name]
        series = _chain(view, metric)
        if not len(series):
            continue
        samples, prompts = _samples(view, name, series.steps)
        if samples is None:
            result.append(
                Slice(
                    name, metric, series, np.ones(len(series)), falls(series.values, np.ones(len(series)), (POINTS, _WIDE * POINTS), _GAPS)
                )
            )
            continue
        if not _complete(series, _chain(view, derived.get(name, metric))):
            first = samples[:_FIRST]
            samples = np.full(len(series), float(first[first > 1].mean()) if (first > 1).any() else 1.0)
        need = min(float(SAMPLES), PROMPTS * prompts)
        result.append(Slice(name, metric, series, samples, falls(series.values, samples, (need, _WIDE * need), _GAPS, share=0.25)))
    return result


def _complete(series: Series, rows: Series) -> bool:
    """Whether rows hold all responses of each step: then their means are the logged ones. A part of them cannot say how many there were."""
    first = Series(rows.steps[:_FIRST], rows.values[:_FIRST])
    at = np.searchsorted(series.steps, first.steps)
    known = at < len(series)
    known[known] = series.steps[at[known]] == first.steps[known]
    return bool(known.any()) and bool((np.abs(series.values[at[known]] - first.values[known]) < 1e-3).all())


def _samples(view: RunView, name: str, steps: NDArray[np.int64]) -> tuple[Floats | None, float]:
    """Responses behind each point, and responses of one prompt; None where no row says it."""
    share, size, prompts = (_chain(view, m) for m in (f"fact.mix.task.{name}", "fact.n", "fact.prompt.n"))
    if not len(share) or not len(size):
        return None, 1.0
    n = _at(share, steps) * _at(size, steps)
    # From the first points, which do not change while a run goes on.
    group = float(np.median(size.values[:_FIRST])) / max(float(np.median(prompts.values[:_FIRST])), 1.0) if len(prompts) else 1.0
    return np.maximum(n, 1.0), max(group, 1.0)


def _at(series: Series, steps: NDArray[np.int64]) -> Floats:
    """The series' value at each of the steps, that of the newest point before it where it has none; 0 before its first."""
    at = np.searchsorted(series.steps, steps, side="right") - 1
    return np.asarray(np.where(at >= 0, series.values[np.maximum(at, 0)], 0.0), dtype=np.float64)


def _evaluations(view: RunView) -> list[Slice]:
    chosen: dict[str, str] = {}
    names = view.data.metrics()
    # TRL logs one evaluation a reward function: that is a part of the reward, not a slice of the data.
    functions = {m.removeprefix("reward.fn.").removesuffix(".mean") for m in names if m.startswith("reward.fn.")}
    for metric in names:
        parts = eval_parts(metric)
        if parts is None or parts[0] in _TOGETHER | functions or not (parts[1] == "score" or parts[1].startswith("mean@")):
            continue
        chosen.setdefault(parts[0], metric)
    result = []
    for name, metric in sorted(chosen.items()):
        series = _chain(view, metric)
        ones = np.ones(len(series))
        result.append(Slice(name, metric, series, ones, falls(series.values, ones, (EVALUATIONS, 2 * EVALUATIONS), (0, 10))))
    return result


def position(one: Slice, step: int) -> int:
    """Position of the slice's newest point up to the step; -1: there is none."""
    return int(np.searchsorted(one.series.steps, step, side="right")) - 1


def mean_between(one: Slice, first: int, last: int) -> tuple[float, float] | None:
    """Weighted mean and samples of the points of steps first..last; None without one."""
    here = slice(int(np.searchsorted(one.series.steps, first)), int(np.searchsorted(one.series.steps, last, side="right")))
    weight = float(one.samples[here].sum())
    return (float((one.series.values[here] * one.samples[here]).sum() / weight), weight) if weight > 0 else None
