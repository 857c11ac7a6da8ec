"""Ranks; scipy's own come with a module that takes a second to load."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def rankdata(values: ArrayLike) -> NDArray[np.float64]:
    """Rank of each finite value, from 1; equal values get the mean of their ranks."""
    _, of, times = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(times) - (times - 1) / 2)[of.reshape(-1)], dtype=np.float64)
