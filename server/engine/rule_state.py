"""How each rule stands for all runs, a project or a run: on or off, its parameters in force, and how useful it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from server.control.incidents import HitRate, count_open_by_rule, hit_rates
from server.control.rule_settings import RuleSetting, rule_settings
from server.engine.ruleset import Changed
from server.engine.settings import Place, changes_for, holds
from server.rules import RULES
from server.rules.base import Param, Rule, Status
from server.rules.document import summary


@dataclass(frozen=True)
class ParamState:
    """A parameter in force. origin: default, or the place that sets it."""

    param: Param
    value: float
    origin: str

    @property
    def changed(self) -> bool:
        """Whether it differs from its default."""
        return self.value != self.param.default


@dataclass(frozen=True)
class RuleState:
    """One rule as it stands."""

    rule: Rule
    enabled: bool
    status: Status
    params: tuple[ParamState, ...]
    open_incidents: int
    hits: HitRate

    @property
    def changed(self) -> list[ParamState]:
        """The parameters that differ from their defaults."""
        return [param for param in self.params if param.changed]

    def to_json(self) -> dict[str, Any]:
        """As `rlvitals rules --json` shows it. hit_rate null: no incident of the rule was judged by a person."""
        rule = self.rule
        return {
            "code": rule.code,
            "name": rule.name,
            "family": rule.family,
            "status": self.status,
            "version": rule.version,
            "summary": summary(rule),
            "needs": [list(alternatives) for alternatives in rule.needs],
            "hold_points": rule.hold_points,
            "params": [
                {
                    "name": p.param.name, "default": p.param.default, "unit": p.param.unit, "low": p.param.low, "high": p.param.high,
                    "source": p.param.source, "help": p.param.help, "value": p.value, "origin": p.origin,
                }
                for p in self.params
            ],
            "hypotheses": [{"id": h.id, "title": h.title, "computable_from": h.computable_from} for h in rule.hypotheses],
            "enabled": self.enabled,
            "status_as_written": rule.status,
            "open_incidents": self.open_incidents,
            "feedback": {
                "useful": self.hits.useful, "false_alarms": self.hits.false_alarms, "judged": self.hits.judged, "hit_rate": self.hits.share,
            },
        }  # fmt: skip


def rule_states(session: Session, run_id: str | None = None, project: str | None = None) -> list[RuleState]:
    """Every rule as it stands for a run of a project, or for all runs; in the order of decision."""
    return states_of(rule_settings(session), run_id, project, count_open_by_rule(session), hit_rates(session))


def as_written() -> list[RuleState]:
    """Every rule as it is where nobody changed or judged anything."""
    return states_of([], None, None, {}, {})


def states_of(
    settings: Sequence[RuleSetting], run_id: str | None, project: str | None, opened: dict[str, int], hits: dict[str, HitRate]
) -> list[RuleState]:
    """rule_states() of what is stored."""
    changes = changes_for(settings, run_id, project)
    found = []
    for rule in RULES:
        changed = changes.get(rule.code, Changed())
        here = [s for s in settings if s.rule_code == rule.code and holds(s, run_id, project)]
        params = tuple(ParamState(p, changed.params.get(p.name, p.default), _origin(p, here)) for p in rule.params)
        found.append(
            RuleState(
                rule, changed.enabled, changed.status or rule.status, params, opened.get(rule.code, 0), hits.get(rule.code, HitRate())
            )
        )
    return found


def _origin(param: Param, settings: Sequence[RuleSetting]) -> str:
    by = [s for s in settings if param.name in s.params and param.low <= s.params[param.name] <= param.high]
    return Place(by[-1].scope, by[-1].target).words if by else "default"
