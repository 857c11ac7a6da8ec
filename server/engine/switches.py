"""How each trainer is told to log what a rule misses: the exact setting, as shared knowledge of the trainers' own documentation."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from ingest.schema.tables import TOKEN_ARRAYS, TRAJECTORY_FIELDS

_VERL_DUMP = "trainer.rollout_data_dir=DIR (one JSONL a step; text and scores, no tokens)"
_VERL_NO_TRUNCATION = ": verl 0.9 logs only the share equal to the longest answer of the batch, which is not truncation"
_VERL_ENGINE = (
    "actor_rollout_ref.rollout.calculate_log_probs=True (then training/rollout_probs_diff_* and, with "
    "algorithm.rollout_correction set, rollout_corr/* are logged)"
)
_VERL_TENSORS = (
    "skip.rollout_tq.enable=True with dump_dir (v1: full tensors of the rollout); log-probabilities of the trainer are "
    "in no dump of verl, write them as rollouts.jsonl"
)
_VERL_ASYNC = (
    "trainer.v1.trainer_mode=separate_async or colocate_async (logs training/off_policy/trajectory_staleness/*); in sync"
    " mode every sample is fresh and there is nothing to log"
)
_VERL_CRITIC = "algorithm.adv_estimator=gae (only then there is a critic, logged as critic/values/* and critic/vf_explained_var)"
_TRL_DUMP = (
    "log_completions=True (TRL 0.28 or later: completions/completions_STEP.parquet) with logging_steps=1, so that no generation is left out"
)
_TRL_ENGINE = (
    "use_vllm=True with vllm_importance_sampling_correction=True (logs sampling/sampling_logp_difference/* and "
    "sampling/importance_sampling_ratio/*)"
)
_TRL_TOKENS = "TRL writes no token ids or log-probabilities to a file: write rollouts.jsonl (native format) from a callback"
_ENGINE_METRICS = (
    "the trainer logs none of its engine's figures: read vLLM's /metrics endpoint (vllm:num_preemptions_total, "
    "vllm:gpu_cache_usage_perc, or vllm:kv_cache_usage_perc in newer releases, vllm:num_requests_waiting) and log them under this name"
)
_VERL_TIMES = "verl logs timing_s/* without a setting, and fully_async/*/idle_ratio in its fully asynchronous trainer only"
_TRL_TIMES = (
    "TRL logs step_time, and profiling/* to wandb or mlflow under names of its own: time the stages in a callback and log them under these"
)
_NATIVE_TIMES = "write the stages' seconds (time.rollout_s, time.verify_s, time.update_s, time.sync_s, time.step_s) to metrics.jsonl"
_IDS = "write prompt, response and a trajectory_id that is unique within its step to rollouts.jsonl"
_SECONDS = "write seconds (an object with rollout, verify, environment) for each trajectory to rollouts.jsonl"
_NATIVE = "write it to metrics.jsonl under this name"
_NATIVE_TOKENS = "write the token arrays (token_ids, response_mask, loss_mask, rollout_logprobs, old_logprobs) to rollouts.jsonl"
_NATIVE_ROLLOUTS = (
    "write one line a trajectory to rollouts.jsonl (response, reward, group_id, advantage, response_tokens, finish_reason, policy_version)"
)

_NATIVE_TURNS = "write turns for each trajectory to rollouts.jsonl (role, content, tool_name, tool_args, is_error)"
_NATIVE_CONTEXT = (
    "write prompt_token_ids and token_ids of each assistant turn to rollouts.jsonl: what the engine was given and what it wrote"
)
_VERL_TURNS = (
    "actor_rollout_ref.rollout.trace.backend=mlflow, weave or trackio keeps messages and tool calls, no dump of verl does: " + _NATIVE_TURNS
)
_VERL_CONTEXT = (
    "actor_rollout_ref.rollout.multi_turn.tokenization_sanity_check_mode=strict warns in the console log of a second rendering "
    "that differs; no dump of verl holds the engine's prompts: " + _NATIVE_CONTEXT
)
_TRL_TURNS = "completions/*.parquet hold tool results as plain text within the completion: from a callback, " + _NATIVE_TURNS
_TURN_FIELDS = frozenset({"turns", "role", "content", "tool_name", "tool_args", "is_error", "prompt_token_ids"})
_VERL_VALIDATION = (
    "trainer.validation_data_dir=DIR (one JSONL an evaluation: prompts, responses and scores; settings of the sampler in no dump)"
)
_VERL_TASKS = (
    "verl's dumps name no data source: write task, difficulty and kept as rollouts.jsonl (native format), or return a score a "
    "data source from the reward function"
)
_TRL_TASKS = 'call log_extra("task", ...) in a reward function, with ' + _TRL_DUMP
_NATIVE_TASKS = "write task, difficulty, origin, prompt_tokens and kept for each trajectory to rollouts.jsonl"
_NATIVE_EVAL = "write the evaluation's responses to rollouts.jsonl with split eval, prompt, sampling (max_tokens, temperature) and verifier"
_NATIVE_PARTS = "write reward_parts (an object of numbers) for each trajectory to rollouts.jsonl"

_TOKEN_FACTS = ("mismatch", "update", "sign", "mask", "entropy", "logprob", "tokens")


def _tokens(how: str) -> tuple[tuple[str, str], ...]:
    return (("fact.seconds.*", _SECONDS), *((f"fact.{name}.*", how) for name in _TOKEN_FACTS))


def _turns(turns: str, context: str) -> tuple[tuple[str, str], ...]:
    return (("fact.turns.*", turns), ("fact.tools.*", turns), ("fact.context.*", context))


# The first pattern that fits wins; a pattern is an id of the vocabulary, a fact or `config.KEY`.
_HOW: dict[str, tuple[tuple[str, str], ...]] = {
    "verl": (
        *_tokens(_VERL_TENSORS),
        *_turns(_VERL_TURNS, _VERL_CONTEXT),
        ("fact.group.*", _VERL_DUMP + "; verl 0.9 or later writes the uid that tells groups apart"),
        ("fact.advantage.*", "verl writes no advantages to its dumps: write them as rollouts.jsonl (native format)"),
        ("fact.verifier.*", "verl writes no verifier status: write it as rollouts.jsonl (native format)"),
        ("fact.lag.*", _VERL_ASYNC),
        ("fact.eval.*", _VERL_VALIDATION),
        ("fact.mix.*", _VERL_TASKS),
        ("fact.task.*", _VERL_TASKS),
        ("fact.reward.part.*", "return the parts from the reward function as a dict and set " + _VERL_DUMP),
        ("fact.repeat.duplicate_frac", "verl writes no trajectory ids to its dumps before 0.9: " + _IDS),
        ("fact.*", _VERL_DUMP),
        ("time.*", _VERL_TIMES),
        ("idle.*", _VERL_TIMES),
        ("engine.*", _ENGINE_METRICS),
        ("mismatch.*", _VERL_ENGINE),
        ("is.*", "algorithm.rollout_correction.rollout_is=token with " + _VERL_ENGINE),
        ("lag.*", _VERL_ASYNC),
        ("value.*", _VERL_CRITIC),
        ("loss.value", _VERL_CRITIC),
        ("kl.ref", "actor_rollout_ref.actor.use_kl_loss=True (logged as actor/kl_loss)"),
        ("kl.ref.in_reward", "algorithm.use_kl_in_reward=True (logged as actor/reward_kl_penalty)"),
        ("entropy.mean", "actor_rollout_ref.actor.calculate_entropy=True (logged as actor/entropy; absent in bypass mode)"),
        ("length.response.truncated_frac", _VERL_DUMP + _VERL_NO_TRUNCATION),
        ("length.response.terminated.*", _VERL_DUMP),
        ("group.*", _VERL_DUMP + "; verl logs no share of groups without variance"),
        ("reward.fn.*", "algorithm.adv_estimator=gdpo, or return the parts from the reward function and set " + _VERL_DUMP),
        ("reward.std", _VERL_DUMP),
        ("eval.*", "trainer.test_freq=N and data.val_files (logged as val-core/*)"),
        ("turns.*", "actor_rollout_ref.rollout.multi_turn.enable=True"),
        ("tools.failure_frac", "verl counts calls, not failures: return is_error from the tool and " + _NATIVE_TURNS),
        ("tools.*", "actor_rollout_ref.rollout.multi_turn.enable=True (logged as tool_call_counts/*)"),
        ("stop.*", "verl logs no reasons to stop: write finish_reason for each trajectory to rollouts.jsonl (abort at the turn limit)"),
        ("clip.frac_*", "verl logs actor/pg_clipfrac without a split by side: no setting gives it"),
        ("ratio.*", "verl logs no update ratio: no setting gives it"),
        ("config.*", "trainer.logger with wandb or mlflow, or the resolved hydra configuration as config.json beside the log"),
        ("*", 'trainer.logger=["console","file"] (VERL_FILE_LOGGER_PATH names the JSONL) writes every metric of verl'),
    ),
    "trl": (
        *_tokens(_TRL_TOKENS),
        *_turns(_TRL_TURNS, "TRL writes no prompts of single turns: from a callback, " + _NATIVE_CONTEXT),
        ("fact.eval.*", _TRL_DUMP + " and an eval_dataset (an evaluation's file takes the place of its training step's)"),
        ("fact.mix.*", _TRL_TASKS),
        ("fact.task.*", _TRL_TASKS),
        ("reward.fn.*", "several functions in reward_funcs (TRL logs rewards/NAME/mean for each)"),
        ("fact.*", _TRL_DUMP),
        ("time.*", _TRL_TIMES),
        ("idle.*", _TRL_TIMES),
        ("engine.*", _ENGINE_METRICS),
        ("mismatch.*", _TRL_ENGINE),
        ("is.*", _TRL_ENGINE),
        ("lag.*", "AsyncGRPOTrainer with max_staleness; it logs no staleness: write policy_version for each trajectory to rollouts.jsonl"),
        ("value.*", "PPOTrainer (only it has a value function, logged as val/*)"),
        ("loss.value", "PPOTrainer (logged as loss/value_avg)"),
        ("kl.ref*", "beta above 0 (TRL logs kl only then)"),
        ("kl.old", "PPOTrainer (logged as policy/approxkl_avg); GRPOTrainer logs no KL between updates"),
        ("entropy.*", "TRL 0.20 or later logs entropy without a setting"),
        ("group.zero_std_frac", "TRL 0.18 or later logs frac_reward_zero_std without a setting"),
        ("group.*", _TRL_DUMP),
        ("eval.*", 'eval_strategy="steps" with eval_steps=N and an eval_dataset (logged as eval_reward)'),
        ("turns.*", "TRL logs calls, not turns: from a callback, " + _NATIVE_TURNS),
        ("stop.*", "TRL logs no reasons to stop: write finish_reason for each trajectory to rollouts.jsonl (abort at the turn limit)"),
        ("tools.*", "tools=[...] on the trainer (logged as tools/call_frequency and tools/failure_frequency)"),
        ("ratio.*", "GRPOTrainer logs no update ratio: no setting gives it"),
        ("clip.*", "num_iterations above 1 or steps_per_generation above gradient_accumulation_steps; on-policy nothing is clipped"),
        ("length.*", "TRL 0.17 or later logs completions/* without a setting"),
        ("config.*", 'report_to="wandb", or the arguments as config.json beside the log (trainer_state.json holds none)'),
        ("*", "logging_steps=1 and save_steps=N (trainer_state.json is written at checkpoints), or a report_to backend"),
    ),
    "native": (
        *_tokens(_NATIVE_TOKENS),
        *_turns(_NATIVE_TURNS, _NATIVE_CONTEXT),
        ("fact.eval.*", _NATIVE_EVAL),
        ("fact.mix.*", _NATIVE_TASKS),
        ("fact.task.*", _NATIVE_TASKS),
        ("fact.reward.part.*", _NATIVE_PARTS),
        ("reward.fn.*", _NATIVE + ", or " + _NATIVE_PARTS),
        ("fact.repeat.*", _IDS),
        ("fact.*", _NATIVE_ROLLOUTS),
        ("time.*", _NATIVE_TIMES),
        ("engine.*", _ENGINE_METRICS),
        ("lag.*", _NATIVE + ", or policy_version and trainer_version for each trajectory to rollouts.jsonl"),
        ("config.*", "write it to config.json"),
        ("*", _NATIVE),
    ),
    "plain": (
        *_tokens(_NATIVE_TOKENS),
        *_turns(_NATIVE_TURNS, _NATIVE_CONTEXT),
        ("fact.eval.*", _NATIVE_EVAL),
        ("fact.mix.*", _NATIVE_TASKS),
        ("fact.task.*", _NATIVE_TASKS),
        ("fact.reward.part.*", _NATIVE_PARTS),
        ("fact.repeat.*", _IDS),
        ("fact.*", _NATIVE_ROLLOUTS),
        ("engine.*", _ENGINE_METRICS),
        ("config.*", "put the trainer's configuration beside the log as config.json"),
        ("*", "add a column with this name to the log"),
    ),
}  # fmt: skip


def switch_for(metric: str, framework: str) -> str:
    """How that trainer logs the metric, fact or configuration key; an unknown trainer is told in terms of plain files."""
    if metric in TRAJECTORY_FIELDS or metric in TOKEN_ARRAYS:
        return f"write it for each trajectory to rollouts.jsonl (field {metric})"
    if metric in _TURN_FIELDS:
        return f"write it for each turn to rollouts.jsonl (turns, field {metric})" if metric != "turns" else _NATIVE_TURNS
    return next(how for pattern, how in _HOW.get(framework, _HOW["plain"]) if fnmatchcase(metric, pattern))


def how_to_log(metrics: Sequence[str], framework: str) -> str:
    """One sentence for all that is missing, each setting once."""
    by_how: dict[str, list[str]] = {}
    for metric in metrics:
        by_how.setdefault(switch_for(metric, framework), []).append(metric)
    return "; ".join(f"{', '.join(names)}: {how}" for how, names in by_how.items()) + "."
