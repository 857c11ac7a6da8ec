"""Token arrays of trajectories, reduced to one row of sums a trajectory: trainer against engine, update, masks, entropies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from ingest.store.connection import Columns
from server.queries.fact_table import Table
from server.queries.reductions import Flags, Floats, Ints, ratio
from server.queries.view import RunData

Number = TypeVar("Number", bound=np.generic)
Sums: TypeAlias = dict[str, Floats]
"""One value a trajectory, NaN where nothing was there to be summed."""

_TOKENS_AT_ONCE = 1_000_000
"""Tokens read at a time, so that memory does not grow with the run."""
_TOKENS_IN_CACHE = 32_000
_UNKNOWN_SIZE = 2000
"""Tokens taken for a trajectory that does not say how many it has."""
_ARRAYS = {
    "o": "old_logprobs", "r": "rollout_logprobs", "c": "current_logprobs", "e": "entropies", "m": "response_mask", "l": "loss_mask",
    "a": "advantages",
}  # fmt: skip
_RARE = np.log(0.05)
_RATIO_LOW, _RATIO_HIGH = np.log(0.9), np.log(1.1)
_APART = 0.05
"""nats"""
_PULL_RARE = 0.8


def token_sums(data: RunData, table: Table) -> tuple[Ints, Sums]:
    """Rows of the table whose tokens are stored, in order, and their sums by name, [rows]."""
    found = [_reduced(data, table, rows, scope) for rows, scope in _parts(data, table)]
    some = [part for part in found if len(part[0])]
    if not some:
        return np.empty(0, np.int64), {}
    rows = np.concatenate([part[0] for part in some])
    order = np.argsort(rows, kind="stable")
    return rows[order], {name: np.concatenate([part[1][name] for part in some])[order] for name in some[0][1]}


def _parts(data: RunData, table: Table) -> Iterator[tuple[Ints, dict[str, object]]]:
    """Rows with tokens of some steps in a row of one attempt, and the parameters that pick them."""
    rows = np.flatnonzero(table["has_tokens"] == 1)
    sizes = np.nan_to_num(table["tokens"], nan=_UNKNOWN_SIZE) + np.nan_to_num(table["prompt_size"])
    held = 0.0
    first = 0
    for at, row in enumerate(rows.tolist()):
        new_step = at > first and table.index.of[row] != table.index.of[rows[at - 1]]
        if new_step and (held > _TOKENS_AT_ONCE or table.attempts[row] != table.attempts[rows[first]]):
            yield rows[first:at], _place(data, table, rows[first], rows[at - 1])
            first, held = at, 0.0
        held += sizes[row]
    if len(rows):
        yield rows[first:], _place(data, table, rows[first], rows[-1])


def _place(data: RunData, table: Table, first: np.int64, last: np.int64) -> dict[str, object]:
    steps = {"first": int(table.steps[first]), "last": int(table.steps[last])}
    return {"run": data.run.run_id, "attempt": int(table.attempts[first]), **steps}


def _reduced(data: RunData, table: Table, rows: Ints, scope: dict[str, object]) -> tuple[Ints, Sums]:
    # A trajectory's own advantage spares reading one a token.
    arrays = {name: column for name, column in _ARRAYS.items() if name != "a" or np.isnan(table["advantage"][rows]).any()}
    lists = ", ".join(f"{column} AS {name}" for name, column in arrays.items())
    columns = data.store.columns(
        f"SELECT step, n, {lists} FROM token WHERE run_id = $run AND attempt = $attempt AND step BETWEEN $first AND $last", scope
    )
    row_of = dict(zip(zip(table.steps[rows].tolist(), table.n[rows].tolist(), strict=True), rows.tolist(), strict=True))
    found = np.array([row_of.get(key, -1) for key in zip(columns["step"].tolist(), columns["n"].tolist(), strict=True)], np.int64)
    sizes = np.array([_longest(columns, arrays, k) for k in range(len(found))], np.int64)
    keep = np.flatnonzero((found >= 0) & (sizes > 0))
    if not len(keep):
        return np.empty(0, np.int64), {}
    prompt_tokens = table["prompt_tokens"][found]
    sums = []
    for part in np.split(keep, _edges(sizes[keep])):
        flat = {name: _flat(columns[name][part], sizes[part]) for name in arrays}
        sums.append(_sums(flat, sizes[part], prompt_tokens[part]))
    return found[keep], {name: np.concatenate([part[name] for part in sums]) for name in sums[0]}


def _edges(sizes: Ints) -> Ints:
    """Where to cut trajectories into stretches of about so many tokens that their arrays stay in the processor's cache."""
    return np.flatnonzero(np.diff(np.cumsum(sizes) // _TOKENS_IN_CACHE)) + 1


def _longest(columns: Columns, names: Sequence[str] | dict[str, str], row: int) -> int:
    return max((len(columns[name][row]) for name in names if columns[name][row] is not None), default=0)


def _flat(lists: NDArray[Any], sizes: Ints) -> Floats:
    """One array after the other, filled with NaN up to their sizes."""
    plain = [np.empty(0) if one is None else _filled(one) for one in lists.tolist()]
    if all(len(one) == size for one, size in zip(plain, sizes.tolist(), strict=True)):
        return np.concatenate(plain).astype(np.float64)
    result = np.full(int(sizes.sum()), np.nan)
    for start, one in zip((np.cumsum(sizes) - sizes).tolist(), plain, strict=True):
        result[start : start + len(one)] = one
    return result


def _filled(values: NDArray[Any]) -> NDArray[Any]:
    if isinstance(values, np.ma.MaskedArray):
        return np.asarray(np.ma.filled(values.astype(np.float64), np.nan))
    if values.dtype == np.object_:
        return np.array([np.nan if value is None else value for value in values.tolist()], np.float64)
    return values


class _Segments:
    """Tokens of trajectories that lie one after the other; no trajectory is empty."""

    def __init__(self, sizes: Ints) -> None:
        self.sizes = sizes
        self.starts = np.cumsum(sizes) - sizes

    def count(self, where: Flags) -> Floats:
        """Number of picked tokens."""
        return np.add.reduceat(where.view(np.int8), self.starts, dtype=np.int32).astype(np.float64)

    def total(self, values: Floats, where: Flags) -> Floats:
        """Sum of the picked tokens; 0 without any."""
        return np.asarray(np.add.reduceat(np.where(where, values, 0.0), self.starts), np.float64)

    def some(self, values: Floats, where: Flags) -> Floats:
        """Sum of the picked tokens; NaN without any."""
        return np.where(self.count(where) > 0, self.total(values, where), np.nan)

    def most(self, values: Floats, where: Flags) -> Floats:
        """Largest of the picked tokens; NaN without any."""
        result = np.maximum.reduceat(np.where(where, values, -np.inf), self.starts)
        return np.where(np.isfinite(result), result, np.nan)

    def spread(self, values: NDArray[Number]) -> NDArray[Number]:
        """One value a trajectory, for each of its tokens."""
        return np.repeat(values, self.sizes)

    def last(self, values: Floats, where: Flags) -> Floats:
        """The last picked token's value; NaN without any."""
        place = np.maximum.reduceat(np.where(where, np.arange(len(values)), -1), self.starts)
        return np.where(place >= 0, values[np.maximum(place, 0)], np.nan)

    def correlation(self, x: Floats, y: Floats, where: Flags) -> Floats:
        """Pearson's correlation over the picked tokens; NaN without a spread of both."""
        n = self.count(where)
        a, b = (np.where(where, v - self.spread(ratio(self.total(v, where), n)), 0.0) for v in (x, y))
        both, xx, yy = (np.add.reduceat(product, self.starts) for product in (a * b, a * a, b * b))
        return np.clip(ratio(both, np.sqrt(xx * yy)), -1, 1)


def _sums(x: dict[str, Floats], sizes: Ints, prompt_tokens: Floats) -> Sums:
    tokens = _Segments(sizes)
    place = np.arange(len(x["m"])) - tokens.spread(tokens.starts) + 1
    prompt = tokens.spread(np.nan_to_num(prompt_tokens))
    unmasked = np.isnan(x["m"])
    own = (x["m"] == 1) | (unmasked & (place > prompt))
    finite = {name: np.isfinite(x[name]) for name in "orce"}
    result = {"policy": tokens.count(own)}
    result |= _engine(tokens, x, finite, own, place)
    result |= _update(tokens, x, finite, own)
    result |= _masks(tokens, x["l"], own, place, x["m"], prompt_tokens)
    result |= _entropies(tokens, x, finite, own)
    if "a" in x:
        known = np.isfinite(x["a"])
        result["advantage"] = ratio(tokens.total(x["a"], known), tokens.count(known))
    else:
        result["advantage"] = np.full(len(sizes), np.nan)
    return result


def _engine(tokens: _Segments, x: dict[str, Floats], finite: dict[str, Flags], own: Flags, place: Ints) -> Sums:
    """Trainer against engine. The shifted copies pair a token with its right-hand neighbour: rows that are off by one correlate
    only when moved."""
    both = own & finite["o"] & finite["r"]
    names = ("compared", "d_sum", "k1_sum", "d_first", "d_later", "d_rare", "apart", "same", "forth", "back")
    if not both.any():
        nothing = np.zeros(len(tokens.sizes))
        return {name: nothing if name in ("compared", "apart") else np.full(len(nothing), np.nan) for name in (*names, "d_mean")}
    signed = x["r"] - x["o"]
    d = np.abs(signed)
    compared = tokens.count(both)
    total = tokens.some(d, both)
    turn_end = tokens.spread(_first_turn_end(tokens, x["m"], place))
    first, later = both & (place < turn_end), both & (place > turn_end)
    inside = np.append(np.diff(place) > 0, False)  # the neighbour belongs to the same trajectory
    o_next, r_next, mask_next = (np.append(x[name][1:], np.nan) for name in "orm")
    pair = both & inside & ((mask_next == 1) | np.isnan(mask_next)) & np.isfinite(o_next) & np.isfinite(r_next)
    return {
        "compared": compared,
        "d_sum": total,
        "d_mean": ratio(total, compared),
        "k1_sum": tokens.some(signed, both),
        "d_first": ratio(tokens.total(d, first), tokens.count(first)),
        "d_later": ratio(tokens.total(d, later), tokens.count(later)),
        "d_rare": tokens.some(d, both & (x["r"] < _RARE)),
        "apart": tokens.count(both & (d > _APART)),
        "same": tokens.correlation(x["o"], x["r"], both),
        "forth": tokens.correlation(x["o"], r_next, pair),
        "back": tokens.correlation(o_next, x["r"], pair),
    }


def _first_turn_end(tokens: _Segments, mask: Floats, place: Ints) -> Floats:
    """Place of the first token behind the first stretch of the policy; NaN where there is none."""
    start = tokens.spread(-tokens.most(-place.astype(np.float64), mask == 1))
    return -tokens.most(-place.astype(np.float64), (mask == 0) & (place > start))


def _update(tokens: _Segments, x: dict[str, Floats], finite: dict[str, Flags], own: Flags) -> Sums:
    both, engine = own & finite["o"] & finite["c"], own & finite["r"] & finite["c"]
    if not (both.any() or engine.any()):
        nothing = np.zeros(len(tokens.sizes))
        unknown = dict.fromkeys(("u_abs", "u_mean", "u_most", "u_square", "gap_sum"), np.full(len(nothing), np.nan))
        return {"updated": nothing, "gaps": nothing, "u_outside": nothing, **unknown}
    u = x["c"] - x["o"]
    updated, size = tokens.count(both), np.abs(u)
    return {
        "updated": updated,
        "u_abs": tokens.some(size, both),
        "u_mean": ratio(tokens.total(u, both), updated),
        "u_most": tokens.most(size, both),
        "u_square": tokens.some(u * u, both),
        "u_outside": tokens.count(both & ((u < _RATIO_LOW) | (u > _RATIO_HIGH))),
        "gap_sum": tokens.some(np.abs(x["c"] - x["r"]), engine),
        "gaps": tokens.count(engine),
    }


def _masks(tokens: _Segments, loss: Floats, own: Flags, place: Ints, mask: Floats, prompt_tokens: Floats) -> Sums:
    told = np.isfinite(loss)
    start = -tokens.most(-place.astype(np.float64), mask == 1)
    first = tokens.spread(np.where(np.isnan(start), prompt_tokens + 1, start))
    return {
        "masked": tokens.count(told),
        "trained": tokens.some(loss, told),
        "extra": tokens.some(loss, told & ~own),
        "in_prompt": tokens.some(loss, told & (place < first)),
        "missing": tokens.count(own & (loss == 0)),
        "last_trained": tokens.last(loss, own & told),
    }


def _entropies(tokens: _Segments, x: dict[str, Floats], finite: dict[str, Flags], own: Flags) -> Sums:
    e, r = x["e"], x["r"]
    of_own, of_loss, told = own & finite["e"], (x["l"] == 1) & finite["e"], own & finite["r"]
    surprise, both = -r - e, told & finite["e"]
    pull = 1 - np.exp(np.where(finite["o"], x["o"], r))
    pulled = own & np.isfinite(pull)
    return {
        "e_own": tokens.some(e, of_own),
        "e_own_n": tokens.count(of_own),
        "e_loss": tokens.some(e, of_loss),
        "e_loss_n": tokens.count(of_loss),
        "r_mean": ratio(tokens.total(r, told), tokens.count(told)),
        "r_last": tokens.last(r, told),
        "surprises": tokens.count(both),
        "x_sum": tokens.some(surprise, both),
        "x_squares": tokens.some(surprise * surprise, both),
        "pull_sum": tokens.some(pull, pulled),
        "pull_rare": tokens.some(pull, pulled & (pull > _PULL_RARE)),
    }
