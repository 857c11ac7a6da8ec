"""Facts of tokens: trainer against engine, the sign of the update, masks and entropies."""

from __future__ import annotations

import numpy as np

from server.queries.fact_rows import FactSeries, StepIndex
from server.queries.fact_table import Labels, Table
from server.queries.fact_token_rows import Sums, token_sums
from server.queries.rank import rankdata
from server.queries.reductions import Flags, Floats
from server.queries.view import RunData

_LEAST_TOKENS = 6
"""Tokens from which a correlation over one response says something."""
_FEW_APART = 0.1
"""Share of tokens further apart than .05 nats up to which single outliers, no wrong row, spoil a correlation."""
_LEAST_SIDE = 4
"""Trajectories on either side of the sign: the spread of two or three is at times near 0 by chance, and any distance then many of it."""
_CHANGED = 1e-7
"""nats; below this a log-prob was not changed by the update."""


def token_facts(data: RunData, table: Table) -> FactSeries:
    """Facts of token rows, reduced to steps; absent where a run has no token rows."""
    rows, x = token_sums(data, table)
    if not len(rows):
        return {}
    index = StepIndex(table.attempts[rows], table.steps[rows])
    own = table["advantage"][rows]
    # A trainer's version may be counted before or after the update of the step: one apart may still be fresh.
    apart = table["versions_apart"][rows]
    lag = table["lag"][rows]
    x |= {
        "by_token": np.isnan(own).astype(np.float64),
        "advantage": np.where(np.isnan(own), x["advantage"], own),
        "lag": np.where(np.isnan(lag) & (apart > 1), apart - 1, lag),
        "span": table["span"][rows],
    }
    origin = table.labels["origin"][rows]
    by_policy = np.array([value in (None, "policy") for value in origin], np.bool_)
    stopped = table.stopped[rows]
    result: dict[str, Floats] = {"fact.tokens.n": index.count(np.ones(len(rows), np.bool_))}
    result |= _mismatch(by_policy, x, index) | _update(x, index) | _masks(stopped, x, index) | _entropies(x, index)
    result |= _sampler(stopped, x, index) | _negatives(x, index)
    return index.series(result) | _separation_by_task(table.labels["task"][rows], x, index)


def _mismatch(own: Flags, x: Sums, index: StepIndex) -> dict[str, Floats]:
    compared, mean = x["compared"], x["d_mean"]
    # A loss that uses the engine's log-probs as old ones writes the same numbers twice: they say nothing about a mismatch.
    copied = index.most(x["d_sum"], compared > 0) == 0
    some = (compared > 0) & ~copied[index.of]
    lag, span = x["lag"], np.nan_to_num(x["span"])
    fresh = some & (lag == 0) & (span == 0)
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


def _update(x: Sums, index: StepIndex) -> dict[str, Floats]:
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


def _sides(x: Sums, index: StepIndex) -> tuple[Floats, Floats, Floats, Floats]:
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


def _separation_by_task(tasks: Labels, x: Sums, index: StepIndex) -> FactSeries:
    result: FactSeries = {}
    for task in sorted({str(task) for task in tasks if task is not None}):
        picked = tasks == task
        of_task = StepIndex(index.attempts[index.of[picked]], index.steps[index.of[picked]])
        _, _, separation, _ = _sides({name: values[picked] for name, values in x.items()}, of_task)
        result |= of_task.series({f"fact.sign.separation.{task}": separation})
    return result


def _masks(ended: Flags, x: Sums, index: StepIndex) -> dict[str, Floats]:
    # A response that is left out of the loss as a whole (filtered, over-long) is no mask fault.
    trained = np.nan_to_num(x["trained"])
    judged = (x["masked"] > 0) & (trained > 0)
    return {
        "fact.mask.extra_frac": index.mean(np.nan_to_num(x["extra"]) / np.maximum(trained, 1), judged, trained),
        "fact.mask.prompt_frac": index.mean(np.nan_to_num(x["in_prompt"]) / np.maximum(trained, 1), judged, trained),
        "fact.mask.missing_frac": index.mean(x["missing"] / np.maximum(x["policy"], 1), judged, x["policy"]),
        "fact.mask.last_missing_frac": index.mean((x["last_trained"] == 0).astype(np.float64), judged & ended),
    }


def _entropies(x: Sums, index: StepIndex) -> dict[str, Floats]:
    own, loss = x["e_own_n"], x["e_loss_n"]
    return {
        "fact.entropy.response": index.mean(x["e_own"] / np.maximum(own, 1), own > 0, own),
        "fact.entropy.loss": index.mean(x["e_loss"] / np.maximum(loss, 1), loss > 0, loss),
        "fact.logprob.rollout": index.mean(x["r_mean"]),
    }


def _sampler(ended: Flags, x: Sums, index: StepIndex) -> dict[str, Floats]:
    """Sampled against full entropy of the same tokens: their difference has mean 0 where the engine draws from what it reports."""
    n, some = x["surprises"], x["surprises"] > 0
    total = index.count(some)
    squares = index.mean(np.nan_to_num(x["x_squares"]), some) * total
    tokens = index.mean(n, some) * total
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.sqrt(squares) / tokens
    return {
        "fact.entropy.surprise": index.mean(x["x_sum"] / np.maximum(n, 1), some, n),
        "fact.entropy.surprise_error": error,
        "fact.logprob.end": index.mean(x["r_last"], ended),
    }


def _negatives(x: Sums, index: StepIndex) -> dict[str, Floats]:
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
