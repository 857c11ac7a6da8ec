"""Trajectories that show what a rule found, by facts that name the first such row of each step."""

from __future__ import annotations

from dataclasses import replace

from server.checks.base import Finding
from server.checks.measure import points
from server.queries.view import RunView

_MOST = 3


def with_examples(view: RunView, finding: Finding, fact: str) -> Finding:
    """The finding with the newest steps' first trajectories that show it, since its onset; fact: their n."""
    series = points(view, fact).since(finding.onset_step).tail(_MOST)
    return replace(finding, trajectories=tuple(f"{step}.{n:.0f}" for step, n in zip(series.steps.tolist(), series.values, strict=True)))
