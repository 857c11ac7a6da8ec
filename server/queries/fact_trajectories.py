"""Facts of whole trajectories: rewards, verifier, lengths, truncation and loss weight."""

from __future__ import annotations

from server.queries.fact_rows import FINITE, TRAINING, FactSeries, as_series, parameters
from server.queries.view import Position, RunData


def weighs_by_tokens(data: RunData) -> bool | None:
    """Whether a response's weight in the loss grows with its tokens; None: the run's aggregation is not known.

    verl: token-mean and seq-mean-token-sum do, seq-mean-token-mean does not. TRL: dapo, bnpo and dr_grpo do, grpo does not.
    """
    value = data.run.config.get("loss_aggregation")
    if not isinstance(value, str):
        return None
    name = value.lower().replace("_", "-")
    return name not in ("seq-mean", "sequence-mean", "seq-mean-token-mean", "grpo", "sequence")


def loss_weight(data: RunData) -> str:
    """SQL of a trajectory's weight in the loss, relative to others of its step."""
    return "CASE WHEN coalesce(kept, TRUE) THEN " + ("1.0" if weighs_by_tokens(data) is False else "response_tokens") + " ELSE 0 END"


def _query(data: RunData) -> str:
    return f"""
WITH t AS MATERIALIZED (
    SELECT attempt, step, n, reward, response_tokens AS tokens, finish_reason, verifier_status, verifier_seconds, policy_lag, kept,
           policy_version_last - policy_version_first AS span, advantage, difficulty,
           coalesce(prompt_tokens, length(prompt)) AS prompt_size, hash(coalesce(prompt, prompt_messages::VARCHAR)) AS prompt_hash,
           hash(response) AS response_hash, length(response) AS characters, {loss_weight(data)} AS weight,
           verifier_status IN ('timeout', 'error') AS failed,
           CASE WHEN coalesce(kept, TRUE) THEN response_tokens END AS trained,
           try_cast(sampling ->> '$.temperature' AS DOUBLE) AS temperature, try_cast(sampling ->> '$.top_p' AS DOUBLE) AS top_p
    FROM {FINITE} t WHERE {TRAINING}),
edges AS (SELECT attempt, step, min(reward) AS low, max(reward) AS high FROM t GROUP BY ALL),
prompts AS (
    SELECT attempt, step, stddev_samp(mean) / sqrt(count(*)) AS noise
    FROM (SELECT attempt, step, prompt_hash, avg(reward) AS mean FROM t WHERE prompt_hash IS NOT NULL GROUP BY ALL) GROUP BY ALL),
twins AS (
    SELECT attempt, step, sum(size) AS twin_n, sum(CASE WHEN high - low > 0.05 * spread THEN size ELSE 0 END) / sum(size) AS conflict
    FROM (SELECT attempt, step, count(*) AS size, min(reward) AS low, max(reward) AS high, any_value(edges.high - edges.low) AS spread
          FROM t JOIN edges USING (attempt, step)
          WHERE prompt_hash IS NOT NULL AND response_hash IS NOT NULL AND reward IS NOT NULL AND characters > 0
                AND coalesce(verifier_status, 'ok') = 'ok'
          GROUP BY attempt, step, prompt_hash, response_hash HAVING count(*) > 1) GROUP BY ALL),
across AS (
    SELECT attempt, step, sum(CASE WHEN prompts > 1 THEN size ELSE 0 END) / sum(size) AS repeated
    FROM (SELECT attempt, step, count(*) AS size, count(DISTINCT prompt_hash) AS prompts FROM t
          WHERE prompt_hash IS NOT NULL AND response_hash IS NOT NULL GROUP BY attempt, step, response_hash) GROUP BY ALL)
SELECT t.attempt, t.step,
    count(*) AS "fact.n",
    avg(reward) AS "fact.reward.mean",
    stddev_samp(reward) AS "fact.reward.std",
    min(reward) AS "fact.reward.min",
    max(reward) AS "fact.reward.max",
    nullif(count(DISTINCT reward), 0) AS "fact.reward.distinct",
    avg(reward) FILTER (finish_reason = 'length') AS "fact.reward.truncated.mean",
    avg(reward) FILTER (finish_reason <> 'length') AS "fact.reward.terminated.mean",
    avg(reward) FILTER (verifier_status = 'ok') AS "fact.reward.graded.mean",
    avg(reward) FILTER (failed) AS "fact.reward.failed.mean",
    any_value(noise) AS "fact.reward.prompt_noise",
    any_value(conflict) AS "fact.reward.conflict_frac",
    any_value(twin_n) AS "fact.reward.twin_n",
    avg((verifier_status = 'timeout')::INT) AS "fact.verifier.timeout_frac",
    avg((verifier_status = 'error')::INT) AS "fact.verifier.error_frac",
    avg((failed AND reward <= low)::INT) AS "fact.verifier.zero_frac",
    avg(verifier_seconds) AS "fact.verifier.seconds.mean",
    quantile_cont(verifier_seconds, 0.99) AS "fact.verifier.seconds.p99",
    avg(tokens) FILTER (failed) / nullif(avg(tokens) FILTER (verifier_status = 'ok'), 0) AS "fact.verifier.length_ratio",
    avg((finish_reason = 'length')::INT) AS "fact.truncated_frac",
    CASE WHEN count(kept) > 0 THEN avg(coalesce(kept, TRUE)::INT) END AS "fact.kept_frac",
    avg(policy_lag) AS "fact.lag.mean",
    max(policy_lag) AS "fact.lag.max",
    max(span) AS "fact.lag.span.max",
    avg(tokens) AS "fact.length.mean",
    median(tokens) AS "fact.length.median",
    quantile_cont(tokens, 0.95) AS "fact.length.p95",
    max(tokens) AS "fact.length.max",
    avg(tokens) FILTER (high > low AND reward > (high + low) / 2) AS "fact.length.correct.mean",
    avg(tokens) FILTER (high > low AND reward <= (high + low) / 2) AS "fact.length.wrong.mean",
    quantile_cont(tokens, 0.99) FILTER (high > low AND reward > (high + low) / 2 AND finish_reason <> 'length')
        AS "fact.length.correct.p99",
    CASE WHEN count(*) FILTER (high > low AND reward > (high + low) / 2) >= 12
         THEN corr(CASE WHEN high > low AND reward > (high + low) / 2 THEN reward END, tokens) END AS "fact.length.correct_correlation",
    sum(weight) FILTER (finish_reason = 'length') / nullif(sum(weight), 0) AS truncated_weight,
    CASE WHEN count(finish_reason) > 0 THEN coalesce(truncated_weight, 0) END AS "fact.loss_share.truncated",
    max(weight) / nullif(sum(weight), 0) AS "fact.loss_share.largest",
    any_value(repeated) AS "fact.duplicate.across_frac",
    avg(characters) AS "fact.length.characters",
    avg((advantage < 0)::INT) AS "fact.advantage.negative_frac",
    coalesce(sum(weight * abs(advantage)) FILTER (advantage < 0), 0) / nullif(sum(weight * abs(advantage)), 0)
        AS "fact.advantage.negative_mass_frac",
    CASE WHEN count(advantage) > 0
         THEN coalesce(sum(trained) FILTER (advantage < 0), 0) / nullif(sum(trained) FILTER (advantage IS NOT NULL), 0)
         END AS "fact.advantage.negative_token_frac",
    avg(temperature) AS "fact.sampling.temperature",
    avg(top_p) AS "fact.sampling.top_p",
    avg(prompt_size) AS "fact.prompt.length",
    nullif(count(DISTINCT prompt_hash), 0) AS "fact.prompt.n",
    avg(try_cast(difficulty AS DOUBLE)) AS "fact.difficulty"
FROM t JOIN edges USING (attempt, step) LEFT JOIN prompts USING (attempt, step)
       LEFT JOIN twins USING (attempt, step) LEFT JOIN across USING (attempt, step)
GROUP BY t.attempt, t.step ORDER BY t.attempt, t.step"""


def trajectory_facts(data: RunData, after: Position | None) -> FactSeries:
    """Facts of single trajectories, reduced to steps."""
    columns = data.store.columns(_query(data), parameters(data, after))
    return as_series(columns, [name for name in columns if name.startswith("fact.")])
