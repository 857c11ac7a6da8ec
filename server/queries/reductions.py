"""Reductions of rows to the groups that they belong to. NaN is unknown everywhere: it enters no result, and is the result of no row."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]


class Groups:
    """Rows in groups that are numbered 0..size-1; of[row] is the number of its group. where: which rows count, all without it.

    Every result has one value a group, [size], float64.
    """

    def __init__(self, of: Ints, size: int) -> None:
        self.of: Ints = of.reshape(-1)
        self.size = size

    def count(self, where: Flags) -> Floats:
        """Number of picked rows."""
        return self._sum(self.of[where])

    def total(self, values: Floats, where: Flags | None = None) -> Floats:
        """Sum of the known picked values; 0 without any."""
        keep = _known(values, where)
        return self._sum(self.of[keep], values[keep])

    def mean(self, values: Floats, where: Flags | None = None, weights: Floats | None = None) -> Floats:
        """Mean of the known picked values."""
        keep = _known(values, where)
        of, kept = self.of[keep], values[keep]
        if weights is not None:
            return ratio(self._sum(of, kept * weights[keep]), self._sum(of, weights[keep]))
        return ratio(self._sum(of, kept), self._sum(of))

    def most(self, values: Floats, where: Flags | None = None) -> Floats:
        """Largest known picked value."""
        keep = _known(values, where)
        result = np.full(self.size, -np.inf)
        np.maximum.at(result, self.of[keep], values[keep])
        return np.where(np.isfinite(result), result, np.nan)

    def least(self, values: Floats, where: Flags | None = None) -> Floats:
        """Smallest known picked value."""
        return -self.most(-values, where)

    def distinct(self, values: NDArray[Any], where: Flags) -> Floats:
        """Number of different values of the picked rows."""
        of, kept = self.of[where], values[where]
        order = np.lexsort((kept, of))
        of, kept = of[order], kept[order]
        new = np.ones(len(of), np.bool_)
        new[1:] = (of[1:] != of[:-1]) | (kept[1:] != kept[:-1])
        return self._sum(of[new])

    def quantile(self, values: Floats, share: float, where: Flags | None = None) -> Floats:
        """Quantile of the known picked values, linear between neighbours."""
        keep = _known(values, where)
        of, kept = self.of[keep], values[keep]
        kept = kept[np.lexsort((kept, of))]
        sizes = np.bincount(of, minlength=self.size)
        starts = np.cumsum(sizes) - sizes
        some = sizes > 0
        place = (sizes[some] - 1) * share
        low = np.floor(place).astype(np.int64)
        first = kept[starts[some] + low]
        after = kept[starts[some] + np.minimum(low + 1, sizes[some] - 1)]
        result = np.full(self.size, np.nan)
        result[some] = first + (after - first) * (place - low)
        return result

    def deviation(self, values: Floats, where: Flags | None = None) -> Floats:
        """Standard deviation (n - 1) of the known picked values; exactly 0 for equal ones, NaN below two."""
        keep = _known(values, where)
        away = self._away(values, keep)
        n = self.count(keep)
        squares = self._sum(self.of[keep], away * away)
        return np.where(n > 1, np.sqrt(squares / np.maximum(n - 1, 1)), np.nan)

    def covariance(self, x: Floats, y: Floats, where: Flags | None = None) -> Floats:
        """Covariance (n - 1) of the rows in which both are known; NaN below two."""
        keep = _known(x, where) & np.isfinite(y)
        a, b = self._away(x, keep), self._away(y, keep)
        n = self.count(keep)
        return np.where(n > 1, self._sum(self.of[keep], a * b) / np.maximum(n - 1, 1), np.nan)

    def correlation(self, x: Floats, y: Floats, where: Flags | None = None) -> Floats:
        """Pearson's correlation of the rows in which both are known; NaN where either has no spread."""
        keep = _known(x, where) & np.isfinite(y)
        a, b = self._away(x, keep), self._away(y, keep)
        of = self.of[keep]
        both, xx, yy = (self._sum(of, product) for product in (a * b, a * a, b * b))
        return np.clip(ratio(both, np.sqrt(xx * yy)), -1, 1)

    def rows(self) -> list[Ints]:
        """Row numbers of each group."""
        order = np.argsort(self.of, kind="stable")
        edges = np.searchsorted(self.of[order], np.arange(self.size + 1))
        return [order[edges[i] : edges[i + 1]] for i in range(self.size)]

    def _sum(self, of: NDArray[np.signedinteger[Any]], weights: Floats | None = None) -> Floats:
        return np.bincount(of, weights=weights, minlength=self.size).astype(np.float64)

    def _away(self, values: Floats, keep: Flags) -> Floats:
        """Distance of each kept value from its group's mean, taken from the group's first value on, so that equal ones have none."""
        of, kept = self.of[keep], values[keep]
        first = np.zeros(self.size)
        first[of[::-1]] = kept[::-1]
        away = kept - first[of]
        mean = ratio(self._sum(of, away), self._sum(of))
        return np.asarray(away - mean[of], dtype=np.float64)


def ratio(above: Floats, below: Floats) -> Floats:
    """above / below; NaN where below is 0."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(below != 0, above / below, np.nan), dtype=np.float64)


def _known(values: Floats, where: Flags | None) -> Flags:
    return np.isfinite(values) if where is None else np.isfinite(values) & where
