"""Spikes: single points far above their own past, on a logarithmic scale."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from server.detectors.baseline import Floats, rolling


def spikes(
    values: Floats, z: float = 6.0, factor: float = 3.0, window: int = 50, gap: int = 5, fewest: int = 10, *, start: int = 0
) -> NDArray[np.bool_]:
    """Which points from position `start` on exceed their baseline by z robust deviations of log10 and by the factor; [n - start], causal.

    The spread of log10 has a floor of 10 % of a decade. Values of 0 or less are no spikes and enter no baseline as such: they count
    as the smallest positive value seen so far.
    """
    logs = np.log10(_positive(values))
    middle, spread = rolling(logs, window, gap, fewest, floor=0.0, least=0.1, start=start)
    values, logs = values[start:], logs[start:]
    with np.errstate(invalid="ignore"):
        return np.asarray((logs > middle + z * spread) & (logs > middle + np.log10(factor)) & (values > 0), dtype=np.bool_)


def _positive(values: Floats) -> Floats:
    smallest = np.minimum.accumulate(np.where(values > 0, values, np.inf))
    return np.where(values > 0, values, np.where(np.isfinite(smallest), smallest, 1e-12))
