"""Levels: how many of the newest points lie beyond a limit, and since when."""

from __future__ import annotations

import numpy as np

from server.detectors.baseline import Floats


def beyond(values: Floats, limit: float, of: int) -> int:
    """How many of the last `of` values exceed the limit; NaN does not."""
    return int(np.count_nonzero(values[-of:] > limit))


def since(values: Floats, limit: float, allowed: int = 1) -> int:
    """Position of the first point of the newest stretch above the limit that `allowed` consecutive points may interrupt.

    The length of the series where the newest points are not above the limit.
    """
    above = np.flatnonzero(values > limit)
    if not len(above) or above[-1] < len(values) - 1 - allowed:
        return len(values)
    breaks = np.flatnonzero(np.diff(above) > allowed + 1)
    return int(above[breaks[-1] + 1]) if len(breaks) else int(above[0])


def share(values: Floats, limit: float) -> float:
    """Share of finite values above the limit; 0 without any."""
    known = values[np.isfinite(values)]
    return float((known > limit).mean()) if len(known) else 0.0
