"""Trends: Mann-Kendall with ties and autocorrelation, and the Theil-Sen slope."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from server.detectors.baseline import Floats
from server.detectors.middle import median

MOST_POINTS = 240
"""Longer series are thinned to this many evenly spaced points: pairs grow with the square."""


class Trend(NamedTuple):
    """tau: Kendall's rank correlation with time; p: two-sided; slope: Theil-Sen, per step; points after thinning."""

    tau: float
    p: float
    slope: float
    points: int


NO_TREND = Trend(0.0, 1.0, 0.0, 0)


def trend(steps: NDArray[np.int64], values: Floats) -> Trend:
    """Trend of finite values over their steps.

    The variance of Kendall's S has the correction for ties and is widened by the lag-1 autocorrelation r of the values
    around the slope: effective n = n (1 - r) / (1 + r). Fewer than 8 points are no trend.
    """
    if len(values) > MOST_POINTS:
        picked = np.linspace(0, len(values) - 1, MOST_POINTS).round().astype(np.int64)
        steps, values = steps[picked], values[picked]
    n = len(values)
    if n < 8:
        return NO_TREND
    first, second, apart = _pairs(n)
    rise = values[second] - values[first]
    even = int(steps[-1]) - int(steps[0]) == n - 1
    slope = median(rise / (apart if even else steps[second] - steps[first]))
    s = float(np.count_nonzero(rise > 0) - np.count_nonzero(rise < 0))
    variance = (n * (n - 1) * (2 * n + 5) - _ties(values)) / 18
    if variance <= 0:
        return Trend(0.0, 1.0, slope, n)
    r = max(0.0, autocorrelation(values - slope * steps))
    inflated = variance * (1 + r) / max(1 - r, 0.02)
    z = (s - (s > 0) + (s < 0)) / math.sqrt(inflated)
    return Trend(s / (n * (n - 1) / 2), float(2 * ndtr(-abs(z))), slope, n)


@lru_cache(maxsize=MOST_POINTS)
def _pairs(n: int) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats]:
    """Positions of the first and the second point of every pair, and their distance where no step is left out."""
    first, second = np.triu_indices(n, 1)
    return first, second, (second - first).astype(np.float64)


def _ties(values: Floats) -> float:
    """Sum over the values that occur t times of t (t - 1) (2 t + 5)."""
    ordered = np.sort(values)
    if not (ordered[1:] == ordered[:-1]).any():
        return 0.0
    _, times = np.unique(ordered, return_counts=True)
    return float((times * (times - 1) * (2 * times + 5)).sum())


def autocorrelation(values: Floats) -> float:
    """Lag-1 autocorrelation; 0 for values that are constant but for rounding."""
    n = len(values)
    centred = values - np.add.reduce(values) / n
    power = float(np.add.reduce(centred * centred))
    rounding = n * float(np.square(1e-12 * np.maximum.reduce(np.abs(values), initial=0.0)))
    return float(np.add.reduce(centred[1:] * centred[:-1]) / power) if power > rounding else 0.0
