"""Facts of what a step is made of: tasks, difficulties, origins and prompt lengths, and the reward at a fixed mix of tasks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from server.queries.fact_rows import FINITE, TRAINING, FactSeries, Floats, Ints, as_series, parameters
from server.queries.view import Position, RunData, Series

MOST_LABELS = 24
"""Labels of one kind that get a series of their own; the rest is one minus their sum."""
FIRST_STEPS = 50
"""Steps whose mix the later ones are compared with (symptoms 19)."""

_TRAINED = "coalesce(t.split, 'train') = 'train'"
_SIZE = "coalesce(prompt_tokens, length(prompt))"
_KINDS = {
    "fact.mix.difficulty": "difficulty",
    "fact.mix.origin": "origin",
    # Half octaves, each named by its lower bound: finer ones would take a new template for other prompts.
    "fact.mix.prompt_length": f"CASE WHEN {_SIZE} > 0 THEN ceil(2 ** (floor(2 * log2({_SIZE})) / 2))::INTEGER::VARCHAR END",
    "fact.mix.kept_task": "CASE WHEN kept THEN task END",
}


def mix_facts(data: RunData, after: Position | None) -> FactSeries:
    """Shares by label, and mean reward, length, difficulty and prompt length of each task, for the run's most frequent labels.

    A series begins at the label's first row, so that a run that is followed has the same one as a run that is read at once.
    """
    result = _tasks(data, after)
    for name, label in _KINDS.items():
        result |= _shares(data, after, name, label)
    return result


def _shares(data: RunData, after: Position | None, name: str, label: str) -> FactSeries:
    columns = data.store.columns(
        f"""WITH often AS (SELECT label, min((attempt, step)) AS first
                           FROM (SELECT attempt, step, {label} AS label FROM {FINITE} t WHERE t.run_id = $run AND {_TRAINED})
                           WHERE label IS NOT NULL GROUP BY label ORDER BY count(*) DESC, label LIMIT {MOST_LABELS}),
            cells AS (SELECT attempt, step, label, count(*) AS size
                      FROM (SELECT attempt, step, {label} AS label FROM {FINITE} t WHERE {TRAINING})
                      WHERE label IS NOT NULL GROUP BY ALL),
            steps AS (SELECT attempt, step, sum(size) AS size FROM cells GROUP BY ALL)
            SELECT s.attempt, s.step, o.label AS label, coalesce(c.size, 0) / s.size AS share
            FROM steps s CROSS JOIN often o LEFT JOIN cells c ON c.attempt = s.attempt AND c.step = s.step AND c.label = o.label
            WHERE (s.attempt, s.step) >= o.first ORDER BY o.label, s.attempt, s.step""",
        parameters(data, after),
    )
    result: FactSeries = {}
    for found in sorted({str(value) for value in columns["label"]}):
        here = columns["label"] == found
        part = {column: values[here] for column, values in columns.items()}
        for series in as_series(part, ["share"]).values():
            result[f"{name}.{found}"] = series
    return result


_OF_TASKS = {
    "share": "fact.mix.task",
    "reward": "fact.task.reward",
    "tokens": "fact.task.length",
    "difficulty": "fact.task.difficulty",
    "prompt_size": "fact.task.prompt_length",
}


def _tasks(data: RunData, after: Position | None) -> FactSeries:
    columns = data.store.columns(
        f"""WITH often AS (
                SELECT task, min((attempt, step)) AS first FROM trajectory t
                WHERE t.run_id = $run AND {_TRAINED} AND task IS NOT NULL GROUP BY task
                ORDER BY count(*) DESC, task LIMIT {MOST_LABELS}),
            cells AS (SELECT attempt, step, task, count(*) AS size, avg(reward) AS reward, avg(response_tokens) AS tokens,
                             avg(try_cast(difficulty AS DOUBLE)) AS difficulty, avg({_SIZE}) AS prompt_size
                      FROM {FINITE} t WHERE {TRAINING} AND task IS NOT NULL GROUP BY ALL),
            steps AS (SELECT attempt, step, sum(size) AS size FROM cells GROUP BY ALL)
            SELECT s.attempt, s.step, o.task AS task, coalesce(c.size, 0) / s.size AS share, c.reward AS reward, c.tokens AS tokens,
                   c.difficulty AS difficulty, c.prompt_size AS prompt_size
            FROM steps s CROSS JOIN often o LEFT JOIN cells c ON c.attempt = s.attempt AND c.step = s.step AND c.task = o.task
            WHERE (s.attempt, s.step) >= o.first ORDER BY o.task, s.attempt, s.step""",
        parameters(data, after),
    )
    result: FactSeries = {}
    for task in sorted({str(task) for task in columns["task"]}):
        part = {name: values[columns["task"] == task] for name, values in columns.items()}
        for column, name in _OF_TASKS.items():
            for series in as_series(part, [column]).values():
                result[f"{name}.{task}"] = series
    return result


def fixed_mix_facts(data: RunData, after: Position | None) -> FactSeries:
    """fact.reward.fixed_mix, made of the task facts that the run already has: a task that a step lacks counts with its last reward.

    The weights are the mean shares of the first 50 steps with tasks (of the steps so far, while there are fewer), of the
    tasks that have a reward yet.
    """
    shares = sorted(m for m in data.metrics() if m.startswith("fact.mix.task."))
    made: list[tuple[Ints, Ints, Floats]] = []
    for attempt in data.attempt_starts if len(shares) > 1 else ():
        steps, share = aligned([data.chain(m, attempt) for m in shares])
        if not len(steps):
            continue
        reward = np.stack([_carried(data, "fact.task.reward." + m.removeprefix("fact.mix.task."), attempt, steps) for m in shares])
        number = np.arange(1, len(steps) + 1)
        first = np.cumsum(share, axis=1)[:, np.minimum(number, FIRST_STEPS) - 1]
        weight = np.where(np.isnan(reward), 0.0, first)
        with np.errstate(invalid="ignore"):
            values = np.where(np.isnan(reward), 0.0, reward * weight).sum(axis=0) / weight.sum(axis=0)
        start = data.attempt_starts[attempt]
        new = np.isfinite(values) & (steps >= start)
        if after is not None:
            new &= (attempt > after[0]) | ((attempt == after[0]) & (steps > after[1]))
        made.append((np.full(int(new.sum()), attempt), steps[new], values[new]))
    if not made or not sum(len(part[1]) for part in made):
        return {}
    return {
        "fact.reward.fixed_mix": (
            np.concatenate([m[0] for m in made]),
            np.concatenate([m[1] for m in made]),
            np.concatenate([m[2] for m in made]),
        )
    }


def aligned(chains: Sequence[Series]) -> tuple[Ints, Floats]:
    """Every step of the series and their values [k, n], 0 where a series has none: a share that is not there is 0."""
    steps = np.unique(np.concatenate([chain.steps for chain in chains]))
    values = np.zeros((len(chains), len(steps)))
    for row, chain in zip(values, chains, strict=True):
        row[np.searchsorted(steps, chain.steps)] = chain.values
    return steps, values


def _carried(data: RunData, metric: str, attempt: int, steps: Ints) -> Floats:
    """The metric's newest value at each step; NaN before its first."""
    chain = data.chain(metric, attempt)
    if not len(chain):
        return np.full(len(steps), np.nan)
    at = np.searchsorted(chain.steps, steps, side="right") - 1
    return np.asarray(np.where(at >= 0, chain.values[np.maximum(at, 0)], np.nan), dtype=np.float64)
