"""A seeded healthy run put straight into a store: noisy curves under real metric ids, and trajectories with text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ingest.store.connection import Store

RUN_ID = "be9c4a5712d0"
GROUP = 8
TASKS = ("arithmetic", "sorting", "reading", "code")
_SEED = 20
_EVAL_EVERY = 25
_SOURCES = {1: "metrics.jsonl", 2: "rollouts.jsonl"}
_CONFIG = {
    "algorithm": "grpo", "group_size": GROUP, "prompts_per_step": 8, "updates_per_batch": 1, "loss_aggregation": "token-mean",
    "clip_low": 0.2, "clip_high": 0.28, "kl_coef": 0.001, "temperature": 1.0, "lr_warmup": 20, "lag_limit": 4, "max_response_tokens": 2048,
    "advantage": {"kind": "group_mean_std"},
}  # fmt: skip

# Level at the start, level at the end, and relative noise of one point; most of the way between them is gone after 900 steps.
_CURVES: dict[str, tuple[float, float, float]] = {
    "reward.mean": (0.3, 0.62, 0.08), "reward.generated.mean": (0.3, 0.62, 0.08), "reward.std": (0.46, 0.44, 0.05),
    "reward.task.arithmetic.mean": (0.4, 0.7, 0.15), "reward.task.sorting.mean": (0.2, 0.6, 0.15),
    "reward.task.reading.mean": (0.3, 0.5, 0.15), "reward.task.code.mean": (0.2, 0.5, 0.15),
    "reward.fn.format.mean": (0.8, 0.97, 0.02), "reward.fn.answer.mean": (0.3, 0.62, 0.08),
    "entropy.mean": (0.82, 0.5, 0.04), "entropy.rollout.mean": (0.82, 0.5, 0.04), "kl.ref": (0.001, 0.04, 0.1), "kl.old": (4e-4, 5e-4, 0.3),
    "kl.pre_post.k1": (4e-4, 5e-4, 0.3), "ratio.mean": (1.0, 1.0, 0.002), "ratio.max": (1.6, 1.7, 0.1), "ratio.min": (0.6, 0.55, 0.1),
    "clip.frac": (0.006, 0.008, 0.2), "clip.frac_high": (0.003, 0.004, 0.2), "clip.frac_low": (0.003, 0.004, 0.2),
    "grad.norm": (0.4, 0.2, 0.15), "grad.norm_max": (0.6, 0.3, 0.2), "loss.policy": (0.02, 0.01, 0.6), "loss.total": (0.02, 0.01, 0.6),
    "loss.value": (0.3, 0.12, 0.1), "value.mean": (0.3, 0.6, 0.08), "value.explained_var": (0.3, 0.7, 0.04), "lr": (1e-6, 1e-6, 0.0),
    "length.response.mean": (700.0, 760.0, 0.04), "length.response.max": (2048.0, 2048.0, 0.0),
    "length.response.median": (650.0, 700.0, 0.05),
    "length.response.truncated_frac": (0.02, 0.012, 0.2), "length.response.terminated.mean": (680.0, 740.0, 0.04),
    "length.prompt.mean": (120.0, 120.0, 0.03), "group.zero_std_frac": (0.35, 0.3, 0.1), "group.solve_all_frac": (0.05, 0.2, 0.2),
    "group.solve_none_frac": (0.3, 0.1, 0.2), "group.unique_frac": (0.99, 0.97, 0.01), "adv.mean": (0.0, 0.0, 0.0),
    "adv.neg_frac": (0.52, 0.5, 0.03),
    "mismatch.logprob_diff.mean": (0.004, 0.005, 0.08), "mismatch.prob_diff.mean": (0.002, 0.0025, 0.08), "mismatch.kl": (2e-4, 3e-4, 0.2),
    "mismatch.kl_k3": (2e-4, 3e-4, 0.2), "mismatch.pearson": (0.998, 0.997, 0.0005), "is.weight.mean": (1.0, 1.0, 0.003),
    "is.weight.max": (1.8, 1.9, 0.1), "is.ess": (0.97, 0.96, 0.005), "lag.policy.mean": (0.5, 0.5, 0.1), "lag.policy.max": (1.0, 1.0, 0.0),
    "tokens.generated": (45000.0, 48000.0, 0.04), "tokens.trained": (45000.0, 48000.0, 0.04), "turns.mean": (2.0, 2.4, 0.05),
    "tools.calls_per_sample": (1.0, 1.4, 0.08), "tools.failure_frac": (0.04, 0.03, 0.2), "time.step_s": (60.0, 64.0, 0.05),
    "time.rollout_s": (35.0, 38.0, 0.06), "time.verify_s": (3.0, 3.0, 0.2), "time.update_s": (18.0, 19.0, 0.03),
    "eval.heldout.score": (0.3, 0.6, 0.04), "eval.heldout.length.mean": (720.0, 780.0, 0.03),
    "eval.heldout.truncated_frac": (0.02, 0.012, 0.2),
    "eval.code.mean@1": (0.2, 0.5, 0.06), "eval.sorting.mean@1": (0.2, 0.6, 0.06),
}  # fmt: skip

_TEXT = (
    "first we add the two numbers then carry one so that the sum of both is larger than ten which gives an odd result next list each "
    "item sort them by size compare neighbours and swap where needed read the passage again it says that the river rose before dawn"
)
_TEXT_WORDS = tuple(_TEXT.split(" "))


def metric_names(count: int) -> list[str]:
    """That many metric ids: the ones above, then series of the trainer's own (layers, workers), which no rule reads."""
    names = list(_CURVES)[:count]
    return names + [f"trainer/layer_{n:03d}/update_norm" for n in range(count - len(names))]


def make(store: Store, steps: int, *, metrics: int, trajectories: int) -> None:
    """A run of steps 1..steps with that many series and trajectories a step (a multiple of 8; 0: none)."""
    with store.transaction() as connection:
        connection.execute(
            "INSERT INTO run VALUES (?, 'bench', 'history', 'native', NULL, '/bench', ?, 0, 0, 0)",
            [RUN_ID, json.dumps({**_CONFIG, "steps": 2 * steps})],
        )
        connection.executemany(
            "INSERT INTO series VALUES (?, ?, ?, ?, 'identity', NULL, NULL, NULL)",
            [[n, RUN_ID, name, name if name in _CURVES else None] for n, name in enumerate(metric_names(metrics))],
        )
        for source, name in _SOURCES.items():
            if source == 1 or trajectories:
                connection.execute(
                    "INSERT INTO source VALUES (?, ?, ?, 'native', 'append', 'x', 0, 0, '{}', 'followed', 0, 1, 0, ?, 0, NULL, NULL)",
                    [source, RUN_ID, f"/bench/{name}", steps],
                )
    add(store, range(1, steps + 1), metrics=metrics, trajectories=trajectories)


def add(store: Store, steps: range, *, metrics: int, trajectories: int, tokens: int = 0) -> None:
    """The rows of those steps; tokens: in each trajectory, with every token array."""
    for part in _parts(steps, 500):
        with store.transaction() as connection:
            connection.register("new_rows", _points(part, metrics))
            connection.execute("INSERT INTO point SELECT series, 1, 1, step, value, NULL FROM new_rows ORDER BY step, series")
            if trajectories:
                rows = _trajectories(part, trajectories, tokens)
                names = ", ".join(rows)
                connection.register("new_rows", rows)
                connection.execute(
                    f"""INSERT INTO trajectory (run_id, source_id, attempt, has_tokens, {names})
                        SELECT '{RUN_ID}', 2, 1, {tokens > 0}, {names} FROM new_rows"""
                )
            if tokens:
                connection.execute(_TOKENS.format(tokens=tokens), {"run": RUN_ID, "first": part.start, "last": part[-1]})
            connection.unregister("new_rows")


# Log-probs are those of one sampler with a small difference between engine and trainer; the update moves each by its advantage.
_TOKENS = """
INSERT INTO token (run_id, source_id, attempt, step, n, token_ids, response_mask, loss_mask, rollout_logprobs, old_logprobs,
                   current_logprobs, ref_logprobs, entropies, advantages, policy_versions)
SELECT run_id, 2, 1, step, n, list(place), list(1), list(1), list(lp), list(lp + 0.004 * (b - 0.5)),
       list(lp + 0.003 * advantage + 0.004 * (a - 0.5)),
       list(lp - 0.05 * b), list(1.5 * a), list(advantage), list(step)
FROM (SELECT t.run_id, t.step, t.n, t.advantage, place, hash(t.step, t.n, place) / 18446744073709551616.0 AS a,
             hash(place, t.n, t.step) / 18446744073709551616.0 AS b, ln(0.02 + 0.98 * sqrt(a)) AS lp
      FROM trajectory t CROSS JOIN range({tokens}) r(place) WHERE t.run_id = $run AND t.step BETWEEN $first AND $last)
GROUP BY run_id, step, n ORDER BY step, n"""


def _parts(steps: range, size: int) -> Iterator[range]:
    for first in range(steps.start, steps.stop, size):
        yield range(first, min(first + size, steps.stop))


def _generator(*key: int) -> np.random.Generator:
    return np.random.default_rng([_SEED, *key])


def _course(steps: NDArray[np.int64], start: float, end: float) -> NDArray[np.float64]:
    return start + (end - start) * (1 - np.exp(-steps / 300))


def _points(part: range, metrics: int) -> dict[str, NDArray[Any]]:
    steps = np.arange(part.start, part.stop)
    found: dict[str, list[NDArray[Any]]] = {"series": [], "step": [], "value": []}
    for number, name in enumerate(metric_names(metrics)):
        start, end, noise = _CURVES.get(name, (1.0 + number / 50, 1.2 + number / 50, 0.05))
        chance = _generator(number, part.start)
        values = _course(steps, start, end) * (1 + noise * chance.standard_normal(steps.size))
        picked = steps % _EVAL_EVERY == 0 if name.startswith("eval.") else np.ones(steps.size, bool)
        found["series"].append(np.full(int(picked.sum()), number))
        found["step"].append(steps[picked])
        found["value"].append(values[picked])
    return {name: np.concatenate(arrays) for name, arrays in found.items()}


def _trajectories(part: range, per_step: int, tokens: int) -> dict[str, NDArray[Any]]:
    steps = np.repeat(np.arange(part.start, part.stop), per_step)
    n = np.tile(np.arange(per_step), len(part))
    chance = _generator(10_000, part.start)
    groups = np.arange(steps.size) // GROUP
    hardness = np.repeat(chance.normal(0, 1.5, groups[-1] + 1), GROUP)
    solved = chance.random(steps.size) < 1 / (1 + np.exp(hardness - 4 * (_course(steps, 0.3, 0.62) - 0.5)))
    reward = solved.astype(np.float64)
    by_group = reward.reshape(-1, GROUP)
    advantage = ((by_group - by_group.mean(axis=1, keepdims=True)) / (by_group.std(axis=1, ddof=1, keepdims=True) + 1e-6)).ravel()
    length = np.full(steps.size, tokens) if tokens else np.minimum(2048, chance.gamma(6, 120, steps.size)).astype(np.int64) + 1
    number = n // GROUP
    tasks = np.array(TASKS, dtype=object)[(steps + number) % len(TASKS)]
    lag = chance.integers(0, 2, steps.size)
    texts = _texts(chance, steps.size)
    asked = zip(steps, number, tasks, strict=True)
    return {
        "step": steps,
        "n": n,
        "trajectory_id": _text(f"t{s}-{i}" for s, i in zip(steps, n, strict=True)),
        "group_id": _text(f"g{s}-{g}" for s, g in zip(steps, number, strict=True)),
        "task": tasks,
        "difficulty": _text(str(3 + int(h > 0)) for h in hardness),
        "origin": np.full(steps.size, "policy", dtype=object),
        "prompt": _text(
            f"Problem {s}.{g} of {task}: {_TEXT_WORDS[(s * 7 + g) % len(_TEXT_WORDS)]}?" for s, g, task in asked
        ),
        "response": texts,
        "reward": reward,
        "advantage": np.round(advantage, 4),
        "prompt_tokens": np.full(steps.size, 0 if tokens else 120),
        "response_tokens": length,
        "finish_reason": np.where(length >= 2048, "length", "stop").astype(object),
        "policy_version_first": steps - 1 - lag,
        "policy_version_last": steps - 1 - lag,
        "trainer_version": steps - 1,
        "policy_lag": lag,
        "verifier_name": np.full(steps.size, "exact", dtype=object),
        "verifier_status": np.full(steps.size, "ok", dtype=object),
        "verifier_seconds": np.round(chance.gamma(4, 0.01, steps.size), 4),
    }  # fmt: skip


def _texts(chance: np.random.Generator, count: int) -> NDArray[Any]:
    """Responses of 100 to 200 characters, of chunks of words, with a short number at the end."""
    chunks = [" ".join(_TEXT_WORDS[(at + k) % len(_TEXT_WORDS)] for k in range(7)) for at in range(len(_TEXT_WORDS))]
    picked = chance.integers(0, len(chunks), (count, 4))
    sizes, ends = chance.integers(3, 5, count).tolist(), chance.integers(0, 1000, count).tolist()
    return _text(
        ". ".join([*(chunks[c] for c in row[:size]), str(end)]) for row, size, end in zip(picked.tolist(), sizes, ends, strict=True)
    )


def _text(values: Iterable[str]) -> NDArray[Any]:
    return np.array(list(values), dtype=object)
