"""Which charts the Overview shows, in which order, and which metrics each draws."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, TypeAlias

Role: TypeAlias = Literal["main", "plain", "eval", "peak"]
"""main: raw and smoothed; plain: as it is; eval: points with open gaps; peak: a thin second line."""

EVAL = "eval"
"""Stands for the run's primary evaluation."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart: the first of the alternatives that the run logs."""

    alternatives: tuple[str, ...]
    role: Role
    label: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart. score: changes are given as differences. symptoms: what cannot be judged without it."""

    key: str
    title: str
    unit: str
    lines: tuple[Line, ...]
    score: bool = False
    optional: bool = False
    """Not named among the missing ones: most runs have no such thing."""


PANELS: tuple[Panel, ...] = (
    Panel(
        "reward",
        "Reward",
        "mean",
        (Line(("reward.mean", "reward.generated.mean"), "main", "train"), Line((EVAL,), "eval", "held-out")),
        score=True,
    ),
    Panel("entropy", "Entropy", "nats a token", (Line(("entropy.mean", "entropy.sampled", "loss.entropy_bonus"), "main", "entropy"),)),
    Panel("kl", "KL", "to reference", (Line(("kl.ref", "kl.ref.in_reward"), "main", "reference"),)),
    Panel(
        "mismatch",
        "Logprob difference",
        "|trainer − rollout|",
        (Line(("mismatch.logprob_diff.mean", "mismatch.prob_diff.mean", "mismatch.kl_k3", "mismatch.kl"), "main", "mean"),),
    ),
    Panel("ratio", "Update ratio", "largest", (Line(("ratio.max", "ratio.mean"), "main", "largest"),)),
    Panel("clip", "Clip fraction", "share of tokens", (Line(("clip.frac", "clip.outside_frac", "mask.trust_frac"), "main", "clipped"),)),
    Panel("gradient", "Gradient norm", "before clipping", (Line(("grad.norm", "grad.norm_max"), "main", "norm"),)),
    Panel("loss", "Policy loss", "", (Line(("loss.policy", "loss.total"), "main", "loss"),), score=True),
    Panel("critic", "Explained variance", "critic", (Line(("value.explained_var",), "main", "critic"),), score=True, optional=True),
    Panel(
        "length",
        "Response length",
        "tokens",
        (Line(("length.response.mean", "length.response.trained.mean"), "main", "mean"),),
    ),
    Panel("truncation", "Truncated", "share of responses", (Line(("length.response.truncated_frac",), "main", "truncated"),)),
    Panel("groups", "Zero-variance groups", "share", (Line(("group.zero_std_frac",), "main", "share"),)),
    Panel("lag", "Policy lag", "versions", (Line(("lag.policy.mean",), "plain", "mean"), Line(("lag.policy.max",), "peak", "max"))),
    Panel(
        "time",
        "Stage time",
        "s",
        (
            Line(("time.step_s",), "plain", "step"),
            Line(("time.rollout_s",), "plain", "rollout"),
            Line(("time.update_s",), "plain", "update"),
            Line(("time.verify_s",), "plain", "verify"),
        ),
    ),
)

MOST = 12
"""Charts on the page. Where a run logs more, those at the end of the first list give way."""
_GIVE_WAY = ("loss", "truncation", "critic")


@dataclass(frozen=True, slots=True)
class Chosen:
    """A panel with the metric of each line that the run logs."""

    panel: Panel
    metrics: tuple[tuple[Line, str], ...]


def choose(logged: Collection[str], evaluation: str | None) -> tuple[list[Chosen], list[Panel]]:
    """The charts of a run in order (at most twelve), and the panels that it logs nothing for."""
    found: list[Chosen] = []
    missing: list[Panel] = []
    for panel in PANELS:
        lines = []
        for line in panel.lines:
            metric = evaluation if line.alternatives == (EVAL,) else next((m for m in line.alternatives if m in logged), None)
            if metric is not None:
                lines.append((line, metric))
        if lines:
            found.append(Chosen(panel, tuple(lines)))
        elif not panel.optional:
            missing.append(panel)
    for key in _GIVE_WAY:
        if len(found) > MOST:
            found = [chosen for chosen in found if chosen.panel.key != key]
    return found, missing
