"""Facts of context: whether each turn's prompt begins with the tokens of the turns before it, and how it differs where it does not."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ingest.store.connection import Columns
from server.queries.fact_rows import TRAINING, FactSeries, StepIndex, parameters
from server.queries.reductions import Floats
from server.queries.view import Position, RunData

Ids = NDArray[np.int64]
Kind = Literal["think", "retokenised", "reserialised", "compacted", "left", "other"]
KINDS: tuple[Kind, ...] = ("think", "retokenised", "reserialised", "compacted", "left", "other")

_TRAJECTORIES = 32
"""Trajectories a step that are tested: a template rewrites all of them."""
_READ = 2
"""Rewritten turns a step whose difference is looked into."""
_LOCAL = 16
"""Tokens within which two renderings of the same text meet again."""
_RUN = 8
"""Tokens in a row by which they are known to have met."""
_THINK_OPENS = 4
"""Tokens into a turn at which its thinking may open (line break, role header)."""
_CUT = 0.8
"""A prompt shorter than this share of what came before was cut, whatever was put in instead."""
_TEXT_ROWS = 16
"""Token rows a step from which the texts of tokens are learnt."""

_CHUNK = 20_000_000
"""Tokens of prompts read at a time (80 MB), so that memory does not grow with the run; each time reads the whole of a row group."""

_SIZES = f"""
SELECT u.attempt, u.step, sum(len(u.prompt_token_ids)) AS tokens
FROM turn u JOIN trajectory t ON t.run_id = u.run_id AND t.attempt = u.attempt AND t.step = u.step AND t.n = u.n
WHERE {TRAINING} AND u.role = 'assistant' AND u.prompt_token_ids IS NOT NULL GROUP BY ALL ORDER BY u.attempt, u.step"""

_WINDOW = f"{TRAINING} AND t.attempt = $of AND t.step BETWEEN $first AND $last"

# Sorted after it was read: a sort in the database would move the arrays.
_TURNS = f"""
WITH chosen AS (
    SELECT attempt, step, n FROM (
        SELECT DISTINCT t.attempt, t.step, t.n
        FROM turn u JOIN trajectory t ON t.run_id = u.run_id AND t.attempt = u.attempt AND t.step = u.step AND t.n = u.n
        WHERE {_WINDOW} AND u.role = 'assistant' AND u.prompt_token_ids IS NOT NULL)
    QUALIFY row_number() OVER (PARTITION BY attempt, step ORDER BY n) <= {_TRAJECTORIES})
SELECT u.step, u.n, u.turn, u.prompt_token_ids AS prompt, u.token_ids AS own,
       contains(u.content, '</think>') OR starts_with(ltrim(u.content), '<think') AS thinks
FROM turn u JOIN chosen c ON c.attempt = u.attempt AND c.step = u.step AND c.n = u.n
WHERE u.run_id = $run AND u.role = 'assistant' AND u.prompt_token_ids IS NOT NULL"""

# What the trainer had up to its last token of the policy; its arrays may lack the prompt.
_TRAINED = f"""
SELECT t.step, t.n, k.token_ids[:len(k.response_mask) + 1 - list_position(list_reverse(k.response_mask), 1)] AS ids
FROM trajectory t JOIN token k ON k.run_id = t.run_id AND k.attempt = t.attempt AND k.step = t.step AND k.n = t.n
WHERE {_WINDOW} AND t.has_tokens
      AND k.token_ids IS NOT NULL AND list_contains(k.response_mask, 1)"""

_TEXTS = f"""
SELECT attempt, step, unnest(token_ids) AS id, unnest(token_texts) AS text
FROM (SELECT t.attempt, t.step, k.token_ids, k.token_texts
      FROM trajectory t JOIN token k ON k.run_id = t.run_id AND k.attempt = t.attempt AND k.step = t.step AND k.n = t.n
      WHERE {TRAINING} AND t.has_tokens AND k.token_ids IS NOT NULL AND k.token_texts IS NOT NULL
            AND list_contains($steps, t.step)
      QUALIFY row_number() OVER (PARTITION BY t.attempt, t.step ORDER BY t.n) <= {_TEXT_ROWS})"""


class Difference(NamedTuple):
    """Where a prompt leaves the tokens before it: tokens in common, then dropped and inserted until both meet again (None: never)."""

    at: int
    dropped: int | None
    inserted: int | None


def difference(whole: Ids, later: Ids) -> Difference:
    """The first difference of a prompt from what the engine had read and written before; whole is no prefix of later."""
    n = min(len(whole), len(later))
    unequal = np.flatnonzero(whole[:n] != later[:n])
    at = int(unequal[0]) if len(unequal) else n
    dropped, inserted = _meet(whole[at:], later[at:])
    return Difference(at, dropped, inserted)


def _meet(old: Ids, new: Ids) -> tuple[int | None, int | None]:
    """The nearest place at which both go on alike: near by any edit, farther away only where tokens were dropped."""
    if not len(old) or not len(new):
        return len(old), 0
    size = _LOCAL + _RUN
    a, b = np.full(size, -1, np.int64), np.full(size, -2, np.int64)
    a[: min(len(old), size)], b[: min(len(new), size)] = old[:size], new[:size]
    equal = a[:, None] == b[None, :]
    # Behind the end of the old tokens anything may follow; fewer than two real tokens are no meeting.
    equal |= (np.arange(size) >= len(old))[:, None]
    runs = np.ones((_LOCAL, _LOCAL), bool)
    for k in range(_RUN):
        runs &= equal[k : k + _LOCAL, k : k + _LOCAL]
    runs &= (np.arange(_LOCAL) < len(old) - 1)[:, None]
    places = np.argwhere(runs)
    near = min(((int(r) + int(s), int(s), int(r)) for r, s in places), default=None)
    if near is not None:
        return near[2], near[1]
    for start in np.flatnonzero(old[1:] == new[0]) + 1:
        run = min(_RUN, len(old) - int(start), len(new))
        # One token in common says little: it counts as the rest of the old ones, and near by, only.
        if (run > 1 or (start == len(old) - 1 and start <= _LOCAL)) and (old[start : start + run] == new[:run]).all():
            return int(start), 0
    return None, None


def kind(found: Difference, whole: int, later: int, starts: Sequence[int], thinking: Sequence[bool | None]) -> Kind | None:
    """What the difference looks like by its place and size; None: a short one, which only the texts can tell apart.

    starts are the places at which the assistant turns of whole begin, thinking whether they think.
    """
    dropped, inserted = found.dropped, found.inserted
    opens = any(t and abs(found.at - start) <= _THINK_OPENS for start, t in zip(starts, thinking, strict=True))
    if opens and (dropped is None or inserted is None or dropped > inserted):
        return "think"
    if dropped is None or inserted is None:
        return "compacted" if later < _CUT * whole else "other"
    if dropped <= _LOCAL and inserted <= _LOCAL:
        return None
    return "left" if inserted == 0 else "compacted"


def by_text(old: str, new: str) -> Kind:
    """A short difference by the texts of its two sides: same text, same characters but for white space and order, or another text."""
    if old == new:
        return "retokenised"
    return "reserialised" if sorted("".join(old.split())) == sorted("".join(new.split())) else "other"


_SEEN = ("attempt", "step", "n", "pairs", "cuts", "first", "empty", "goal_kept", "longest", "differs")


class _Turn(NamedTuple):
    number: int
    prompt: Ids
    own: Ids | None
    thinks: bool


@dataclass
class _Rows:
    """What was seen of every tested trajectory, and the differences read, each with its place."""

    trajectories: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in _SEEN})
    differences: dict[str, list[Any]] = field(default_factory=lambda: {name: [] for name in ("attempt", "step", "whole", "later")})
    found: list[Difference] = field(default_factory=list)
    kinds: list[Kind | None] = field(default_factory=list)


def context_facts(data: RunData, after: Position | None) -> FactSeries:
    """Facts of context, reduced to steps; absent where no turn's prompt tokens are written.

    Arrays are compared here, a few steps at a time: the database would copy every prompt several times over.
    """
    if not data.store.rows("SELECT 1 FROM turn WHERE run_id = ? AND prompt_token_ids IS NOT NULL LIMIT 1", [data.run.run_id]):
        return {}
    found = parameters(data, after)
    rows = _Rows()
    for attempt, first, last in _chunks(data.store.rows(_SIZES, found)):
        window = {**found, "of": attempt, "first": first, "last": last}
        trained = data.store.columns(_TRAINED, window)
        had = {(int(s), int(n)): ids for s, n, ids in zip(trained["step"], trained["n"], trained["ids"], strict=True)}
        for (step, n), turns in _conversations(data.store.columns(_TURNS, window)):
            if len(turns) > 1:
                _test(rows, (attempt, step, n), turns, had.get((step, n)))
    return _shares(rows) | _differences(data, after, rows)


def _chunks(sizes: Sequence[tuple[int, int, int]]) -> Iterator[tuple[int, int, int]]:
    """Attempt, first and last step of windows that hold few enough tokens."""
    start, size = 0, 0
    for at, (attempt, _, tokens) in enumerate(sizes):
        if at > start and (size + tokens > _CHUNK or attempt != sizes[start][0]):
            yield sizes[start][0], sizes[start][1], sizes[at - 1][1]
            start, size = at, 0
        size += tokens
    if sizes:
        yield sizes[start][0], sizes[start][1], sizes[-1][1]


def _conversations(rows: Columns) -> Iterator[tuple[tuple[int, int], list[_Turn]]]:
    """The turns of each trajectory, by step and n."""
    turns: list[_Turn] = []
    place = (-1, -1)
    order = np.lexsort((rows["turn"], rows["n"], rows["step"]))
    columns = (rows[name][order] for name in ("step", "n", "turn", "thinks", "prompt", "own"))
    for step, n, number, thinks, prompt, own in zip(*columns, strict=True):
        if (step, n) != place and turns:
            yield place, turns
            turns = []
        place = (int(step), int(n))
        turns.append(_Turn(int(number), _ids(prompt), None if own is None or own is np.ma.masked else _ids(own), bool(thinks == 1)))
    if turns:
        yield place, turns


def _ids(values: Any) -> Ids:
    """Token ids; a null is -1."""
    return np.asarray(np.ma.filled(values, -1)) if isinstance(values, np.ma.MaskedArray) else np.asarray(values)


def _begins(later: Ids, first: Ids, second: Ids) -> bool:
    """Whether an array begins with two others laid end to end."""
    n = len(first)
    return np.array_equal(later[:n], first) and np.array_equal(later[n : n + len(second)], second)


def _test(rows: _Rows, place: tuple[int, int, int], turns: Sequence[_Turn], trained: Any) -> None:
    pairs = [(turn, later) for turn, later in itertools.pairwise(turns) if turn.own is not None]
    cuts = [(turn, later) for turn, later in pairs if not _begins(later.prompt, turn.prompt, turn.own)]  # type: ignore[arg-type]
    goal, end = turns[0].prompt, turns[-1]
    seen = {
        "pairs": len(pairs),
        "cuts": len(cuts) if pairs else np.nan,
        "first": cuts[0][0].number if cuts else np.nan,
        "empty": sum(later.number > turn.number + 1 and len(later.prompt) <= len(turn.prompt) + len(turn.own) for turn, later in pairs),  # type: ignore[arg-type]
        "goal_kept": all(np.array_equal(turn.prompt[: len(goal)], goal) for turn in turns),
        "longest": max(len(turn.prompt) for turn in turns),
        "differs": np.nan if trained is None or end.own is None else _differs(np.concatenate([end.prompt, end.own]), _ids(trained)),
    }
    for name, value in (*zip(("attempt", "step", "n"), place, strict=True), *seen.items()):
        rows.trajectories[name].append(float(value))
    kept = rows.differences["step"]
    for turn, later in cuts[: max(0, _READ - (kept[-_READ:].count(place[1])))]:
        whole = np.concatenate([turn.prompt, turn.own])
        before = [t for t in turns if t.number <= turn.number]
        rows.found.append(difference(whole, later.prompt))
        starts = [len(t.prompt) for t in before]
        rows.kinds.append(kind(rows.found[-1], len(whole), len(later.prompt), starts, [t.thinks for t in before]))
        for name, item in zip(rows.differences, (place[0], place[1], whole, later.prompt), strict=True):
            rows.differences[name].append(item)


def _differs(engine: Ids, trainer: Ids) -> bool:
    return len(trainer) > len(engine) or not np.array_equal(engine[len(engine) - len(trainer) :], trainer)


def _shares(rows: _Rows) -> FactSeries:
    """Shares and means over the tested trajectories of each step."""
    x = {name: np.array(values, np.float64) for name, values in rows.trajectories.items()}
    if not len(x["step"]):
        return {}
    index = StepIndex(x["attempt"].astype(np.int64), x["step"].astype(np.int64))
    cut = np.where(np.isnan(x["cuts"]), np.nan, x["cuts"] > 0)
    tested = index.count(x["pairs"] > 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        empty = index.mean(x["empty"] / x["pairs"], x["pairs"] > 0, x["pairs"])
    return index.series(
        {
            "fact.context.n": np.where(tested > 0, tested, np.nan),
            "fact.context.rewritten_frac": index.mean(cut),
            "fact.context.rewritten.example": -index.most(-x["n"], cut == 1),
            "fact.context.rewritten.turn": index.mean(x["first"]),
            "fact.context.segments": index.mean(1 + x["cuts"]),
            "fact.context.empty_delta_frac": empty,
            "fact.context.trainer_differs_frac": index.mean(x["differs"]),
            "fact.context.goal_kept_frac": index.mean(x["goal_kept"]),
            "fact.context.prompt_tokens": index.mean(x["longest"]),
        }
    )


def _differences(data: RunData, after: Position | None, rows: _Rows) -> FactSeries:
    """What the first rewritten turns of each step look like."""
    found, kinds = rows.found, rows.kinds
    if not found:
        return {}
    places: Columns = {name: np.array(rows.differences[name], np.int64) for name in ("attempt", "step")}
    short = [row for row in range(len(found)) if kinds[row] is None]
    if short:
        kinds = _read(data, after, {**places, **{k: rows.differences[k] for k in ("whole", "later")}}, found, kinds, short)
    index = StepIndex(places["attempt"], places["step"])
    named = {f"fact.context.{name}_frac": index.mean(np.array([k == name for k in kinds], np.float64)) for name in KINDS}
    return index.series(
        {
            **named,
            "fact.context.short_frac": index.mean(np.array([k is None for k in kinds], np.float64)),
            "fact.context.position": index.mean(np.array([d.at for d in found], np.float64)),
            "fact.context.dropped": index.mean(_dropped(found, rows.differences["whole"])),
        }
    )


def _dropped(found: Sequence[Difference], wholes: Sequence[Ids]) -> Floats:
    """Tokens dropped at the first difference; where the two never meet again, all of the old tokens behind it."""
    return np.array([len(w) - d.at if d.dropped is None else d.dropped for d, w in zip(found, wholes, strict=True)], np.float64)


def _read(
    data: RunData,
    after: Position | None,
    rows: Mapping[str, Any],
    found: Sequence[Difference],
    kinds: list[Kind | None],
    short: Sequence[int],
) -> list[Kind | None]:
    """The kinds, with short differences told apart where the texts of all their tokens are known from the same step."""
    steps = sorted({int(rows["step"][row]) for row in short})
    texts = data.store.columns(_TEXTS, {**parameters(data, after), "steps": steps})
    known = {(a, s, i): t for a, s, i, t in zip(texts["attempt"], texts["step"], texts["id"], texts["text"], strict=True)}
    for row in short:
        d = found[row]
        sides = (rows["whole"][row][d.at : d.at + (d.dropped or 0)], rows["later"][row][d.at : d.at + (d.inserted or 0)])
        read = [[known.get((rows["attempt"][row], rows["step"][row], token)) for token in side] for side in sides]
        if all(isinstance(text, str) for side in read for text in side):
            kinds[row] = by_text(*("".join(map(str, side)) for side in read))
    return kinds
