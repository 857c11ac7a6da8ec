"""Rollouts of a run: filtered, sorted, searched, paged with the true count, and facts about what the run has logged."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ingest.store.connection import Store

Split: TypeAlias = Literal["train", "eval"]
Range: TypeAlias = "tuple[float | None, float | None]"
OPEN: Range = (None, None)
"""A range without bounds."""

SORTS: dict[str, str] = {
    "step": "step",
    "reward": "reward",
    "length": "response_tokens",
    "lag": "policy_lag",
    "advantage": "advantage",
    "verifier": "verifier_seconds",
    "task": "task",
    "finish": "finish_reason",
}
"""Sort keys of the address and the column each one orders by; nulls come last either way."""

PREVIEW_CHARACTERS = 200
_CACHED_ORDERS = 8


@dataclass(frozen=True)
class RolloutFilter:
    """What the rows must be. Ranges are (low, high), both inclusive, None for open; a null field is in no closed range.

    step, reward, length (response tokens), lag (policy versions); split: rows that say none count as train;
    truncated: finish_reason is length; text: contained, in any case, in the prompt, the response or the writer's id.
    """

    step: Range = OPEN
    reward: Range = OPEN
    length: Range = OPEN
    lag: Range = OPEN
    split: Split | None = None
    task: str | None = None
    difficulty: str | None = None
    finish: str | None = None
    group: str | None = None
    truncated: bool | None = None
    tokens: bool | None = None
    text: str | None = None

    @property
    def active(self) -> tuple[str, ...]:
        """Names of the conditions that are set."""
        return tuple(f.name for f in fields(self) if getattr(self, f.name) not in (None, OPEN, ""))


@dataclass(frozen=True)
class Rollout:
    """One trajectory in a list. prompt and response are previews: the start and the end, or the place of the search hit."""

    step: int
    n: int
    trajectory_id: str | None
    group_id: str | None
    split: str | None
    task: str | None
    difficulty: str | None
    prompt: str | None
    response: str | None
    reward: float | None
    advantage: float | None
    response_tokens: int | None
    policy_lag: int | None
    finish_reason: str | None
    verifier_status: str | None
    verifier_seconds: float | None
    has_tokens: bool


@dataclass(frozen=True)
class RolloutPage:
    """Rows offset..offset+limit of `total` matching ones."""

    rows: tuple[Rollout, ...]
    total: int


@dataclass(frozen=True)
class RolloutFacts:
    """What a run's rollouts hold (newest attempt a step); count 0 means none was ever read.

    with_*: number of rows in which the field is written. reward, length and lag are (least, greatest), None where never
    written.
    """

    count: int
    first_step: int | None
    last_step: int | None
    steps: int
    splits: tuple[str, ...]
    tasks: tuple[str, ...]
    difficulties: tuple[str, ...]
    finish_reasons: tuple[str, ...]
    reward: tuple[float, float] | None
    length: tuple[int, int] | None
    lag: tuple[int, int] | None
    with_tokens: int
    with_finish: int
    with_advantage: int
    with_verifier_seconds: int
    with_groups: int


Order: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64]]
_orders: weakref.WeakKeyDictionary[Store, OrderedDict[Any, Order]] = weakref.WeakKeyDictionary()


def newest_attempt(store: Store, run_id: str, alias: str = "trajectory") -> str:
    """A condition that keeps, per step and split, the rows of the newest attempt; TRUE where there is one attempt.

    The condition uses $run_id.
    """
    found = store.rows("SELECT count(DISTINCT attempt) FROM trajectory WHERE run_id = $run_id", {"run_id": run_id})
    if found[0][0] <= 1:
        return "TRUE"
    return (
        f"({alias}.step, coalesce({alias}.split, 'train'), {alias}.attempt) IN "
        "(SELECT (step, coalesce(split, 'train'), max(attempt)) FROM trajectory WHERE run_id = $run_id "
        "GROUP BY step, coalesce(split, 'train'))"
    )


def condition(store: Store, run_id: str, chosen: RolloutFilter, alias: str = "trajectory") -> tuple[str, dict[str, object]]:
    """The WHERE text of a filter over the trajectory table and its named values (run_id among them)."""
    clauses = [f"{alias}.run_id = $run_id", newest_attempt(store, run_id, alias)]
    values: dict[str, object] = {"run_id": run_id}
    ranges = (("step", chosen.step), ("reward", chosen.reward), ("response_tokens", chosen.length), ("policy_lag", chosen.lag))
    for column, (low, high) in ranges:
        for suffix, sign, bound in (("low", ">=", low), ("high", "<=", high)):
            if bound is not None:
                clauses.append(f"{alias}.{column} {sign} ${column}_{suffix}")
                values[f"{column}_{suffix}"] = bound
    equal = (("task", chosen.task), ("difficulty", chosen.difficulty), ("finish_reason", chosen.finish), ("group_id", chosen.group))
    for column, value in equal:
        if value is not None:
            clauses.append(f"{alias}.{column} = ${column}")
            values[column] = value
    if chosen.split is not None:
        clauses.append(f"coalesce({alias}.split, 'train') = $split")
        values["split"] = chosen.split
    if chosen.truncated is not None:
        clauses.append(f"coalesce({alias}.finish_reason = 'length', false) = $truncated")
        values["truncated"] = chosen.truncated
    if chosen.tokens is not None:
        clauses.append(f"{alias}.has_tokens = $tokens")
        values["tokens"] = chosen.tokens
    if chosen.text:
        # contains over lower() is a third of the time of ILIKE, and the person's % and _ stay themselves.
        columns = ("response", "prompt", "trajectory_id")
        clauses.append("(" + " OR ".join(f"contains(lower({alias}.{c}), lower($text))" for c in columns) + ")")
        values["text"] = chosen.text
    return " AND ".join(clauses), values


def rollout_page(
    store: Store,
    run_id: str,
    chosen: RolloutFilter,
    *,
    sort: str = "step",
    descending: bool = True,
    offset: int = 0,
    limit: int = 100,
) -> RolloutPage:
    """One page of matching trajectories (newest attempt a step) and how many match in all.

    Default order: newest step first, within a step in order of arrival. The order of a question is kept for the next
    pages until the run has new rows.

    Raises:
        KeyError: sort is not one of SORTS.
    """
    steps, numbers = _order(store, run_id, chosen, SORTS[sort], descending)
    window = slice(max(0, offset), max(0, offset) + max(0, limit))
    return RolloutPage(_fetch(store, run_id, steps[window], numbers[window], chosen.text), len(steps))


def count_rollouts(store: Store, run_id: str, chosen: RolloutFilter) -> int:
    """How many trajectories match."""
    where, values = condition(store, run_id, chosen)
    return int(store.rows(f"SELECT count(*) FROM trajectory WHERE {where}", values)[0][0])


def _order(store: Store, run_id: str, chosen: RolloutFilter, column: str, descending: bool) -> Order:
    rows = store.rows("SELECT count(*), max(attempt) FROM trajectory WHERE run_id = ?", [run_id])[0]
    key = (run_id, rows, chosen, column, descending)
    kept = _orders.setdefault(store, OrderedDict())
    found = kept.get(key)
    if found is None:
        where, values = condition(store, run_id, chosen)
        direction = "DESC" if descending else "ASC"
        ordered = store.columns(
            f"SELECT step, n FROM trajectory WHERE {where} ORDER BY {column} {direction} NULLS LAST, step DESC, n ASC", values
        )
        found = kept[key] = (ordered["step"].astype(np.int64), ordered["n"].astype(np.int64))
        while len(kept) > _CACHED_ORDERS:
            kept.popitem(last=False)
    return found


def _fetch(store: Store, run_id: str, steps: NDArray[np.int64], numbers: NDArray[np.int64], text: str | None) -> tuple[Rollout, ...]:
    if not len(steps):
        return ()
    values: dict[str, object] = {
        "run_id": run_id,
        "steps": steps.tolist(),
        "numbers": numbers.tolist(),
        "first": int(steps.min()),
        "last": int(steps.max()),
    }
    if text:
        values["text"] = text
    rows = store.rows(
        f"""
        WITH wanted AS (SELECT unnest($steps) AS step, unnest($numbers) AS n)
        SELECT t.step, t.n, trajectory_id, group_id, split, task, difficulty, {_preview("prompt", text)}, {_preview("response", text)},
               reward, advantage, response_tokens, policy_lag, finish_reason, verifier_status, verifier_seconds, has_tokens
        FROM trajectory t JOIN wanted w ON t.step = w.step AND t.n = w.n
        WHERE t.run_id = $run_id AND t.step BETWEEN $first AND $last""",
        values,
    )
    place = {key: position for position, key in enumerate(zip(steps.tolist(), numbers.tolist(), strict=True))}
    return tuple(Rollout(*row) for row in sorted(rows, key=lambda row: place[row[0], row[1]]))


def rollouts_at(store: Store, run_id: str, places: Sequence[tuple[int, int]]) -> tuple[Rollout, ...]:
    """The rollouts at (step, running number), in that order; what is not there is left out."""
    steps, numbers = (np.array([place[i] for place in places], np.int64) for i in (0, 1))
    return _fetch(store, run_id, steps, numbers, None)


def _preview(column: str, text: str | None) -> str:
    """SQL of a preview: around the hit where one is searched, else the start and the end, since answers stand at the end."""
    head, tail = PREVIEW_CHARACTERS * 3 // 5, PREVIEW_CHARACTERS * 2 // 5
    ends = (
        f"CASE WHEN length({column}) <= {PREVIEW_CHARACTERS} THEN {column} "
        f"ELSE left({column}, {head}) || ' … ' || right({column}, {tail}) END"
    )
    if not text:
        return ends
    hit = f"strpos(lower({column}), lower($text))"
    around = f"CASE WHEN {hit} > 60 THEN '… ' ELSE '' END || substr({column}, greatest(1, {hit} - 60), {PREVIEW_CHARACTERS})"
    return f"CASE WHEN {hit} > 0 AND length({column}) > {PREVIEW_CHARACTERS} THEN {around} ELSE {ends} END"


def rollout_facts(store: Store, run_id: str) -> RolloutFacts:
    """What the run's rollouts hold, for choosing controls and for saying what is missing."""
    where, values = condition(store, run_id, RolloutFilter())
    row = store.rows(
        f"""
        SELECT count(*), min(step), max(step), count(DISTINCT step),
               list_sort(list(DISTINCT coalesce(split, 'train'))), list_sort(list(DISTINCT task)),
               list_sort(list(DISTINCT difficulty)), list_sort(list(DISTINCT finish_reason)),
               min(reward) FILTER (NOT isnan(reward)), max(reward) FILTER (NOT isnan(reward)),
               min(response_tokens), max(response_tokens), min(policy_lag), max(policy_lag),
               count(*) FILTER (has_tokens), count(finish_reason), count(advantage), count(verifier_seconds), count(group_id)
        FROM trajectory WHERE {where}""",
        values,
    )[0]
    splits, tasks, difficulties, finish_reasons = (tuple(str(v) for v in (row[i] or ()) if v is not None) for i in range(4, 8))
    reward, length, lag = (None if row[i] is None else (row[i], row[i + 1]) for i in (8, 10, 12))
    return RolloutFacts(row[0], row[1], row[2], row[3], splits, tasks, difficulties, finish_reasons, reward, length, lag, *row[14:19])


def nearest_steps(store: Store, run_id: str, chosen: RolloutFilter, step: int) -> tuple[int | None, int | None]:
    """The newest step before and the first after `step` at which something matches the filter without its step range."""
    where, values = condition(store, run_id, replace(chosen, step=OPEN))
    row = store.rows(
        f"SELECT max(step) FILTER (step < $at), min(step) FILTER (step > $at) FROM trajectory WHERE {where}", values | {"at": step}
    )[0]
    return row[0], row[1]


@dataclass(frozen=True)
class Scatter:
    """A fixed sample of matching trajectories that have both numbers, arrays of shape [shown]; total counts all of them."""

    length: NDArray[np.float64]
    reward: NDArray[np.float64]
    step: NDArray[np.int64]
    n: NDArray[np.int64]
    truncated: NDArray[np.bool_]
    total: int


def reward_by_length(store: Store, run_id: str, chosen: RolloutFilter, most: int = 2000) -> Scatter:
    """Reward against response tokens of at most `most` matching trajectories, the same ones each time."""
    where, values = condition(store, run_id, chosen)
    columns = store.columns(
        f"""
        SELECT response_tokens::DOUBLE AS length, reward, step, n, coalesce(finish_reason = 'length', false) AS truncated,
               count(*) OVER () AS total
        FROM trajectory WHERE {where} AND reward IS NOT NULL AND isfinite(reward) AND response_tokens IS NOT NULL
        ORDER BY hash(step, n) LIMIT {int(most)}""",
        values,
    )
    total = int(columns["total"][0]) if len(columns["total"]) else 0
    return Scatter(
        columns["length"], columns["reward"], columns["step"].astype(np.int64), columns["n"].astype(np.int64),
        columns["truncated"].astype(bool), total,
    )  # fmt: skip


def rollouts_by_step(store: Store, run_id: str, chosen: RolloutFilter) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Steps at which something matches, ascending, and how many match at each."""
    where, values = condition(store, run_id, chosen)
    columns = store.columns(f"SELECT step, count(*) AS n FROM trajectory WHERE {where} GROUP BY step ORDER BY step", values)
    return columns["step"].astype(np.int64), columns["n"].astype(np.int64)
