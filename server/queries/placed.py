"""A series in memory, sorted by (attempt, step), to which a live run adds points at the end."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Steps: TypeAlias = NDArray[np.int64]
Values: TypeAlias = NDArray[np.float64]
Position: TypeAlias = tuple[int, int]
"""(attempt, step): how far a run has come. A later attempt lies behind every step of an earlier one."""

_Points: TypeAlias = tuple[NDArray[np.int32], Steps, Values]

_SPARE = 64
"""Places beyond the last point that a grown series has room for, at least."""


class Placed:
    """attempts, steps and values [n] in order of (attempt, step).

    The arrays that it hands out stay as they are: points at the end are written behind them into spare room, and a change
    of older points makes new arrays.
    """

    def __init__(self, attempts: NDArray[np.int32], steps: Steps, values: Values) -> None:
        self._room = _ordered((attempts, steps, values))
        self._size = len(steps)

    @property
    def attempts(self) -> NDArray[np.int32]:
        """Attempt of each point, [n]."""
        return self._room[0][: self._size]

    @property
    def steps(self) -> Steps:
        """Step of each point, [n]."""
        return self._room[1][: self._size]

    @property
    def values(self) -> Values:
        """Value of each point as logged, [n]."""
        return self._room[2][: self._size]

    def __len__(self) -> int:
        return self._size

    def behind(self, place: Position) -> int:
        """Position of the first point behind a place."""
        attempts = self.attempts
        if not self._size or attempts[-1] < place[0]:
            return self._size
        first, end = int(attempts.searchsorted(place[0])), int(attempts.searchsorted(place[0], "right"))
        return first + int(self.steps[first:end].searchsorted(place[1], "right"))

    def replace_behind(self, place: Position, attempts: NDArray[np.int32], steps: Steps, values: Values) -> None:
        """Puts these points in the stead of all that lie behind the place."""
        kept = self.behind(place)
        new = _ordered((attempts, steps, values))
        if len(steps) and kept and (int(new[0][0]), int(new[1][0])) <= (int(self._room[0][kept - 1]), int(self._room[1][kept - 1])):
            new = _ordered(_joined(self._room, kept, new))
            kept = 0
        size = kept + len(new[1])
        if kept < self._size or size > len(self._room[1]):
            self._room = _joined(self._room, kept, _empty(size - kept + max(_SPARE, size // 2)))
        self._room[0][kept:size], self._room[1][kept:size], self._room[2][kept:size] = new
        self._size = size


def _ordered(points: _Points) -> _Points:
    attempts, steps, values = points
    if len(steps) < 2 or (attempts[0] == attempts[-1] and (attempts == attempts[0]).all() and (steps[1:] >= steps[:-1]).all()):
        return points
    order = np.lexsort((steps, attempts))
    return attempts[order], steps[order], values[order]


def _joined(room: _Points, kept: int, more: _Points) -> _Points:
    return (
        np.concatenate((room[0][:kept], more[0])),
        np.concatenate((room[1][:kept], more[1])),
        np.concatenate((room[2][:kept], more[2])),
    )


def _empty(size: int) -> _Points:
    return np.empty(size, np.int32), np.empty(size, np.int64), np.empty(size)
