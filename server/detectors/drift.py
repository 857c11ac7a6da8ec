"""Slow changes of level: EWMA, Page-Hinkley and CUSUM."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from server.detectors.baseline import Floats


def ewma(values: Floats, weight: float = 0.2) -> Floats:
    """Exponentially weighted means [n]: E_t = weight * x_t + (1 - weight) * E_(t-1), E_0 = x_0."""
    result = np.empty(len(values))
    current = float(values[0]) if len(values) else 0.0
    for position, value in enumerate(values.tolist()):
        current = weight * value + (1 - weight) * current
        result[position] = current
    return result


def ewma_limit(spread: float, width: float = 5.0, weight: float = 0.2) -> float:
    """Half-width of the band in which an EWMA of independent points stays: width * spread * sqrt(weight / (2 - weight))."""
    return float(width * spread * np.sqrt(weight / (2 - weight)))


def best_so_far(values: Floats, window: int, rank: int) -> Floats:
    """Highest value so far that all but `rank` of `window` neighbouring values reach, [n]; minus infinity before the first full window."""
    best = np.full(len(values), -np.inf)
    if len(values) >= window:
        best[window - 1 :] = np.maximum.accumulate(np.sort(sliding_window_view(values, window), axis=1)[:, rank])
    return best


def page_hinkley(values: Floats, slack: float = 0.05) -> Floats:
    """Downward Page-Hinkley statistic [n]: S_t = max(0, S_(t-1) + mean_t - x_t - slack), mean_t over all points up to t."""
    if not len(values):
        return np.empty(0)
    means = np.cumsum(values) / np.arange(1, len(values) + 1)
    return _one_sided(means - values - slack)


def cusum(values: Floats, target: float, slack: float) -> Floats:
    """Upward CUSUM [n]: S_t = max(0, S_(t-1) + x_t - target - slack)."""
    return _one_sided(values - target - slack)


def _one_sided(increments: Floats) -> Floats:
    """max(0, S + increment) for every point: the running sum minus its lowest value so far, 0 included."""
    total = np.cumsum(increments)
    return total - np.minimum(np.minimum.accumulate(total), 0.0)
