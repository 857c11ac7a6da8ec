"""Facts of repetition over steps: prompts and responses that the run has had before, and rows that a step holds twice."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from server.queries.fact_rows import FactSeries, StepIndex
from server.queries.fact_table import NONE, Hashes, Table, tables
from server.queries.reductions import Flags, Floats, Ints
from server.queries.view import Position, RunData

_KEPT = "fact_repeats"
_ODD = np.uint64(0x9E3779B97F4A7C15)
"""Spreads the bits of a number, so that a sum of it and a hash names the pair."""
_NEVER = -(2**62)
_OPEN_ROWS, _MOST_OPEN_ROWS = 4096, 16384
"""Newest rows that are kept apart, so that those of them that come again cost no look at the whole run, and how many may gather
before older ones are taken into the run's past."""


@dataclass(frozen=True)
class _Rows:
    """One entry a trajectory, in the order of (attempt, step, n); hashes are NONE where a text is not written."""

    attempts: Ints
    steps: Ints
    prompts: Hashes
    pairs: Hashes

    def where(self, keep: Flags) -> _Rows:
        return _Rows(self.attempts[keep], self.steps[keep], self.prompts[keep], self.pairs[keep])


@dataclass
class _Newest:
    """Newest step of each key among the closed rows; keys [n] ascend."""

    keys: Hashes = field(default_factory=lambda: np.empty(0, np.uint64))
    steps: Ints = field(default_factory=lambda: np.empty(0, np.int64))

    def of(self, keys: Hashes) -> Ints:
        """The step of each key; _NEVER for one not seen."""
        found = np.full(len(keys), _NEVER, np.int64)
        if len(self.keys):
            at = np.minimum(self.keys.searchsorted(keys), len(self.keys) - 1)
            same = self.keys[at] == keys
            found[same] = self.steps[at[same]]
        return found

    def take(self, keys: Hashes, steps: Ints) -> None:
        """Takes in rows of later steps."""
        keys, steps, _ = _previous(keys, steps)
        last = np.ones(len(keys), np.bool_)
        last[:-1] = keys[1:] != keys[:-1]
        keys, steps = keys[last], steps[last]
        at = self.keys.searchsorted(keys)
        known = np.zeros(len(keys), np.bool_)
        inside = at < len(self.keys)
        known[inside] = self.keys[at[inside]] == keys[inside]
        self.steps[at[known]] = steps[known]
        self.keys = np.insert(self.keys, at[~known], keys[~known])
        self.steps = np.insert(self.steps, at[~known], steps[~known])


@dataclass
class _Past:
    """What a run had before, as one attempt continues it. blocks: all rows; closed: how many blocks are in prompts and pairs.

    seen_from: that attempt and the first steps of all attempts, which decide what it continues; None: closed rows came again.
    """

    seen_from: tuple[int, dict[int, int]] | None = None
    blocks: list[_Rows] = field(default_factory=list)
    closed: int = 0
    prompts: _Newest = field(default_factory=_Newest)
    pairs: _Newest = field(default_factory=_Newest)

    def cut(self, after: Position | None) -> None:
        """Forgets rows behind a place, which come again."""
        while self.blocks and (after is None or _last(self.blocks[-1]) > after):
            block = self.blocks.pop()
            if len(self.blocks) < self.closed:
                self.seen_from = None
            if after is not None and (block.attempts[0], block.steps[0]) <= after:
                self.blocks.append(block.where(_up_to(block, after)))
                break

    def branch(self, data: RunData, attempt: int) -> None:
        """Makes the closed rows those that the attempt continues."""
        seen_from = (attempt, dict(data.attempt_starts))
        if self.seen_from != seen_from:
            self.seen_from, self.closed, self.prompts, self.pairs = seen_from, 0, _Newest(), _Newest()
            self.close(data, attempt, 0)

    def close(self, data: RunData, attempt: int, keep: int) -> None:
        """Takes in all blocks but the newest of so many rows in all."""
        end = len(self.blocks)
        while end > self.closed and (keep := keep - len(self.blocks[end - 1].steps)) >= 0:
            end -= 1
        for block in self.blocks[self.closed : end]:
            rows = block.where(_on_branch(data, block, attempt))
            self.prompts.take(rows.prompts, rows.steps)
            self.pairs.take(rows.pairs, rows.steps)
        self.closed = end

    def open(self, data: RunData, attempt: int) -> list[_Rows]:
        """The rows that are not closed."""
        return [block.where(_on_branch(data, block, attempt)) for block in self.blocks[self.closed :]]

    def earlier(self, attempt: int, steps: Ints) -> list[_Rows]:
        """Rows of earlier attempts at these steps."""
        near = [block for block in self.blocks if block.attempts[0] < attempt and block.steps.max() >= steps[0]]
        return [block.where((block.attempts < attempt) & np.isin(block.steps, steps)) for block in near]


def _last(block: _Rows) -> Position:
    return int(block.attempts[-1]), int(block.steps[-1])


def _up_to(block: _Rows, after: Position) -> Flags:
    found: Flags = (block.attempts < after[0]) | ((block.attempts == after[0]) & (block.steps <= after[1]))
    return found


def _on_branch(data: RunData, block: _Rows, attempt: int) -> Flags:
    """Rows of the run as the attempt continues it."""
    keep: Flags = block.attempts <= attempt
    for later, start in data.attempt_starts.items():
        if later <= attempt:
            keep &= (block.attempts >= later) | (block.steps < start)
    return keep


def repeat_facts(data: RunData, table: Table, after: Position | None) -> FactSeries:
    """Facts of repetition; hashes of earlier steps are kept in memory, so that a refresh reads new rows only."""
    past: _Past | None = data.kept.get(_KEPT)
    if past is None:
        past = data.kept[_KEPT] = _Past()
        past.blocks = [_rows(earlier) for earlier in tables(data, None) if len(earlier)] if after is not None else []
    past.cut(after)
    result: dict[str, list[tuple[Ints, Ints, Floats]]] = {}
    for attempt in np.unique(table.attempts).tolist():
        own = table.attempts == attempt
        now = _rows(table).where(own)
        for name, series in _of_attempt(data, past, now, table.hashes["id_hash"][own], attempt).items():
            result.setdefault(name, []).append(series)
        past.blocks.append(now)
        if sum(len(block.steps) for block in past.blocks[past.closed :]) > _MOST_OPEN_ROWS:
            past.close(data, attempt, _OPEN_ROWS)
    return {name: tuple(np.concatenate(columns) for columns in zip(*parts, strict=True)) for name, parts in result.items()}  # type: ignore[misc]


def _rows(table: Table) -> _Rows:
    prompt, response = table.hashes["prompt_hash"], table.hashes["response_hash"]
    written = (prompt != NONE) & (response != NONE) & (table["characters"] > 0)
    return _Rows(table.attempts, table.steps, prompt, np.where(written, prompt * _ODD + response, NONE))


def _of_attempt(data: RunData, past: _Past, now: _Rows, ids: Hashes, attempt: int) -> FactSeries:
    """The facts of one attempt's new steps, against the run as that attempt continues it."""
    past.branch(data, attempt)
    recent = [*past.open(data, attempt), now]
    steps = np.concatenate([rows.steps for rows in recent])
    index = StepIndex(now.attempts, now.steps)
    result = _prompts(index, past.prompts, np.concatenate([rows.prompts for rows in recent]), steps)
    result |= _responses(index, past.pairs, np.concatenate([rows.pairs for rows in recent]), steps, now)
    result["fact.repeat.duplicate_frac"] = _doubled(index, ids, now.steps)
    if earlier := past.earlier(attempt, index.steps):
        said = np.concatenate([_at_step(rows.pairs, rows.steps) for rows in earlier])
        alike = np.isin(_at_step(now.pairs, now.steps), said)
        covered = (now.pairs != NONE) & np.isin(now.steps, np.concatenate([rows.steps for rows in earlier]))
        result["fact.repeat.attempt_frac"] = index.mean(alike.astype(np.float64), covered)
    return index.series(result)


def _prompts(index: StepIndex, closed: _Newest, keys: Hashes, steps: Ints) -> dict[str, Floats]:
    """Share of a step's prompts seen at an earlier step, and how many of them stood together in one such step."""
    keys, steps, before = _seen(closed, keys, steps)
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


def _responses(index: StepIndex, closed: _Newest, keys: Hashes, steps: Ints, now: _Rows) -> dict[str, Floats]:
    """Share of trajectories whose text was already the answer to the same prompt at an earlier step."""
    keys, steps, before = _seen(closed, keys, steps)
    again = before > _NEVER
    repeated = np.isin(_at_step(now.pairs, now.steps), _at_step(keys[again], steps[again]))
    return {"fact.repeat.response_frac": index.mean(repeated.astype(np.float64), now.pairs != NONE)}


def _seen(closed: _Newest, keys: Hashes, steps: Ints) -> tuple[Hashes, Ints, Ints]:
    """As _previous, with the closed rows before all of these."""
    keys, steps, before = _previous(keys, steps)
    first = before == _NEVER
    before[first] = closed.of(keys[first])
    return keys, steps, before


def _previous(keys: Hashes, steps: Ints) -> tuple[Hashes, Ints, Ints]:
    """Every (key, step) once, ordered so, with the newest earlier step of the same key, or _NEVER."""
    known = keys != NONE
    keys, steps = keys[known], steps[known]
    order = np.lexsort((steps, keys))
    keys, steps = keys[order], steps[order]
    fresh = np.ones(len(keys), np.bool_)
    fresh[1:] = (keys[1:] != keys[:-1]) | (steps[1:] != steps[:-1])
    keys, steps = keys[fresh], steps[fresh]
    before = np.full(len(keys), _NEVER, np.int64)
    same = keys[1:] == keys[:-1]
    before[1:][same] = steps[:-1][same]
    return keys, steps, before


def _at_step(keys: Hashes, steps: Ints) -> Hashes:
    return keys + steps.astype(np.uint64) * _ODD


def _doubled(index: StepIndex, ids: Hashes, steps: Ints) -> Floats:
    """Share of a step's trajectories whose id another one of the step has."""
    _, of, sizes = np.unique(_at_step(ids, steps), return_inverse=True, return_counts=True)
    return index.mean((sizes[of.reshape(-1)] > 1).astype(np.float64), ids != NONE)
