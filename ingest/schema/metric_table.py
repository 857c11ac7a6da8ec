"""Every canonical metric: one row a metric, one name one definition. Trainers' spellings are in aliases.py."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeAlias

Range: TypeAlias = tuple[float | None, float | None]

ANY: Range = (None, None)
SHARE: Range = (0.0, 1.0)
POSITIVE: Range = (0.0, None)
CORRELATION: Range = (-1.0, 1.0)


class Metric(NamedTuple):
    """One quantity. An id with {name} parts is a pattern for a family of metrics, for example one a reward function."""

    id: str
    title: str
    unit: str
    range: Range
    """Possible values, None: unbounded on that side. A value outside is a finding, not a reject."""
    definition: str
    family: str


_WORDS = {
    "mean": "mean", "max": "largest", "min": "smallest", "std": "standard deviation", "median": "median",
    "p90": "90th percentile", "seq_mean": "mean of sequences", "seq_max": "largest sequence", "seq_min": "smallest sequence",
}  # fmt: skip


def _each(base: str, stats: str, title: str, unit: str, range_: Range, definition: str, family: str) -> Iterator[Metric]:
    """One metric for every statistic of the same quantity; a standard deviation is never negative."""
    for stat in stats.split():
        bounds = POSITIVE if stat == "std" else range_
        yield Metric(f"{base}.{stat}", f"{title}, {_WORDS[stat]}", unit, bounds, f"{definition}: {_WORDS[stat]}", family)


def _rows(family: str, rows: Iterable[tuple[str, str, str, Range, str]]) -> Iterator[Metric]:
    for id_, title, unit, range_, definition in rows:
        yield Metric(id_, title, unit, range_, definition, family)


def _reward() -> Iterator[Metric]:
    yield from _each("reward", "mean std max min", "Reward", "reward", ANY,
                     "task reward of the sequences of the batch, before KL shaping and before group normalisation", "reward")  # fmt: skip
    yield from _each("reward.shaped", "mean max min", "Shaped reward", "reward", ANY,
                     "reward after KL penalty or length shaping, before advantage normalisation", "reward")  # fmt: skip
    yield from _each("reward.fn.{name}", "mean std", "Reward function {name}", "reward", ANY, "one reward function or component", "reward")
    yield from _rows("reward", [
        ("reward.normalised.mean", "Normalised reward", "-", ANY, "after group normalisation, about 0 by construction; never reward.mean"),
        ("reward.generated.mean", "Reward of all generated", "reward", ANY,
         "over all generated trajectories, also those that filters dropped"),
        ("reward.positive_part.mean", "Positive part of the reward", "reward", POSITIVE, "mean of max(reward, 0)"),
        ("reward.task.{task}.mean", "Reward on {task}", "reward", ANY, "mean reward of one task slice"),
    ])  # fmt: skip


def _group() -> Iterator[Metric]:
    yield from _rows("group", [
        ("group.reward_std.mean", "Spread inside groups", "reward", POSITIVE, "mean over groups of the within-group standard deviation"),
        ("group.zero_std_frac", "Groups without variance", "0..1", SHARE, "share of groups whose rewards are all equal"),
        ("group.zero_std_count.{reward}", "Groups all at {reward}", "groups", POSITIVE, "zero-variance groups at that reward value"),
        ("group.filtered_count", "Groups filtered", "groups", POSITIVE, "groups dropped before training (dynamic sampling)"),
        ("group.filtered_frac", "Share of groups filtered", "0..1", SHARE, "groups dropped before training over groups generated"),
        ("group.stale_dropped_count", "Groups dropped as stale", "groups", POSITIVE, "dropped because too old"),
        ("group.solve_all_frac", "Groups all solved", "0..1", SHARE, "share of groups in which every sample has the full reward"),
        ("group.solve_none_frac", "Groups none solved", "0..1", SHARE, "share of groups in which no sample has a reward"),
        ("group.solve_some_frac", "Groups partly solved", "0..1", SHARE, "1 - all - none, a proxy for the trainable share"),
        ("group.trainable_frac", "Groups with variance", "0..1", SHARE, "share of groups with non-zero within-group variance"),
        ("group.reward_mean.p{q}", "Group mean reward, percentile {q}", "reward", ANY, "percentile over groups of the group's mean reward"),
        ("group.reward_std.p{q}", "Group spread, percentile {q}", "reward", POSITIVE,
         "percentile over groups of the within-group deviation"),
        ("group.unique_frac", "Distinct responses in a group", "0..1", SHARE, "distinct responses over responses, mean over groups"),
        ("group.unique_positive_frac", "Distinct solved responses", "0..1", SHARE,
         "distinct full-reward responses over responses, mean over groups"),
        ("pass_at.{k}", "Solved in {k} samples", "0..1", SHARE, "share of groups with a reward above 0 among k TRAINING samples"),
    ])  # fmt: skip
    yield from _each("adv", "mean max min std", "Advantage", "-", ANY, "advantage over trained tokens", "advantage")
    yield from _each("return", "mean max min", "Return", "-", ANY, "return over trained tokens", "advantage")
    yield from _rows("advantage", [
        ("adv.zero_frac", "Advantages equal to 0", "0..1", SHARE, "share of trajectories with advantage 0"),
        ("adv.neg_frac", "Negative advantages", "0..1", SHARE, "share of trajectories (or tokens) with a negative advantage"),
        ("adv.abs_mean", "Size of the advantage", "-", POSITIVE, "mean of the absolute advantage"),
        ("sample.masked_count", "Samples masked", "samples", POSITIVE, "samples removed from the loss after generation"),
        ("sample.masked_frac", "Share of samples masked", "0..1", SHARE, "samples removed from the loss over samples generated"),
    ])  # fmt: skip


def _policy() -> Iterator[Metric]:
    yield from _each("ratio", "mean max min std", "Update ratio", "ratio", POSITIVE, "pi_theta over pi_old on trained tokens", "policy")
    yield from _each("ratio.clamped", "mean max min", "Update ratio, clamped", "ratio", POSITIVE,
                     "ratio after clamping to the clip interval", "policy")  # fmt: skip
    yield from _rows("policy", [
        ("loss.policy", "Policy loss", "-", ANY, "policy-gradient loss as optimised, without KL and entropy terms"),
        ("loss.total", "Total loss", "-", ANY, "everything back-propagated"),
        ("loss.entropy_bonus", "Entropy as a loss", "nats", ANY,
         "the entropy of the update pass where a trainer logs it under a loss label"),
        ("loss.value", "Critic loss", "-", POSITIVE, "loss of the value function"),
        ("loss.nll.positive", "Extra likelihood loss", "nats/token", ANY, "extra negative log-likelihood on correct samples"),
        ("clip.value_frac", "Clipped value predictions", "0..1", SHARE, "share of clipped value predictions"),
        ("entropy.mean", "Entropy", "nats/token", POSITIVE, "exact softmax entropy, mean over trained tokens"),
        ("entropy.sampled", "Entropy, sampled", "nats/token", ANY,
         "minus the mean log-probability of sampled tokens; not an exact entropy"),
        ("entropy.rollout.mean", "Entropy of the engine", "nats/token", POSITIVE,
         "entropy under the sampling policy as the engine computed it"),
        ("entropy.is_weighted", "Entropy, weighted", "nats/token", ANY, "E_gen[-(p_cur/p_gen) log p_cur]; neither exact nor sampled"),
        ("kl.old", "KL to the old policy", "nats/token", ANY, "E[old_logp - logp]; k1 may be negative by noise"),
        ("kl.ref", "KL to the reference", "nats/token", ANY, "actor against reference; see the estimator"),
        ("kl.ref.in_reward", "KL in the reward", "nats/token", ANY, "the KL that shapes rewards, measured at the old policy"),
        ("kl.coef", "KL coefficient", "-", POSITIVE, "coefficient in force at the step"),
        ("kl.coef_effective", "KL term of the loss", "-", ANY, "coefficient times KL as it entered the loss"),
        ("kl.pre_post.k1", "KL of one update, k1", "nats/token", ANY, "policy before against after the update on the same sequences"),
        ("kl.pre_post.k2", "KL of one update, k2", "nats/token", POSITIVE, "policy before against after the update on the same sequences"),
        ("clip.frac", "Clipped tokens", "0..1", SHARE, "share of tokens where the clip is active for the sign of the advantage"),
        ("clip.frac_high", "Clipped above", "0..1", SHARE, "ratio above 1+eps with a positive advantage"),
        ("clip.frac_low", "Clipped below", "0..1", SHARE, "ratio below 1-eps with a negative advantage"),
        ("clip.frac_high.seq_max", "Clipped above, worst sequence", "0..1", SHARE, "largest clip.frac_high over sequences (or ranks)"),
        ("clip.frac_low.seq_min", "Clipped below, least sequence", "0..1", SHARE, "smallest clip.frac_low over sequences (or ranks)"),
        ("clip.frac_dual", "Dual-clipped tokens", "0..1", SHARE, "dual-clip lower bound active (negative advantage)"),
        ("clip.outside_frac", "Outside the clip interval", "0..1", SHARE,
         "ratio outside the interval whatever the sign; upper bound of clip.frac"),
        ("clip.outside_frac_high", "Above the clip interval", "0..1", SHARE, "ratio above 1+eps whatever the sign"),
        ("clip.outside_frac_low", "Below the clip interval", "0..1", SHARE, "ratio below 1-eps whatever the sign"),
        ("mask.trust_frac", "Masked by trust region", "0..1", SHARE, "tokens dropped by a mask on probability difference; not a clip"),
        ("mask.trust_frac_high", "Masked by trust region, above", "0..1", SHARE, "the part of mask.trust_frac above the upper bound"),
        ("mask.trust_frac_low", "Masked by trust region, below", "0..1", SHARE, "the part of mask.trust_frac below the lower bound"),
        ("grad.norm", "Gradient norm", "-", POSITIVE, "before clipping"),
        ("grad.norm_max", "Gradient norm, largest", "-", POSITIVE, "largest gradient norm of the step's mini-batches"),
        ("update.successful", "Updates applied", "0..1", SHARE, "share of optimiser updates applied; 0: skipped because non-finite"),
        ("lr", "Learning rate", "-", POSITIVE, "learning rate of the policy"),
        ("value.mean", "Critic output", "-", ANY, "mean prediction of the value function"),
        ("value.explained_var", "Explained variance", "-", (None, 1.0), "1 - Var(R - V) / Var(R)"),
    ])  # fmt: skip


def _length() -> Iterator[Metric]:
    yield from _each("length.response", "mean max min median", "Response length", "tokens", POSITIVE,
                     "generated part of the sequence", "length")  # fmt: skip
    yield from _each("length.response.terminated", "mean max min", "Terminated response length", "tokens", POSITIVE,
                     "only sequences that ended by an end token", "length")  # fmt: skip
    yield from _each("length.prompt", "mean max min", "Prompt length", "tokens", POSITIVE, "prompt", "length")
    yield from _each("turns", "mean max min", "Turns", "turns", POSITIVE, "turns of a trajectory", "length")
    yield from _rows("length", [
        ("length.response.trained.mean", "Trained tokens a response", "tokens", POSITIVE, "loss-mask tokens only"),
        ("length.response.truncated_frac", "Truncated responses", "0..1", SHARE, "share cut by the token budget"),
        ("length.response.at_batch_max_frac", "Responses as long as the longest", "0..1", SHARE,
         "share equal to the longest of the batch: NOT truncation, at least 1/N always"),
        ("length.prompt.truncated_frac", "Truncated prompts", "0..1", SHARE, "share of prompts cut by the prompt budget"),
        ("length.total.mean", "Total length, mean", "tokens", POSITIVE, "prompt plus response"),
        ("response.empty_frac", "Empty responses", "0..1", SHARE, "zero-length (aborted) responses"),
        ("response.repetition_frac", "Repetitive responses", "0..1", SHARE, "repetition detector of the trainer"),
        ("tools.calls_per_sample", "Tool calls", "calls", POSITIVE, "tool calls a trajectory"),
        ("tools.failure_frac", "Failed tool calls", "0..1", SHARE, "failed calls over calls"),
        ("format.think_closed_frac", "Thinking closed", "0..1", SHARE, "share whose thinking block was opened and closed"),
        ("stop.{reason}.frac", "Stopped by {reason}", "0..1", SHARE, "share of trajectories by stop reason"),
        ("errors.rollout_frac", "Failed rollouts", "0..1", SHARE, "failed over started rollouts"),
        ("errors.cancelled_frac", "Cancelled rollouts", "0..1", SHARE, "voided over started rollouts"),
        ("errors.{type}.count", "Errors of type {type}", "count", POSITIVE, "failed rollouts of one type"),
    ])  # fmt: skip


def _mismatch() -> Iterator[Metric]:
    yield from _each("mismatch.logprob_diff", "mean max", "Engine gap in log-probability", "nats", POSITIVE,
                     "absolute trainer minus engine log-probability over tokens", "mismatch")  # fmt: skip
    yield from _each("mismatch.prob_diff", "mean max std", "Engine gap in probability", "0..1", SHARE,
                     "absolute trainer minus engine probability over tokens (NOT nats)", "mismatch")  # fmt: skip
    yield from _each("mismatch.mult_prob_error", "mean seq_mean seq_max seq_min", "Multiplicative engine error", "ratio", (1.0, None),
                     "E[exp(abs(trainer logp - engine logp))], 1 is perfect", "mismatch")  # fmt: skip
    yield from _each("is.weight", "mean max min std", "Correction weight", "ratio", POSITIVE,
                     "trainer over engine probability; see the aggregation for raw or post_clip", "mismatch")  # fmt: skip
    yield from _each("mismatch.log_ppl_diff", "mean max min", "Log-perplexity gap", "nats", ANY,
                     "per-sequence trainer minus engine log-perplexity", "mismatch")  # fmt: skip
    yield from _rows("mismatch", [
        ("mismatch.log_ppl_diff.abs_mean", "Log-perplexity gap, absolute", "nats", POSITIVE, "mean absolute log-perplexity difference"),
        ("mismatch.prob_diff.signed_mean", "Engine bias in probability", "-1..1", CORRELATION, "mean of trainer minus engine probability"),
        ("mismatch.pearson", "Engine agreement", "-1..1", CORRELATION, "correlation of token probabilities"),
        ("mismatch.kl", "Engine KL, k1", "nats/token", ANY, "E[engine_logp - trainer_logp]"),
        ("mismatch.kl_k2", "Engine KL, k2", "nats/token", POSITIVE, "0.5 E[(engine - trainer)^2]"),
        ("mismatch.kl_k3", "Engine KL, k3", "nats/token", POSITIVE, "E[r - log r - 1], r = trainer over engine"),
        ("mismatch.kl_k3_rev", "Engine KL, k3 reversed", "nats/token", POSITIVE, "k3 with engine over trainer; explodes on one rare token"),
        ("mismatch.kl_probweighted", "Engine gap, probability weighted", "-", ANY, "E[p_engine (engine - trainer)]; not a KL estimate"),
        ("mismatch.js", "Engine Jensen-Shannon", "nats", POSITIVE, "estimate on sampled tokens, at most about ln 2"),
        ("mismatch.kl_ent_ratio", "Engine KL over entropy", "ratio", POSITIVE, "mismatch.kl_k3 over entropy.mean"),
        ("mismatch.masked_kl", "Engine KL of masked tokens", "nats/token", ANY, "mismatch over masked tokens"),
        ("mismatch.kept_kl", "Engine KL of kept tokens", "nats/token", ANY, "mismatch over kept tokens"),
        ("mismatch.ppl_ratio", "Perplexity ratio", "ratio", POSITIVE, "trainer over engine perplexity of sequences"),
        ("mismatch.chi2.token", "Engine chi-square, tokens", "-", ANY, "E[r^2] - 1 over tokens"),
        ("mismatch.chi2.seq", "Engine chi-square, sequences", "-", ANY, "E[r^2] - 1 over sequences"),
        ("is.ess", "Effective sample size", "0..1", SHARE, "normalised effective sample size of the correction weights"),
        ("is.clipped_frac", "Weights truncated", "0..1", SHARE, "share of weights truncated or out of bounds"),
        ("is.clipped_frac_high", "Weights above the bound", "0..1", SHARE, "share of raw weights above the upper bound"),
        ("is.clipped_frac_low", "Weights below the bound", "0..1", SHARE, "share of raw weights below the lower bound"),
        ("is.masked_frac", "Tokens rejected", "0..1", SHARE, "share of tokens rejected from the loss by the correction"),
        ("is.masked_seq_frac", "Sequences rejected", "0..1", SHARE, "share of sequences rejected from the loss by the correction"),
    ])  # fmt: skip


def _lag() -> Iterator[Metric]:
    yield from _each("lag.policy", "mean max min", "Policy lag", "versions", POSITIVE,
                     "trainer version minus the version that generated (newest or oldest token: see the aggregation)", "lag")  # fmt: skip
    yield from _each("lag.span", "mean max", "Versions in a trajectory", "versions", POSITIVE,
                     "versions spanned inside one trajectory", "lag")  # fmt: skip
    yield from _each("lag.in_flight", "mean max", "Lag while generating", "versions", POSITIVE,
                     "versions that passed during generation", "lag")  # fmt: skip
    yield from _each("lag.in_queue", "mean max", "Lag in the queue", "versions", POSITIVE, "versions that passed while waiting", "lag")
    yield from _rows("lag", [
        ("lag.stale_count", "Stale trajectories", "trajectories", POSITIVE, "trained trajectories with lag of at least 1"),
        ("lag.stale_count.cum", "Stale trajectories so far", "trajectories", POSITIVE, "running total of lag.stale_count"),
        ("lag.stale_frac", "Share of stale trajectories", "0..1", SHARE, "share of trained groups or trajectories with lag above 0"),
        ("lag.dropped_count", "Dropped as too old", "items", POSITIVE, "discarded as too old since the last row"),
        ("lag.limit", "Lag limit", "versions", POSITIVE, "configured bound"),
        ("queue.depth", "Queue depth", "items", POSITIVE, "buffered rollouts"),
        ("queue.inflight", "Rollouts in flight", "items", POSITIVE, "running rollouts"),
        ("queue.depth_at_wait", "Queue when the trainer waited", "items", POSITIVE, "buffer occupancy when the trainer began to wait"),
        ("version.trainer", "Policy version", "versions", POSITIVE, "policy version counter, after the update of the step"),
    ])  # fmt: skip


_STAGES = {
    "step": "the whole step", "rollout": "generation", "verify": "rewards", "logprob_old": "old log-probabilities",
    "logprob_ref": "reference log-probabilities", "value": "values", "adv": "advantages", "update": "policy update",
    "update_critic": "critic update", "sync": "weight synchronisation", "eval": "evaluation", "ckpt": "checkpoint", "idle": "waiting",
    "wait_batch": "trainer waits for rollouts", "wait_policy": "rollout side waits for new weights", "pack": "packing",
    "fwd_bwd": "forward and backward", "dispatch": "dispatch",
}  # fmt: skip


def _cost() -> Iterator[Metric]:
    for stage, words in _STAGES.items():
        yield Metric(f"time.{stage}_s", f"Time: {words}", "s", POSITIVE, f"wall clock of the stage: {words}", "cost")
    yield from _each("time.traj_{phase}", "mean p90 max", "Time of {phase} a trajectory", "s", POSITIVE,
                     "seconds of one phase of a trajectory", "cost")  # fmt: skip
    for kind, words in {"generated": "generated", "trained": "loss-bearing", "total": "prompt and response", "input": "fed-in",
                        "env": "tool and environment"}.items():  # fmt: skip
        yield Metric(f"tokens.{kind}", f"Tokens {kind}", "tokens", POSITIVE, f"{words} tokens of the step", "cost")
        yield Metric(f"tokens.{kind}.cum", f"Tokens {kind}, total", "tokens", POSITIVE, f"{words} tokens since the start", "cost")
    yield from _rows("cost", [
        ("tokens.trained_over_generated", "Trained over generated", "ratio", POSITIVE,
         "loss-bearing over generated policy tokens of the step"),
        ("idle.trainer_frac", "Trainer idle", "0..1", SHARE, "share of the step in which the trainer waited"),
        ("idle.rollout_frac", "Engine idle", "0..1", SHARE, "share of the step in which the engine waited"),
        ("throughput.tokens_per_gpu_s", "Throughput", "tokens/s/GPU", POSITIVE, "tokens over seconds and GPUs"),
        ("throughput.train_tokens_s", "Training throughput", "tokens/s", POSITIVE, "trained tokens over seconds"),
        ("mfu.actor", "Model FLOP use", "0..1", SHARE, "achieved over peak FLOP of the policy update"),
        ("flops.train_tflops", "Training FLOP", "TFLOP/s/GPU", POSITIVE, "achieved FLOP of training"),
        ("mem.gpu_allocated_gb", "GPU memory allocated", "GiB", POSITIVE, "largest allocated memory"),
        ("mem.gpu_reserved_gb", "GPU memory reserved", "GiB", POSITIVE, "largest reserved memory"),
        ("mem.cpu_used_gb", "Host memory", "GiB", POSITIVE, "memory of the host in use"),
        ("engine.kv_cache_frac", "KV cache in use", "0..1", SHARE, "inference engine's cache"),
        ("engine.preemptions_rate", "Preemptions", "1/s", POSITIVE, "requests preempted by the engine"),
        ("engine.running", "Requests running", "requests", POSITIVE, "requests in the engine"),
        ("engine.waiting", "Requests waiting", "requests", POSITIVE, "requests queued at the engine"),
        ("engine.prefix_hit_frac", "Prefix cache hits", "0..1", SHARE, "prefix tokens found in the cache"),
        ("cost.usd.{path}", "Cost of {path}", "USD", POSITIVE, "money spent"),
        ("efficiency.{category}_s", "Time so far: {category}", "s", POSITIVE, "cumulative since the start of the process"),
        ("efficiency.{category}_pct", "Share of time so far: {category}", "%", (0.0, 100.0), "cumulative since the start of the process"),
        ("imbalance.tokens_frac", "Idle by imbalance", "0..1", SHARE, "idle share implied by uneven token counts over workers"),
    ])  # fmt: skip


def _evaluation() -> Iterator[Metric]:
    yield from _rows("evaluation", [
        ("eval.heldout.score", "Held-out score", "0..1", ANY, "the primary independent evaluation"),
        ("eval.primary.{task}", "Primary score of {task}", "score", ANY, "the metric that held-out rules use"),
        ("eval.overall.length.mean", "Evaluation response length", "tokens", POSITIVE, "mean response length of the evaluation"),
        ("eval.{task}.score", "Score on {task}", "score", ANY, "mean score of an evaluation"),
        ("eval.{task}.mean@{k}", "Mean of {k} on {task}", "score", ANY, "mean over k attempts a prompt"),
        ("eval.{task}.best@{k}", "Best of {k} on {task}", "score", ANY,
         "best of k attempts a prompt (bootstrap where the trainer does so)"),
        ("eval.{task}.worst@{k}", "Worst of {k} on {task}", "score", ANY, "worst of k attempts a prompt"),
        ("eval.{task}.maj@{k}", "Majority of {k} on {task}", "score", ANY, "majority vote of k attempts a prompt"),
        ("eval.{task}.pass@{k}", "Pass at {k} on {task}", "0..1", SHARE, "share of prompts solved in k attempts"),
        ("eval.{task}.std@{k}", "Spread of {k} on {task}", "score", POSITIVE, "standard deviation of k attempts a prompt"),
        ("eval.{task}.length.mean", "Response length on {task}", "tokens", POSITIVE, "mean response length of an evaluation"),
        ("eval.{task}.truncated_frac", "Truncated on {task}", "0..1", SHARE, "responses cut by the budget of an evaluation"),
        ("eval.{task}.tokens", "Tokens on {task}", "tokens", POSITIVE, "total of one evaluation at its fixed budget"),
        ("eval.{task}.attempts", "Attempts on {task}", "count", POSITIVE, "total of one evaluation at its fixed budget"),
        ("eval.{task}.tool_calls", "Tool calls on {task}", "count", POSITIVE, "total of one evaluation at its fixed budget"),
    ])  # fmt: skip


TABLE: tuple[Metric, ...] = (
    *_reward(), *_group(), *_policy(), *_length(), *_mismatch(), *_lag(), *_cost(), *_evaluation(),
)  # fmt: skip
