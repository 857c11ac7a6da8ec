"""Logs that are broken, short or empty: every check answers, and none of them finds support in a gap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from server.checks.base import Finding
from server.engine.assess import Question, assess
from server.rules import RULES

NAMES = {"spike", "non-finite", "staleness-harm", "engine-mismatch", "joint-collapse", "critic-unreliable", "advantage-or-mask-fault"}
RULES_HERE = [rule for rule in RULES if rule.name in NAMES]
METRICS = ("grad.norm", "kl.old", "kl.ref", "kl.coef", "ratio.mean", "loss.policy", "loss.value", "lr", "clip.frac", "reward.mean",
           "reward.std", "entropy.mean", "eval.heldout.score", "value.mean", "value.explained_var", "lag.policy.max", "lag.policy.mean",
           "lag.span.max", "mismatch.logprob_diff.mean", "mismatch.logprob_diff.max", "mismatch.kl", "is.ess", "is.weight.mean",
           "tokens.trained", "tokens.generated", "group.zero_std_frac", "epoch", "length.response.truncated_frac")  # fmt: skip
NAN = float("nan")
SHAPES: dict[str, dict[int, float]] = {
    "no point": {},
    "one point": {9: 1.0},
    "zeros": dict.fromkeys(range(1, 60), 0.0),
    "constant": dict.fromkeys(range(1, 60), 1.0),
    "NaN": dict.fromkeys(range(1, 60), NAN),
    "infinite": dict.fromkeys(range(1, 60), float("inf")),
    "holes": {step: NAN if step % 2 else 1.0 for step in range(1, 200, 13)},
    "ends early": dict.fromkeys(range(1, 6), 1.0) | {80: NAN},
}
ROWS: dict[str, list[dict[str, Any]]] = {
    "no rows": [],
    "one row": [{"reward": 1.0}],
    "one group of one": [{"group_id": "g", "task": "a", "prompt": "p", "response": "r", "reward": 1.0, "advantage": 0.0}],
    "some arrays only": [{"old_logprobs": [-0.1] * 5, "policy_lag": 0, "advantage": -1.0, "reward": 0.0}] * 2,
    "nulls": [{"old_logprobs": [None] * 5, "rollout_logprobs": [None] * 5, "response_mask": [1] * 5, "policy_versions": [None] * 5}] * 9,
}  # fmt: skip


def told(view: Any, finding: Finding) -> dict[str, str]:
    result = {}
    for rule in RULES_HERE:
        for answer in assess([Question(h, view, finding) for h in rule.hypotheses], strict=True):
            result[f"{rule.name} {answer['id']}"] = answer["verdict"]
    return result


@pytest.mark.parametrize("shape", SHAPES)
def test_every_check_answers_on_broken_series(view: Callable[..., Any], seen: Callable[..., Finding], shape: str) -> None:
    points = dict.fromkeys(METRICS, SHAPES[shape]) if SHAPES[shape] else {"other": {9: 1.0}}
    run = view(series=points, second=view(series=points))
    verdicts = [
        told(run, seen(onset, metric)) for onset in (1, 9, run.step) for metric in (None, "grad.norm", "mismatch.logprob_diff.mean")
    ]
    if shape in ("no point", "one point"):
        supported = {name for found in verdicts for name, verdict in found.items() if verdict == "supported"}
        assert supported <= {"spike H5e"}  # a batch of groups that are all equal


@pytest.mark.parametrize("rows", ROWS)
def test_every_check_answers_on_broken_rows(view: Callable[..., Any], seen: Callable[..., Finding], rows: str) -> None:
    written = [{**row, "trajectory_id": f"{rows} {n}"} for n, row in enumerate(ROWS[rows])]
    run = view(written, series={"grad.norm": dict.fromkeys(range(1, 30), 1.0)})
    found = told(run, seen(1)) | told(run.at(1), seen(1))
    # What such rows really are: a group of one, and rewards without variance.
    allowed = {"advantage-or-mask-fault H14a", "critic-unreliable H12d"}
    assert {name for name, verdict in found.items() if verdict == "supported"} <= allowed
