"""What was read, how far, and what was not taken."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from server.api.deps import Model, TheService
from server.queries.sources import rejects, sources

router = APIRouter(prefix="/api/v1/sources", tags=["sources"])


class SourceItem(Model):
    """One file. updated: Unix seconds of the last commit; growth: append (followed) or whole (taken again when changed)."""

    source_id: int
    run_id: str
    path: str
    reader: str
    growth: str
    state: str
    bytes: int
    rows: int
    rejected: int
    newest_step: int | None
    updated: float
    note: str | None


class SourceList(Model):
    """Every file that was read."""

    sources: list[SourceItem]


class RejectItem(Model):
    """One row that was not taken. sample: its first 200 characters, as text."""

    line: int | None
    byte_offset: int | None
    reason: str
    sample: str


class RejectList(Model):
    """Rows of one source that were not taken."""

    rejects: list[RejectItem]


@router.get("")
def list_sources(service: TheService, run_id: str | None = None) -> SourceList:
    """Every file (of one run, or of all), those with rejects first."""
    return SourceList(sources=[SourceItem.model_validate(item) for item in sources(service.store, run_id)])


@router.get("/{source_id}/rejects")
def list_rejects(service: TheService, source_id: int, limit: Annotated[int, Query(ge=1, le=10_000)] = 100) -> RejectList:
    """The first rejected rows of a file in order of place; empty for an unknown file."""
    return RejectList(rejects=[RejectItem.model_validate(item) for item in rejects(service.store, source_id, limit)])
