"""Incidents and how far each run is judged, as the control store keeps them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias, get_args

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from server.control.models import IncidentRow, JudgedRow

Feedback: TypeAlias = Literal["useful", "false_alarm"]
Kind: TypeAlias = Literal["incident.opened", "incident.updated", "incident.resolved"]


@dataclass(frozen=True, slots=True)
class Incident:
    """What the findings of one rule opened, updated and closed. Times are Unix seconds, null: not yet."""

    id: str
    run_id: str
    attempt: int
    symptom: str
    rule_code: str
    rule_version: str
    slice: str | None
    metric: str | None
    severity: str
    """Highest reached."""
    status: str
    onset_step: int
    detected_step: int
    """First step at which it existed at `severity`."""
    last_step: int
    """Last step with a finding."""
    steps_by_severity: Mapping[str, int]
    summary: str
    body: Mapping[str, Any]
    """evidence, hypotheses, next_checks, trajectories, absorbed, notes in the form of `diagnose --json`."""
    opened_at: float
    updated_at: float
    closed_at: float | None = None
    acknowledged_at: float | None = None
    snoozed_until: float | None = None
    feedback: str | None = None
    absorbed_by: str | None = None


@dataclass(frozen=True, slots=True)
class IncidentChange:
    """What happened to an incident, and the incident after it."""

    kind: Kind
    incident: Incident


@dataclass(frozen=True, slots=True)
class Judged:
    """How far a run is judged, and what the engine must remember of it."""

    run_id: str
    attempt: int
    step: int
    state: Mapping[str, Any] | None


_PEOPLES = ("acknowledged_at", "snoozed_until", "feedback")
"""What people set: never overwritten by the engine."""


def incident(session: Session, incident_id: str) -> Incident | None:
    """The incident of that id, or None."""
    row = session.get(IncidentRow, incident_id)
    return None if row is None else _incident(row)


def open_incidents(session: Session, run_id: str | None = None) -> list[Incident]:
    """Open incidents that no joint incident tells, newest detection first; run_id None: of all runs."""
    query = select(IncidentRow).where(IncidentRow.status == "open", IncidentRow.absorbed_by.is_(None))
    if run_id is not None:
        query = query.where(IncidentRow.run_id == run_id)
    return [_incident(row) for row in session.scalars(query.order_by(IncidentRow.updated_at.desc(), IncidentRow.id))]


def incidents(session: Session, run_id: str | None = None, *, absorbed: bool = False) -> list[Incident]:
    """Open and recovered incidents, newest first; absorbed: with those that a joint incident tells."""
    query = select(IncidentRow)
    if run_id is not None:
        query = query.where(IncidentRow.run_id == run_id)
    if not absorbed:
        query = query.where(IncidentRow.absorbed_by.is_(None))
    return [_incident(row) for row in session.scalars(query.order_by(IncidentRow.opened_at.desc(), IncidentRow.id))]


def count_open_by_run(session: Session) -> dict[str, int]:
    """Open incidents of each run that has any; absorbed ones and what is only noted (info) are not counted."""
    query = (
        select(IncidentRow.run_id, func.count())
        .where(IncidentRow.status == "open", IncidentRow.absorbed_by.is_(None), IncidentRow.severity != "info")
        .group_by(IncidentRow.run_id)
    )
    return {row[0]: row[1] for row in session.execute(query)}


def save(session: Session, incident: Incident) -> Incident:
    """Adds or updates the incident of that id; the incident as stored, with its first times and what people set."""
    row = session.get(IncidentRow, incident.id)
    values = {field.name: getattr(incident, field.name) for field in fields(Incident)}
    values["steps_by_severity"], values["body"] = dict(incident.steps_by_severity), dict(incident.body)
    if row is None:
        row = IncidentRow(**values)
        session.add(row)
    else:
        for name, value in values.items():
            if name not in (*_PEOPLES, "id", "opened_at"):
                setattr(row, name, value)
    session.flush()
    return _incident(row)


def judged(session: Session, run_id: str) -> Judged | None:
    """How far the run is judged, or None if no step of it was."""
    row = session.get(JudgedRow, run_id)
    return None if row is None else Judged(row.run_id, row.attempt, row.step, row.state)


def set_judged(session: Session, run_id: str, attempt: int, step: int, state: Mapping[str, Any] | None) -> None:
    """Notes how far the run is judged and what the engine must remember."""
    row = session.get(JudgedRow, run_id)
    remembered = None if state is None else dict(state)
    if row is None:
        session.add(JudgedRow(run_id=run_id, attempt=attempt, step=step, state=remembered, updated_at=time.time()))
    else:
        row.attempt, row.step, row.state, row.updated_at = attempt, step, remembered, time.time()


def acknowledge(session: Session, incident_id: str) -> Incident | None:
    """Notes that a person has seen the incident (the first time counts); None: there is none of that id."""
    row = session.get(IncidentRow, incident_id)
    if row is None:
        return None
    row.acknowledged_at = row.acknowledged_at or time.time()
    return _incident(row)


def not_judged(session: Session, run_id: str) -> Sequence[Mapping[str, Any]]:
    """What no rule could tell at the newest judged step: symptom, missing, how; empty before the first step."""
    found = judged(session, run_id)
    return [] if found is None or found.state is None else list(found.state.get("not_judged", []))


def rule_changes(session: Session, run_id: str) -> Sequence[Mapping[str, Any]]:
    """When people changed the rules of a run: attempt, the first step judged by the change, text; in order of time."""
    found = judged(session, run_id)
    return [] if found is None or found.state is None else list(found.state.get("rule_changes", []))


def set_feedback(session: Session, incident_id: str, feedback: Feedback | None) -> Incident | None:
    """Notes whether the incident was worth hearing of (None: takes it back); None: there is none of that id."""
    row = session.get(IncidentRow, incident_id)
    if row is None:
        return None
    row.feedback = feedback
    return _incident(row)


@dataclass(frozen=True, slots=True)
class HitRate:
    """How people judged the incidents of a rule."""

    useful: int = 0
    false_alarms: int = 0

    @property
    def judged(self) -> int:
        """Incidents that were judged at all."""
        return self.useful + self.false_alarms

    @property
    def share(self) -> float | None:
        """Useful ones among the judged; None: none was judged."""
        return self.useful / self.judged if self.judged else None


def hit_rates(session: Session) -> dict[str, HitRate]:
    """By rule code, for rules of which an incident was judged."""
    query = select(IncidentRow.rule_code, IncidentRow.feedback, func.count()).where(IncidentRow.feedback.in_(get_args(Feedback)))
    counts: dict[str, dict[str, int]] = {}
    for code, feedback, n in session.execute(query.group_by(IncidentRow.rule_code, IncidentRow.feedback)):
        counts.setdefault(code, {})[str(feedback)] = n
    return {code: HitRate(found.get("useful", 0), found.get("false_alarm", 0)) for code, found in counts.items()}


def count_open_by_rule(session: Session) -> dict[str, int]:
    """Open incidents of each rule that has any, absorbed ones not counted."""
    query = select(IncidentRow.rule_code, func.count()).where(IncidentRow.status == "open", IncidentRow.absorbed_by.is_(None))
    return {row[0]: row[1] for row in session.execute(query.group_by(IncidentRow.rule_code))}


def _incident(row: IncidentRow) -> Incident:
    return Incident(**{field.name: getattr(row, field.name) for field in fields(Incident)})
