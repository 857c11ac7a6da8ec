"""How rules and checks read a run: finite points since the last planned event, baselines, levels, noise and trends."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from server.checks.base import Evidence, Finding, Severity
from server.detectors.baseline import Baseline, Floats, baseline, robust_z, rolling
from server.detectors.level import since
from server.detectors.middle import mean, median
from server.detectors.trend import NO_TREND, Trend, trend
from server.queries.view import EMPTY, RunView, Series

WARM_UP_STEPS = 20
FEWEST = 10
"""Points below which no baseline and no trend is made."""


def finite(series: Series) -> Series:
    """The points whose value is a finite number."""
    keep = np.isfinite(series.values)
    return series if keep.all() else Series(series.steps[keep], series.values[keep])


def points(view: RunView, metric: str) -> Series:
    """Finite points of a metric since the newest planned event."""
    key = ("points", metric)
    found: Series | None = view.scratch.get(key)
    if found is None:
        found = view.scratch[key] = _cut(view, finite_chain(view, metric, view.baseline_start))
    return found


def history(view: RunView, metric: str) -> Series:
    """Finite points of a metric from the run's beginning on."""
    key = ("history", metric)
    found: Series | None = view.scratch.get(key)
    if found is None:
        found = view.scratch[key] = _cut(view, finite_chain(view, metric, None))
    return found


def finite_chain(view: RunView, metric: str, start: int | None) -> Series:
    """Finite points of the whole chain from a step on (None: all), those behind the judged step included: cut before use."""
    key = ("finite", metric, view.attempt, start)
    found: Series | None = view.data.memo.get(key)
    if found is None:
        chain = view.data.chain(metric, view.attempt)
        found = view.data.memo[key] = finite(chain if start is None else chain.since(start))
    return found


def evaluations(view: RunView, metric: str) -> Series:
    """Points of an evaluation since the newest planned event, each evaluation once."""
    key = ("evaluations", metric)
    found: Series | None = view.scratch.get(key)
    if found is None:
        found = view.scratch[key] = unfilled(points(view, metric))
    return found


def unfilled(series: Series) -> Series:
    """The points without those that repeat the one before, where an export fills every step with the last value.

    That is so where every value but the first and the newest stands at two steps or more.
    """
    changed = np.flatnonzero(np.diff(series.values)) + 1
    if len(changed) < 3 or int(np.diff(changed).min()) < 2:
        return series
    kept = np.concatenate(([0], changed))
    return Series(series.steps[kept], series.values[kept])


def _cut(view: RunView, chain: Series) -> Series:
    end = int(chain.steps.searchsorted(view.step, "right"))
    return Series(chain.steps[:end], chain.values[:end])


def spacing(series: Series) -> float:
    """Median distance of neighbouring points, in steps; 1 below two points."""
    last = series.steps[-50:]
    n = len(last)
    if n < 2 or int(last[-1]) - int(last[0]) == n - 1:  # no gap: the usual case, and the quickest
        return 1.0
    return median(np.diff(last))


def window(series: Series, steps: float, most: float, fewest: int = FEWEST) -> int:
    """Points that span `steps` steps at the series' spacing, at least `fewest` and at most `most`."""
    return int(min(most, max(fewest, math.ceil(steps / max(spacing(series), 1.0)))))


def fresh(view: RunView, series: Series) -> bool:
    """Whether the newest point still speaks for the judged step: not older than three spacings (5 steps at least)."""
    if not len(series):
        return False
    age = view.step - int(series.steps[-1])
    return age <= 5 or age <= 3 * spacing(series)


def warmed_up(view: RunView, series: Series, steps: float = WARM_UP_STEPS) -> bool:
    """Whether relative rules may speak: enough points and steps, and the learning rate's warm-up is over."""
    if len(series) < FEWEST:
        return False
    planned = view.config.get("lr_warmup_steps")
    rewards = history(view, "reward.mean")
    first = int((rewards if len(rewards) else series).steps[0])
    ramp = float(planned) if isinstance(planned, (int, float)) else 0.0
    return view.step - int(series.steps[0]) >= steps and view.step - first >= ramp


class Moved(NamedTuple):
    """A metric's newest level against its baseline; z of the median of the newest points."""

    now: float
    base: Baseline
    z: float
    steps: tuple[int, int]
    onset: int


def moved(
    view: RunView, metric: str, *, newest: int = 3, floor: float = 0.05, least: float = 0.0, window_steps: float = 50
) -> Moved | None:
    """How far the newest points have left the run's own past; None without a baseline or without a fresh point."""
    key = ("moved", metric, newest, floor, least, window_steps)
    if key not in view.scratch:
        view.scratch[key] = _moved(view, points(view, metric), newest, floor, least, window_steps)
    found: Moved | None = view.scratch[key]
    return found


def _moved(view: RunView, series: Series, newest: int, floor: float, least: float, window_steps: float) -> Moved | None:
    if not fresh(view, series) or len(series) < FEWEST + newest:
        return None
    base = baseline(series.values, window(series, window_steps, 50), gap=max(5, newest), floor=floor, least=least)
    if base is None:
        return None
    now = median(series.values[-newest:])
    z = robust_z(now, base)
    limit = base.median + math.copysign(4 * base.spread, z)
    at = since(series.values, limit, allowed=2, below=z < 0)
    onset = int(series.steps[min(at, len(series) - 1)])
    return Moved(now, base, z, (int(series.steps[base.first]), int(series.steps[base.last])), onset)


def level(view: RunView, metric: str, newest: int = 3) -> float | None:
    """Median of the newest finite points (one that still speaks for the step); None without."""
    series = points(view, metric)
    return median(series.values[-newest:]) if fresh(view, series) else None


def mean_of(view: RunView, metric: str, newest: int = 3) -> float | None:
    """Mean of the newest finite points; None without a fresh one."""
    series = points(view, metric)
    return mean(series.values[-newest:]) if fresh(view, series) else None


def since_onset(view: RunView, metric: str, onset: int, newest: int = 3) -> float | None:
    """Mean of the newest finite points at or after an onset, however old they are; None without one."""
    series = history(view, metric).since(onset)
    return mean(series.values[-newest:]) if len(series) else None


def trend_of(view: RunView, metric: str, steps: float = 60, most: int = 60, *, log: bool = False) -> tuple[Trend, Series]:
    """Trend of the newest window (in steps and points) and its points; of log10 of the positive ones if log."""
    key = ("trend", metric, steps, most, log)
    found: tuple[Trend, Series] | None = view.scratch.get(key)
    if found is None:
        found = view.scratch[key] = _trend_of(view, points(view, metric), steps, most, log)
    return found


def _trend_of(view: RunView, series: Series, steps: float, most: int, log: bool) -> tuple[Trend, Series]:
    if log:
        keep = series.values > 0
        series = Series(series.steps[keep], np.log10(series.values[keep]))
    if not fresh(view, series):
        return NO_TREND, EMPTY
    part = series.tail(window(series, steps, most))
    return trend(part.steps, part.values), part


def log_trend(part: Series) -> Trend:
    """Trend of log10 of a window whose values are all positive."""
    return trend(part.steps, np.log10(part.values))


def reward_metric(view: RunView) -> str | None:
    """The task reward this run has: as logged, else of its trajectories."""
    return next((metric for metric in ("reward.generated.mean", "reward.mean", "fact.reward.mean") if view.has(metric)), None)


def reward_range(view: RunView) -> tuple[float, float]:
    """Lowest and highest reward that a response can get: 0..1 where all seen values lie in it, else what was seen."""
    key = ("reward range",)
    found: tuple[float, float] | None = view.scratch.get(key)
    if found is None:
        low, high = 0.0, 1.0
        for metric, lowest in (("reward.min", True), ("reward.max", False), ("reward.mean", True), ("reward.mean", False)):
            n = len(history(view, metric))
            if n:
                seen = float(_extremes(view, metric, lowest)[n - 1])
                low, high = min(low, seen), max(high, seen)
        found = view.scratch[key] = low, high
    return found


def _extremes(view: RunView, metric: str, lowest: bool) -> Floats:
    """The lowest or highest value so far at every finite point of the whole chain, [n]."""
    key = ("extremes", metric, view.attempt, lowest)
    found: Floats | None = view.data.memo.get(key)
    if found is None:
        pick = np.minimum if lowest else np.maximum
        found = view.data.memo[key] = pick.accumulate(finite_chain(view, metric, None).values)
    return found


def noise(view: RunView, metric: str, newest: int = 50) -> float:
    """Standard deviation of one point of a metric around its course, from neighbours' differences; infinite below four points."""
    key = ("noise", metric, newest)
    found: float | None = view.scratch.get(key)
    if found is None:
        found = view.scratch[key] = _noise(points(view, metric).values[-newest:])
    return found


def _noise(values: Floats) -> float:
    if len(values) < 4:
        return math.inf
    jumps = values[1:] - values[:-1]
    apart = jumps - mean(jumps)
    deviation = math.sqrt(mean(apart * apart))
    return max(1.4826 * median(np.abs(jumps - median(jumps))), 0.5 * deviation) / math.sqrt(2)


class Shift(NamedTuple):
    """Difference of two means, new minus old, with its standard error."""

    change: float
    error: float
    before: float
    after: float

    @property
    def z(self) -> float:
        """The difference in standard errors."""
        return self.change / self.error if self.error > 0 else 0.0


def shift(view: RunView, metric: str, old: tuple[int, int], new: tuple[int, int]) -> Shift | None:
    """Change of a metric's mean from steps old to steps new (both inclusive); None where either holds no point."""
    series = points(view, metric)
    parts = [series.values[series.steps.searchsorted(a) : series.steps.searchsorted(b, "right")] for a, b in (old, new)]
    if not len(parts[0]) or not len(parts[1]):
        return None
    one = noise(view, metric, 100)
    error = one * math.sqrt(1 / len(parts[0]) + 1 / len(parts[1])) if math.isfinite(one) else math.inf
    before, after = mean(parts[0]), mean(parts[1])
    return Shift(after - before, error, before, after)


def reward_fell(view: RunView, onset: int, z: float = 3.0) -> Shift | None:
    """The reward's fall since a step against the 30 steps before, if it is beyond z standard errors; else None."""
    metric = reward_metric(view)
    if metric is None:
        return None
    found = shift(view, metric, (onset - 30, onset - 1), (max(onset, view.step - 15), view.step))
    return found if found is not None and found.z < -z else None


def evidence(view: RunView, metric: str, onset: int, newest: int = 5, note: str = "") -> Evidence | None:
    """Median before the onset (50 points at most) against the newest points since; None where the metric has none.

    A metric that has no point since the onset yet is told by its newest ones.
    """
    series = history(view, metric)
    if not len(series):
        return None
    at = int(series.steps.searchsorted(onset))
    before, steps = series.values[:at][-50:], series.steps[:at][-50:]
    return Evidence(
        metric,
        median(before) if len(before) else None,
        median((series.values[at:] if at < len(series) else series.values)[-newest:]),
        (int(steps[0]), int(steps[-1])) if len(steps) else None,
        len(before) or None,
        note,
    )


def evidences(view: RunView, onset: int, *metrics: str, newest: int = 5) -> tuple[Evidence, ...]:
    """Evidence rows of those of the metrics that the run has."""
    rows = (evidence(view, metric, onset, newest) for metric in metrics)
    return tuple(row for row in rows if row is not None)


def finding(
    view: RunView,
    symptom: str,
    severity: Severity,
    onset: int,
    summary: str,
    metric: str,
    *others: str,
    slice: str | None = None,
    newest: int = 5,
    hard: bool = False,
) -> Finding:
    """A finding with one row of evidence for the metric and for each of the others that the run has."""
    return Finding(symptom, severity, onset, summary, metric, slice, evidences(view, onset, metric, *others, newest=newest), hard=hard)


def rolled(view: RunView, metric: str) -> tuple[Series, Floats, Floats]:
    """A metric's finite points since the planned event with the baseline of every one of them: medians and spreads, [n]."""
    start = view.baseline_start
    chain = finite_chain(view, metric, start)
    middle, spread = view.data.grown(
        metric, view.attempt, ("rolled", start), chain.steps, lambda position: rolling(chain.values, start=position)
    )
    series = points(view, metric)
    return series, middle[: len(series)], spread[: len(series)]


def beyond_for(view: RunView, metric: str, limit: float, *, allowed: int = 2) -> int:
    """First step of the newest stretch in which a metric lies above a limit; the judged step where it does not."""
    series = points(view, metric)
    at = since(series.values, limit, allowed)
    return int(series.steps[at]) if at < len(series) else view.step


def below_for(view: RunView, metric: str, limit: float, *, allowed: int = 2) -> int:
    """First step of the newest stretch in which a metric lies below a limit; the judged step where it does not."""
    series = points(view, metric)
    at = since(series.values, limit, allowed, below=True)
    return int(series.steps[at]) if at < len(series) else view.step


def block_chain(view: RunView, metric: str, steps: int) -> tuple[Series, int]:
    """block_means of all the points of the chain, those behind the judged step included, and how many of the means are known by now."""
    series = points(view, metric)
    chain = finite_chain(view, metric, view.baseline_start)
    if not len(series) or spacing(series) >= steps:
        return chain, len(series)
    key = ("block means", metric, view.attempt, view.baseline_start, steps)
    means: Series | None = view.data.memo.get(key)
    if means is None:
        means = view.data.memo[key] = _block_means(chain, steps, int(chain.steps[-1]) + steps)
    return means, int(means.steps.searchsorted(view.step, "right"))


def block_means(series: Series, steps: int, now: int) -> Series:
    """Means over whole blocks of `steps` steps counted from the first point; the last block counts once `now` has reached its end.

    Points that lie further apart than a block are means already and stay as they are.
    """
    return series if not len(series) or spacing(series) >= steps else _block_means(series, steps, now)


def _block_means(series: Series, steps: int, now: int) -> Series:
    first = int(series.steps[0])
    blocks = (series.steps - first) // steps
    whole = blocks < (now - first + 1) // steps
    numbers, of = np.unique(blocks[whole], return_inverse=True)
    totals = np.bincount(of, weights=series.values[whole])
    return Series(first + numbers * steps + steps - 1, totals / np.bincount(of))
