"""Trainers' own spellings of the vocabulary: exact keys, patterns, and where a version decides the meaning.

Sources: verl 0.3 to 0.9.1 (trainer/ppo/metric_utils.py, core_algos.py, workers/utils/losses.py, v1/trainer_base.py),
TRL 0.14 to 1.16 (trainer/grpo_trainer.py, rloo_trainer.py, experimental/ppo, experimental/async_grpo).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple


class Alias(NamedTuple):
    """What a key means: canonical id and how the trainer computed it."""

    metric: str
    aggregation: str | None = None
    estimator: str | None = None
    transform: str = "identity"


def lookup(key: str, framework: str, version: str | None) -> Alias | None:
    """The alias of a key, or None where its meaning is unknown or depends on a version that is not known."""
    dialect, release = _dialect(framework, version)
    bare = _without_backend_prefix(key)
    if dialect == "verl":
        return _verl(key, release)
    if dialect == "trl":
        return _trl(bare, release)
    return PLAIN.get(bare) or _distinctive(bare)


def _dialect(framework: str, version: str | None) -> tuple[str, str | None]:
    """Whose names are used, and the release: `plain` with version `verl v1` is verl's v1 trainer."""
    words = (version or "").split()
    if words and words[0] in ("verl", "trl"):
        return words[0], words[1] if len(words) > 1 else None
    return framework, words[0] if words else None


def _without_backend_prefix(key: str) -> str:
    """TRL's names as in trainer_state: wandb and TensorBoard put `train/` before them and turn `eval_` into `eval/`."""
    if key.startswith("train/"):
        return key.removeprefix("train/")
    if key.startswith("eval/"):
        return "eval_" + key.removeprefix("eval/")
    return key


def _stats(prefix: str, metric: str, stats: str, **about: str) -> Iterator[tuple[str, Alias]]:
    for stat in stats.split():
        yield f"{prefix}{stat}", Alias(f"{metric}.{stat}", **about)


VERL: dict[str, Alias] = dict([
    *_stats("critic/score/", "reward", "mean max min", aggregation="seq_mean"),
    *_stats("critic/rewards/", "reward.shaped", "mean max min", aggregation="seq_mean"),
    *_stats("critic/advantages/", "adv", "mean max min", aggregation="token_mean"),
    *_stats("critic/returns/", "return", "mean max min", aggregation="token_mean"),
    *_stats("response_length/", "length.response", "mean max min"),
    *_stats("prompt_length/", "length.prompt", "mean max min"),
    *_stats("num_turns/", "turns", "mean max min"),
    *_stats("training/num_turns/", "turns", "mean max min"),
    *_stats("training/rollout_probs_diff_", "mismatch.prob_diff", "mean max std", estimator="prob_diff"),
    *_stats("training/off_policy/trajectory_staleness/", "lag.policy", "mean max min", aggregation="newest_token"),
    *_stats("training/off_policy/trajectory_spans/", "lag.span", "mean max", transform="x-1"),
    *_stats("rollout_corr/rollout_is_", "is.weight", "mean max min std", aggregation="post_clip"),
    ("critic/values/mean", Alias("value.mean", "token_mean")),
    ("critic/vf_explained_var", Alias("value.explained_var")),
    ("critic/vf_loss", Alias("loss.value")),
    ("critic/vf_clipfrac", Alias("clip.value_frac", "microbatch_mean")),
    ("actor/entropy", Alias("entropy.mean", "loss_agg_mode", "exact")),
    ("actor/entropy_loss", Alias("loss.entropy_bonus", "loss_agg_mode", "exact")),
    ("actor/pg_loss", Alias("loss.policy")),
    ("actor/loss", Alias("loss.total")),
    ("actor/pg_clipfrac", Alias("clip.frac", "microbatch_mean")),
    ("actor/pg_clipfrac_lower", Alias("clip.frac_dual", "microbatch_mean")),
    ("actor/ppo_kl", Alias("kl.old", "token_mean", "k1")),
    ("actor/kl_loss", Alias("kl.ref", "loss_agg_mode")),
    ("actor/kl_coef", Alias("kl.coef")),
    ("actor/reward_kl_penalty", Alias("kl.ref.in_reward", "seq_mean")),
    ("actor/grad_norm", Alias("grad.norm", "minibatch_mean")),
    ("actor/lr", Alias("lr", "last")),
    ("response/aborted_ratio", Alias("response.empty_frac", "seq_mean")),
    ("tool_call_counts/mean", Alias("tools.calls_per_sample", "seq_mean")),
    ("training/rollout_actor_probs_pearson_corr", Alias("mismatch.pearson")),
    ("rollout_corr/kl", Alias("mismatch.kl", "token_mean", "k1")),
    ("rollout_corr/k3_kl", Alias("mismatch.kl_k3", "token_mean", "k3")),
    ("rollout_corr/ppl_ratio", Alias("mismatch.ppl_ratio", "seq_mean")),
    ("rollout_corr/log_ppl_diff", Alias("mismatch.log_ppl_diff.mean", "seq_mean")),
    ("rollout_corr/log_ppl_abs_diff", Alias("mismatch.log_ppl_diff.abs_mean", "seq_mean")),
    ("rollout_corr/log_ppl_diff_max", Alias("mismatch.log_ppl_diff.max")),
    ("rollout_corr/log_ppl_diff_min", Alias("mismatch.log_ppl_diff.min")),
    ("rollout_corr/chi2_token", Alias("mismatch.chi2.token")),
    ("rollout_corr/chi2_seq", Alias("mismatch.chi2.seq")),
    ("rollout_corr/rollout_is_eff_sample_size", Alias("is.ess", "post_clip")),
    ("rollout_corr/rollout_is_ratio_fraction_high", Alias("is.clipped_frac_high", "raw")),
    ("rollout_corr/rollout_is_ratio_fraction_low", Alias("is.clipped_frac_low", "raw")),
    ("rollout_corr/rollout_rs_masked_fraction", Alias("is.masked_frac")),
    ("rollout_corr/rollout_rs_seq_masked_fraction", Alias("is.masked_seq_frac")),
    ("training/off_policy/evicted_samples", Alias("group.stale_dropped_count", "sum")),
    ("training/filter_groups/evicted_samples", Alias("group.filtered_count", "sum")),
    ("fully_async/count/stale_trajectory_processed", Alias("lag.stale_count.cum", "sum")),
    ("fully_async/count/current_param_version", Alias("version.trainer", "last")),
    ("fully_async/rollouter/idle_ratio", Alias("idle.rollout_frac")),
    ("fully_async/trainer/idle_ratio", Alias("idle.trainer_frac")),
    ("timing_s/reward", Alias("time.verify_s", "sum")),
    ("timing_s/old_log_prob", Alias("time.logprob_old_s", "sum")),
    ("timing_s/ref", Alias("time.logprob_ref_s", "sum")),
    ("timing_s/values", Alias("time.value_s", "sum")),
    ("timing_s/adv", Alias("time.adv_s", "sum")),
    ("timing_s/update_critic", Alias("time.update_critic_s", "sum")),
    ("timing_s/update_actor", Alias("time.update_s", "sum")),
    ("timing_s/update_weights", Alias("time.sync_s", "sum")),
    ("timing_s/save_checkpoint", Alias("time.ckpt_s", "sum")),
    ("timing_s/testing", Alias("time.eval_s", "sum")),
    ("timing_s/step", Alias("time.step_s", "sum")),
    ("perf/total_num_tokens", Alias("tokens.total", "sum")),
    ("perf/throughput", Alias("throughput.tokens_per_gpu_s")),
    ("perf/mfu/actor", Alias("mfu.actor")),
    *(
        (f"{place}perf/max_memory_{kind}_gb", Alias(f"mem.gpu_{kind}_gb", "max"))
        for place in ("", "actor/")
        for kind in ("allocated", "reserved")
    ),
    *((f"{place}perf/cpu_memory_used_gb", Alias("mem.cpu_used_gb", "max")) for place in ("", "actor/")),
])  # fmt: skip

VERL_BY_TRAINER: dict[str, dict[str, Alias]] = {
    # v0 pads to max_response_length, so equal to the width is truncated; v1 pads to the longest of the batch only.
    "response_length/clip_ratio": {
        "v0": Alias("length.response.truncated_frac", "seq_mean"),
        "v1": Alias("length.response.at_batch_max_frac", "seq_mean"),
    },
    "prompt_length/clip_ratio": {"v0": Alias("length.prompt.truncated_frac", "seq_mean")},
    # v1 waits for its replay buffer under this name, which is idle time in asynchronous modes.
    "timing_s/gen": {
        "v0": Alias("time.rollout_s", "sum"),
        "v1": Alias("time.wait_batch_s", "sum"),
        "fully_async": Alias("time.wait_batch_s", "sum"),
    },
}

_VERL_EVAL = re.compile(
    r"^val-(?P<part>core|aux)/(?P<task>.+)/(?P<var>[^/]+)/(?P<stat>mean|best|worst|maj|std)@(?P<n>\d+)(?:/(?P<of>mean|std))?$"
)
_VERL_OLD_EVAL = re.compile(r"^val/test_score/(?P<task>.+)$")
_VERL_PART = re.compile(r"^gdpo/(?P<name>.+)/(?P<stat>mean|std)$")


def _verl(key: str, trainer: str | None) -> Alias | None:
    if key in VERL_BY_TRAINER:
        return VERL_BY_TRAINER[key].get(trainer or "")
    # 0.6.0 only; renamed in 0.6.1.
    modern = re.sub(r"^mismatch/(?:mismatch_)?", "rollout_corr/", key)
    if modern in VERL:
        return VERL[modern]
    if found := _VERL_EVAL.match(key):
        return _verl_eval(found)
    if found := _VERL_OLD_EVAL.match(key):
        return Alias(f"eval.{found['task']}.score", "seq_mean")
    if found := _VERL_PART.match(key):
        return Alias(f"reward.fn.{found['name']}.{found['stat']}", "seq_mean")
    return None


def _verl_eval(found: re.Match[str]) -> Alias | None:
    """val-core names the one variable that counts; in val-aux the variable belongs to the name. Spreads of bootstraps stay unknown."""
    if found["of"] == "std":
        return None
    task = found["task"] if found["part"] == "core" else f"{found['task']}/{found['var']}"
    return Alias(f"eval.{task}.{found['stat']}@{found['n']}", "bootstrap" if found["of"] else "seq_mean")


TRL: dict[str, Alias] = dict([
    *(
        pair
        for stat in ("mean", "min", "max")
        for pair in (
            (f"completions/{stat}_length", Alias(f"length.response.{stat}")),
            (f"completions/{stat}_terminated_length", Alias(f"length.response.terminated.{stat}", "0_if_none")),
            (f"sampling/importance_sampling_ratio/{stat}", Alias(f"is.weight.{stat}", "post_clip")),
        )
    ),
    *_stats("sampling/sampling_logp_difference/", "mismatch.logprob_diff", "mean max", aggregation="rank_mean"),
    ("loss", Alias("loss.total", "window_mean")),
    ("policy_loss", Alias("loss.policy", "window_mean")),
    ("grad_norm", Alias("grad.norm", "last")),
    ("learning_rate", Alias("lr", "last")),
    ("reward", Alias("reward.mean", "window_mean")),
    ("frac_reward_zero_std", Alias("group.zero_std_frac", "window_mean")),
    ("kl", Alias("kl.ref", "token_mean", "k3")),
    ("entropy", Alias("entropy.mean", "token_mean", "exact")),
    ("clip_ratio/low_mean", Alias("clip.frac_low", "token_mean")),
    ("clip_ratio/high_mean", Alias("clip.frac_high", "token_mean")),
    ("clip_ratio/region_mean", Alias("clip.frac", "token_mean")),
    ("clip_ratio/low_min", Alias("clip.frac_low.seq_min")),
    ("clip_ratio/high_max", Alias("clip.frac_high.seq_max")),
    ("clip_ratio", Alias("clip.frac", "token_mean")),
    ("cispo_clip_ratio", Alias("clip.frac_high", "token_mean")),
    ("completion_length", Alias("length.response.mean")),
    ("completions/clipped_ratio", Alias("length.response.truncated_frac", "seq_mean")),
    ("tools/call_frequency", Alias("tools.calls_per_sample")),
    ("tools/failure_frequency", Alias("tools.failure_frac")),
    ("num_tokens", Alias("tokens.total.cum", "sum")),
    ("step_time", Alias("time.step_s", "window_mean")),
    ("eval_reward", Alias("eval.overall.score")),
    ("eval_completions/mean_length", Alias("eval.overall.length.mean")),
    ("eval_completions/clipped_ratio", Alias("eval.overall.truncated_frac")),
    ("objective/scores", Alias("reward.mean")),
    ("objective/rlhf_reward", Alias("reward.shaped.mean")),
    ("policy/approxkl_avg", Alias("kl.old", None, "k2")),
    ("policy/clipfrac_avg", Alias("clip.frac")),
    ("policy/entropy_avg", Alias("entropy.mean", None, "exact")),
    ("loss/policy_avg", Alias("loss.policy")),
    ("loss/value_avg", Alias("loss.value")),
    ("val/clipfrac_avg", Alias("clip.value_frac")),
    ("val/ratio", Alias("ratio.mean")),
])  # fmt: skip

_TRL_FUNCTION = re.compile(r"^(?P<eval>eval_)?rewards/(?P<name>.+?)(?:/(?P<stat>mean|std))?$")


def _trl(key: str, release: str | None) -> Alias | None:
    if key in _TRL_BY_RELEASE:
        return _TRL_BY_RELEASE[key](release)
    if key in TRL:
        return TRL[key]
    found = _TRL_FUNCTION.match(key)
    if not found:
        return None
    stat = found["stat"] or "mean"
    if not found["eval"]:
        return Alias(f"reward.fn.{found['name']}.{stat}", "window_mean")
    return Alias(f"eval.{found['name']}.score") if stat == "mean" else None


def _reward_std(release: str | None) -> Alias | None:
    """0.27 and later: over the whole batch. Before: the mean of the groups' deviations. Unknown release: unknown."""
    if release is None or not release[:1].isdigit():
        return Alias("group.reward_std.mean", "seq_mean") if release == "async" else None
    major, minor = (int(part) for part in (release + ".0").split(".")[:2])
    return Alias("reward.std") if (major, minor) >= (0, 27) else Alias("group.reward_std.mean")


def _kl(release: str | None) -> Alias | None:
    """AsyncGRPOTrainer measures it against the behaviour policy, not against the reference."""
    return None if release == "async" else TRL["kl"]


_TRL_BY_RELEASE: dict[str, Callable[[str | None], Alias | None]] = {"reward_std": _reward_std, "kl": _kl}

_SPELLINGS: dict[str, str] = {
    "reward.mean": "reward mean_reward reward_mean reward/mean env/all/reward/total",
    "lr": "lr learning_rate optim/lr",
    "grad.norm": "grad_norm gradient_norm optim/grad_norm",
    "length.response.mean": "completion_length completion_len response_length env/all/ac_tokens_per_turn",
    "kl.ref": "kl_ref ref_kl",
    "kl.old": "approx_kl_old approx_kl ppo_kl",
    "clip.frac": "clip_frac clipfrac clip_fraction",
    "loss.policy": "policy_loss pg_loss",
    "loss.total": "loss total_loss",
    "loss.value": "value_loss",
    "value.explained_var": "explained_variance",
    "group.zero_std_frac": "degenerate_frac zero_gradient_group_fraction frac_reward_zero_std",
    "group.reward_std.mean": "mean_reward_group_std",
    "group.solve_all_frac": "by_group/frac_all_good",
    "group.solve_none_frac": "by_group/frac_all_bad",
    "time.step_s": "step_time time/total time_per_step",
}
PLAIN: dict[str, Alias] = {name: Alias(metric) for metric, names in _SPELLINGS.items() for name in names.split()}
"""Spellings of no trainer in particular whose definition is nevertheless plain. Entropy is not among them: exact or sampled?"""


def _distinctive(key: str) -> Alias | None:
    """A trainer's own name in a file of no known trainer: only names with a slash that no other trainer uses otherwise."""
    if "/" not in key:
        return None
    return _trl(key, None) or _verl(key, None)
