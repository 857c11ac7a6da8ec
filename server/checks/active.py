"""Where a rule has anything to look at: steps at which a condition can hold, worked out once over a run and asked for at each step.

What holds at a point depends on it and on earlier points alone; how long a point speaks may be overrated, for rules look again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from server.checks.measure import finite
from server.queries.view import RunView, Series, Steps

Where = tuple[Series, NDArray[np.bool_]]
"""A whole chain of finite points and where the condition holds on it, [n]."""


class _Active(NamedTuple):
    """Stretches of steps in which a condition holds: first steps, ascending, and the furthest last step up to each."""

    starts: Steps
    ends: Steps


def near(view: RunView, name: str, conditions: Callable[[], Iterable[Where]]) -> bool:
    """Whether any of the conditions holds at the newest point of its series and that point may still speak for the judged step."""
    key = ("active", name, view.attempt, view.baseline_start, tuple(view.params.values()))
    found: _Active | None = view.data.memo.get(key)
    if found is None:
        found = view.data.memo[key] = _gather(conditions())
    at = int(np.searchsorted(found.starts, view.step, side="right"))
    return at > 0 and int(found.ends[at - 1]) >= view.step


def _gather(conditions: Iterable[Where]) -> _Active:
    starts: list[Steps] = [np.empty(0, np.int64)]
    ends: list[Steps] = [np.empty(0, np.int64)]
    for series, where in conditions:
        if where.any():
            gaps = np.diff(series.steps)
            # At least as long as measure.fresh lets a point speak, whatever the spacing was when it was new.
            reach = max(5, 3 * int(gaps.max(initial=1)))
            starts.append(series.steps[where])
            ends.append((series.steps + np.minimum(np.append(gaps, reach + 1) - 1, reach))[where])
    first, last = np.concatenate(starts), np.concatenate(ends)
    order = np.argsort(first, kind="stable")
    return _Active(first[order], np.maximum.accumulate(last[order]))


def chain(view: RunView, metric: str) -> Series:
    """Every finite point of the attempt's chain since the newest planned event, those after the judged step included."""
    return finite(view.data.chain(metric, view.attempt).since(view.baseline_start))


def held(view: RunView, metric: str, limit: float, of: int, times: int) -> Where:
    """Where `times` of the newest `of` points lie above a limit."""
    series = chain(view, metric)
    above = np.cumsum(series.values > limit)
    before = np.concatenate([np.zeros(of, above.dtype), above])[: len(above)]
    return series, above - before >= times


def means(values: NDArray[np.float64], windows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Mean of the newest windows[i] values at every position i (fewer at the start)."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - windows)
    return np.asarray((total[ends] - total[starts]) / (ends - starts))


def grown(view: RunView, metric: str, growth: float, over: int, fewest: int) -> Where:
    """Where the median of the newest five points exceeds the mean of the five `over` points before by a share."""
    series = chain(view, metric)
    values, n = series.values, len(series)
    where = np.zeros(n, bool)
    if n >= fewest:
        five = sliding_window_view(values, 5)
        early = five.mean(axis=1)[np.maximum(0, np.arange(n) - over + 1)[4:]]
        where[4:] = np.median(five, axis=1) >= (1 + growth) * early
        where[: fewest - 1] = False
    return series, where
