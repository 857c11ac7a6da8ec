"""Canonical configuration keys (what the diagnosis reads of a run's hyper-parameters), from any framework's config.

A configuration may be nested, dotted (`data.train_batch_size`), slashed (mlflow) or in wandb's `{key: {"value": ...}}`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from ingest.schema.records import Json

# The order is the order of asking; a name with dots also matches at the end of a longer path.
_KEYS: dict[str, dict[str, tuple[str, ...]]] = {
    "verl": {
        "group_size": ("actor_rollout_ref.rollout.n", "rollout.n", "n"),
        "prompts_per_step": ("data.train_batch_size", "train_batch_size"),
        "max_response_tokens": ("data.max_response_length", "max_response_length", "rollout.response_length"),
        "loss_aggregation": ("actor.loss_agg_mode", "loss_agg_mode"),
        "clip_low": ("actor.clip_ratio_low", "clip_ratio_low", "actor.clip_ratio", "clip_ratio"),
        "clip_high": ("actor.clip_ratio_high", "clip_ratio_high", "actor.clip_ratio", "clip_ratio"),
        "clip_dual": ("actor.clip_ratio_c", "clip_ratio_c"),
        "temperature": ("actor_rollout_ref.rollout.temperature", "rollout.temperature", "temperature"),
        "top_p": ("actor_rollout_ref.rollout.top_p", "rollout.top_p", "top_p"),
        "lr_warmup_steps": ("actor.optim.lr_warmup_steps", "lr_warmup_steps"),
        "planned_steps": ("trainer.total_training_steps", "total_training_steps", "max_steps"),
        "lag_limit": ("v1.sampler.max_off_policy_threshold", "async_training.staleness_threshold", "staleness_threshold"),
        "advantage_std_norm": ("algorithm.norm_adv_by_std_in_grpo", "norm_adv_by_std_in_grpo"),
    },
    "trl": {
        "group_size": ("num_generations",),
        "max_response_tokens": ("max_completion_length",),
        "loss_aggregation": ("loss_type",),
        "clip_low": ("epsilon",),
        "clip_high": ("epsilon_high", "epsilon"),
        "clip_dual": ("delta",),
        "kl_coef": ("beta",),
        "temperature": ("temperature",),
        "top_p": ("top_p",),
        "lr_warmup_steps": ("warmup_steps",),
        "planned_steps": ("max_steps", "steps"),
        "lag_limit": ("max_staleness",),
        "ratio_level": ("importance_sampling_level",),
    },
    "native": {
        "group_size": ("group", "group_size", "rollout.group_size"),
        "prompts_per_step": ("prompts", "prompts_per_step", "data.prompts_per_step"),
        "updates_per_batch": ("updates_per_batch", "update.updates_per_batch"),
        "max_response_tokens": ("max_new", "max_response_tokens", "rollout.max_tokens"),
        "loss_aggregation": ("loss_agg", "loss_aggregation", "update.loss_agg"),
        "clip_low": ("clip_low", "update.clip_low"),
        "clip_high": ("clip_high", "update.clip_high"),
        "clip_dual": ("clip_dual", "update.clip_dual"),
        "kl_coef": ("kl_coef", "update.kl_coef"),
        "temperature": ("temp", "temperature", "rollout.temperature"),
        "top_p": ("top_p", "rollout.top_p"),
        "lr_warmup_steps": ("lr_warmup", "lr_warmup_steps", "optimizer.warmup_steps"),
        "planned_steps": ("steps", "total_steps", "planned_steps"),
        "lag_limit": ("lag_limit", "async.max_lag", "async_lags"),
        "ratio_level": ("ratio_level", "update.ratio_level"),
        "advantage_std_norm": ("std_norm",),
        "old_logprobs": ("old_logprobs", "update.old_logprobs", "old_source"),
    },
}

_TRAINERS = {"GRPOTrainer": "grpo", "RLOOTrainer": "rloo", "PPOTrainer": "ppo", "AsyncGRPOTrainer": "grpo"}


class _Config:
    """Look-up of dotted paths in a configuration of any shape."""

    def __init__(self, config: Mapping[str, Json]) -> None:
        self.flat = dict(_flatten(config))

    def find(self, *names: str) -> Json:
        """The first value that is not null; a dotted name also matches at the end of a longer path."""
        for name in names:
            value = self.flat.get(name)
            if value is None and "." in name:
                value = next((v for path, v in self.flat.items() if path.endswith("." + name) and v is not None), None)
            if value is not None:
                return value
        return None

    def number(self, *names: str) -> float | None:
        """The first value, if it is a number or one written as a string."""
        value = self.find(*names)
        if isinstance(value, str):
            try:
                return _whole(float(value))
            except ValueError:
                return None
        return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def canonical(config: Mapping[str, Json], framework: str) -> dict[str, Json]:
    """The canonical keys that a configuration answers; absent: not in it.

    Keys: algorithm, group_size (trajectories a prompt), prompts_per_step, updates_per_batch (optimiser steps a batch),
    max_response_tokens, loss_aggregation, clip_low, clip_high, clip_dual, kl_coef, temperature, top_p, lr_warmup_steps,
    planned_steps, lag_limit (versions), ratio_level (token, sequence), advantage_std_norm, old_logprobs (trainer,
    engine), planned_events (list of {"step", "kind", "text"}).
    """
    found = _Config(config)
    order = [framework] if framework in ("verl", "trl") else ["native", "verl", "trl"]
    result: dict[str, Json] = {}
    for name in order:
        for key, names in _KEYS[name].items():
            value = found.find(*names)
            if value is not None and key not in result:
                result[key] = _tidy(key, value)
        for key, answer in _DERIVED[name](found).items():
            if answer is not None:
                result.setdefault(key, answer)
    events = _planned_events(found)
    if events:
        result["planned_events"] = events
    return result


def _verl(c: _Config) -> dict[str, Json]:
    batch = c.number("data.train_batch_size", "train_batch_size")
    mini = c.number("actor.ppo_mini_batch_size", "ppo_mini_batch_size")
    epochs = c.number("actor.ppo_epochs", "ppo_epochs")
    estimator, mode = c.find("algorithm.adv_estimator", "adv_estimator"), c.find("policy_loss.loss_mode", "loss_mode")
    algorithm = estimator if mode in (None, "vanilla") else mode
    in_loss, in_reward = c.find("actor.use_kl_loss", "use_kl_loss"), c.find("algorithm.use_kl_in_reward", "use_kl_in_reward")
    coefficient: Json = None
    if in_loss:
        coefficient = c.number("actor.kl_loss_coef", "kl_loss_coef")
    elif in_reward:
        coefficient = c.number("kl_ctrl.kl_coef", "kl_coef")
    elif in_loss is False or in_reward is False:
        coefficient = 0.0
    return {
        "algorithm": str(algorithm).lower() if algorithm else None,
        "updates_per_batch": _whole((epochs or 1) * batch / mini) if batch and mini else None,
        "kl_coef": coefficient,
    }


def _trl(c: _Config) -> dict[str, Json]:
    group = c.number("num_generations")
    batch = c.number("generation_batch_size")
    per_generation, iterations = c.number("steps_per_generation"), c.number("num_iterations")
    accumulation = c.number("gradient_accumulation_steps") or 1
    # One optimiser step takes gradient_accumulation_steps of the generation's micro-steps; files that do not name it took one each.
    updates = (iterations or 1) * max(1.0, (per_generation or accumulation) / accumulation)
    trainer = c.find("trainer", "trainer_class", "_class_name")
    algorithm = _TRAINERS.get(str(trainer)) or ("grpo" if group or c.find("loss_type") or c.find("beta") is not None else None)
    if c.find("importance_sampling_level") == "sequence":
        algorithm = "gspo"
    return {
        "algorithm": algorithm,
        "prompts_per_step": _whole(batch / group) if batch and group else None,
        "updates_per_batch": _whole(updates) if per_generation or iterations else None,
        "advantage_std_norm": _scaled(c.find("scale_rewards")),
    }


def _native(c: _Config) -> dict[str, Json]:
    algorithm = c.find("algorithm", "algo", "adv")
    minibatches, epochs = c.number("minibatches", "update.minibatches"), c.number("epochs", "update.epochs")
    kind = c.find("advantage.kind")
    return {
        "algorithm": algorithm.lower() if isinstance(algorithm, str) else None,
        "updates_per_batch": _whole(minibatches * (epochs or 1)) if minibatches else None,
        "advantage_std_norm": str(kind).endswith("_std") if kind else None,
    }


_DERIVED: dict[str, Callable[[_Config], dict[str, Json]]] = {"verl": _verl, "trl": _trl, "native": _native}


def _scaled(value: Json) -> Json:
    """TRL's scale_rewards: true, group or batch divide by a deviation; false or none do not."""
    return None if value is None else value not in (False, "none", "False")


def _tidy(key: str, value: Json) -> Json:
    if key == "lag_limit" and isinstance(value, list):
        return max((v for v in value if isinstance(v, (int, float))), default=None)
    if key == "old_logprobs":
        return {"recompute": "trainer", "behavior": "engine", "behaviour": "engine"}.get(str(value), value)
    if key in ("loss_aggregation", "ratio_level") or isinstance(value, bool) or not isinstance(value, str):
        return value
    try:
        return _whole(float(value))
    except ValueError:
        return value


def _planned_events(c: _Config) -> list[Json]:
    events: list[Json] = []
    for at in ("curriculum", "data.curriculum", "lengths", "max_new_schedule"):
        stages = c.find(at)
        for stage in stages[1:] if isinstance(stages, list) else []:
            if isinstance(stage, list) and stage and isinstance(stage[0], int):
                events.append({"step": stage[0], "kind": "curriculum", "text": f"planned: {at} {stage[1:]}"})
    resume = c.number("resume_at")
    if resume is not None:
        events.append({"step": int(resume), "kind": "resume", "text": "planned: resume from a checkpoint"})
    return events


def _whole(value: float) -> float:
    """2.0 as 2; a fraction stays."""
    return int(value) if float(value).is_integer() else value


def _flatten(config: Mapping[str, Json], prefix: str = "") -> Iterator[tuple[str, Json]]:
    for key, value in config.items():
        path = prefix + key.replace("/", ".")
        if isinstance(value, dict):
            if "value" in value and set(value) <= {"value", "desc"}:
                inner = value["value"]
                yield from _flatten({path: inner})
            else:
                yield from _flatten(value, path + ".")
        else:
            yield path, value
