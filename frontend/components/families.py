"""The sixteen families of the health strip and the symptoms each stands for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from frontend.components.severity import rank
from ingest.text import visible_line


@dataclass(frozen=True, slots=True)
class Family:
    """One cell of the strip."""

    key: str
    title: str
    symptoms: tuple[str, ...]


FAMILIES: tuple[Family, ...] = (
    Family("reward", "Reward", ("reward-flat", "reward-drop", "joint-collapse")),
    Family("eval", "Eval", ("eval-not-following-reward", "eval-budget-changed", "format-only-gain", "language-mixing")),
    Family("entropy", "Entropy", ("entropy-collapse", "entropy-explosion")),
    Family("length", "Length", ("length-growth", "length-collapse")),
    Family("spikes", "Spikes", ("spike", "non-finite")),
    Family("staleness", "Staleness", ("staleness-harm",)),
    Family("mismatch", "Mismatch", ("engine-mismatch", "clip-while-on-policy")),
    Family("groups", "Groups", ("zero-variance-groups", "near-identical-responses")),
    Family("truncation", "Truncation", ("truncation", "repetition")),
    Family("negatives", "Negatives", ("negative-samples-dominate",)),
    Family("masks", "Masks", ("advantage-or-mask-fault",)),
    Family("verifier", "Verifier", ("verifier-fault",)),
    Family("slices", "Slices", ("slice-regression", "mix-drift")),
    Family("pipeline", "Pipeline", ("pipeline-inefficiency", "resume-discontinuity", "run-stalled")),
    Family("critic", "Critic", ("critic-unreliable",)),
    Family("agent", "Agent loop", ("agent-loop-fault", "context-rewritten")),
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One family as it stands. severity: quiet, info, watch, warn, critical or cannot-tell. reasons: for each symptom
    that cannot be judged its name, the missing metrics and how this trainer logs them."""

    family: Family
    severity: str
    words: str
    incident: Any = None
    reasons: tuple[tuple[str, tuple[str, ...], str | None], ...] = ()


def strip(incidents: Sequence[Any], not_judged: Sequence[Mapping[str, Any]], known: Sequence[str], judged: bool) -> list[Cell]:
    """The cells in order. known: symptoms that some rule judges; judged: at least one step was judged."""
    blocked = {str(item["symptom"]): (tuple(item.get("missing") or ()), item.get("how")) for item in not_judged}
    return [_cell(family, incidents, blocked, known, judged) for family in FAMILIES]


def _cell(
    family: Family, incidents: Sequence[Any], blocked: Mapping[str, tuple[tuple[str, ...], str | None]], known: Sequence[str], judged: bool
) -> Cell:
    mine = [i for i in incidents if i.symptom in family.symptoms]
    reasons = tuple((symptom, *blocked[symptom]) for symptom in family.symptoms if symptom in blocked)
    if mine:
        worst = max(mine, key=lambda i: (rank(i.severity), -i.onset_step))
        step = worst.steps_by_severity.get(worst.severity, worst.onset_step)
        where = f": {visible_line(worst.slice)}" if worst.slice else f" at {step}" if worst.severity == "critical" else f" from {step}"
        return Cell(family, worst.severity, f"{worst.severity}{where}", worst, reasons)
    ruled = [symptom for symptom in family.symptoms if symptom in known]
    if not ruled:
        return Cell(family, "cannot-tell", "no rule yet", reasons=((family.symptoms[0], (), "No rule of this version judges it."),))
    if reasons and len(reasons) == len(ruled):
        return Cell(family, "cannot-tell", "not logged" if reasons[0][1] else "cannot tell", reasons=reasons)
    if not judged:
        return Cell(family, "cannot-tell", "not yet", reasons=((ruled[0], (), "No step was judged yet."),))
    return Cell(family, "quiet", "quiet", reasons=reasons)
