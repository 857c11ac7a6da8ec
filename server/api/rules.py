"""Rules: how each stands for all runs, a project or a run, and what people change about it."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, HTTPException, Query
from pydantic import BaseModel, ConfigDict, Field

from ingest.errors import SettingsError
from server.api.deps import Failure, Model, TheService
from server.control.rule_settings import rule_setting, rule_settings
from server.engine.adjust import rule_named
from server.engine.rule_state import RuleState, rule_states
from server.engine.settings import KEEP, Place, change_rule, forget_rule
from server.queries.runs import run_summary
from server.rules.base import Rule
from server.rules.document import rule_markdown
from server.service import Service

router = APIRouter(prefix="/api/v1/rules", tags=["rules"], responses={404: {"model": Failure}})


class ParamItem(Model):
    """A parameter. value: the one in force; origin: default, or the place that sets it."""

    name: str
    default: float
    unit: str
    low: float
    high: float
    source: str
    help: str
    value: float
    origin: str


class HypothesisItem(Model):
    """A competing explanation and what it can be computed from."""

    id: str
    title: str
    computable_from: str


class FeedbackItem(Model):
    """How people judged the rule's incidents. hit_rate: useful among judged, null where none was."""

    useful: int
    false_alarms: int
    judged: int
    hit_rate: float | None


class RuleItem(Model):
    """A rule as it stands for the run or project asked for, else for all runs. status_as_written: where nobody changed it."""

    code: str
    name: str
    family: str
    status: str
    version: int
    summary: str
    needs: list[list[str]]
    hold_points: int
    params: list[ParamItem]
    hypotheses: list[HypothesisItem]
    enabled: bool
    status_as_written: str
    open_incidents: int
    feedback: FeedbackItem


class RuleList(Model):
    """Every rule, in the order of decision."""

    rules: list[RuleItem]


class RuleDetail(RuleItem):
    """One rule with its page in Markdown, the same text as `rlvitals rules explain`."""

    page: str


class SettingItem(Model):
    """What one scope sets for a rule. Null: not set here. updated_at: Unix seconds, 0 where nothing is set."""

    scope: str
    target: str
    enabled: bool | None
    params: dict[str, float]
    status: str | None
    updated_at: float


class SettingList(Model):
    """Every scope that sets something for a rule, wide ones first."""

    settings: list[SettingItem]


class SettingChange(BaseModel):
    """What to change in one scope; what is left away stays as it is, null takes it back.

    scope: all, project or run; target: empty for all runs, the project's name, the run's id.
    """

    model_config = ConfigDict(extra="forbid")

    scope: str = "all"
    target: str = Field(default="", max_length=200)
    params: dict[str, float | None] = Field(default_factory=dict)
    enabled: bool | None = None
    status: Literal["preview", "stable"] | None = None


TheScope = Annotated[str, Query(description="all, project or run")]
TheTarget = Annotated[str, Query(description="empty for all runs, the project's name, the run's id")]


@router.get("")
def list_rules(service: TheService, run_id: str | None = None, project: str | None = None) -> RuleList:
    """Every rule as it stands for a run, a project or all runs."""
    return RuleList(rules=[RuleItem.model_validate(state.to_json()) for state in _states(service, run_id, project)])


@router.get("/{name}")
def get_rule(service: TheService, name: str, run_id: str | None = None, project: str | None = None) -> RuleDetail:
    """One rule as it stands, by name or code."""
    rule = _rule(name)
    state = next(one for one in _states(service, run_id, project) if one.rule.code == rule.code)
    return RuleDetail.model_validate({**state.to_json(), "page": rule_markdown(rule)})


@router.get("/{name}/settings")
def list_settings(service: TheService, name: str) -> SettingList:
    """What people set for a rule, scope by scope."""
    rule = _rule(name)
    with service.control.session(write=False) as session:
        found = [setting for setting in rule_settings(session) if setting.rule_code == rule.code]
    return SettingList(settings=[SettingItem.model_validate(one) for one in found])


@router.put("/{name}/settings")
def change_setting(service: TheService, name: str, change: SettingChange) -> SettingItem:
    """Changes what one scope sets for a rule, from the next judged step on."""
    rule, given = _rule(name), change.model_fields_set
    place = _place(service, change.scope, change.target)
    with service.control.session() as session:
        kept = change_rule(
            session,
            place,
            rule,
            change.params,
            enabled=change.enabled if "enabled" in given else KEEP,
            status=change.status if "status" in given else KEEP,
        )
    return SettingItem.model_validate(kept)


@router.delete("/{name}/settings")
def remove_setting(service: TheService, name: str, scope: TheScope = "all", target: TheTarget = "") -> SettingItem:
    """Takes back everything that one scope sets for a rule."""
    rule, place = _rule(name), Place.of(scope, target)
    with service.control.session() as session:
        forget_rule(session, place, rule)
        return SettingItem.model_validate(rule_setting(session, place.scope, place.target, rule.code))


def _states(service: Service, run_id: str | None, project: str | None) -> list[RuleState]:
    if run_id is not None:
        project = _project(service, run_id)
    with service.control.session(write=False) as session:
        return rule_states(session, run_id, project)


def _place(service: Service, scope: str, target: str) -> Place:
    place = Place.of(scope, target)
    if place.scope == "run":
        _project(service, place.target)
    return place


def _project(service: Service, run_id: str) -> str:
    run = run_summary(service.store, run_id)
    if run is None:
        raise HTTPException(404, f"There is no run {run_id}. GET /api/v1/runs lists all.")
    return run.project


def _rule(name: str) -> Rule:
    try:
        return rule_named(name)
    except SettingsError as error:
        raise HTTPException(404, str(error)) from None
