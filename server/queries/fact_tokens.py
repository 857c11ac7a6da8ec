"""Facts of tokens: trainer against engine, the sign of the update, masks and entropies."""

from __future__ import annotations

import numpy as np

from ingest.store.connection import Columns
from server.queries.fact_rows import TRAINING, FactSeries, Floats, StepIndex, parameters
from server.queries.rank import rankdata
from server.queries.view import Position, RunData

_LEAST_TOKENS = 6
"""Tokens from which a correlation over one response says something."""
_FEW_APART = 0.1
"""Share of tokens further apart than .05 nats up to which single outliers, no wrong row, spoil a correlation."""
_LEAST_SIDE = 4
"""Trajectories on either side of the sign: the spread of two or three is at times near 0 by chance, and any distance then many of it."""
_CHANGED = 1e-7
"""nats; below this a log-prob was not changed by the update."""

# Arrays of one row run over the same tokens; unnesting them side by side keeps tokens aligned, shorter lists end in nulls.
# The shifted copies pair a token with its right-hand neighbour: rows that are off by one correlate only when moved.
_QUERY = f"""
WITH a AS (
    SELECT t.attempt, t.step, t.n, t.task,
           -- A trainer's version may be counted before or after the update of the step: one apart may still be fresh.
           coalesce(t.policy_lag, CASE WHEN t.trainer_version - t.policy_version_last > 1
                                       THEN t.trainer_version - t.policy_version_last - 1 END) AS lag,
           t.policy_version_last - t.policy_version_first AS span,
           t.origin, t.finish_reason, t.reward, t.prompt_tokens,
           t.advantage IS NULL AS by_token,
           coalesce(t.advantage, list_avg(list_filter(k.advantages, lambda x: x IS NOT NULL))) AS advantage,
           k.old_logprobs AS o, k.rollout_logprobs AS r, k.current_logprobs AS c, k.entropies AS e,
           k.response_mask AS m, k.loss_mask AS l, list_position(k.response_mask, 1) AS start,
           start - 1 + list_position(k.response_mask[start:], 0) AS turn_end
    FROM trajectory t JOIN token k ON k.run_id = t.run_id AND k.attempt = t.attempt AND k.step = t.step AND k.n = t.n
    WHERE {TRAINING} AND t.has_tokens),
u AS (
    SELECT attempt, step, n, prompt_tokens, start, turn_end, generate_subscripts(coalesce(m, o, r, c, l, e), 1) AS place,
           unnest(o) AS o, unnest(r) AS r, unnest(c) AS c, unnest(e) AS e, unnest(m) AS m, unnest(l) AS l,
           unnest(o[2:]) AS o_next, unnest(r[2:]) AS r_next, unnest(m[2:]) AS m_next
    FROM a),
v AS (
    SELECT *, coalesce(m, 1) = 1 AND (m IS NOT NULL OR place > coalesce(prompt_tokens, 0)) AS own,
           CASE WHEN own AND isfinite(o) AND isfinite(r) THEN abs(o - r) END AS d,
           CASE WHEN own AND isfinite(o) AND isfinite(c) THEN c - o END AS u,
           CASE WHEN own AND isfinite(r) AND isfinite(e) THEN -r - e END AS x, 1 - exp(coalesce(o, r)) AS pull,
           CASE WHEN own AND isfinite(r) AND isfinite(c) THEN abs(c - r) END AS e_gap,
           own AND coalesce(m_next, 1) = 1 AND isfinite(o_next) AND isfinite(r_next) AND isfinite(o) AND isfinite(r) AS pair
    FROM u),
s AS (
    SELECT attempt, step, n, count(d) AS compared, sum(d) AS d_sum, avg(d) AS d_mean, sum(CASE WHEN d IS NOT NULL THEN r - o END) AS k1_sum,
           avg(d) FILTER (place < turn_end) AS d_first, avg(d) FILTER (place > turn_end) AS d_later,
           sum(d) FILTER (r < ln(0.05)) AS d_rare, count(*) FILTER (d > 0.05) AS apart, corr(o, r) FILTER (d IS NOT NULL) AS same,
           corr(o, r_next) FILTER (pair) AS forth, corr(o_next, r) FILTER (pair) AS back,
           count(u) AS updated, sum(abs(u)) AS u_abs, avg(u) AS u_mean, max(abs(u)) AS u_most, sum(u * u) AS u_square,
           sum(e_gap) AS gap_sum, count(e_gap) AS gaps,
           count(*) FILTER (u NOT BETWEEN ln(0.9) AND ln(1.1)) AS u_outside,
           sum(l) AS trained, sum(l) FILTER (NOT own) AS extra, sum(l) FILTER (place < coalesce(start, prompt_tokens + 1)) AS in_prompt,
           count(l) AS masked, count(*) FILTER (own) AS policy, count(*) FILTER (own AND l = 0) AS missing,
           max_by(l, place) FILTER (own) AS last_trained, sum(e) FILTER (own) AS e_own, count(e) FILTER (own) AS e_own_n,
           sum(e) FILTER (l = 1) AS e_loss, count(e) FILTER (l = 1) AS e_loss_n, avg(r) FILTER (own AND isfinite(r)) AS r_mean,
           count(x) AS surprises, sum(x) AS x_sum, sum(x * x) AS x_squares, max_by(r, place) FILTER (own AND isfinite(r)) AS r_last,
           sum(pull) FILTER (own AND isfinite(pull)) AS pull_sum, sum(pull) FILTER (own AND pull > 0.8) AS pull_rare
    FROM v GROUP BY attempt, step, n)
SELECT s.*, a.task, a.lag, a.span, a.origin, a.finish_reason, a.advantage, a.by_token FROM s JOIN a USING (attempt, step, n)
ORDER BY s.attempt, s.step, s.n"""


def token_facts(data: RunData, after: Position | None) -> FactSeries:
    """Facts of token rows, reduced to steps; absent where a run has no token rows."""
    if not data.store.rows(f"SELECT 1 FROM trajectory t WHERE {TRAINING} AND t.has_tokens LIMIT 1", parameters(data, after)):
        return {}  # the usual case; to plan the query below costs more than to ask
    rows = data.store.columns(_QUERY, parameters(data, after))
    numbers = {name: _floats(rows, name) for name in rows if name not in ("task", "origin", "finish_reason")}
    index = StepIndex(rows["attempt"], rows["step"])
    result: dict[str, Floats] = {"fact.tokens.n": index.count(np.ones(len(rows["step"]), bool))}
    result |= _mismatch(rows, numbers, index) | _update(numbers, index) | _masks(rows, numbers, index) | _entropies(numbers, index)
    result |= _sampler(rows, numbers, index) | _negatives(numbers, index)
    return index.series(result) | _separation_by_task(rows, numbers)


def _floats(rows: Columns, name: str) -> Floats:
    if rows[name].dtype == object:
        return np.array([np.nan if value is None else float(value) for value in rows[name]])
    return rows[name].astype(np.float64)


def _mismatch(rows: Columns, x: dict[str, Floats], index: StepIndex) -> dict[str, Floats]:
    compared, mean = x["compared"], x["d_mean"]
    # A loss that uses the engine's log-probs as old ones writes the same numbers twice: they say nothing about a mismatch.
    copied = index.most(x["d_sum"], compared > 0) == 0
    some = (compared > 0) & ~copied[index.of]
    lag, span = x["lag"], np.nan_to_num(x["span"])
    fresh = some & (lag == 0) & (span == 0)
    own = np.array([origin in (None, "policy") for origin in rows["origin"]], dtype=bool)
    long = some & own & ~(lag > 0) & (compared >= _LEAST_TOKENS) & np.isfinite(x["same"])
    moved = np.fmax(x["forth"], x["back"])
    several = some & ~(span > 0) & np.isfinite(x["d_first"]) & np.isfinite(x["d_later"])
    steps = index.rows()
    with np.errstate(invalid="ignore", divide="ignore"):
        rare = index.mean(np.nan_to_num(x["d_rare"]), some) / index.mean(x["d_sum"], some)
    return {
        "fact.mismatch.mean": index.mean(mean, some, compared),
        "fact.mismatch.signed": index.mean(x["k1_sum"] / np.maximum(compared, 1), some, compared),
        "fact.mismatch.lag0": index.mean(mean, fresh, compared),
        "fact.mismatch.lagged": index.mean(mean, some & (lag > 0), compared),
        "fact.mismatch.lag_correlation": np.array([_rank_correlation(lag[r], mean[r]) for r in steps]),
        "fact.mismatch.policy": index.mean(mean, some & own, compared),
        "fact.mismatch.other": index.mean(mean, some & ~own, compared),
        "fact.mismatch.turn.first": index.mean(x["d_first"], several),
        "fact.mismatch.turn.later": index.mean(x["d_later"], several),
        "fact.mismatch.rare_share": rare,
        "fact.mismatch.correlation": np.array([_median(x["same"][r][long[r]]) for r in steps]),
        "fact.mismatch.unrelated_frac": index.mean(((x["same"] < 0.5) & (x["apart"] > _FEW_APART * compared)).astype(np.float64), long),
        "fact.mismatch.shifted_frac": index.mean(((moved > 0.8) & (moved > x["same"] + 0.3)).astype(np.float64), long),
        "fact.mismatch.worst_frac": np.array([_far_above(mean[r][some[r]]) for r in steps]),
    }


def _update(x: dict[str, Floats], index: StepIndex) -> dict[str, Floats]:
    some = x["updated"] > 0
    up, down, separation, n = _sides(x, index)
    tokens = np.maximum(x["updated"], 1)
    signed, square = index.mean(x["u_mean"], some, x["updated"]), index.mean(x["u_square"] / tokens, some, x["updated"])
    return {
        "fact.update.sd": np.sqrt(np.maximum(square - signed**2, 0)),
        "fact.update.signed": signed,
        "fact.update.engine": index.mean(x["gap_sum"] / np.maximum(x["gaps"], 1), x["gaps"] > 0, x["gaps"]),
        "fact.update.outside_frac": index.mean(x["u_outside"] / tokens, some, x["updated"]),
        "fact.update.mean": index.mean(x["u_abs"] / tokens, some, x["updated"]),
        "fact.update.positive": up,
        "fact.update.negative": down,
        "fact.sign.separation": separation,
        "fact.sign.n": n,
    }


def _sides(x: dict[str, Floats], index: StepIndex) -> tuple[Floats, Floats, Floats, Floats]:
    """Mean change of log-prob with positive and with negative advantage, their distance in standard errors, and n."""
    changed = (x["u_most"] > _CHANGED) & (np.abs(x["advantage"]) > 1e-6)
    plus, minus = changed & (x["advantage"] > 0), changed & (x["advantage"] < 0)
    up, down = index.mean(x["u_mean"], plus), index.mean(x["u_mean"], minus)
    n_up, n_down = index.count(plus), index.count(minus)
    variance = np.full(index.size, np.nan)
    for number, rows in enumerate(index.rows()):
        a, b = x["u_mean"][rows][plus[rows]], x["u_mean"][rows][minus[rows]]
        if len(a) >= _LEAST_SIDE and len(b) >= _LEAST_SIDE:
            variance[number] = a.var(ddof=1) / len(a) + b.var(ddof=1) / len(b)
    with np.errstate(invalid="ignore", divide="ignore"):
        separation = np.where(variance > 0, (up - down) / np.sqrt(variance), np.nan)
    total = n_up + n_down
    return up, down, separation, np.where(total > 0, total, np.nan)


def _separation_by_task(rows: Columns, x: dict[str, Floats]) -> FactSeries:
    tasks = np.array([str(task) for task in rows["task"]], dtype=object)
    result: FactSeries = {}
    for task in sorted(set(tasks.tolist()) - {"None"}):
        picked = tasks == task
        index = StepIndex(rows["attempt"][picked], rows["step"][picked])
        _, _, separation, _ = _sides({name: values[picked] for name, values in x.items()}, index)
        result |= index.series({f"fact.sign.separation.{task}": separation})
    return result


def _masks(rows: Columns, x: dict[str, Floats], index: StepIndex) -> dict[str, Floats]:
    # A response that is left out of the loss as a whole (filtered, over-long) is no mask fault.
    trained = np.nan_to_num(x["trained"])
    judged = (x["masked"] > 0) & (trained > 0)
    ended = np.array([reason == "stop" for reason in rows["finish_reason"]], dtype=bool)
    return {
        "fact.mask.extra_frac": index.mean(np.nan_to_num(x["extra"]) / np.maximum(trained, 1), judged, trained),
        "fact.mask.prompt_frac": index.mean(np.nan_to_num(x["in_prompt"]) / np.maximum(trained, 1), judged, trained),
        "fact.mask.missing_frac": index.mean(x["missing"] / np.maximum(x["policy"], 1), judged, x["policy"]),
        "fact.mask.last_missing_frac": index.mean((x["last_trained"] == 0).astype(np.float64), judged & ended),
    }


def _entropies(x: dict[str, Floats], index: StepIndex) -> dict[str, Floats]:
    own, loss = x["e_own_n"], x["e_loss_n"]
    return {
        "fact.entropy.response": index.mean(x["e_own"] / np.maximum(own, 1), own > 0, own),
        "fact.entropy.loss": index.mean(x["e_loss"] / np.maximum(loss, 1), loss > 0, loss),
        "fact.logprob.rollout": index.mean(x["r_mean"]),
    }


def _sampler(rows: Columns, x: dict[str, Floats], index: StepIndex) -> dict[str, Floats]:
    """Sampled against full entropy of the same tokens: their difference has mean 0 where the engine draws from what it reports."""
    n, some = x["surprises"], x["surprises"] > 0
    total = index.count(some)
    squares = index.mean(np.nan_to_num(x["x_squares"]), some) * total
    tokens = index.mean(n, some) * total
    ended = np.array([reason == "stop" for reason in rows["finish_reason"]], dtype=bool)
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.sqrt(squares) / tokens
    return {
        "fact.entropy.surprise": index.mean(x["x_sum"] / np.maximum(n, 1), some, n),
        "fact.entropy.surprise_error": error,
        "fact.logprob.end": index.mean(x["r_last"], ended),
    }


def _negatives(x: dict[str, Floats], index: StepIndex) -> dict[str, Floats]:
    """How the weight of the loss splits by the sign of the advantage, where token rows say it."""
    size = np.abs(x["advantage"])
    some, minus = size > 1e-6, x["advantage"] < 0
    pull, rare = size * x["pull_sum"], np.where(minus, size * np.nan_to_num(x["pull_rare"]), 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        result = {"fact.gradient.negative_rare_frac": index.mean(rare, some & np.isfinite(pull)) / index.mean(pull, some)}
        # Where trajectories have an advantage of their own, their facts are over all of them, not over those with tokens only.
        if np.all(x["by_token"] == 1):
            tokens = np.where(np.isfinite(x["trained"]), x["trained"], x["policy"])
            mass = size * tokens
            result["fact.advantage.negative_mass_frac"] = index.mean(np.where(minus, mass, 0.0), some) / index.mean(mass, some)
            result["fact.advantage.negative_token_frac"] = index.mean(minus.astype(np.float64), np.isfinite(size), tokens)
    return result


def _median(values: Floats) -> float:
    return float(np.median(values)) if len(values) else np.nan


def _far_above(means: Floats) -> float:
    """Share of trajectories whose mean exceeds ten times the median; NaN below eight of them."""
    if len(means) < 8:
        return np.nan
    return float(np.mean(means > 10 * np.median(means))) if np.median(means) > 0 else np.nan


def _rank_correlation(lag: Floats, mean: Floats) -> float:
    """Spearman's correlation with average ranks for ties; NaN below eight trajectories or without any spread."""
    keep = np.isfinite(lag) & np.isfinite(mean)
    if keep.sum() < 8 or len(np.unique(lag[keep])) < 2 or len(np.unique(mean[keep])) < 2:
        return np.nan
    return float(np.corrcoef(rankdata(lag[keep]), rankdata(mean[keep]))[0, 1])
