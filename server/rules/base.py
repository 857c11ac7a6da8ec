"""What a rule is made of: declarations, findings and hypotheses. Rules know no clock, no database and no chat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from server.checks.base import SEVERITIES, Check, CheckResult, Evidence, Finding, Observed, Severity, Verdict
from server.hypotheses import HYPOTHESES
from server.queries.view import RunView

__all__ = [
    "SEVERITIES",
    "Check",
    "CheckResult",
    "ComputableFrom",
    "Evidence",
    "Finding",
    "Hypothesis",
    "Observed",
    "Param",
    "Rule",
    "Severity",
    "Status",
    "Verdict",
    "hypothesis",
]

ComputableFrom = Literal["metrics", "trajectories", "tokens", "config", "second_run", "action"]
Status = Literal["preview", "stable"]


@dataclass(frozen=True, slots=True)
class Param:
    """One tunable number of a rule."""

    name: str
    default: float
    unit: str
    low: float
    high: float
    source: str
    """Where the default comes from, for example `symptoms 22` or `default of ours`."""
    help: str = ""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A competing explanation. Without checks it is an action for a person and always not checkable."""

    id: str
    title: str
    computable_from: ComputableFrom
    checks: tuple[Check, ...] = ()
    action: str = ""
    """What a person would do to decide it, where no log can."""
    prior: float = 1.0


class Rule(Protocol):
    """One symptom. Class docstring: one-line summary, then the fixed headings of the rule page."""

    code: str
    name: str
    """The symptom's name in contracts.md."""
    family: str
    """Composition family: quality, distribution, shape, optimiser, engine (the five of symptoms 0.3, which agree and
    collapse together), groups, verifier, integrity, value; `joint` for the one rule that the engine composes itself."""
    status: Status
    version: int
    needs: tuple[tuple[str, ...], ...]
    """Each inner tuple is a set of alternatives: one of each is needed, else cannot tell. An alternative is a metric or fact
    id, an id with `*` (any series that matches), or `config.KEY` (a canonical configuration key). A judged step counts as a
    point of the rule when one alternative of each set has a value at it."""
    params: tuple[Param, ...]
    hold_points: int
    """Points without a finding before an incident closes."""
    hypotheses: tuple[Hypothesis, ...]
    next_checks: tuple[str, ...]

    def evaluate(self, view: RunView) -> Sequence[Finding]:
        """The findings at view.step; empty: quiet. Uses nothing after view.step."""


def hypothesis(id: str, computable_from: ComputableFrom, *checks: Check, action: str = "", prior: float = 1.0) -> Hypothesis:
    """A hypothesis with the title of the closed table.

    Raises:
        KeyError: the table has no such code.
    """
    return Hypothesis(id, HYPOTHESES[id], computable_from, checks, action, prior)
