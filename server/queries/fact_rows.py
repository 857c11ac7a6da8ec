"""What the fact queries share: which rows count, and how columns become series."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np

from ingest.store.connection import Columns
from server.queries.reductions import Floats, Groups, Ints
from server.queries.view import Position, RunData

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


class StepIndex(Groups):
    """Rows grouped by (attempt, step); attempts and steps name the group, both [size]."""

    def __init__(self, attempts: Ints, steps: Ints) -> None:
        attempts, steps = attempts.astype(np.int64), steps.astype(np.int64)
        if _ascend(attempts, steps):
            new = np.ones(len(steps), np.bool_)
            new[1:] = (steps[1:] != steps[:-1]) | (attempts[1:] != attempts[:-1])
            of = np.cumsum(new) - 1
            self.attempts, self.steps = attempts[new], steps[new]
        else:
            keys, of = np.unique(np.stack([attempts, steps], axis=1), axis=0, return_inverse=True)
            self.attempts, self.steps = keys[:, 0], keys[:, 1]
        super().__init__(of, len(self.steps))

    def series(self, named: dict[str, Floats]) -> FactSeries:
        """The named values as series, without steps in which a value is NaN."""
        return as_series({"attempt": self.attempts, "step": self.steps, **named}, named)


def _ascend(attempts: Ints, steps: Ints) -> bool:
    return bool(np.all((attempts[1:] > attempts[:-1]) | ((attempts[1:] == attempts[:-1]) & (steps[1:] >= steps[:-1]))))
