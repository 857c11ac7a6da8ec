"""The median of a short window, several times quicker than numpy's general one, which costs most where rules run step by step."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


def median(values: ArrayLike) -> float:
    """The middle of the values, the mean of the two middle ones where there are two; NaN if any is NaN or there is none."""
    ordered = np.sort(np.asarray(values, dtype=np.float64), axis=None)
    n = ordered.size
    if n == 0 or np.isnan(ordered[-1]):
        return float("nan")
    half = n // 2
    return float(ordered[half]) if n % 2 else float((ordered[half - 1] + ordered[half]) / 2)
