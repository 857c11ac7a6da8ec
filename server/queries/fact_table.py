"""The rows of trajectories that facts are made of, read once for all of them, a part of the run at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ingest.store.connection import Columns
from server.queries.fact_rows import StepIndex, parameters
from server.queries.reductions import Flags, Floats, Groups, Ints
from server.queries.view import Position, RunData

Hashes = NDArray[np.uint64]
Labels = NDArray[np.object_]

NONE = np.uint64(0)
"""Stands in place of the hash of what was not written; a hash is 0 itself with a chance of one in 10^19."""
MOST_ROWS = 20_000
"""Rows held at a time, with the ends of their responses, so that memory does not grow with the run."""
HEAD_CHARACTERS, TAIL_CHARACTERS = 512, 2000
"""Of each response that are read."""
LEAST_TAIL = 256
"""Characters of a response from which its tail is read."""
LEAST_LETTERS = 20
"""Letters below which a text says nothing about its language."""

_FINISHED = {"length": 1, "stop": 2, "abort": 3}
_STATUS = {"ok": 1, "timeout": 2, "error": 3}
_ANSWER = r"([\p{L}\p{N}]+)[^\p{L}\p{N}]*$"
"""The last word or number of a response: where one task has one answer, what a grader compares stands there."""
_ANSWER_WITHIN = 64
"""Characters from the end in which it is looked for."""


def _coded(column: str, codes: dict[str, int]) -> str:
    cases = " ".join(f"WHEN '{name}' THEN {code}" for name, code in codes.items())
    return f"CASE WHEN {column} IS NULL THEN 0 ELSE CASE {column} {cases} ELSE 9 END END"


def _hash(expression: str) -> str:
    return f"CASE WHEN {expression} IS NULL THEN 0 ELSE hash({expression}) END"


PROMPT = "coalesce(prompt, prompt_messages::VARCHAR)"
"""SQL of a prompt's text."""
_LAST_WORD = f"nullif(regexp_extract(right(response, {_ANSWER_WITHIN}), '{_ANSWER}', 1), '')"
_PLAIN = f"strlen(response) = length(response) AND strlen({PROMPT}) = length({PROMPT})"
_LETTERED = f"regexp_matches({PROMPT}, '[A-Za-z]') AND regexp_matches(response, '([A-Za-z][^A-Za-z]*){{{LEAST_LETTERS}}}')"
_RUN = "run_id = $run AND (attempt, step) > ($attempt, $step) AND attempt >= $attempt AND step >= $first_step"

_UP_TO = "(attempt < $to_attempt OR (attempt = $to_attempt AND step <= $to_step))"

_QUERY = f"""
SELECT attempt, step, n, coalesce(split, 'train') = 'train' AS training, has_tokens, reward_parts IS NOT NULL AS in_parts,
    reward, advantage, response_tokens AS tokens, coalesce(prompt_tokens, length(prompt)) AS prompt_size, length(response) AS characters,
    {_coded("finish_reason", _FINISHED)} AS finished, {_coded("verifier_status", _STATUS)} AS status, verifier_seconds, policy_lag AS lag,
    policy_version_last - policy_version_first AS span, trainer_version - policy_version_last AS versions_apart,
    prompt_tokens, kept, task, difficulty, try_cast(difficulty AS DOUBLE) AS difficulty_number,
    origin, try_cast(sampling ->> '$.temperature' AS DOUBLE) AS temperature, try_cast(sampling ->> '$.top_p' AS DOUBLE) AS top_p,
    try_cast(seconds ->> 'rollout' AS DOUBLE) AS rollout_seconds, try_cast(seconds ->> 'environment' AS DOUBLE) AS environment_seconds,
    {_hash("group_id")} AS group_hash, {_hash(PROMPT)} AS prompt_hash, {_hash("response")} AS response_hash,
    {_hash(_LAST_WORD)} AS answer_hash, {_hash("trajectory_id")} AS id_hash,
    {_PLAIN} AS plain, CASE WHEN {_PLAIN} THEN {_LETTERED} END AS lettered,
    left(response, {HEAD_CHARACTERS}) AS head,
    CASE WHEN length(response) >= {LEAST_TAIL} THEN right(response, {TAIL_CHARACTERS}) END AS tail
FROM trajectory"""


class Scope(NamedTuple):
    """Which rows a table was made of: SQL for rows of the table trajectory, and its parameters."""

    where: str
    parameters: dict[str, object]


@dataclass(frozen=True)
class Table:
    """Trajectories of a run in order of (attempt, step, n), [rows] in every array.

    Numbers are NaN and labels None where they are not written, hashes NONE; rewards and advantages that are not finite are
    not known either. evaluated: rows of other splits than train were left out.
    """

    attempts: Ints
    steps: Ints
    n: Ints
    numbers: dict[str, Floats]
    labels: dict[str, Labels]
    hashes: dict[str, Hashes]
    texts: dict[str, Labels]
    """Ends of the responses: head, and tail of those long enough."""
    evaluated: bool
    scope: Scope

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, name: str) -> Floats:
        return self.numbers[name]

    @cached_property
    def index(self) -> StepIndex:
        """The rows by step."""
        return StepIndex(self.attempts, self.steps)

    @cached_property
    def low(self) -> Floats:
        """Lowest reward of each row's step."""
        return self.index.least(self["reward"])[self.index.of]

    @cached_property
    def high(self) -> Floats:
        """Highest reward of each row's step."""
        return self.index.most(self["reward"])[self.index.of]

    @cached_property
    def correct(self) -> Flags:
        """Rewarded above the middle of the step's range."""
        return (self.high > self.low) & (self["reward"] > (self.high + self.low) / 2)

    @cached_property
    def wrong(self) -> Flags:
        """Rewarded at or below it."""
        return (self.high > self.low) & (self["reward"] <= (self.high + self.low) / 2)

    @cached_property
    def truncated(self) -> Flags:
        """Cut by the token budget."""
        return np.equal(self["finished"], _FINISHED["length"])

    @cached_property
    def stopped(self) -> Flags:
        """Ended by the model itself."""
        return np.equal(self["finished"], _FINISHED["stop"])

    @cached_property
    def ended(self) -> Flags:
        """Written to have ended in another way."""
        return (self["finished"] > 0) & ~self.truncated

    def status(self, *names: str) -> Flags:
        """Whose verifier has one of these states."""
        return np.isin(self["status"], [_STATUS[name] for name in names])

    def by(self, *keys: str, where: Flags) -> tuple[Ints, Groups, Ints]:
        """The picked rows in groups of one step and equal hashes: their numbers, the groups, and each group's step in the index."""
        rows = np.flatnonzero(where)
        columns = [self.index.of[rows].astype(np.uint64), *(self.hashes[key][rows] for key in keys)]
        order = np.lexsort(columns[::-1])
        new = np.ones(len(rows), np.bool_)
        new[1:] = np.any([column[order][1:] != column[order][:-1] for column in columns], axis=0)
        of = np.empty(len(rows), np.int64)
        of[order] = np.cumsum(new) - 1
        return rows, Groups(of, int(new.sum())), self.index.of[rows][order][new]


def tables(data: RunData, after: Position | None) -> Iterator[Table]:
    """The run's trajectories behind a place, in parts of whole steps."""
    for first, last in _parts(data, after):
        scope = Scope(_RUN, parameters(data, first))
        if last is not None:
            end = {"to_attempt": last[0], "to_step": last[1]}
            scope = Scope(f"{_RUN} AND {_UP_TO}", scope.parameters | end)
        yield _table(data.store.columns(f"{_QUERY} WHERE {scope.where}", scope.parameters), scope)


def _parts(data: RunData, after: Position | None) -> list[tuple[Position | None, Position | None]]:
    """Place before the first and place of the last step of each part; (after, None) where one part is enough."""
    found = parameters(data, after)
    count = data.store.rows(f"SELECT count(*) FROM trajectory WHERE {_RUN}", found)[0][0]
    if count == 0:
        return []
    if count <= MOST_ROWS:
        return [(after, None)]
    sizes = data.store.rows(f"SELECT attempt, step, count(*) FROM trajectory WHERE {_RUN} GROUP BY ALL ORDER BY ALL", found)
    parts: list[tuple[Position | None, Position | None]] = []
    before, held, last = after, 0, None
    for attempt, step, size in sizes:
        if held and held + size > MOST_ROWS:
            parts.append((before, last))
            before, held = last, 0
        held, last = held + size, (attempt, step)
    return [*parts, (before, last)]


_HASHES = ("group_hash", "prompt_hash", "response_hash", "answer_hash", "id_hash")
_LABELS = ("task", "difficulty", "origin")
_TEXTS = ("head", "tail")
_PLACES = ("attempt", "step", "n")


def _table(columns: Columns, scope: Scope) -> Table:
    training = columns["training"].astype(np.bool_)
    order = np.lexsort(tuple(columns[name] for name in reversed(_PLACES)))
    order = order[training[order]]
    whole = bool(training.all())
    attempts, steps, n = (columns.pop(name)[order].astype(np.int64) for name in _PLACES)
    hashes = {name: columns.pop(name)[order].astype(np.uint64) for name in _HASHES}
    labels = {name: columns.pop(name)[order].astype(np.object_) for name in _LABELS}
    texts = {name: columns.pop(name)[order].astype(np.object_) for name in _TEXTS}
    numbers = {name: _number(values[order]) for name, values in columns.items()}
    for name in ("reward", "advantage"):
        numbers[name] = np.where(np.isfinite(numbers[name]), numbers[name], np.nan)
    return Table(attempts, steps, n, numbers, labels, hashes, texts, not whole, scope)


def _number(values: NDArray[np.generic]) -> Floats:
    if values.dtype == np.object_:  # what has nulls and is no number of its own, such as a flag
        return np.array([np.nan if value is None else float(value) for value in values])
    return values.astype(np.float64)
