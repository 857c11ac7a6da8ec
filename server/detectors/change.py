"""The change point: where a series is best split into two levels."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from server.detectors.baseline import Floats, median_spread
from server.detectors.middle import median


class Change(NamedTuple):
    """position: first point of the new level; before and after: the two medians."""

    position: int
    before: float
    after: float


def change_point(values: Floats, window: int = 100, sides: int = 8, distance: float = 4.0) -> Change | None:
    """The best split of the last `window` values by the sum of absolute deviations from each side's median.

    None unless the medians differ by more than `distance` MADN of the deviations and both sides have `sides` points.
    """
    start = max(0, len(values) - window)
    part = values[start:]
    if len(part) < 2 * sides:
        return None
    # _costs gives the cost of the first k + 1 points; a split at k has k points before it.
    splits = np.arange(sides, len(part) - sides + 1)
    total = _costs(part)[splits - 1] + _costs(part[::-1])[len(part) - splits - 1]
    at = int(splits[int(np.argmin(total))])
    before, after = median(part[:at]), median(part[at:])
    rest = np.concatenate((part[:at] - before, part[at:] - after))
    _, spread = median_spread(rest, floor=0.0, least=1e-12)
    if abs(after - before) <= distance * max(spread, 0.0):
        return None
    return Change(start + at, before, after)


def _costs(values: Floats) -> Floats:
    """Sum of absolute deviations from the median of each prefix, [n]."""
    return np.array([np.abs(values[: k + 1] - median(values[: k + 1])).sum() for k in range(len(values))])
