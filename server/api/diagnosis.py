"""The rules replayed over a stored run, as `rlvitals diagnose` asks for it while a server owns the home."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query
from pydantic import Field

from server.api.deps import Failure, Model, TheRun, TheService
from server.engine.replay import in_memory, replay
from server.engine.settings import changed_rules

router = APIRouter(prefix="/api/v1/runs", tags=["runs"], responses={404: {"model": Failure}})


class Steps(Model):
    """First and last judged step, null where nothing is logged."""

    first: int | None
    last: int | None


class NotJudged(Model):
    """A symptom that could not be told: the metrics it misses, and the setting of this trainer that logs them."""

    symptom: str
    missing: list[str]
    how: str


class Diagnosis(Model):
    """Exactly what `rlvitals diagnose --json` prints. baseline: the run compared with, absent if none was
    asked for. notes: what people changed about the rules for the run, absent if nothing."""

    schema_number: int = Field(alias="schema")
    run: dict[str, Any]
    steps: Steps
    incidents: list[dict[str, Any]]
    not_judged: list[NotJudged]
    rules: dict[str, Any]
    baseline: dict[str, str] = Field(default_factory=dict)
    notes: list[str] = Field(default_factory=list)


@router.get("/{run_id}/diagnosis", response_model=Diagnosis, response_model_exclude_unset=True)
def diagnosis(
    run: TheRun,
    service: TheService,
    until: Annotated[int | None, Query(description="Look at nothing behind this step.")] = None,
    baseline: Annotated[str | None, Query(description="Id of a run to compare with.")] = None,
) -> dict[str, Any]:
    """Replays every rule over the run, with what people set for it; takes about five seconds for a thousand steps."""
    with service.control.session(write=False) as session:
        changed = changed_rules(session, run.run_id, run.project)
    try:
        second = None if baseline is None else in_memory(service.store, baseline)
    except KeyError:
        raise HTTPException(404, f"there is no run {baseline} to compare with; GET /api/v1/runs lists them") from None
    return replay(service.store, run.run_id, until, second, changed=changed).to_json()
