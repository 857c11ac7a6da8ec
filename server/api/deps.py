"""What every router needs: the service, and the sentence for what does not exist."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from fastapi import Depends, HTTPException
from pydantic import BaseModel, ConfigDict
from starlette.requests import HTTPConnection

from server.queries.runs import RunSummary, run_summary
from server.service import Service


class Model(BaseModel):
    """Base of all answers: taken from our dataclasses; NaN and infinities as the words NaN, Infinity, -Infinity."""

    model_config = ConfigDict(from_attributes=True, ser_json_inf_nan="strings")


def _service(connection: HTTPConnection) -> Service:
    service: Service = connection.app.state.service
    return service


TheService: TypeAlias = Annotated[Service, Depends(_service)]


def _run(run_id: str, service: TheService) -> RunSummary:
    run = run_summary(service.store, run_id)
    if run is None:
        raise HTTPException(404, f"There is no run {run_id}. GET /api/v1/runs lists all.")
    return run


TheRun: TypeAlias = Annotated[RunSummary, Depends(_run)]


class Failure(BaseModel):
    """Every answer that is no success."""

    error: str
