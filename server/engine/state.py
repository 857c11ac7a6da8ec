"""What the engine remembers of one run between two judged steps: nothing but JSON values, so that a restart changes nothing."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from server.queries.view import Position
from server.rules.base import SEVERITIES, Evidence, Finding

FAMILIES = ("quality", "distribution", "shape", "optimiser", "engine")
"""The five families of symptoms 0.3 that agree with and absorb one another."""

_FORMAT = 1


def level(severity: str) -> int:
    """0 info .. 3 critical."""
    return SEVERITIES.index(severity)


WARN = level("warn")


@dataclass
class Case:
    """One incident while the engine follows it. Steps are those of the attempt that was judged."""

    id: str
    attempt: int
    """Attempt in which it was opened."""
    rule_code: str
    rule_version: str
    family: str
    """The rule's own."""
    symptom: str
    slice: str | None
    metric: str | None
    severity: str
    onset_step: int
    first_step: int
    """Step at which it was opened."""
    floor_step: int
    """Earliest onset it may have: behind the incident of the same rule and slice before it."""
    detected_step: int
    last_step: int
    last_attempt: int
    finding: dict[str, Any]
    """The finding that its text and its hypotheses are about."""
    status: str = "open"
    steps_by_severity: dict[str, int] = field(default_factory=dict)
    quiet_points: int = 0
    """Points of the rule since the last finding."""
    closed_points: int = 0
    """Points of the rule since it recovered."""
    hypotheses: list[dict[str, Any]] = field(default_factory=list)
    next_checks: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    families: dict[str, int] = field(default_factory=dict)
    """Families that its findings were beyond the limits of, each with its earliest onset."""
    explained_step: int | None = None
    """Step at which its checks were last run; None: they were not."""
    absorbed_by: str | None = None
    absorbed: list[dict[str, Any]] = field(default_factory=list)
    """Of a joint incident: its parts in order of onset."""
    changed: dict[str, float] = field(default_factory=dict)
    """Parameters that differed from the rule's defaults when it was opened or last raised."""
    rule_status: str = "stable"
    """Whether the rule was a preview or stable then."""

    @property
    def key(self) -> tuple[str, str, str | None]:
        """What makes a later finding belong here: rule, symptom, slice."""
        return self.rule_code, self.symptom, self.slice

    def first_at(self, severity: str) -> int | None:
        """First step at that severity or above; None: it never was."""
        return min((step for name, step in self.steps_by_severity.items() if level(name) >= level(severity)), default=None)

    def body(self) -> dict[str, Any]:
        """The parts that the control store keeps as one JSON value, in the form of `diagnose --json`."""
        return {
            "evidence": self.finding["evidence"],
            "hypotheses": self.hypotheses,
            "next_checks": self.next_checks,
            "trajectories": self.finding["trajectories"],
            "absorbed": self.absorbed,
            "notes": self.notes,
            "rule": {"status": self.rule_status, "changed": self.changed},
        }

    @property
    def summary(self) -> str:
        """What, how much, since when, against what."""
        return str(self.finding["summary"])


@dataclass
class RunState:
    """The engine's memory of one run. judged None: no step was judged yet."""

    run_id: str
    judged: Position | None = None
    cases: list[Case] = field(default_factory=list)
    watched: dict[str, int] = field(default_factory=dict)
    """Newest step at which a family had a finding at watch or above."""
    warned: dict[str, int] = field(default_factory=dict)
    """The same at warn or above."""
    failures: dict[str, str] = field(default_factory=dict)
    """Rules (by code) that stopped with an error, and the first error."""

    def newest(self, key: tuple[str, str, str | None]) -> Case | None:
        """The newest case of a rule, symptom and slice."""
        return next((case for case in reversed(self.cases) if case.key == key), None)

    def open_cases(self) -> list[Case]:
        """Cases with status open, in order of opening."""
        return [case for case in self.cases if case.status == "open"]

    def to_json(self) -> dict[str, Any]:
        """JSON values only."""
        return {"format": _FORMAT, **asdict(self)}

    @classmethod
    def from_json(cls, run_id: str, stored: Mapping[str, Any] | None) -> RunState:
        """The state that was stored; a fresh one where there is none or an unknown format."""
        if stored is None or stored.get("format") != _FORMAT:
            return cls(run_id)
        judged = stored["judged"]
        known = {f.name for f in fields(Case)}
        cases = [Case(**{name: value for name, value in case.items() if name in known}) for case in stored["cases"]]
        for case in cases:  # stored before findings named their families
            case.families = case.families or {case.family: case.onset_step}
        return cls(
            run_id, None if judged is None else (judged[0], judged[1]), cases, dict(stored["watched"]), dict(stored["warned"]),
            dict(stored["failures"]),
        )  # fmt: skip


def case_id(run_id: str, attempt: int, key: tuple[str, str, str | None], step: int) -> str:
    """The same for the same incident however often its steps are judged."""
    text = "\0".join((run_id, str(attempt), key[0], key[1], key[2] or "", str(step)))
    return "in_" + hashlib.sha256(text.encode()).hexdigest()[:12]


def finding_json(finding: Finding) -> dict[str, Any]:
    """A finding as JSON values; numbers that JSON does not have become null and are named in the note."""
    return {
        "severity": finding.severity,
        "onset_step": int(finding.onset_step),
        "summary": finding.summary,
        "metric": finding.metric,
        "evidence": [_evidence_json(row) for row in finding.evidence],
        "trajectories": list(finding.trajectories),
        "hard": finding.hard,
    }


def finding_of(case: Case) -> Finding:
    """The finding that a case is about, for its checks."""
    stored = case.finding
    rows = (Evidence(**{**row, "baseline_steps": _pair(row["baseline_steps"])}) for row in stored["evidence"])
    return Finding(
        case.symptom, stored["severity"], case.onset_step, stored["summary"], stored["metric"], case.slice, tuple(rows),
        tuple(stored["trajectories"]), stored["hard"],
    )  # fmt: skip


def _pair(steps: Any) -> tuple[int, int] | None:
    return None if steps is None else (steps[0], steps[1])


def _evidence_json(row: Evidence) -> dict[str, Any]:
    both = (("before", row.before), ("after", row.after))
    odd = [f"{word} {value}" for word, value in both if value is not None and not math.isfinite(value)]
    steps = row.baseline_steps
    return {
        "metric": row.metric,
        "before": plain_number(row.before),
        "after": plain_number(row.after),
        "baseline_steps": None if steps is None else [int(steps[0]), int(steps[1])],
        "n": None if row.n is None else int(row.n),
        "note": "; ".join(filter(None, (row.note, *odd))),
    }


def plain_number(value: float | None) -> float | None:
    """A Python number, whatever array it came from; None for what JSON cannot write."""
    if value is None or not math.isfinite(value):
        return None
    return int(value) if isinstance(value, int) else float(value)


def observed_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """What a check saw, as JSON values: not-a-number and infinities by their names."""
    return {name: _plain(value) for name, value in values.items()}


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, str, int)):
        return value
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [_plain(inner) for inner in value]
    return value
