"""Median and mean of a short window, several times quicker than numpy's general ones, which cost most where rules run step by step."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

_SHORT = 16
"""Values up to which a list is ordered quicker than an array."""
_LONG = 400
"""Values from which selecting the middle ones is quicker than ordering all."""
_ADDED_IN_ORDER = 7
"""Values up to which numpy adds one after the other, as Python does."""


def median(values: ArrayLike) -> float:
    """The middle of the values, the mean of the two middle ones where there are two; NaN if any is NaN or there is none."""
    found = values if isinstance(values, np.ndarray) else np.asarray(values, dtype=np.float64)
    n = len(found)
    half = n // 2
    if 0 < n <= _SHORT:
        few: list[float] = found.tolist()
        total = sum(few)
        if total == total:  # else there may be a not-a-number, which no list can be ordered by
            few.sort()
            return float(few[half] if n % 2 else (few[half - 1] + few[half]) / 2)
    if n == 0:
        return float("nan")
    ordered = np.array(found, dtype=np.float64)
    if n < _LONG:
        ordered.sort()
    else:  # the last place too: not-a-number is ordered behind everything
        ordered.partition((half - 1, half, n - 1))
    last = float(ordered[-1])
    if last != last:
        return last
    return float(ordered[half]) if n % 2 else float((ordered[half - 1] + ordered[half]) / 2)


def mean(values: NDArray[np.float64]) -> float:
    """What numpy's mean gives; the values must not be empty."""
    n = len(values)
    return float(sum(values.tolist()) / n) if n <= _ADDED_IN_ORDER else float(np.add.reduce(values) / n)
