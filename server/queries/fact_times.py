"""Facts of the seconds that single trajectories took, where they are written: stragglers and environments."""

from __future__ import annotations

import numpy as np

from server.queries.fact_rows import FactSeries
from server.queries.fact_table import Table
from server.queries.reductions import ratio

_LEAST_TAIL = 8
_LEAST_TENTH = 20
"""Trajectories with seconds below which the share of the slowest tenth says nothing."""


def time_facts(table: Table) -> FactSeries:
    """Facts of trajectories' seconds, reduced to steps."""
    index, rollout, environment = table.index, table["rollout_seconds"], table["environment_seconds"]
    if not np.isfinite(rollout).any():
        return {}
    count, longest = index.count(np.isfinite(rollout)), index.most(rollout)
    in_environment, of = index.total(environment, rollout > 0), index.total(rollout, environment >= 0)
    some = index.count(np.isfinite(environment) & (rollout > 0)) > 0
    return index.series(
        {
            "fact.seconds.rollout.tail": np.where(count >= _LEAST_TAIL, ratio(longest, index.quantile(rollout, 0.5)), np.nan),
            "fact.seconds.rollout.last_tenth": np.where(count >= _LEAST_TENTH, 1 - ratio(index.quantile(rollout, 0.9), longest), np.nan),
            "fact.seconds.environment.share": np.where(some, ratio(in_environment, of), np.nan),
        }
    )
