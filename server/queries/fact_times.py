"""Facts of the seconds that single trajectories took, where they are written: stragglers and environments."""

from __future__ import annotations

from server.queries.fact_rows import TRAINING, FactSeries, as_series, parameters
from server.queries.view import Position, RunData

_QUERY = f"""
WITH t AS (
    SELECT attempt, step, try_cast(seconds ->> 'rollout' AS DOUBLE) AS rollout, try_cast(seconds ->> 'environment' AS DOUBLE) AS environment
    FROM trajectory t WHERE {TRAINING} AND seconds IS NOT NULL)
SELECT attempt, step,
    CASE WHEN count(rollout) >= 8 THEN max(rollout) / nullif(median(rollout), 0) END AS "fact.seconds.rollout.tail",
    CASE WHEN count(rollout) >= 20 THEN 1 - quantile_cont(rollout, 0.9) / nullif(max(rollout), 0) END AS "fact.seconds.rollout.last_tenth",
    sum(environment) FILTER (rollout > 0) / nullif(sum(rollout) FILTER (environment >= 0), 0) AS "fact.seconds.environment.share"
FROM t GROUP BY attempt, step ORDER BY attempt, step"""


def time_facts(data: RunData, after: Position | None) -> FactSeries:
    """Facts of trajectories' seconds, reduced to steps."""
    columns = data.store.columns(_QUERY, parameters(data, after))
    return as_series(columns, [name for name in columns if name.startswith("fact.")])
