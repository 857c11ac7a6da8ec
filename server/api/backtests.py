"""Backtests: order one over runs of the home, look how far it is, cancel it."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import APIRouter, HTTPException
from pydantic import BaseModel, ConfigDict, Field

from server.api.deps import Failure, Model, TheService
from server.backtests import BacktestJob
from server.engine.adjust import checked, rule_named
from server.engine.backtest import backtest_json

router = APIRouter(prefix="/api/v1/backtests", tags=["rules"], responses={404: {"model": Failure}})


class BacktestOrder(BaseModel):
    """What to replay. rules: names, none: every rule that is on; runs: ids, none: all; changed: values to try, by rule and name."""

    model_config = ConfigDict(extra="forbid")

    runs: list[str] = Field(default_factory=list, max_length=10_000)
    rules: list[str] = Field(default_factory=list, max_length=1000)
    changed: dict[str, dict[str, float]] = Field(default_factory=dict)
    severity: Literal["info", "watch", "warn", "critical"] = "warn"


class BacktestAnswer(Model):
    """A backtest as it stands: done of total runs. result: as `rlvitals backtest --json`, null before the end."""

    id: str
    state: str
    done: int
    total: int
    result: dict[str, Any] | None
    error: str | None


@router.post("", status_code=202)
def start_backtest(service: TheService, order: BacktestOrder) -> BacktestAnswer:
    """Replays rules over runs in the background, one run after the other."""
    named = [rule_named(name).code for name in order.rules]
    proposed: dict[str, dict[str, float]] = {}
    for name, values in order.changed.items():
        rule = rule_named(name)
        proposed[rule.code] = checked(rule, values)
    rules = [*named, *(code for code in proposed if code not in named)] if named else []
    return _answer(service.backtests.submit(rules, proposed, order.runs, order.severity))


@router.get("/{backtest_id}")
def get_backtest(service: TheService, backtest_id: str) -> BacktestAnswer:
    """How far a backtest is, and in the end its result."""
    return _known(service.backtests.job(backtest_id), backtest_id)


@router.delete("/{backtest_id}")
def cancel_backtest(service: TheService, backtest_id: str) -> BacktestAnswer:
    """Cancels a backtest at its next step; one that has ended stays as it is."""
    return _known(service.backtests.cancel(backtest_id), backtest_id)


def _known(job: BacktestJob | None, backtest_id: str) -> BacktestAnswer:
    if job is None:
        raise HTTPException(404, f"There is no backtest {backtest_id}; the newest twenty since the server's start are kept.")
    return _answer(job)


def _answer(job: BacktestJob) -> BacktestAnswer:
    result = None if job.result is None else backtest_json(job.result)
    return BacktestAnswer(id=job.id, state=job.state, done=job.done, total=job.total, result=result, error=job.error)
