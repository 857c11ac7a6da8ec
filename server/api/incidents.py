"""Incidents: list, one, its explanations with a second run, acknowledge."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException, Query
from pydantic import BaseModel, ConfigDict

from server.api.deps import Failure, Model, TheService
from server.control.incidents import Feedback, Incident, acknowledge, incident, incidents, set_feedback
from server.engine.second_run import UnknownSecondRun, explain_with

router = APIRouter(prefix="/api/v1/incidents", tags=["incidents"], responses={404: {"model": Failure}})


class IncidentItem(Model):
    """One incident. Times are Unix seconds; slice null: the whole batch; absorbed_by: the joint incident it is part of.

    feedback: useful, false_alarm, or null where nobody judged it.
    """

    id: str
    run_id: str
    attempt: int
    symptom: str
    rule_code: str
    rule_version: str
    slice: str | None
    metric: str | None
    severity: str
    status: str
    onset_step: int
    detected_step: int
    last_step: int
    steps_by_severity: dict[str, int]
    summary: str
    opened_at: float
    updated_at: float
    closed_at: float | None
    acknowledged_at: float | None
    feedback: str | None
    absorbed_by: str | None


class IncidentDetail(IncidentItem):
    """body: evidence, hypotheses, next_checks, trajectories, absorbed, rule, as in `rlvitals diagnose --json`."""

    body: dict[str, Any]


class Baseline(Model):
    """The run compared with."""

    run_id: str
    name: str


class Explanations(Model):
    """The hypotheses of an incident with a second run to compare with, as in `rlvitals diagnose --baseline --json`.

    step: up to which both runs were looked at, that of the incident's last explanation.
    """

    incident_id: str
    baseline: Baseline
    step: int
    hypotheses: list[dict[str, Any]]


class Judgement(BaseModel):
    """What a person says of an incident."""

    model_config = ConfigDict(extra="forbid")

    feedback: Feedback | None


class IncidentList(Model):
    """Incidents, newest first."""

    incidents: list[IncidentItem]


@router.get("")
def list_incidents(
    service: TheService,
    run_id: str | None = None,
    state: Literal["open", "acknowledged", "recovered", "all"] = "open",
    limit: Annotated[int, Query(ge=1, le=10_000)] = 500,
) -> IncidentList:
    """Incidents of one run or of all; open leaves out what is acknowledged. Absorbed ones are listed by their joint incident."""
    with service.control.session(write=False) as session:
        found = [one for one in incidents(session, run_id) if _in_state(one, state)]
    return IncidentList(incidents=[IncidentItem.model_validate(one) for one in found[:limit]])


@router.get("/{incident_id}")
def get_incident(service: TheService, incident_id: str) -> IncidentDetail:
    """One incident with its evidence and hypotheses."""
    with service.control.session(write=False) as session:
        found = incident(session, incident_id)
    if found is None:
        raise _unknown(incident_id)
    return IncidentDetail.model_validate(found)


@router.get("/{incident_id}/explanations")
def get_explanations(
    service: TheService, incident_id: str, baseline: Annotated[str, Query(description="Id of a run to compare with.")]
) -> Explanations:
    """Tests the explanations of an incident with a second run; the incident stays as it is. Takes a second or more."""
    with service.control.session(write=False) as session:
        found = incident(session, incident_id)
    if found is None:
        raise _unknown(incident_id)
    try:
        explained = explain_with(service.store, service.control, found, baseline)
    except UnknownSecondRun as error:
        raise HTTPException(404, f"{error} GET /api/v1/runs lists all.") from None
    return Explanations(
        incident_id=found.id,
        baseline=Baseline.model_validate(explained.second),
        step=explained.step,
        hypotheses=[dict(one) for one in explained.hypotheses],
    )


@router.post("/{incident_id}/acknowledge")
def acknowledge_incident(service: TheService, incident_id: str) -> IncidentDetail:
    """Marks an incident as seen by a person; a second time changes nothing."""
    with service.control.session() as session:
        found = acknowledge(session, incident_id)
    if found is None:
        raise _unknown(incident_id)
    service.hub.publish({"type": "incident", "run_id": found.run_id, "incident_id": found.id, "kind": "incident.acknowledged"})
    return IncidentDetail.model_validate(found)


@router.put("/{incident_id}/feedback")
def judge_incident(service: TheService, incident_id: str, said: Judgement) -> IncidentDetail:
    """Says whether an incident was worth hearing of; null takes it back. The rule's hit rate follows."""
    with service.control.session() as session:
        found = set_feedback(session, incident_id, said.feedback)
    if found is None:
        raise _unknown(incident_id)
    return IncidentDetail.model_validate(found)


def _in_state(one: Incident, state: str) -> bool:
    if state == "all":
        return True
    if state == "recovered":
        return one.status == "recovered"
    return one.status == "open" and (one.acknowledged_at is not None) == (state == "acknowledged")


def _unknown(incident_id: str) -> HTTPException:
    return HTTPException(404, f"There is no incident {incident_id}.")
