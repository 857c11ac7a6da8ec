"""Reading files on order: what `rlvitals ingest` uses while a server owns the home."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import APIRouter, HTTPException
from pydantic import BaseModel, ConfigDict, Field

from server.api.deps import Failure, Model, TheService

router = APIRouter(prefix="/api/v1", tags=["reading"])


class PathsOrder(BaseModel):
    """Absolute paths on the server's machine, and what `ingest` takes beside them."""

    model_config = ConfigDict(extra="forbid")

    paths: list[str] = Field(min_length=1, max_length=1000)
    project: str | None = None
    run: str | None = None
    reader: str | None = None


class Accepted(Model):
    """The order's id."""

    job: str


class JobAnswer(Model):
    """An order as it stands. report: as `rlvitals ingest --json`; exit_code: as of `rlvitals ingest`."""

    state: str
    bytes: int
    total_bytes: int
    files: int
    report: dict[str, Any] | None
    exit_code: int | None
    error: str | None


@router.post("/paths", status_code=202)
def read_paths(service: TheService, order: PathsOrder) -> Accepted:
    """Reads files and folders once, in the background, from where they were left."""
    paths = [Path(text) for text in order.paths]
    for path in paths:
        if not path.is_absolute():
            raise HTTPException(422, f"{path} is not absolute: the server does not know your folder.")
    return Accepted(job=service.ingest(paths, order.project, order.run, order.reader))


@router.get("/jobs/{job_id}", responses={404: {"model": Failure}})
def get_job(service: TheService, job_id: str) -> JobAnswer:
    """How far an order is, and in the end its report."""
    job = service.job(job_id)
    if job is None:
        raise HTTPException(404, f"There is no job {job_id}; the last hundred since the server's start are kept.")
    return JobAnswer.model_validate(job)
