"""What a rule is made of: declarations, findings and hypotheses. Rules know no clock, no database and no chat."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from server.queries.view import RunView

Severity = Literal["info", "watch", "warn", "critical"]
Verdict = Literal["supported", "refuted", "inconclusive", "not_checkable"]
ComputableFrom = Literal["metrics", "trajectories", "tokens", "config", "second_run", "action"]
Status = Literal["preview", "stable"]

SEVERITIES: tuple[Severity, ...] = ("info", "watch", "warn", "critical")

Observed: TypeAlias = Mapping[str, float | int | str | None]


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
class Evidence:
    """One row of evidence: a metric before and after, against which steps, from how many points."""

    metric: str
    before: float | None
    after: float | None
    baseline_steps: tuple[int, int] | None = None
    n: int | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The answer of one check. missing names metrics, fields or config keys that would be needed."""

    id: str
    verdict: Verdict
    observed: Observed = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    note: str = ""
    """One clause for the page: what was seen, with numbers."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a rule yields at one step: the symptom is present at this severity now."""

    symptom: str
    severity: Severity
    onset_step: int
    """First step at which it shows, from values up to the judged step only."""
    summary: str
    """What, how much, since when, against what; numbers included."""
    metric: str | None = None
    slice: str | None = None
    evidence: tuple[Evidence, ...] = ()
    trajectories: tuple[str, ...] = ()
    """Addresses `<step>.<n>` of trajectories that show it."""


Check: TypeAlias = Callable[[RunView, Finding], CheckResult]


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
    """Composition family: quality, distribution, shape, optimiser, engine, groups, verifier, integrity, value."""
    status: Status
    version: int
    needs: tuple[tuple[str, ...], ...]
    """Each inner tuple is a set of alternatives (metric or fact ids): one of each is needed, else cannot tell."""
    params: tuple[Param, ...]
    hold_points: int
    """Points without a finding before an incident closes."""
    hypotheses: tuple[Hypothesis, ...]
    next_checks: tuple[str, ...]

    def evaluate(self, view: RunView) -> Sequence[Finding]:
        """The findings at view.step; empty: quiet. Uses nothing after view.step."""
