"""The robust baseline: median and scaled median absolute deviation of a window that ends before the judged point."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from server.detectors.middle import median

Floats = NDArray[np.float64]

MADN = 1.4826
"""A median absolute deviation times this is the standard deviation of a normal distribution."""


class Baseline(NamedTuple):
    """median and spread of the window; first and last are positions of its ends in the series."""

    median: float
    spread: float
    first: int
    last: int

    @property
    def n(self) -> int:
        """Points in the window."""
        return self.last - self.first + 1


def median_spread(values: Floats, floor: float = 0.05, least: float = 0.0) -> tuple[float, float]:
    """Median and MADN, the latter at least floor times the absolute median and at least `least`."""
    middle = median(values)
    return middle, max(MADN * median(np.abs(values - middle)), floor * abs(middle), least)


def baseline(values: Floats, window: int = 50, gap: int = 5, fewest: int = 10, floor: float = 0.05, least: float = 0.0) -> Baseline | None:
    """Baseline for the last of the values: the `window` points that end `gap` points before it; None with fewer than `fewest`."""
    last = len(values) - 1 - gap
    first = max(0, last - window + 1)
    if last - first + 1 < fewest:
        return None
    return Baseline(*median_spread(values[first : last + 1], floor, least), first, last)


def rolling(
    values: Floats, window: int = 50, gap: int = 5, fewest: int = 10, floor: float = 0.05, least: float = 0.0, *, start: int = 0
) -> tuple[Floats, Floats]:
    """Baselines for every value from position `start` on: medians [n - start] and spreads, NaN where fewer than `fewest` points lie before.

    The value at a position uses nothing after it, so a prefix of the input gives a prefix of the answer.
    """
    n = len(values)
    middle, spread = np.full(n - start, np.nan), np.full(n - start, np.nan)
    whole = window + gap - 1
    """First position whose window is complete."""
    for position in range(max(start, fewest + gap - 1), min(n, whole)):
        middle[position - start], spread[position - start] = median_spread(values[: position - gap + 1])
    first = max(start, whole)
    if n > first:
        windows = sliding_window_view(values[first - whole :], window)[: n - first]
        medians = np.median(windows, axis=1)
        middle[first - start :] = medians
        spread[first - start :] = MADN * np.median(np.abs(windows - medians[:, None]), axis=1)
    return middle, np.maximum(spread, np.maximum(floor * np.abs(middle), least))


def robust_z(value: float, base: Baseline) -> float:
    """Distance from the baseline's median in its spreads; infinite where the spread is 0 and the value differs."""
    distance = value - base.median
    if base.spread > 0:
        return distance / base.spread
    return 0.0 if distance == 0 else float(np.copysign(np.inf, distance))
