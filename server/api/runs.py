"""Runs, their series and curves."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, HTTPException, Query
from numpy.typing import NDArray
from starlette.responses import Response

from server.api.csv_export import csv_text
from server.api.deps import Failure, Model, TheRun, TheService
from server.control.incidents import count_open_by_run
from server.queries.curves import Curve, curve, series_list, thinned
from server.queries.runs import run_counts, run_summaries
from server.queries.totals import Totals, logged_config, totals
from server.service import Service

router = APIRouter(prefix="/api/v1/runs", tags=["runs"], responses={404: {"model": Failure}})


class RunItem(Model):
    """One run in the list. last_seen: Unix seconds of the newest row's arrival."""

    run_id: str
    project: str
    name: str
    framework: str
    state: str
    last_step: int | None
    last_seen: float
    points: int
    trajectories: int
    open_incidents: int


class RunList(Model):
    """Every run."""

    runs: list[RunItem]


class RunDetail(RunItem):
    """One run and what is stored of it.

    config: the settings we know, under their canonical keys; logged_config: as the trainer wrote it, secrets removed.
    """

    framework_version: str | None
    algorithm: str | None
    freshness: str
    planned_steps: int | None
    last_step_at: float
    usual_step_seconds: float | None
    tokens: float | None
    config: dict[str, Any]
    logged_config: dict[str, Any]
    series: int
    trajectories_with_tokens: int
    events: int
    attempts: int
    rejected: int


class SeriesItem(Model):
    """One series. metric: canonical id, null for an unknown key, which is stored and drawn all the same."""

    key: str
    metric: str | None
    unit: str | None
    points: int
    last_step: int | None
    last_value: float | None


class SeriesList(Model):
    """Every series of a run."""

    series: list[SeriesItem]


class CurveAnswer(Model):
    """One curve, one place a step (or a bin of bin_steps steps), each step from the newest attempt that has it.

    mean, low, high: of the finite values, null where there is none; n: number of values; nonfinite_steps: steps at
    which a NaN or an infinity was logged.
    """

    key: str
    metric: str | None
    unit: str | None
    attempt: int
    bin_steps: int
    steps: list[int]
    mean: list[float | None]
    low: list[float | None]
    high: list[float | None]
    n: list[int]
    nonfinite_steps: list[int]


@router.get("")
def list_runs(service: TheService) -> RunList:
    """Every run with its state and how much is stored of it."""
    counted = totals(service.store)
    opened = _open_by_run(service)
    nothing = Totals(0, 0)
    return RunList(
        runs=[
            RunItem(
                run_id=run.run_id,
                project=run.project,
                name=run.name,
                framework=run.framework,
                state=run.state,
                last_step=run.newest_step,
                last_seen=run.last_seen,
                points=counted.get(run.run_id, nothing).points,
                trajectories=counted.get(run.run_id, nothing).trajectories,
                open_incidents=opened.get(run.run_id, 0),
            )
            for run in run_summaries(service.store)
        ]
    )


@router.get("/{run_id}")
def get_run(run: TheRun, service: TheService) -> RunDetail:
    """One run."""
    counts = run_counts(service.store, run.run_id)
    return RunDetail(
        run_id=run.run_id,
        project=run.project,
        name=run.name,
        framework=run.framework,
        framework_version=run.framework_version,
        algorithm=run.algorithm,
        state=run.state,
        freshness=run.freshness,
        last_step=run.newest_step,
        planned_steps=run.planned_steps,
        last_step_at=run.last_step_at,
        usual_step_seconds=run.usual_step_seconds,
        last_seen=run.last_seen,
        tokens=run.tokens,
        config=dict(run.config),
        logged_config=dict(logged_config(service.store, run.run_id)),
        open_incidents=_open_by_run(service).get(run.run_id, 0),
        points=counts.points,
        series=counts.series,
        trajectories=counts.trajectories,
        trajectories_with_tokens=counts.trajectories_with_tokens,
        events=counts.events,
        attempts=counts.attempts,
        rejected=counts.rejected,
    )


@router.get("/{run_id}/series")
def list_series(run: TheRun, service: TheService) -> SeriesList:
    """Every series of a run, unknown keys too."""
    return SeriesList(series=[SeriesItem.model_validate(item) for item in series_list(service.store, run.run_id)])


Key = Annotated[str, Query(description="A canonical metric id or a source key exactly as logged.")]
Attempt = Annotated[int | None, Query(ge=1, description="Only this attempt; default: all, the newest one wins at each step.")]
Most = Annotated[int | None, Query(ge=10, le=100_000, description="At most about so many places; low and high keep every outlier.")]


@router.get("/{run_id}/curve")
def get_curve(run: TheRun, service: TheService, key: Key, attempt: Attempt = None, most: Most = None) -> CurveAnswer:
    """One curve."""
    found = _curve(service, run.run_id, key, attempt)
    found = found if most is None else thinned(found, most)
    return CurveAnswer(
        key=found.key,
        metric=found.metric,
        unit=found.unit,
        attempt=found.attempt,
        bin_steps=found.bin_steps,
        steps=found.steps.tolist(),
        mean=_nulls(found.mean),
        low=_nulls(found.low),
        high=_nulls(found.high),
        n=[int(count) for count in found.n.tolist()],
        nonfinite_steps=found.nonfinite_steps.tolist(),
    )


@router.get("/{run_id}/curve.csv", response_class=Response, responses={200: {"content": {"text/csv": {}}}})
def get_curve_csv(run: TheRun, service: TheService, key: Key, attempt: Attempt = None) -> Response:
    """One curve at full resolution as CSV: step, mean, low, high, n."""
    found = _curve(service, run.run_id, key, attempt)
    columns = (found.steps.tolist(), _nulls(found.mean), _nulls(found.low), _nulls(found.high), found.n.tolist())
    text = csv_text(("step", found.key, "low", "high", "n"), zip(*columns, strict=True))
    headers = {"Content-Disposition": f'attachment; filename="{run.run_id}.csv"'}
    return Response(text, media_type="text/csv; charset=utf-8", headers=headers)


def _curve(service: Service, run_id: str, key: str, attempt: int | None) -> Curve:
    found = curve(service.store, run_id, key, attempt)
    if found is None:
        raise HTTPException(404, f"Run {run_id} never logged {key!r}. GET /api/v1/runs/{run_id}/series lists what it logged.")
    return found


def _nulls(values: NDArray[np.float64]) -> list[float | None]:
    return [value if value == value else None for value in values.tolist()]


def _open_by_run(service: Service) -> dict[str, int]:
    with service.control.session(write=False) as session:
        return count_open_by_run(session)
