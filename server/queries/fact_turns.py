"""Facts of turns: calls, loops, tool errors, ends without an answer, sight of the goal, and what single turns decide."""

from __future__ import annotations

import numpy as np

from server.queries.fact_rows import TRAINING, FactSeries, StepIndex, as_series, parameters
from server.queries.view import Position, RunData

_MOST_TOOLS = 24
_LEAST_CALLS = 5
"""Answered calls of one tool in a step below which it has no error share there."""
_LEAST_PAIRS = 12
_GOALS = 16
"""Trajectories a step whose words are compared with the goal's."""
_GOAL_CHARACTERS, _TURN_CHARACTERS = 400, 1500

_GARBAGE = "contains(content, '!!!!!!!!!!!!') OR contains(lower(content), 'nannannan')"
_PARSER = (
    r"\b(pars(e|er|ing)|json ?decode|malformed|unexpected token|no such tool|invalid (json|syntax|format|tool|call|action)|"
    r"unknown (tool|function|action))"
)

# A block is an assistant turn with what answers it. Its action is the call as written (tool and arguments) on the assistant
# turn, else on the turns that answer it, else the marked call in its text, else the text without its thinking. Texts are
# hashed before anything is sorted, so that the sorts move a few numbers a row.
_BLOCKS = rf"""
t AS MATERIALIZED (
    SELECT rowid AS id, attempt, step, n, CASE WHEN isfinite(reward) THEN reward END AS reward, finish_reason, group_id
    FROM trajectory t WHERE {TRAINING}),
said AS (
    SELECT t.id, u.turn, role = 'assistant' AS own, role = 'tool' AS answered, is_error, hash(content) AS text,
           tool_name IS NOT NULL OR tool_args IS NOT NULL AS named, tool_args IS NOT NULL AS argued,
           contains(content, '<tool_call>') AS marked, {_GARBAGE} AS garbage, length(trim(content)) = 0 AS silent,
           CASE WHEN tool_name IS NOT NULL OR tool_args IS NOT NULL THEN hash(tool_name, tool_args::VARCHAR)
                WHEN role <> 'assistant' OR trim(content) IN ('', 'null') THEN NULL  -- a call that the writer left out
                WHEN contains(content, '<tool_call>') THEN hash(regexp_extract(content, '(?s)<tool_call>(.*?)</tool_call>', 1))
                WHEN contains(content, '</think>') THEN hash(regexp_extract(content, '(?s).*</think>(.*)', 1))
                ELSE hash(content) END AS call
    FROM turn u JOIN t ON u.attempt = t.attempt AND u.step = t.step AND u.n = t.n
    WHERE u.run_id = $run AND u.role IS NOT NULL AND u.role <> 'system'),
numbered AS (
    SELECT *, sum(own::INT) OVER (PARTITION BY id ORDER BY turn) AS block FROM said),
acts AS (
    SELECT id, block, bool_or(own AND named) AS named, bool_or(own AND marked) AS marked, count(*) FILTER (NOT own) AS answers,
           bool_or(answered) AS answered, sum((text % 4294967296)::BIGINT) FILTER (NOT own) AS observation,
           count(is_error) FILTER (NOT own) AS judged, count(*) FILTER (is_error AND NOT own) AS errors,
           any_value(text) FILTER (own) AS said, bool_or(own AND garbage) AS garbage, bool_or(own AND silent) AS silent,
           coalesce(any_value(call) FILTER (own AND named), sum((call % 4294967296)::BIGINT) FILTER (NOT own AND argued)::UBIGINT,
                    any_value(call) FILTER (own)) AS action
    FROM numbered WHERE block > 0 GROUP BY id, block)"""

_QUERY = f"""
WITH {_BLOCKS},
paired AS (
    SELECT *, lag(action) OVER w AS before, lag(action, 2) OVER w AS before2, lag(observation) OVER w AS seen,
           lag(observation, 2) OVER w AS seen2, lag(errors) OVER w AS failed, lag(judged) OVER w AS failed_of,
           lag(said) OVER w AS said_before,
           lead(block) OVER w IS NULL AS last
    FROM acts WINDOW w AS (PARTITION BY id ORDER BY block)),
trajectories AS (
    SELECT id, count(*) AS turns, count(*) FILTER (answered OR (named AND answers > 0)) AS calls,
           CASE WHEN 2 * count(action) > count(*) THEN coalesce(bool_or(action = before AND action = before2), FALSE) END AS loops,
           CASE WHEN 2 * count(action) > count(*) THEN coalesce(bool_or(action = before AND action = before2 AND seen = seen2), FALSE)
                END AS stuck,
           count(before) AS followed, count(*) FILTER (action = before) AS repeated, count(*) FILTER (said = said_before) AS same_text,
           count(*) FILTER (action = before AND observation IS NOT NULL AND seen IS NOT NULL) AS compared,
           count(*) FILTER (action = before AND observation = seen) AS same_seen,
           count(*) FILTER (action = before AND failed_of > 0) AS retried_of,
           count(*) FILTER (action = before AND failed > 0) AS after_error,
           count(*) FILTER (action = before AND failed > 0 AND judged > 0) AS retries,
           count(*) FILTER (action = before AND failed > 0 AND judged > 0 AND errors = 0) AS retries_ok,
           sum(judged) AS judged, sum(errors) AS errors,
           count(*) FILTER (marked) AS marked, count(*) FILTER (marked AND NOT named AND NOT coalesce(answered, FALSE)) AS unparsed,
           bool_or(last AND marked AND NOT named) AS last_marked,
           bool_or(named) AS any_named, bool_or(garbage) AS garbage,
           bool_or(last AND (answers > 0 OR silent)) AS unanswered
    FROM paired GROUP BY id),
steps AS (
    SELECT *, max(turns) OVER s AS most, max(reward) OVER s AS high, min(reward) OVER s AS low,
           calls - avg(calls) OVER g AS calls_within, reward - avg(reward) OVER g AS reward_within,
           max(any_named::INT) OVER s AS parses,
           -- a call at the turn limit is never answered, however well it reads
           unparsed - (last_marked AND unparsed > 0 AND coalesce(finish_reason, '') = 'abort')::INT AS unread
    FROM trajectories JOIN t USING (id)
    WINDOW s AS (PARTITION BY attempt, step), g AS (PARTITION BY attempt, step, group_id))
SELECT attempt, step,
    count(*) AS "fact.turns.n",
    avg(turns) AS "fact.turns.mean",
    max(turns) AS "fact.turns.max",
    avg(calls) AS "fact.turns.calls",
    avg(loops::INT) AS "fact.turns.loop_frac",
    avg(stuck::INT) AS "fact.turns.stuck_frac",
    min(n) FILTER (loops) AS "fact.turns.loop.example",
    sum(repeated) / nullif(sum(followed), 0) AS "fact.turns.repeated_frac",
    sum(same_text) / nullif(sum(followed), 0) AS "fact.turns.same_text_frac",
    sum(same_seen) / nullif(sum(compared), 0) AS "fact.turns.same_observation_frac",
    sum(after_error) / nullif(sum(retried_of), 0) AS "fact.turns.repeat_after_error_frac",
    sum(retries_ok) / nullif(sum(retries), 0) AS "fact.turns.retry_ok_frac",
    avg((finish_reason = 'abort' AND turns = most)::INT) AS "fact.turns.limit_frac",
    min(n) FILTER (finish_reason = 'abort' AND turns = most) AS "fact.turns.limit.example",
    avg(unanswered::INT) AS "fact.turns.no_answer_frac",
    CASE WHEN max(parses) = 1 OR sum(calls) > 0 THEN sum(unread) / nullif(sum(marked), 0) END AS "fact.turns.unparsed_frac",
    avg(garbage::INT) AS "fact.turns.garbage_frac",
    sum(errors) / nullif(sum(judged), 0) AS "fact.tools.error_frac",
    min(n) FILTER (errors > 0) AS "fact.tools.error.example",
    CASE WHEN count(*) FILTER (high > low AND reward > (high + low) / 2) >= {_LEAST_PAIRS}
         THEN corr(CASE WHEN high > low AND reward > (high + low) / 2 THEN reward END, calls) END AS "fact.turns.calls_correct_correlation",
    CASE WHEN count(reward_within) >= {_LEAST_PAIRS} THEN corr(reward_within, calls_within) END AS "fact.turns.calls_reward_correlation"
FROM steps GROUP BY attempt, step HAVING max(turns) > 1 OR sum(calls) > 0 ORDER BY attempt, step"""

# What failed says of itself, and each tool alone.
_TOOLS = rf"""
WITH t AS (SELECT attempt, step, n FROM trajectory t WHERE {TRAINING}),
often AS (SELECT tool_name FROM turn WHERE run_id = $run AND role = 'tool' AND tool_name IS NOT NULL
          GROUP BY tool_name ORDER BY count(*) DESC, tool_name LIMIT {_MOST_TOOLS})
SELECT u.attempt, u.step, u.tool_name AS tool, count(is_error) AS judged, count(*) FILTER (is_error) AS errors,
       count(content) FILTER (is_error AND length(content) >= 12) AS told,
       count(*) FILTER (is_error AND length(content) >= 12 AND regexp_matches(lower(left(content, 400)), '{_PARSER}')) AS parser
FROM turn u JOIN t ON u.attempt = t.attempt AND u.step = t.step AND u.n = t.n
WHERE u.run_id = $run AND u.role = 'tool' AND u.is_error IS NOT NULL
      AND (u.tool_name IS NULL OR u.tool_name IN (SELECT tool_name FROM often))
GROUP BY ALL ORDER BY u.attempt, u.step, u.tool_name"""

_WORDS = r"list_distinct(regexp_extract_all(lower({}), '[\w]+'))"

_GOAL = rf"""
WITH t AS (
    SELECT attempt, step, n, {_WORDS.format(f"right(prompt, {_GOAL_CHARACTERS})")} AS goal
    FROM trajectory t WHERE {TRAINING} AND prompt IS NOT NULL),
chosen AS (
    SELECT u.attempt, u.step, u.n, min(u.turn) AS first, max(u.turn) AS last FROM turn u JOIN t USING (attempt, step, n)
    WHERE u.run_id = $run AND u.role = 'assistant' AND length(u.content) > 0
    GROUP BY u.attempt, u.step, u.n HAVING count(*) >= 3
    QUALIFY row_number() OVER (PARTITION BY u.attempt, u.step ORDER BY u.n) <= {_GOALS}),
shared AS (
    SELECT c.attempt, c.step, c.n, u.turn = c.first AS early,
           len(list_intersect(t.goal, {_WORDS.format(f"left(u.content, {_TURN_CHARACTERS})")})) / len(t.goal) AS part
    FROM chosen c JOIN t USING (attempt, step, n) JOIN turn u USING (attempt, step, n)
    WHERE u.run_id = $run AND u.turn IN (c.first, c.last) AND len(t.goal) > 0)
SELECT attempt, step, avg(part) FILTER (early) AS "fact.turns.goal.first", avg(part) FILTER (NOT early) AS "fact.turns.goal.last"
FROM shared GROUP BY ALL ORDER BY attempt, step"""


def turn_facts(data: RunData, after: Position | None) -> FactSeries:
    """Facts of turns, reduced to steps; absent where no turns are written or all trajectories of a step have only one."""
    if not data.store.rows("SELECT 1 FROM turn WHERE run_id = ? LIMIT 1", [data.run.run_id]):
        return {}
    found = parameters(data, after)
    result: FactSeries = {}
    for query in (_QUERY, _GOAL):
        columns = data.store.columns(query, found)
        result |= as_series(columns, [name for name in columns if name.startswith("fact.")])
    return result | _tools(data, after)


def _tools(data: RunData, after: Position | None) -> FactSeries:
    """Error share of each of the run's most used tools, and of the errors' texts those that tell of a call that was not understood."""
    rows = data.store.columns(_TOOLS, parameters(data, after))
    if not len(rows["step"]):
        return {}
    index = StepIndex(rows["attempt"], rows["step"])
    told = rows["told"].astype(np.float64)
    result = index.series({"fact.tools.error_parser_frac": index.mean(rows["parser"] / np.maximum(told, 1), told > 0, told)})
    for tool in sorted({str(tool) for tool in rows["tool"] if tool is not None}):
        picked = (rows["tool"] == tool) & (rows["judged"] >= _LEAST_CALLS)
        part = {"attempt": rows["attempt"][picked], "step": rows["step"][picked]}
        name = f"fact.tools.error_frac.{tool}"
        result |= as_series({**part, name: rows["errors"][picked] / rows["judged"][picked]}, [name])
    return result
