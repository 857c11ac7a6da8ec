"""Levels: how many of the newest points lie beyond a limit, and since when."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from server.detectors.baseline import Floats


def beyond(values: Floats, limit: float, of: int) -> int:
    """How many of the last `of` values exceed the limit; NaN does not."""
    return int(np.count_nonzero(values[-of:] > limit))


_REACH = 64


def since(values: Floats, limit: float, allowed: int = 1, *, below: bool = False) -> int:
    """Position of the first point of the newest stretch above (or below) the limit that `allowed` consecutive points may interrupt.

    The length of the series where the newest points are not beyond the limit. Looks back no further than the stretch needs.
    """
    n, reach = len(values), _REACH
    if not _outside(values[-1 - allowed :], limit, below).any():
        return n
    while True:
        start = max(0, n - reach)
        outside = _outside(values[start:], limit, below).nonzero()[0]
        breaks = (outside[1:] - outside[:-1] > allowed + 1).nonzero()[0]
        if len(breaks):
            return start + int(outside[breaks[-1] + 1])
        if start == 0 or outside[0] > allowed:
            return start + int(outside[0])
        reach *= 8


def _outside(values: Floats, limit: float, below: bool) -> NDArray[np.bool_]:
    return values < limit if below else values > limit


def share(values: Floats, limit: float) -> float:
    """Share of finite values above the limit; 0 without any."""
    known = values[np.isfinite(values)]
    return float((known > limit).mean()) if len(known) else 0.0
