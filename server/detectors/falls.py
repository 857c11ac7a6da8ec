"""Falls of a mean whose points rest on few samples each: windows by samples, noise from neighbours, p-values with its uncertainty."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtr

from server.detectors.baseline import Floats

OLD_POINTS = 50
"""Points of the old window, or as many more as it takes to hold the samples."""
FEWEST = 8
"""Neighbouring pairs below which there is no estimate of the noise."""


class Falls(NamedTuple):
    """For every point, [n] each, the clearest fall over the windows asked for: NaN where no window had enough.

    p: one-sided. z: the normal quantile of p, negative for a fall. change: new minus old mean. old_first..old_last and
    new_first: positions of the ends of the windows; the new one ends at the point itself.
    """

    p: Floats
    z: Floats
    change: Floats
    old_first: NDArray[np.int64]
    old_last: NDArray[np.int64]
    new_first: NDArray[np.int64]


def falls(
    values: Floats, samples: Floats, needs: Sequence[float], gaps: Sequence[int], fewest_points: int = 4, share: float = 0.0
) -> Falls:
    """How clearly the newest samples lie below older ones, causal.

    For each number of samples in `needs` the new window is the shortest one that holds them (at least `fewest_points`),
    and for each of `gaps` the old one ends so many points before it. A sample's variance comes from the differences of
    neighbouring points, so that samples which depend on each other (one group, one prompt) count for less; it is at
    least `share` times that of a 0/1 reward with the windows' mean. The p-value is that of Student's t.
    """
    n = len(values)
    best = Falls(*(np.full(n, np.nan) for _ in range(3)), *(np.zeros(n, np.int64) for _ in range(3)))
    if n < fewest_points + FEWEST:
        return best
    count = np.concatenate(([0.0], np.cumsum(samples)))
    total = np.concatenate(([0.0], np.cumsum(samples * values)))
    # The difference of two points with a and b samples has the variance of one sample times (1/a + 1/b).
    squares = np.concatenate(([0.0, 0.0], np.cumsum(np.diff(values) ** 2 / (1 / samples[1:] + 1 / samples[:-1]))))
    last = np.arange(n)
    for need in needs:
        # The latest start with enough samples up to and with the point; -1: there is none.
        new_first = np.searchsorted(count, count[last + 1] - need * (1 - 1e-9), side="right") - 1
        new_first = np.minimum(new_first, last - fewest_points + 1)
        for gap in gaps:
            old_last = new_first - 1 - gap
            reach = np.maximum(old_last, 0)
            by_samples = np.searchsorted(count, count[reach + 1] - need * (1 - 1e-9), side="right") - 1
            old_first = np.maximum(np.minimum(by_samples, old_last - OLD_POINTS + 1), 0)
            valid = (new_first >= 0) & (old_last >= 0)
            old_last, new, first = np.maximum(old_last, 0), np.maximum(new_first, 0), old_first
            old_n, new_n = count[old_last + 1] - count[first], count[last + 1] - count[new]
            valid &= (old_n >= need * (1 - 1e-9)) & (old_last - first + 1 >= fewest_points)
            with np.errstate(invalid="ignore", divide="ignore"):
                change = (total[last + 1] - total[new]) / new_n - (total[old_last + 1] - total[first]) / old_n
                # Pairs inside both windows; what lies between them may hold the step itself.
                pairs = (old_last - first) + (last - new)
                variance = (squares[old_last + 1] - squares[first + 1] + squares[last + 1] - squares[new + 1]) / pairs
                middle = np.clip((total[last + 1] - total[new] + total[old_last + 1] - total[first]) / (new_n + old_n), 0, 1)
                error = np.sqrt(np.maximum(variance, share * middle * (1 - middle) + 1e-12) * (1 / new_n + 1 / old_n))
                valid &= pairs >= FEWEST
                # Differences of neighbours share a point, which costs a third of their degrees of freedom.
                p = np.where(valid, stdtr(np.maximum(pairs, 1) * 2 / 3, change / error), np.nan)
            better = valid & ~(p >= best.p)
            for kept, found in zip(best, (p, p, change, first, old_last, new), strict=True):
                kept[better] = found[better]
    best.z[:] = ndtri(np.clip(best.p, 1e-300, 1))
    return best


def discoveries(p: Sequence[float], q: float) -> list[bool]:
    """Benjamini and Hochberg: which of the p-values (NaN: not tested) are discoveries at the false discovery rate q."""
    known = sorted(value for value in p if value == value)
    limit = max((value for rank, value in enumerate(known, 1) if value <= q * rank / len(known)), default=-1.0)
    return [value <= limit for value in p]


def split_at(values: Floats, samples: Floats) -> int:
    """Position of the first point of the lower level: where the weighted sum above the common mean is largest."""
    above = np.cumsum(samples * (values - np.average(values, weights=samples)))
    return int(np.argmax(above[:-1])) + 1 if len(values) > 1 else 0
