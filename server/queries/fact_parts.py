"""Facts of the parts that a reward is made of (`reward_parts`)."""

from __future__ import annotations

from server.queries.fact_rows import TRAINING, FactSeries, as_series, parameters
from server.queries.view import Position, RunData

_MOST_PARTS = 24


def part_facts(data: RunData, after: Position | None) -> FactSeries:
    """Mean of each part of the reward a step; absent where no trajectory has parts."""
    columns = data.store.columns(
        f"""WITH t AS (SELECT attempt, step, reward_parts FROM trajectory t WHERE {TRAINING} AND reward_parts IS NOT NULL),
            named AS (SELECT attempt, step, unnest(json_keys(reward_parts)) AS part, reward_parts FROM t)
            SELECT attempt, step, part, avg(try_cast(json_extract_string(reward_parts, '$."' || part || '"') AS DOUBLE)) AS value
            FROM named WHERE part NOT LIKE '%"%' GROUP BY ALL ORDER BY part, attempt, step""",
        parameters(data, after),
    )
    result: FactSeries = {}
    for name in sorted({str(part) for part in columns["part"]})[:_MOST_PARTS]:
        here = columns["part"] == name
        part = {column: values[here] for column, values in columns.items()}
        for series in as_series(part, ["value"]).values():
            result[f"fact.reward.part.{name}"] = series
    return result
