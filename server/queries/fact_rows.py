"""What the fact queries share: which rows count, and how columns become series."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ingest.store.connection import Columns
from server.queries.view import Position, RunData

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
FactSeries: TypeAlias = dict[str, tuple[Ints, Ints, Floats]]
"""Attempts, steps and values by fact id."""

TRAINING = (
    "t.run_id = $run AND coalesce(t.split, 'train') = 'train' AND (t.attempt, t.step) > ($attempt, $step) "
    "AND t.attempt >= $attempt AND t.step >= $first_step"
)
"""The rows that count: training trajectories behind a place. What follows from the place is said column by column too, so that
the database leaves out blocks of older rows unread."""

FINITE = (
    "(SELECT * REPLACE (CASE WHEN isfinite(reward) THEN reward END AS reward, "
    "CASE WHEN isfinite(advantage) THEN advantage END AS advantage) FROM trajectory)"
)
"""The table trajectory with rewards and advantages that are numbers: a reward that is NaN is not known, and one of them must not
make the statistics of its step unknown, or stop the database, which refuses deviations of what is not finite."""

_BEFORE_ALL = -(2**62)


def parameters(data: RunData, after: Position | None) -> dict[str, object]:
    """Values for the placeholders of TRAINING."""
    attempt, step = after if after is not None else (-1, _BEFORE_ALL)
    newest = attempt >= max(data.attempt_starts, default=0)  # a later attempt begins at an earlier step
    return {"run": data.run.run_id, "attempt": attempt, "step": step, "first_step": step + 1 if newest else _BEFORE_ALL}


def as_series(columns: Columns, names: Iterable[str]) -> FactSeries:
    """One series a named column, without the rows in which the column is null."""
    result: FactSeries = {}
    attempts, steps = columns["attempt"].astype(np.int64), columns["step"].astype(np.int64)
    for name in names:
        values = columns[name].astype(np.float64)
        known = ~np.isnan(values)
        if known.any():
            result[name] = (attempts[known], steps[known], values[known])
    return result


class StepIndex:
    """Rows grouped by (attempt, step), for reductions that the database does not have; of[row] is the number of its step."""

    def __init__(self, attempts: Ints, steps: Ints) -> None:
        pairs = np.stack([attempts.astype(np.int64), steps.astype(np.int64)], axis=1) if len(steps) else np.empty((0, 2), np.int64)
        keys, of = np.unique(pairs, axis=0, return_inverse=True)
        self.attempts, self.steps = keys[:, 0], keys[:, 1]
        self.of: Ints = of.reshape(-1)
        self.size = len(keys)

    def mean(self, values: Floats, where: NDArray[np.bool_] | None = None, weights: Floats | None = None) -> Floats:
        """Mean of the rows of each step that are finite and picked; NaN where there is none."""
        keep = np.isfinite(values) if where is None else np.isfinite(values) & where
        weight = np.ones(len(values)) if weights is None else weights
        total = np.bincount(self.of[keep], weights=values[keep] * weight[keep], minlength=self.size)
        count = np.bincount(self.of[keep], weights=weight[keep], minlength=self.size)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(np.where(count > 0, total / count, np.nan), dtype=np.float64)

    def count(self, where: NDArray[np.bool_]) -> Floats:
        """Number of picked rows of each step."""
        return np.bincount(self.of[where], minlength=self.size).astype(np.float64)

    def most(self, values: Floats, where: NDArray[np.bool_] | None = None) -> Floats:
        """Largest finite picked value of each step; NaN where there is none."""
        keep = np.isfinite(values) if where is None else np.isfinite(values) & where
        result = np.full(self.size, -np.inf)
        np.maximum.at(result, self.of[keep], values[keep])
        return np.where(np.isfinite(result), result, np.nan)

    def rows(self) -> list[Ints]:
        """Row numbers of each step."""
        order = np.argsort(self.of, kind="stable")
        edges = np.searchsorted(self.of[order], np.arange(self.size + 1))
        return [order[edges[i] : edges[i + 1]] for i in range(self.size)]

    def series(self, named: dict[str, Floats]) -> FactSeries:
        """The named values as series, without steps in which a value is NaN."""
        return as_series({"attempt": self.attempts, "step": self.steps, **named}, named)
