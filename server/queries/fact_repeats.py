"""Facts of repetition over steps: prompts and responses that the run has had before, and rows that a step holds twice."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from server.queries.fact_rows import TRAINING, FactSeries, Floats, Ints, StepIndex, parameters
from server.queries.view import Position, RunData

Hashes = NDArray[np.uint64]

_KEPT = "fact_repeats"
_NONE = 0
"""Stands for a text that was not written; the database's hash is 0 with a chance of one in 10^19."""
_ODD = np.uint64(0x9E3779B97F4A7C15)
"""Spreads the number of a step over all bits, so that a sum of it and a hash names the pair."""

_QUERY = f"""
SELECT attempt, step, CASE WHEN text IS NULL THEN 0 ELSE hash(text) END AS prompt,
       CASE WHEN text IS NULL OR response IS NULL OR response = '' THEN 0 ELSE hash(text, response) END AS pair,
       CASE WHEN trajectory_id IS NULL THEN 0 ELSE hash(trajectory_id) END AS id
FROM (SELECT attempt, step, n, coalesce(prompt, prompt_messages::VARCHAR) AS text, response, trajectory_id
      FROM trajectory t WHERE {TRAINING})
ORDER BY attempt, step, n"""


class _Rows(NamedTuple):
    """One entry a trajectory, in the order of (attempt, step, n); hashes are 0 where a text is not written."""

    attempts: Ints
    steps: Ints
    prompts: Hashes
    pairs: Hashes
    ids: Hashes

    def where(self, keep: NDArray[np.bool_]) -> _Rows:
        return _Rows(self.attempts[keep], self.steps[keep], self.prompts[keep], self.pairs[keep], self.ids[keep])

    def joined(self, other: _Rows) -> _Rows:
        return _Rows(
            np.concatenate((self.attempts, other.attempts)),
            np.concatenate((self.steps, other.steps)),
            np.concatenate((self.prompts, other.prompts)),
            np.concatenate((self.pairs, other.pairs)),
            np.concatenate((self.ids, other.ids)),
        )


def repeat_facts(data: RunData, after: Position | None) -> FactSeries:
    """Facts of repetition; hashes of earlier steps are kept in memory, so that a refresh reads new rows only."""
    rows = _read(data, after)
    known: _Rows | None = data.kept.get(_KEPT)
    if after is not None and known is not None:
        old = known.where((known.attempts < after[0]) | ((known.attempts == after[0]) & (known.steps <= after[1])))
        rows_all = old.joined(rows)
    else:
        rows_all = rows if after is None else _read(data, None)
    data.kept[_KEPT] = rows_all
    found = [part for attempt in np.unique(rows.attempts).tolist() if (part := _of_attempt(data, rows_all, attempt, after))]
    names = sorted({name for part in found for name in part})
    joined = {name: [part[name] for part in found if name in part] for name in names}
    return {name: tuple(np.concatenate(columns) for columns in zip(*parts, strict=True)) for name, parts in joined.items()}  # type: ignore[misc]


def _read(data: RunData, after: Position | None) -> _Rows:
    found = data.store.columns(_QUERY, parameters(data, after))
    attempts, steps = (found[name].astype(np.int64) for name in ("attempt", "step"))
    prompts, pairs, ids = (found[name].astype(np.uint64) for name in ("prompt", "pair", "id"))
    return _Rows(attempts, steps, prompts, pairs, ids)


def _of_attempt(data: RunData, rows: _Rows, attempt: int, after: Position | None) -> FactSeries:
    """The facts of one attempt's new steps, against the run as that attempt continues it."""
    branch = rows.attempts <= attempt
    for later, start in data.attempt_starts.items():
        if later <= attempt:
            branch &= (rows.attempts >= later) | (rows.steps < start)
    own = rows.attempts == attempt
    new = own if after is None or after[0] != attempt else own & (rows.steps > after[1])
    past, now = rows.where(branch), rows.where(new)
    if not len(now.steps):
        return {}
    index = StepIndex(now.attempts, now.steps)
    result = _prompts(index, past, now) | _responses(index, past, now)
    result["fact.repeat.duplicate_frac"] = _doubled(index, now)
    earlier = rows.where(rows.attempts < attempt)
    alike = np.isin(_at_step(now.pairs, now.steps), _at_step(earlier.pairs, earlier.steps))
    covered = (now.pairs != _NONE) & np.isin(now.steps, earlier.steps)
    result["fact.repeat.attempt_frac"] = index.mean(alike.astype(np.float64), covered)
    return index.series(result)


def _prompts(index: StepIndex, past: _Rows, now: _Rows) -> dict[str, Floats]:
    """Share of a step's prompts seen at an earlier step, and how many of them stood together in one such step."""
    keys, steps, before = _previous(past.prompts, past.steps)
    mine = np.isin(steps, index.steps)
    keys, steps, before = keys[mine], steps[mine], before[mine]
    of = np.searchsorted(index.steps, steps)
    prompts = np.bincount(of, minlength=index.size).astype(np.float64)
    seen = before > _NEVER
    again = np.bincount(of[seen], minlength=index.size).astype(np.float64)
    together, distance = np.zeros(index.size), np.full(index.size, np.nan)
    if seen.any():
        places, sizes = np.unique(np.stack([of[seen], before[seen]], axis=1), axis=0, return_counts=True)
        order = np.argsort(sizes, kind="stable")  # the last entry of a step is its largest, the newest of equals
        together[places[order, 0]] = sizes[order]
        distance[places[order, 0]] = index.steps[places[order, 0]] - places[order, 1]
    with np.errstate(invalid="ignore", divide="ignore"):
        known = prompts > 0
        return {
            "fact.repeat.prompts": np.where(known, prompts, np.nan),
            "fact.repeat.prompt_frac": np.where(known, again / prompts, np.nan),
            "fact.repeat.block_frac": np.where(known, together / prompts, np.nan),
            "fact.repeat.distance": np.where(known, distance, np.nan),
        }


def _responses(index: StepIndex, past: _Rows, now: _Rows) -> dict[str, Floats]:
    """Share of trajectories whose text was already the answer to the same prompt at an earlier step."""
    keys, steps, before = _previous(past.pairs, past.steps)
    again = before > _NEVER
    repeated = np.isin(_at_step(now.pairs, now.steps), _at_step(keys[again], steps[again]))
    return {"fact.repeat.response_frac": index.mean(repeated.astype(np.float64), now.pairs != _NONE)}


_NEVER = -(2**62)


def _previous(keys: Hashes, steps: Ints) -> tuple[Hashes, Ints, Ints]:
    """Every (key, step) once, with the newest earlier step of the same key, or _NEVER."""
    known = keys != _NONE
    keys, steps = keys[known], steps[known]
    order = np.lexsort((steps, keys))
    keys, steps = keys[order], steps[order]
    fresh = np.ones(len(keys), bool)
    fresh[1:] = (keys[1:] != keys[:-1]) | (steps[1:] != steps[:-1])
    keys, steps = keys[fresh], steps[fresh]
    before = np.full(len(keys), _NEVER, np.int64)
    same = keys[1:] == keys[:-1]
    before[1:][same] = steps[:-1][same]
    return keys, steps, before


def _at_step(keys: Hashes, steps: Ints) -> Hashes:
    return keys + steps.astype(np.uint64) * _ODD


def _doubled(index: StepIndex, now: _Rows) -> Floats:
    """Share of a step's trajectories whose id another one of the step has."""
    named = now.ids != _NONE
    _, of, sizes = np.unique(_at_step(now.ids, now.steps), return_inverse=True, return_counts=True)
    return index.mean((sizes[of.reshape(-1)] > 1).astype(np.float64), named)
