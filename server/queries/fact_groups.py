"""Facts of groups: sizes, prompts, equal rewards, duplicates and the exact identities of group advantages."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ingest.store.connection import Columns
from server.queries.fact_rows import FINITE, TRAINING, FactSeries, Floats, StepIndex, parameters
from server.queries.view import Position, RunData

_ROUNDING = 5e-3
"""Advantages are often written with three or four digits; their sum over a group may be off by that much."""
_ROUNDING_EACH = 1e-3
"""An absolute mean below it is rounding, however small the advantages are (symptoms 14)."""
_ANSWER = r"([\p{L}\p{N}]+)[^\p{L}\p{N}]*$"
"""The last word or number of a response: where one task has one answer, what a grader compares stands there."""
_ANSWER_WITHIN = 64
"""Characters from the end in which it is looked for."""
_NOTHING = 0.02
"""Advantages below it come from equal rewards: their rounding over a deviation of 0 plus a small constant."""

# The reward's range is that of the run so far, in the order in which a live run meets its steps.
_QUERY = f"""
WITH range AS (
    SELECT attempt, step, least($lowest::DOUBLE, min(min(reward)) OVER so_far) AS lowest,
           greatest($highest::DOUBLE, max(max(reward)) OVER so_far) AS highest
    FROM {FINITE} t WHERE {TRAINING} AND reward IS NOT NULL
    GROUP BY attempt, step WINDOW so_far AS (ORDER BY attempt, step)),
t AS (
    SELECT t.attempt, t.step, group_id, reward, advantage, response_tokens AS tokens, hash(response) AS response_hash,
           hash(nullif(regexp_extract(right(response, {_ANSWER_WITHIN}), '{_ANSWER}', 1), '')) AS answer_hash,
           hash(coalesce(prompt, prompt_messages::VARCHAR)) AS prompt_hash, task, lowest, highest,
           highest > lowest AND reward >= highest - 0.02 * (highest - lowest) AS good,
           (reward > (lowest + highest) / 2)::INT AS success,
           response_tokens > median(response_tokens) OVER (PARTITION BY t.attempt, t.step, group_id) AS longer
    FROM {FINITE} t LEFT JOIN range USING (attempt, step) WHERE {TRAINING} AND group_id IS NOT NULL)
SELECT attempt, step, count(*) AS size, count(DISTINCT prompt_hash) AS prompts, any_value(task) AS task,
    min(reward) AS low, max(reward) AS high, count(reward) AS rewarded, count(DISTINCT reward) AS rewards,
    any_value(lowest) AS lowest, any_value(highest) AS highest,
    count(response_hash) AS texts, count(DISTINCT response_hash) AS distinct_texts,
    count(response_hash) FILTER (NOT good) AS wrong, count(DISTINCT response_hash) FILTER (NOT good) AS distinct_wrong,
    count(answer_hash) FILTER (good) AS accepted, count(answer_hash) AS answers, count(DISTINCT answer_hash) AS distinct_answers,
    (min(answer_hash) FILTER (good) <> max(answer_hash) FILTER (good)) AS accepted_differ,
    count(response_hash) FILTER (good) AS positive, count(DISTINCT response_hash) FILTER (good) AS distinct_positive,
    count(advantage) AS advantages, avg(advantage) AS advantage_mean, max(abs(advantage)) AS advantage_most,
    CASE WHEN max(reward) - min(reward) > 1e-6 THEN covar_samp(advantage, reward) END AS advantage_covariance,
    CASE WHEN max(reward) - min(reward) > 1e-6 AND stddev_samp(advantage) > 1e-9 THEN corr(advantage, reward) END AS advantage_correlation,
    avg((abs(advantage - reward) < 1e-4)::INT) AS equals_reward,
    CASE WHEN max(reward) - min(reward) > 1e-6 AND max(tokens) > min(tokens) THEN corr(reward, tokens) END AS length_correlation,
    avg(success) FILTER (longer) - avg(success) FILTER (NOT longer) AS longer_gain
FROM t GROUP BY attempt, step, group_id ORDER BY attempt, step, group_id"""


def group_facts(data: RunData, after: Position | None) -> FactSeries:
    """Facts of groups, reduced to steps; absent without group ids."""
    groups = data.store.columns(_QUERY, {**parameters(data, after), **_range_before(data, after)})
    if not len(groups["step"]):
        return {}
    index = StepIndex(groups["attempt"], groups["step"])
    size = groups["size"].astype(np.float64)
    result = {
        "fact.group.n": index.count(np.ones(len(size), bool)),
        "fact.group.size.min": -index.most(-size),
        "fact.group.size.max": index.most(size),
        "fact.group.size.median": np.array([np.median(size[rows]) for rows in index.rows()]),
        "fact.group.mixed_prompt_frac": index.mean((groups["prompts"] > 1).astype(np.float64), groups["prompts"] > 0),
        **_rewards(groups, index, size),
        **_texts(groups, index, size),
        **_advantages(data, groups, index, size),
    }
    return index.series(result) | _reversed_by_task(groups)


def _range_before(data: RunData, after: Position | None) -> dict[str, float | None]:
    """Lowest and highest reward up to a place, of the facts of trajectories, which are derived before those of groups."""
    return {
        "lowest": data.extreme("fact.reward.min", after, np.min) if after is not None else None,
        "highest": data.extreme("fact.reward.max", after, np.max) if after is not None else None,
    }


def _rewards(groups: Columns, index: StepIndex, size: Floats) -> dict[str, Floats]:
    lowest, highest = _floats(groups["lowest"]), _floats(groups["highest"])
    low, high = _floats(groups["low"]), _floats(groups["high"])
    judged = (groups["rewarded"] == groups["size"]) & (size > 1)
    equal = judged & (high - low < 1e-9)
    spread = highest - lowest
    margin = 0.02 * spread
    return {
        "fact.group.zero_std_frac": index.mean(equal.astype(np.float64), judged),
        "fact.group.all_low_frac": index.mean((equal & (low <= lowest + margin)).astype(np.float64), judged & (spread > 0)),
        "fact.group.all_high_frac": index.mean((equal & (high >= highest - margin)).astype(np.float64), judged & (spread > 0)),
        "fact.length.reward_correlation": index.mean(_floats(groups["length_correlation"])),
        "fact.length.paired_gain": index.mean(_floats(groups["longer_gain"]), spread > 0),
    }


def _texts(groups: Columns, index: StepIndex, size: Floats) -> dict[str, Floats]:
    with np.errstate(invalid="ignore", divide="ignore"):
        duplicate = 1 - groups["distinct_texts"] / groups["texts"]
        wrong = 1 - groups["distinct_wrong"] / groups["wrong"]
        positive = groups["distinct_positive"] / groups["positive"]
    judged = (groups["texts"] == groups["size"]) & (size > 1)
    return {
        "fact.group.duplicate_frac": index.mean(_floats(duplicate), judged),
        "fact.group.duplicate_wrong_frac": index.mean(_floats(wrong), judged & (groups["wrong"] > 1)),
        "fact.group.duplicated_frac": index.mean((duplicate > 0.5).astype(np.float64), judged),
        "fact.group.distinct_positive_frac": index.mean(_floats(positive), judged & (groups["positive"] > 0)),
        **_answers(groups, index, judged),
    }


def _answers(groups: Columns, index: StepIndex, judged: NDArray[np.bool_]) -> dict[str, Floats]:
    comparable = judged & (groups["accepted"] > 1)
    differ = np.asarray([bool(value) for value in groups["accepted_differ"]], dtype=np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        variety = groups["distinct_answers"] / groups["answers"]
    counted = index.count(comparable)
    return {
        "fact.group.accepted_n": np.where(index.count(judged & (groups["answers"] > 0)) > 0, counted, np.nan),
        "fact.group.accepted_differ_frac": index.mean(differ, comparable),
        "fact.group.answer_frac": index.mean(_floats(variety), judged & (groups["answers"] > 1)),
    }


def _advantages(data: RunData, groups: Columns, index: StepIndex, size: Floats) -> dict[str, Floats]:
    known = (groups["advantages"] == groups["size"]) & (size > 1)
    configured = data.run.config.get("group_size")
    # A dump may hold a part of a group; its advantages need not sum to 0. Without a configured size the largest of the step counts.
    largest = index.most(size)
    expected = np.full(len(size), float(configured)) if isinstance(configured, (int, float)) else largest[index.of]
    full = known & (size >= expected)
    mean, most = _floats(groups["advantage_mean"]), _floats(groups["advantage_most"])
    off = np.abs(mean) / np.maximum(most, 1e-9)
    two = known & (groups["rewards"] == 2) & full
    bound = np.sqrt(np.maximum(size - 1, 1))
    covariance, correlation = _floats(groups["advantage_covariance"]), _floats(groups["advantage_correlation"])
    return {
        "fact.advantage.group_mean": index.most(np.where((np.abs(mean) < _ROUNDING_EACH) | (most < _NOTHING), 0.0, off), full),
        "fact.advantage.off_frac": index.mean(
            ((off > _ROUNDING) & (np.abs(mean) > _ROUNDING_EACH) & (most > _NOTHING)).astype(np.float64), full
        ),
        "fact.advantage.excess": index.most(most / bound, two),
        "fact.advantage.reversed_frac": index.mean((covariance < 0).astype(np.float64), known & np.isfinite(covariance)),
        "fact.advantage.correlation": index.mean(correlation, known),
        "fact.advantage.equals_reward_frac": index.mean(_floats(groups["equals_reward"]), groups["advantages"] > 0),
    }


def _reversed_by_task(groups: Columns) -> FactSeries:
    """Share of groups of each task in which the better response got the lower advantage."""
    result: FactSeries = {}
    covariance = _floats(groups["advantage_covariance"])
    judged = np.isfinite(covariance)
    tasks = np.array([str(task) for task in groups["task"]], dtype=object)
    for task in sorted(set(tasks[judged].tolist()) - {"None"}):
        rows = judged & (tasks == task)
        index = StepIndex(groups["attempt"][rows], groups["step"][rows])
        values = {f"fact.advantage.reversed_frac.{task}": index.mean((covariance[rows] < 0).astype(np.float64))}
        result |= index.series(values)
    return result


def _floats(values: NDArray[np.generic]) -> Floats:
    return np.asarray(values, dtype=np.float64)
