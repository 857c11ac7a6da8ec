"""Facts of context: whether each turn's prompt begins with the tokens of the turns before it, and how it differs where it does not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ingest.store.connection import Columns
from server.queries.fact_rows import TRAINING, FactSeries, Floats, StepIndex, as_series, parameters
from server.queries.view import Position, RunData

Ids = NDArray[np.int64]
Kind = Literal["think", "retokenised", "reserialised", "compacted", "left", "other"]
KINDS: tuple[Kind, ...] = ("think", "retokenised", "reserialised", "compacted", "left", "other")

_TRAJECTORIES = 64
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

# Turns whose prompt is written follow one another in pairs. `whole` is what the engine had read and written by the end of one.
_PAIRS = f"""
t AS (SELECT attempt, step, n FROM trajectory t WHERE {TRAINING}),
given AS (
    SELECT u.attempt, u.step, u.n, u.turn, u.content, u.prompt_token_ids AS prompt, u.token_ids AS own
    FROM turn u JOIN t ON u.attempt = t.attempt AND u.step = t.step AND u.n = t.n
    WHERE u.run_id = $run AND u.role = 'assistant' AND u.prompt_token_ids IS NOT NULL
    QUALIFY dense_rank() OVER (PARTITION BY u.attempt, u.step ORDER BY u.n) <= {_TRAJECTORIES}),
pairs AS (
    SELECT attempt, step, n, turn, content, prompt, list_concat(prompt, own) AS whole, len(prompt) AS given, len(own) AS made,
           lead(prompt) OVER w AS later, lead(turn) OVER w AS later_turn, first_value(prompt) OVER w AS goal
    FROM given WINDOW w AS (PARTITION BY attempt, step, n ORDER BY turn)),
tested AS (SELECT *, later[:len(whole)] <> whole AS rewritten FROM pairs WHERE later IS NOT NULL AND made IS NOT NULL)"""

_QUERY = f"""
WITH {_PAIRS},
trajectories AS (
    SELECT attempt, step, n, bool_or(rewritten) AS rewritten, count(*) FILTER (rewritten) AS cuts,
           count(*) FILTER (len(later) <= len(whole) AND later_turn > turn + 1) AS empty, count(*) AS pairs,
           min(turn) FILTER (rewritten) AS first
    FROM tested GROUP BY ALL),
ends AS (
    SELECT attempt, step, n, bool_and(prompt[:len(goal)] = goal) AS goal_kept, max(given) AS longest FROM pairs
    GROUP BY ALL HAVING count(*) > 1),
-- What the trainer had before its last token of the policy, against what the engine had; the trainer's arrays may lack the prompt.
last AS (
    SELECT e.attempt, e.step, e.n, list_concat(e.prompt, e.own) AS engine,
           k.token_ids[:len(k.response_mask) + 1 - list_position(list_reverse(k.response_mask), 1)] AS trainer
    FROM given e JOIN token k ON k.run_id = $run AND k.attempt = e.attempt AND k.step = e.step AND k.n = e.n
    WHERE e.own IS NOT NULL AND k.token_ids IS NOT NULL AND list_contains(k.response_mask, 1)
    QUALIFY e.turn = max(e.turn) OVER (PARTITION BY e.attempt, e.step, e.n)
            AND count(*) OVER (PARTITION BY e.attempt, e.step, e.n) > 1),
compared AS (
    SELECT attempt, step, avg((len(trainer) > len(engine) OR engine[len(engine) - len(trainer) + 1:] <> trainer)::INT) AS differs
    FROM last GROUP BY ALL),
kept AS (SELECT attempt, step, avg(goal_kept::INT) AS goal, avg(longest) AS longest FROM ends GROUP BY ALL)
SELECT attempt, step,
    count(pairs) AS "fact.context.n",
    avg(rewritten::INT) AS "fact.context.rewritten_frac",
    min(n) FILTER (rewritten) AS "fact.context.rewritten.example",
    avg(first) FILTER (rewritten) AS "fact.context.rewritten.turn",
    avg(1 + cuts) AS "fact.context.segments",
    sum(empty) / nullif(sum(pairs), 0) AS "fact.context.empty_delta_frac",
    any_value(differs) AS "fact.context.trainer_differs_frac",
    any_value(goal) AS "fact.context.goal_kept_frac",
    any_value(longest) AS "fact.context.prompt_tokens"
FROM kept FULL JOIN trajectories USING (attempt, step) FULL JOIN compared USING (attempt, step)
GROUP BY attempt, step ORDER BY attempt, step"""

_DIFFERENCES = f"""
WITH {_PAIRS},
told AS (
    SELECT *, list(given) OVER w AS starts, list(contains(content, '</think>') OR starts_with(ltrim(content), '<think')) OVER w AS thinking
    FROM tested WINDOW w AS (PARTITION BY attempt, step, n ORDER BY turn))
SELECT attempt, step, [coalesce(x, -1) for x in whole] AS whole, [coalesce(x, -1) for x in later] AS later, starts, thinking FROM told
WHERE rewritten QUALIFY row_number() OVER (PARTITION BY attempt, step ORDER BY n, turn) <= {_READ} ORDER BY attempt, step"""

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


def context_facts(data: RunData, after: Position | None) -> FactSeries:
    """Facts of context, reduced to steps; absent where no turn's prompt tokens are written."""
    if not data.store.rows("SELECT 1 FROM turn WHERE run_id = ? AND prompt_token_ids IS NOT NULL LIMIT 1", [data.run.run_id]):
        return {}
    columns = data.store.columns(_QUERY, parameters(data, after))
    result = as_series(columns, [name for name in columns if name.startswith("fact.")])
    return result | _differences(data, after)


def _differences(data: RunData, after: Position | None) -> FactSeries:
    """What the first rewritten turns of each step look like."""
    rows = data.store.columns(_DIFFERENCES, parameters(data, after))
    count = len(rows["step"])
    if not count:
        return {}
    kinds: list[Kind | None] = []
    found: list[Difference] = []
    for whole, later, starts, thinking in zip(rows["whole"], rows["later"], rows["starts"], rows["thinking"], strict=True):
        found.append(difference(np.asarray(whole, np.int64), np.asarray(later, np.int64)))
        kinds.append(kind(found[-1], len(whole), len(later), starts, thinking))
    short = [row for row in range(count) if kinds[row] is None]
    kinds = _read(data, after, rows, found, kinds, short) if short else kinds
    index = StepIndex(rows["attempt"], rows["step"])
    named = {f"fact.context.{name}_frac": index.mean(np.array([k == name for k in kinds], np.float64)) for name in KINDS}
    return index.series(
        {
            **named,
            "fact.context.short_frac": index.mean(np.array([k is None for k in kinds], np.float64)),
            "fact.context.position": index.mean(np.array([d.at for d in found], np.float64)),
            "fact.context.dropped": index.mean(_dropped(found, rows)),
        }
    )


def _dropped(found: Sequence[Difference], rows: Columns) -> Floats:
    """Tokens dropped at the first difference; where the two never meet again, all of the old tokens behind it."""
    lengths = (len(whole) for whole in rows["whole"])
    return np.array([n - d.at if d.dropped is None else d.dropped for d, n in zip(found, lengths, strict=True)], np.float64)


def _read(
    data: RunData, after: Position | None, rows: Columns, found: Sequence[Difference], kinds: list[Kind | None], short: Sequence[int]
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
