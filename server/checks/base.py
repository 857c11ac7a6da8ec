"""What checks answer and what they are asked about: findings, evidence and verdicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from server.queries.view import RunView

Severity = Literal["info", "watch", "warn", "critical"]
Verdict = Literal["supported", "refuted", "inconclusive", "not_checkable"]

SEVERITIES: tuple[Severity, ...] = ("info", "watch", "warn", "critical")

Observed: TypeAlias = Mapping[str, float | int | str | None]

SECOND_RUN = "second run"
"""What a check misses (CheckResult.missing) that compares with a run nobody has chosen yet."""


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
    """The answer of one check. missing names metrics, fields or config keys that would be needed, or SECOND_RUN."""

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
    hard: bool = False
    """True: may be critical by itself (symptoms 0.4): a broken invariant, a non-finite value, a limit that is exact, or a
    condition that holds the quality effect itself. Otherwise the engine keeps a single family at warn while quality holds."""
    families: tuple[tuple[str, int], ...] = ()
    """Families of symptoms 0.3 beyond their limits by what it saw, each with its onset; empty: the rule's own family."""


Check: TypeAlias = Callable[[RunView, Finding], CheckResult]


def answer(id: str, supports: bool, refutes: bool, observed: Observed, note: str) -> CheckResult:
    """A computed answer: supported, refuted, or inconclusive where neither (or both) holds."""
    verdict: Verdict = "inconclusive" if supports == refutes else "supported" if supports else "refuted"
    return CheckResult(id, verdict, observed, note=note)


def cannot(id: str, *missing: str, note: str = "") -> CheckResult:
    """Not checkable, for want of these metrics, fields or configuration keys."""
    return CheckResult(id, "not_checkable", missing=missing, note=note)


def wants_second_run(id: str, suitable: str, *missing: str) -> CheckResult:
    """Not checkable until a second run is chosen. suitable: which run would decide it, as in "a run of another world size"."""
    return cannot(id, SECOND_RUN, *missing, note=f"compares with {suitable}")
