"""Facts of evaluations, from trajectories whose split is not train: what was asked, under which budget, and what came of it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from server.queries.fact_rows import FINITE, FactSeries, as_series, parameters
from server.queries.view import Position, RunData

_EVALUATED = "t.run_id = $run AND coalesce(t.split, 'train') <> 'train'"
_BEHIND = "(t.attempt, t.step) > ($attempt, $step)"

_QUERY = f"""
SELECT attempt, step,
    count(DISTINCT item) AS "fact.eval.items",
    count(item) / nullif(count(DISTINCT item), 0) AS "fact.eval.attempts",
    avg(reward) AS "fact.eval.score",
    avg(response_tokens) AS "fact.eval.length.mean",
    max(response_tokens) AS "fact.eval.length.max",
    avg((finish_reason = 'length')::INT) AS "fact.eval.truncated_frac",
    avg(try_cast(sampling ->> '$.temperature' AS DOUBLE)) AS "fact.eval.temperature",
    avg(try_cast(sampling ->> '$.top_p' AS DOUBLE)) AS "fact.eval.top_p",
    avg(try_cast(sampling ->> '$.top_k' AS DOUBLE)) AS "fact.eval.top_k",
    avg(try_cast(sampling ->> '$.max_tokens' AS DOUBLE)) AS "fact.eval.max_tokens",
    -- A hash, of which a float holds 52 bits: equal numbers mean the same graders, and nothing else.
    CASE WHEN count(grader) > 0 THEN (hash(string_agg(DISTINCT grader, ' ' ORDER BY grader)) % 4503599627370496)::DOUBLE END
        AS "fact.eval.grader"
FROM (SELECT *, hash(coalesce(prompt, prompt_messages::VARCHAR)) AS item,
             CASE WHEN coalesce(verifier_name, verifier_version) IS NOT NULL
                  THEN concat_ws(' ', verifier_name, verifier_version) END AS grader
      FROM {FINITE} t WHERE {_EVALUATED} AND {_BEHIND})
GROUP BY attempt, step ORDER BY attempt, step"""

_ITEMS = f"""
SELECT DISTINCT attempt, step, hash(coalesce(prompt, prompt_messages::VARCHAR)) AS item FROM trajectory t
WHERE {_EVALUATED} AND coalesce(prompt, prompt_messages::VARCHAR) IS NOT NULL
  AND ({_BEHIND} OR (t.attempt, t.step) = (
      SELECT (attempt, step) FROM trajectory t WHERE {_EVALUATED} AND NOT {_BEHIND} ORDER BY attempt DESC, step DESC LIMIT 1))
ORDER BY attempt, step"""


def eval_facts(data: RunData, after: Position | None) -> FactSeries:
    """Facts of evaluations; absent where a run writes none of their trajectories."""
    asked = {name: value for name, value in parameters(data, after).items() if name != "first_step"}
    columns = data.store.columns(_QUERY, asked)
    if not len(columns["step"]):
        return {}
    result = as_series(columns, [name for name in columns if name.startswith("fact.")])
    items = data.store.columns(_ITEMS, asked)
    place = np.stack([items["attempt"].astype(np.int64), items["step"].astype(np.int64)], axis=1)
    edges = [0, *(np.flatnonzero((place[1:] != place[:-1]).any(axis=1)) + 1).tolist(), len(place)]
    sets = [(place[a], items["item"][a:b]) for a, b in pairwise(edges) if b > a]
    overlaps = [(*new[0], float(np.isin(new[1], old[1]).mean())) for old, new in pairwise(sets)]
    if overlaps:
        attempts, steps, values = (np.array(part) for part in zip(*overlaps, strict=True))
        result["fact.eval.overlap"] = (attempts.astype(np.int64), steps.astype(np.int64), values.astype(np.float64))
    return result
