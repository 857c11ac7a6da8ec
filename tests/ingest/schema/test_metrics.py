from __future__ import annotations

import pytest

from ingest.schema.aliases import PLAIN, TRL, VERL, VERL_BY_TRAINER
from ingest.schema.document import main, metrics_markdown
from ingest.schema.metrics import METRICS, apply_transform, eval_parts, metric, primary_eval, resolve


def test_every_alias_names_a_metric_of_the_vocabulary() -> None:
    aliases = [*VERL.values(), *TRL.values(), *PLAIN.values(), *(a for by in VERL_BY_TRAINER.values() for a in by.values())]
    assert [a.metric for a in aliases if metric(a.metric) is None] == []


def test_every_metric_has_a_title_a_unit_and_a_definition() -> None:
    assert [row.id for row in METRICS.values() if not (row.title and row.unit and row.definition and row.family)] == []


def test_a_pattern_is_filled_in_and_is_no_metric_by_itself() -> None:
    found = metric("reward.fn.format_reward.mean")
    assert found is not None
    assert (found.id, found.title) == ("reward.fn.format_reward.mean", "Reward function format_reward, mean")
    assert metric("reward.fn.{name}.mean") is None
    assert metric("nobody.knows.this") is None


def test_native_keys_are_their_own_meaning_and_unknown_keys_have_none() -> None:
    assert resolve("reward.task.copy.mean", "native", None).metric == "reward.task.copy.mean"
    assert resolve("entropy.mean", "native", None).unit == "nats/token"
    assert resolve("eval.length.mean", "native", None).metric == "eval.overall.length.mean"
    assert resolve("my.own.number", "native", None).metric is None


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("critic/score/mean", "reward.mean"),
        ("critic/rewards/max", "reward.shaped.max"),
        ("actor/ppo_kl", "kl.old"),
        ("actor/pg_clipfrac_lower", "clip.frac_dual"),
        ("training/rollout_probs_diff_mean", "mismatch.prob_diff.mean"),
        ("rollout_corr/kl", "mismatch.kl"),
        ("mismatch/mismatch_kl", "mismatch.kl"),
        ("mismatch/rollout_is_mean", "is.weight.mean"),
        ("gdpo/format/mean", "reward.fn.format.mean"),
        ("timing_s/update_actor", "time.update_s"),
        ("actor/perf/max_memory_allocated_gb", "mem.gpu_allocated_gb"),
        ("perf/max_memory_allocated_gb", "mem.gpu_allocated_gb"),
        ("val-core/openai/gsm8k/reward/mean@1", "eval.openai/gsm8k.mean@1"),
        ("val-core/openai/gsm8k/acc/best@8/mean", "eval.openai/gsm8k.best@8"),
        ("val-core/openai/gsm8k/acc/best@8/std", None),
        ("val-aux/openai/gsm8k/reward/std@8", "eval.openai/gsm8k/reward.std@8"),
        ("training/off_policy/trajectory_staleness_worst/mean", None),
        ("critic/grad_norm", None),
        ("made/up", None),
    ],
)
def test_verl_keys_get_their_meaning(key: str, expected: str | None) -> None:
    assert resolve(key, "verl", "v1").metric == expected


def test_verls_clip_ratio_is_truncation_only_under_the_old_trainer() -> None:
    def meaning(version: str | None) -> str | None:
        return resolve("response_length/clip_ratio", "verl", version).metric

    assert meaning("v0") == "length.response.truncated_frac"
    assert meaning("v1") == "length.response.at_batch_max_frac"
    assert meaning("fully_async") is None
    assert meaning(None) is None
    assert resolve("response_length/clip_ratio", "plain", "verl v1").metric == "length.response.at_batch_max_frac"
    assert resolve("prompt_length/clip_ratio", "verl", "v1").metric is None


def test_verls_generation_time_is_waiting_under_the_new_trainer() -> None:
    assert resolve("timing_s/gen", "verl", "v0").metric == "time.rollout_s"
    assert resolve("timing_s/gen", "verl", "v1").metric == "time.wait_batch_s"


def test_verls_spans_are_shifted_to_versions_spanned() -> None:
    meaning = resolve("training/off_policy/trajectory_spans/mean", "verl", "v1")
    assert (meaning.metric, meaning.transform) == ("lag.span.mean", "x-1")
    assert apply_transform(meaning.transform, 1.0) == 0.0


def test_a_trl_metric_that_changed_keeps_its_name_until_the_version_is_known() -> None:
    assert resolve("reward_std", "trl", None).metric is None
    assert resolve("reward_std", "trl", "0.26.2").metric == "group.reward_std.mean"
    assert resolve("reward_std", "trl", "0.27.0").metric == "reward.std"
    assert resolve("reward_std", "trl", "1.16.0").metric == "reward.std"


def test_trls_kl_is_another_quantity_under_the_asynchronous_trainer() -> None:
    assert resolve("kl", "trl", None).estimator == "k3"
    assert resolve("kl", "trl", None).metric == "kl.ref"
    assert resolve("kl", "trl", "async").metric is None


@pytest.mark.parametrize("prefix", ["", "train/"])
def test_trl_keys_mean_the_same_with_the_prefix_of_a_backend(prefix: str) -> None:
    assert resolve(prefix + "completions/clipped_ratio", "trl", None).metric == "length.response.truncated_frac"
    assert resolve(prefix + "rewards/accuracy/mean", "trl", None).metric == "reward.fn.accuracy.mean"
    assert resolve(prefix + "rewards/accuracy", "trl", None).metric == "reward.fn.accuracy.mean"


def test_trl_evaluations_are_no_training_metrics() -> None:
    assert resolve("eval_reward", "trl", None).metric == "eval.overall.score"
    assert resolve("eval/rewards/exact_match/mean", "trl", None).metric == "eval.exact_match.score"
    assert resolve("eval_clip_ratio/region_mean", "trl", None).metric is None
    assert resolve("eval_entropy", "trl", None).metric is None


def test_plain_names_are_taken_only_where_their_definition_is_plain() -> None:
    assert resolve("reward_mean", "plain", None).metric == "reward.mean"
    assert resolve("env/all/reward/total", "plain", None).metric == "reward.mean"
    assert resolve("entropy", "plain", None).metric is None
    assert resolve("policy/entropy", "plain", None).metric is None
    assert resolve("entropy", "plain", "trl").metric == "entropy.mean"
    assert resolve("critic/score/mean", "native", "verl v0").metric == "reward.mean"


def test_the_extremes_of_a_sampled_chart_are_never_the_metric_itself() -> None:
    meaning = resolve("train/reward__MAX", "plain", "trl")
    assert (meaning.metric, meaning.aggregation, meaning.unit) == (None, "sampled_max", "reward")


def test_evaluation_ids_hold_tasks_with_slashes_dots_and_at_signs() -> None:
    assert eval_parts("eval.openai/gsm8k@v1.1.mean@16") == ("openai/gsm8k@v1.1", "mean@16")
    assert eval_parts("eval.overall.length.mean") == ("overall", "length.mean")
    assert eval_parts("reward.mean") is None


def test_the_primary_evaluation_is_chosen_by_name_and_never_by_order() -> None:
    ids = ["eval.b.mean@8", "eval.b.mean@1", "eval.a.best@8", "reward.mean"]
    assert primary_eval(ids) == primary_eval(reversed(ids)) == "eval.b.mean@1"
    assert primary_eval([*ids, "eval.c.score"]) == "eval.c.score"
    assert primary_eval([*ids, "eval.c.score", "eval.heldout.score"]) == "eval.heldout.score"
    assert primary_eval(["eval.x.tokens"]) is None
    functions = ["eval.a_format.score", "eval.length_bonus.score", "eval.overall.score"]
    assert primary_eval(functions) == "eval.overall.score"
    assert primary_eval([*functions, "eval.exact_match.score"]) == "eval.exact_match.score"


def test_what_a_value_was_before_or_after_is_tagged() -> None:
    assert resolve("sampling/importance_sampling_ratio/max", "trl", None).aggregation == "post_clip"
    assert resolve("completions/mean_terminated_length", "trl", None).aggregation == "0_if_none"
    assert resolve("rollout_corr/rollout_is_ratio_fraction_high", "verl", "v1").aggregation == "raw"
    assert resolve("actor/entropy_loss", "verl", None).metric == "loss.entropy_bonus"


def test_kl_of_the_ppo_trainer_is_a_sum_a_sequence_and_no_kl_of_ours() -> None:
    assert resolve("objective/kl", "trl", None).metric is None
    assert resolve("objective/entropy", "trl", None).metric is None
    assert resolve("val/ratio", "trl", None).metric == "ratio.mean"


@pytest.mark.parametrize(
    ("transform", "expected"), [("identity", 0.25), ("negate", -0.25), ("1-x", 0.75), ("x/100", 0.0025), ("null_as_nonfinite", 0.25)]
)
def test_transforms_bring_a_value_into_the_unit_of_its_metric(transform: str, expected: float) -> None:
    assert apply_transform(transform, 0.25) == pytest.approx(expected)


def test_the_page_of_metrics_is_current(pytestconfig: pytest.Config) -> None:
    assert (pytestconfig.rootpath / "docs" / "metrics.md").read_text(encoding="utf-8") == metrics_markdown()
    assert main(["--check", str(pytestconfig.rootpath / "docs" / "metrics.md")]) == 0


def test_a_page_that_is_not_current_is_found(tmp_path: object) -> None:
    assert main(["--check", f"{tmp_path}/none.md"]) == 1
