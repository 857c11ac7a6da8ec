"""How rules and checks read a run: finite points since the last planned event, baselines, levels, noise and trends."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from server.checks.base import Evidence, Finding, Severity
from server.detectors.baseline import Baseline, baseline, robust_z, rolling
from server.detectors.level import since
from server.detectors.middle import median
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
        found = view.scratch[key] = finite(view.series(metric).since(view.baseline_start))
    return found


def spacing(series: Series) -> float:
    """Median distance of neighbouring points, in steps; 1 below two points."""
    last = series.steps[-50:]
    if len(last) < 2 or last[-1] - last[0] == len(last) - 1:  # no gap: the usual case, and the quickest
        return 1.0
    return median(np.diff(last))


def window(series: Series, steps: float, most: float, fewest: int = FEWEST) -> int:
    """Points that span `steps` steps at the series' spacing, at least `fewest` and at most `most`."""
    return int(min(most, max(fewest, math.ceil(steps / max(spacing(series), 1.0)))))


def fresh(view: RunView, series: Series) -> bool:
    """Whether the newest point still speaks for the judged step: not older than three spacings (5 steps at least)."""
    return len(series) > 0 and view.step - int(series.steps[-1]) <= max(5.0, 3 * spacing(series))


def warmed_up(view: RunView, series: Series, steps: float = WARM_UP_STEPS) -> bool:
    """Whether relative rules may speak: enough points and steps, and the learning rate's warm-up is over."""
    if len(series) < FEWEST:
        return False
    planned = view.config.get("lr_warmup_steps")
    first = int(finite(view.series("reward.mean")).steps[0]) if view.has("reward.mean") else int(series.steps[0])
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
    series = points(view, metric)
    if not fresh(view, series) or len(series) < FEWEST + newest:
        return None
    base = baseline(series.values, window(series, window_steps, 50), gap=max(5, newest), floor=floor, least=least)
    if base is None:
        return None
    now = median(series.values[-newest:])
    z = robust_z(now, base)
    limit = base.median + math.copysign(4 * base.spread, z)
    sign = 1.0 if z >= 0 else -1.0
    at = since(sign * series.values, sign * limit, allowed=2)
    onset = int(series.steps[min(at, len(series) - 1)])
    return Moved(now, base, z, (int(series.steps[base.first]), int(series.steps[base.last])), onset)


def level(view: RunView, metric: str, newest: int = 3) -> float | None:
    """Median of the newest finite points (one that still speaks for the step); None without."""
    series = points(view, metric)
    return median(series.values[-newest:]) if fresh(view, series) else None


def mean_of(view: RunView, metric: str, newest: int = 3) -> float | None:
    """Mean of the newest finite points; None without a fresh one."""
    series = points(view, metric)
    return float(np.mean(series.values[-newest:])) if fresh(view, series) else None


def since_onset(view: RunView, metric: str, onset: int, newest: int = 3) -> float | None:
    """Mean of the newest finite points at or after an onset, however old they are; None without one."""
    series = finite(view.series(metric).since(onset))
    return float(np.mean(series.values[-newest:])) if len(series) else None


def trend_of(view: RunView, metric: str, steps: float = 60, most: int = 60, *, log: bool = False) -> tuple[Trend, Series]:
    """Trend of the newest window (in steps and points) and its points; of log10 of the positive ones if log."""
    series = points(view, metric)
    if log:
        keep = series.values > 0
        series = Series(series.steps[keep], np.log10(series.values[keep]))
    if not fresh(view, series):
        return NO_TREND, EMPTY
    part = series.tail(window(series, steps, most))
    return trend(part.steps, part.values), part


def reward_metric(view: RunView) -> str | None:
    """The task reward this run has: as logged, else of its trajectories."""
    found = view.first_of("reward.generated.mean", "reward.mean", "fact.reward.mean")
    return found[0] if found else None


def reward_range(view: RunView) -> tuple[float, float]:
    """Lowest and highest reward that a response can get: 0..1 where all seen values lie in it, else what was seen."""
    low, high = 0.0, 1.0
    for metric, pick in (("reward.min", np.min), ("reward.max", np.max), ("reward.mean", np.min), ("reward.mean", np.max)):
        series = finite(view.series(metric))
        if len(series):
            seen = float(pick(series.values))
            low, high = min(low, seen), max(high, seen)
    return low, high


def noise(view: RunView, metric: str, newest: int = 50) -> float:
    """Standard deviation of one point of a metric around its course, from neighbours' differences; infinite below four points."""
    series = points(view, metric).tail(newest)
    if len(series) < 4:
        return math.inf
    jumps = np.diff(series.values)
    return float(max(1.4826 * median(np.abs(jumps - median(jumps))), 0.5 * float(np.std(jumps))) / math.sqrt(2))


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
    parts = [series.values[(series.steps >= a) & (series.steps <= b)] for a, b in (old, new)]
    if not len(parts[0]) or not len(parts[1]):
        return None
    one = noise(view, metric, 100)
    error = one * math.sqrt(1 / len(parts[0]) + 1 / len(parts[1])) if math.isfinite(one) else math.inf
    before, after = float(parts[0].mean()), float(parts[1].mean())
    return Shift(after - before, error, before, after)


def reward_fell(view: RunView, onset: int, z: float = 3.0) -> Shift | None:
    """The reward's fall since a step against the 30 steps before, if it is beyond z standard errors; else None."""
    metric = reward_metric(view)
    if metric is None:
        return None
    found = shift(view, metric, (onset - 30, onset - 1), (max(onset, view.step - 15), view.step))
    return found if found is not None and found.z < -z else None


def evidence(view: RunView, metric: str, onset: int, newest: int = 5, note: str = "") -> Evidence | None:
    """Median before the onset (50 points at most) against the newest points; None where the metric has none."""
    series = finite(view.series(metric))
    if not len(series):
        return None
    before = series.values[series.steps < onset][-50:]
    steps = series.steps[series.steps < onset][-50:]
    return Evidence(
        metric,
        median(before) if len(before) else None,
        median(series.values[-newest:]),
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


def rolled(view: RunView, metric: str) -> tuple[Series, np.ndarray, np.ndarray]:
    """A metric's finite points since the planned event with the baseline of every one of them: medians and spreads, [n]."""
    start = view.baseline_start
    key = ("rolled", metric, view.attempt, start)
    if key not in view.data.memo:
        chain = finite(view.data.chain(metric, view.attempt).since(start))
        view.data.memo[key] = (chain, *rolling(chain.values))
    chain, middle, spread = view.data.memo[key]
    end = int(np.searchsorted(chain.steps, view.step, side="right"))
    return Series(chain.steps[:end], chain.values[:end]), middle[:end], spread[:end]


def beyond_for(view: RunView, metric: str, limit: float, *, allowed: int = 2) -> int:
    """First step of the newest stretch in which a metric lies above a limit; the judged step where it does not."""
    series = points(view, metric)
    at = since(series.values, limit, allowed)
    return int(series.steps[at]) if at < len(series) else view.step


def below_for(view: RunView, metric: str, limit: float, *, allowed: int = 2) -> int:
    """First step of the newest stretch in which a metric lies below a limit; the judged step where it does not."""
    series = points(view, metric)
    at = since(-series.values, -limit, allowed)
    return int(series.steps[at]) if at < len(series) else view.step


def block_means(series: Series, steps: int, now: int) -> Series:
    """Means over whole blocks of `steps` steps counted from the first point; the last block counts once `now` has reached its end.

    Points that lie further apart than a block are means already and stay as they are.
    """
    if not len(series) or spacing(series) >= steps:
        return series
    first = int(series.steps[0])
    blocks = (series.steps - first) // steps
    whole = blocks < (now - first + 1) // steps
    numbers, of = np.unique(blocks[whole], return_inverse=True)
    totals = np.bincount(of, weights=series.values[whole])
    return Series(first + numbers * steps + steps - 1, totals / np.bincount(of))
