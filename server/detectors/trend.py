"""Trends: Mann-Kendall with ties and autocorrelation, and the Theil-Sen slope."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

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
    upper = np.triu_indices(n, 1)
    rise = values[upper[1]] - values[upper[0]]
    slope = median(rise / (steps[upper[1]] - steps[upper[0]]))
    s = float(np.sign(rise).sum())
    _, ties = np.unique(values, return_counts=True)
    variance = (n * (n - 1) * (2 * n + 5) - float((ties * (ties - 1) * (2 * ties + 5)).sum())) / 18
    if variance <= 0:
        return Trend(0.0, 1.0, slope, n)
    r = max(0.0, autocorrelation(values - slope * steps))
    inflated = variance * (1 + r) / max(1 - r, 0.02)
    z = (s - np.sign(s)) / np.sqrt(inflated)
    return Trend(s / (n * (n - 1) / 2), float(2 * norm.sf(abs(z))), slope, n)


def autocorrelation(values: Floats) -> float:
    """Lag-1 autocorrelation; 0 for values that are constant but for rounding."""
    centred = values - values.mean()
    power = float((centred**2).sum())
    rounding = len(values) * (1e-12 * float(np.abs(values).max(initial=0.0))) ** 2
    return float((centred[1:] * centred[:-1]).sum() / power) if power > rounding else 0.0
