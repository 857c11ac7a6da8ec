"""Whose names a record uses: the trainer, and as much of its version as the names themselves give away."""

from __future__ import annotations

from collections.abc import Iterable

_VERL = ("critic/score/", "actor/pg_", "actor/ppo_kl", "actor/grad_norm", "timing_s/", "val-core/", "val-aux/", "response_length/mean")
_TRL = ("completions/mean_length", "frac_reward_zero_std", "clip_ratio/", "sampling/sampling_logp_difference/")
_TRL_OLD = {"reward", "reward_std", "completion_length"}
_TRL_ASYNC = {"wait_scoring_ms", "buffer_qsize", "weight_sync_time_s"}


def verl_trainer(keys: Iterable[str]) -> str | None:
    """verl's trainer generation: fully_async, v1 (default since 0.9), v0; None if these names do not tell.

    It decides what `response_length/clip_ratio` and `timing_s/gen` mean.
    """
    found = None
    for key in keys:
        if key.startswith("fully_async/"):
            return "fully_async"
        if key.startswith(("training/off_policy/", "training/num_turns/")):
            found = "v1"
        elif found is None and (key == "perf/mfu/actor_infer" or key.startswith("num_turns/")):
            found = "v0"
    return found


def trl_trainer(keys: Iterable[str]) -> str | None:
    """`async` for AsyncGRPOTrainer, whose `kl` and `reward_std` are other quantities; None for every other."""
    return "async" if _TRL_ASYNC & set(keys) else None


def dialect(keys: Iterable[str]) -> str | None:
    """The version word for a file of no known trainer: `verl`, `verl v1`, `trl`, ...; None: no trainer's names."""
    bare = {key.removeprefix("train/") for key in keys}
    if any(key.startswith(_VERL) for key in bare):
        return " ".join(filter(None, ("verl", verl_trainer(bare))))
    if any(key.startswith(_TRL) for key in bare) or bare >= _TRL_OLD:
        return " ".join(filter(None, ("trl", trl_trainer(bare))))
    return None
