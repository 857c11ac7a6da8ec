"""Facts of whole trajectories: rewards, verifier, lengths, truncation and loss weight."""

from __future__ import annotations

import numpy as np

from server.queries.fact_rows import FactSeries
from server.queries.fact_table import NONE, Table
from server.queries.reductions import Floats, Groups, ratio
from server.queries.view import RunData

_LEAST_CORRECT = 12
"""Rewarded responses below which their correlation says nothing."""
_CONFLICT = 0.05
"""Distance of two rewards, in parts of the step's range, from which they contradict each other."""


def weighs_by_tokens(data: RunData) -> bool | None:
    """Whether a response's weight in the loss grows with its tokens; None: the run's aggregation is not known.

    verl: token-mean and seq-mean-token-sum do, seq-mean-token-mean does not. TRL: dapo, bnpo and dr_grpo do, grpo does not.
    """
    value = data.run.config.get("loss_aggregation")
    if not isinstance(value, str):
        return None
    name = value.lower().replace("_", "-")
    return name not in ("seq-mean", "sequence-mean", "seq-mean-token-mean", "grpo", "sequence")


def loss_weights(data: RunData, table: Table) -> Floats:
    """A trajectory's weight in the loss, relative to others of its step; NaN where its tokens would say it and are not written."""
    own = np.ones(len(table)) if weighs_by_tokens(data) is False else table["tokens"]
    return np.where(table["kept"] == 0, 0.0, own)


def trajectory_facts(data: RunData, table: Table) -> FactSeries:
    """Facts of single trajectories, reduced to steps."""
    index = table.index
    named = {"fact.n": index.count(np.ones(len(table), np.bool_))}
    for part in (_rewards, _prompts, _twins, _verifier, _lengths, _advantages, _settings):
        named |= part(table)
    return index.series(named | _weights(data, table))


def _rewards(table: Table) -> dict[str, Floats]:
    index, reward = table.index, table["reward"]
    distinct = index.distinct(reward, np.isfinite(reward))
    return {
        "fact.reward.mean": index.mean(reward),
        "fact.reward.std": index.deviation(reward),
        "fact.reward.min": index.least(reward),
        "fact.reward.max": index.most(reward),
        "fact.reward.distinct": np.where(distinct > 0, distinct, np.nan),
        "fact.reward.truncated.mean": index.mean(reward, table.truncated),
        "fact.reward.terminated.mean": index.mean(reward, table.ended),
        "fact.reward.graded.mean": index.mean(reward, table.status("ok")),
        "fact.reward.failed.mean": index.mean(reward, table.status("timeout", "error")),
    }


def _prompts(table: Table) -> dict[str, Floats]:
    rows, prompts, steps = table.by("prompt_hash", where=table.hashes["prompt_hash"] != NONE)
    by_step = Groups(steps, table.index.size)
    number = by_step.count(np.ones(len(steps), np.bool_))
    noise = by_step.deviation(prompts.mean(table["reward"][rows]))
    return {
        "fact.reward.prompt_noise": noise / np.sqrt(np.maximum(number, 1)),
        "fact.prompt.n": np.where(number > 0, number, np.nan),
        "fact.prompt.length": table.index.mean(table["prompt_size"]),
    }


def _twins(table: Table) -> dict[str, Floats]:
    written = (table.hashes["prompt_hash"] != NONE) & (table.hashes["response_hash"] != NONE)
    judged = written & np.isfinite(table["reward"]) & (table["characters"] > 0) & ((table["status"] == 0) | table.status("ok"))
    rows, twins, steps = table.by("prompt_hash", "response_hash", where=judged)
    reward = table["reward"][rows]
    size = twins.count(np.ones(len(rows), np.bool_))
    some, by_step = size > 1, Groups(steps, table.index.size)
    span = (table.index.most(table["reward"]) - table.index.least(table["reward"]))[steps]
    differ = twins.most(reward) - twins.least(reward) > _CONFLICT * span
    rows, texts, steps = table.by("response_hash", where=written)
    shared = texts.distinct(table.hashes["prompt_hash"][rows], np.ones(len(rows), np.bool_)) > 1
    sizes, all_texts = texts.count(np.ones(len(rows), np.bool_)), Groups(steps, table.index.size)
    number = by_step.total(size, some)
    return {
        "fact.reward.twin_n": np.where(number > 0, number, np.nan),
        "fact.reward.conflict_frac": ratio(by_step.total(size, some & differ), number),
        "fact.duplicate.across_frac": ratio(all_texts.total(sizes, shared), all_texts.total(sizes)),
    }


def _verifier(table: Table) -> dict[str, Floats]:
    index, seconds, tokens = table.index, table["verifier_seconds"], table["tokens"]
    known, failed = table["status"] > 0, table.status("timeout", "error")
    lowest = failed & (table["reward"] <= table.low)
    return {
        "fact.verifier.timeout_frac": index.mean(table.status("timeout").astype(np.float64), known),
        "fact.verifier.error_frac": index.mean(table.status("error").astype(np.float64), known),
        "fact.verifier.zero_frac": index.mean(lowest.astype(np.float64), known & (~failed | np.isfinite(table["reward"]))),
        "fact.verifier.seconds.mean": index.mean(seconds),
        "fact.verifier.seconds.p99": index.quantile(seconds, 0.99),
        "fact.verifier.length_ratio": ratio(index.mean(tokens, failed), index.mean(tokens, table.status("ok"))),
    }


def _lengths(table: Table) -> dict[str, Floats]:
    index, tokens, correct = table.index, table["tokens"], table.correct
    enough = index.count(correct) >= _LEAST_CORRECT
    return {
        "fact.truncated_frac": index.mean(table.truncated.astype(np.float64), table["finished"] > 0),
        "fact.length.mean": index.mean(tokens),
        "fact.length.median": index.quantile(tokens, 0.5),
        "fact.length.p95": index.quantile(tokens, 0.95),
        "fact.length.max": index.most(tokens),
        "fact.length.correct.mean": index.mean(tokens, correct),
        "fact.length.wrong.mean": index.mean(tokens, table.wrong),
        "fact.length.correct.p99": index.quantile(tokens, 0.99, correct & table.ended),
        "fact.length.correct_correlation": np.where(enough, index.correlation(table["reward"], tokens, correct), np.nan),
        "fact.length.characters": index.mean(table["characters"]),
    }


def _advantages(table: Table) -> dict[str, Floats]:
    advantage = table["advantage"]
    return {"fact.advantage.negative_frac": table.index.mean((advantage < 0).astype(np.float64), np.isfinite(advantage))}


def _settings(table: Table) -> dict[str, Floats]:
    index, kept = table.index, table["kept"]
    told = index.count(np.isfinite(kept)) > 0
    return {
        "fact.kept_frac": np.where(told, index.mean((kept != 0).astype(np.float64)), np.nan),
        "fact.lag.mean": index.mean(table["lag"]),
        "fact.lag.max": index.most(table["lag"]),
        "fact.lag.span.max": index.most(table["span"]),
        "fact.sampling.temperature": index.mean(table["temperature"]),
        "fact.sampling.top_p": index.mean(table["top_p"]),
        "fact.difficulty": index.mean(table["difficulty_number"]),
    }


def _weights(data: RunData, table: Table) -> dict[str, Floats]:
    """Whose the loss is: cut responses, the heaviest one, and negative advantages."""
    index, weight, advantage = table.index, loss_weights(data, table), table["advantage"]
    whole = index.total(weight)
    mass = weight * np.abs(advantage)
    trained = np.where(table["kept"] == 0, np.nan, table["tokens"])
    negative, known = advantage < 0, np.isfinite(advantage)
    truncated = np.nan_to_num(ratio(index.total(weight, table.truncated), whole))
    return {
        "fact.loss_share.truncated": np.where(index.count(table["finished"] > 0) > 0, truncated, np.nan),
        "fact.loss_share.largest": ratio(index.most(weight), whole),
        "fact.advantage.negative_mass_frac": ratio(index.total(mass, negative), index.total(mass)),
        "fact.advantage.negative_token_frac": ratio(index.total(trained, negative), index.total(trained, known)),
    }
