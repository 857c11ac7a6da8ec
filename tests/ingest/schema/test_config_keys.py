from __future__ import annotations

import pytest

from ingest.schema.config_keys import canonical
from ingest.schema.records import Json

FLAT: dict[str, Json] = {
    "algo": "grpo", "adv": "grpo", "group": 8, "prompts": 16, "minibatches": 4, "epochs": 2, "max_new": 24, "loss_agg": "token-mean",
    "clip_low": 0.2, "clip_high": 0.28, "kl_coef": 0.02, "temp": 1.0, "lr_warmup": 5, "steps": 200, "async_lags": [0, 3, 2],
    "curriculum": [[1, 2, 4], [100, 5, 6]], "resume_at": 60, "old_source": "recompute", "std_norm": True,
}  # fmt: skip

NESTED: dict[str, Json] = {
    "algorithm": "gspo",
    "total_steps": 160,
    "data": {"prompts_per_step": 12},
    "rollout": {"group_size": 8, "temperature": 1.0, "top_p": 0.9, "max_tokens": 24},
    "update": {
        "updates_per_batch": 4,
        "clip_low": 0.0003,
        "clip_high": 0.0004,
        "ratio_level": "sequence",
        "loss_agg": "seq-mean",
        "kl_coef": 0.0,
    },
    "advantage": {"kind": "group_mean_std"},
    "optimizer": {"warmup_steps": 5},
    "async": {"max_lag": 2},
}

VERL: dict[str, Json] = {
    "algorithm": {"adv_estimator": "grpo", "use_kl_in_reward": False, "norm_adv_by_std_in_grpo": True},
    "data": {"train_batch_size": 64, "max_response_length": 2048},
    "actor_rollout_ref": {
        "actor": {
            "ppo_mini_batch_size": 16, "ppo_epochs": 1, "clip_ratio": 0.2, "clip_ratio_low": 0.2, "clip_ratio_high": 0.28,
            "clip_ratio_c": 3.0, "loss_agg_mode": "token-mean", "use_kl_loss": True, "kl_loss_coef": 0.001,
            "optim": {"lr_warmup_steps": 10},
            "policy_loss": {"loss_mode": "vanilla"},
        },
        "rollout": {"n": 8, "temperature": 0.7, "top_p": 1.0},
    },
    "trainer": {"total_training_steps": 500},
}  # fmt: skip

TRL: dict[str, Json] = {
    "num_generations": 8, "generation_batch_size": 64, "num_iterations": 2, "steps_per_generation": 4, "gradient_accumulation_steps": 2,
    "max_completion_length": 512, "loss_type": "dapo", "epsilon": 0.2, "epsilon_high": None, "beta": 0.04, "temperature": 1.0,
    "warmup_steps": 3, "max_steps": 100, "scale_rewards": "none",
}  # fmt: skip


def test_a_flat_native_configuration_answers_every_key() -> None:
    assert canonical(FLAT, "native") == {
        "algorithm": "grpo", "group_size": 8, "prompts_per_step": 16, "updates_per_batch": 8, "max_response_tokens": 24,
        "loss_aggregation": "token-mean", "clip_low": 0.2, "clip_high": 0.28, "kl_coef": 0.02, "temperature": 1.0, "lr_warmup_steps": 5,
        "planned_steps": 200, "lag_limit": 3, "advantage_std_norm": True, "old_logprobs": "trainer",
        "planned_events": [
            {"step": 100, "kind": "curriculum", "text": "planned: curriculum [5, 6]"},
            {"step": 60, "kind": "resume", "text": "planned: resume from a checkpoint"},
        ],
    }  # fmt: skip


def test_a_nested_native_configuration_answers_too() -> None:
    found = canonical(NESTED, "native")
    expected = {
        "algorithm": "gspo", "group_size": 8, "prompts_per_step": 12, "updates_per_batch": 4, "planned_steps": 160, "lag_limit": 2,
        "ratio_level": "sequence",
    }  # fmt: skip
    assert {key: found[key] for key in expected} == expected
    assert found["advantage_std_norm"] is True
    assert "planned_events" not in found


def test_verls_tree_is_read_by_its_paths() -> None:
    found = canonical(VERL, "verl")
    assert found == {
        "algorithm": "grpo", "group_size": 8, "prompts_per_step": 64, "updates_per_batch": 4, "max_response_tokens": 2048,
        "loss_aggregation": "token-mean", "clip_low": 0.2, "clip_high": 0.28, "clip_dual": 3.0, "kl_coef": 0.001, "temperature": 0.7,
        "top_p": 1.0, "lr_warmup_steps": 10, "planned_steps": 500, "advantage_std_norm": True,
    }  # fmt: skip


def _dotted(config: dict[str, Json], separator: str, prefix: str = "") -> dict[str, Json]:
    flat: dict[str, Json] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            flat |= _dotted(value, separator, prefix + key + separator)
        else:
            flat[prefix + key] = value
    return flat


@pytest.mark.parametrize("separator", [".", "/"])
def test_dotted_and_slashed_trees_say_the_same_as_nested_ones(separator: str) -> None:
    assert canonical(_dotted(VERL, separator), "verl") == canonical(VERL, "verl")


def test_wandbs_wrapping_of_values_is_taken_off() -> None:
    wrapped: dict[str, Json] = {key: {"value": value} for key, value in VERL.items()}
    wrapped["_wandb"] = {"value": {"t": {"1": [1, 2]}}}
    assert canonical(wrapped, "verl") == canonical(VERL, "verl")


def test_verl_without_any_kl_term_has_the_coefficient_zero() -> None:
    off: dict[str, Json] = {
        "algorithm": {"use_kl_in_reward": False},
        "actor_rollout_ref": {"actor": {"use_kl_loss": False, "kl_loss_coef": 0.001}},
    }
    assert canonical(off, "verl")["kl_coef"] == 0.0


def test_trls_arguments_are_read_and_updates_follow_from_them() -> None:
    assert canonical(TRL, "trl") == {
        "algorithm": "grpo", "group_size": 8, "prompts_per_step": 8, "updates_per_batch": 4, "max_response_tokens": 512,
        "loss_aggregation": "dapo", "clip_low": 0.2, "clip_high": 0.2, "kl_coef": 0.04, "temperature": 1.0, "lr_warmup_steps": 3,
        "planned_steps": 100, "advantage_std_norm": False,
    }  # fmt: skip


def test_a_recorded_trl_run_tells_its_planned_steps_and_resume() -> None:
    found = canonical({"steps": 120, "lr": 0.0004, "beta": 0.001, "seed": 1, "steps_per_generation": 4, "resume_at": 60}, "trl")
    assert (found["planned_steps"], found["kl_coef"], found["updates_per_batch"]) == (120, 0.001, 4)
    assert found["planned_events"] == [{"step": 60, "kind": "resume", "text": "planned: resume from a checkpoint"}]


def test_what_a_configuration_does_not_say_is_absent() -> None:
    assert canonical({}, "verl") == {}
    assert canonical({"model": "x"}, "native") == {}


def test_numbers_written_as_strings_are_numbers() -> None:
    found = canonical({"num_generations": "8", "beta": "1e-3"}, "trl")
    assert (found["group_size"], found["kl_coef"]) == (8, 0.001)
