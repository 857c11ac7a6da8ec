"""Facts of what a step is made of: tasks, difficulties, origins and prompt lengths, and the reward at a fixed mix of tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from server.queries.fact_rows import FactSeries, StepIndex
from server.queries.fact_table import Labels, Table
from server.queries.reductions import Flags, Floats, Groups, Ints
from server.queries.view import Position, RunData, Series

MOST_LABELS = 24
"""Labels of one kind that get a series of their own, the first of the run; the rest is one minus their sum."""
FIRST_STEPS = 50
"""Steps whose mix the later ones are compared with (symptoms 19)."""

_KEPT = "fact_mix"
_Known: TypeAlias = dict[str, Position]
"""Labels of one kind that have a series, with the place at which each was first seen."""

_OF_TASKS = {
    "fact.task.reward": "reward",
    "fact.task.length": "tokens",
    "fact.task.difficulty": "difficulty_number",
    "fact.task.prompt_length": "prompt_size",
}


def mix_facts(data: RunData, table: Table, after: Position | None) -> FactSeries:
    """Shares by label, and mean reward, length, difficulty and prompt length of each task, for the run's first labels.

    A series begins at the label's first row, so that a run that is followed has the same one as a run that is read at once.
    """
    tasks = table.labels["task"]
    result: FactSeries = {}
    kinds = {
        "fact.mix.task": tasks,
        "fact.mix.difficulty": table.labels["difficulty"],
        "fact.mix.origin": table.labels["origin"],
        "fact.mix.prompt_length": _half_octaves(table["prompt_size"]),
        "fact.mix.kept_task": _where(tasks, table["kept"] == 1),
    }
    for name, labels in kinds.items():
        known: _Known = data.kept.setdefault(_KEPT, {}).setdefault(name, {})
        for label in [label for label, place in known.items() if after is None or place > after]:
            del known[label]  # its rows come again
        result |= _shares(table, name, labels, known, _OF_TASKS if name == "fact.mix.task" else {})
    return result


def _where(labels: Labels, keep: Flags) -> Labels:
    labels = labels.copy()
    labels[~keep] = None
    return labels


def _half_octaves(sizes: Floats) -> Labels:
    """Each size's half octave, named by its lower bound: finer ones would take a new template for other prompts."""
    labels = np.full(len(sizes), None, np.object_)
    some = sizes > 0
    values, of = np.unique(np.ceil(2 ** (np.floor(2 * np.log2(sizes[some])) / 2)).astype(np.int64), return_inverse=True)
    labels[some] = np.array([str(value) for value in values], np.object_)[of.reshape(-1)] if len(values) else None
    return labels


def _shares(table: Table, name: str, labels: Labels, known: _Known, measures: dict[str, str]) -> FactSeries:
    """Series of one kind of label; a task's measures are means over its rows."""
    rows = np.flatnonzero([label is not None for label in labels])
    if not len(rows):
        return {}
    index = StepIndex(table.attempts[rows], table.steps[rows])
    numbers: dict[object, int] = {}
    codes = np.array([numbers.setdefault(label, len(numbers)) for label in labels[rows].tolist()])
    cells = Groups(index.of * len(numbers) + codes, index.size * len(numbers))
    size = cells.count(np.ones(len(rows), np.bool_)).reshape(index.size, -1)
    _learn(known, list(map(str, numbers)), size, index)
    whole = size.sum(axis=1)
    means = {fact: cells.mean(table[measure][rows]).reshape(index.size, -1) for fact, measure in measures.items()}
    result: FactSeries = {}
    for label, first in sorted(known.items()):
        here = numbers.get(label)
        from_there = (index.attempts > first[0]) | ((index.attempts == first[0]) & (index.steps >= first[1]))
        share = size[:, here] / whole if here is not None else np.zeros(index.size)
        result |= _part(index, f"{name}.{label}", share, from_there)
        if here is not None:
            for fact, values in means.items():
                result |= _part(index, f"{fact}.{label}", values[:, here], from_there)
    return result


def _learn(known: _Known, labels: Sequence[str], size: Floats, index: StepIndex) -> None:
    """Takes in labels [k] not seen before, of cells of size [steps, k]: step by step, in each those with most rows first."""
    at = (size > 0).argmax(axis=0)
    new = sorted((int(at[k]), -float(size[at[k], k]), label, k) for k, label in enumerate(labels) if label not in known)
    for step, _, label, _ in new[: MOST_LABELS - len(known)]:
        known[label] = (int(index.attempts[step]), int(index.steps[step]))


def _part(index: StepIndex, name: str, values: Floats, where: Flags) -> FactSeries:
    return index.series({name: np.where(where, values, np.nan)})


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
