"""What people changed about rules: for all runs, for a project or for one run, as the control store keeps it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Literal, TypeAlias

from sqlalchemy import select
from sqlalchemy.orm import Session

from server.control.models import RuleSettingRow

Scope: TypeAlias = Literal["all", "project", "run"]
SCOPES: tuple[Scope, ...] = ("all", "project", "run")
"""From wide to narrow: the narrower one counts."""


@dataclass(frozen=True, slots=True)
class RuleSetting:
    """The settings of one rule in one scope. target: empty for all runs, a project's name, a run's id. None: not set here."""

    scope: Scope
    target: str
    rule_code: str
    enabled: bool | None = None
    params: Mapping[str, float] = field(default_factory=dict)
    status: str | None = None
    updated_at: float = 0.0

    @property
    def empty(self) -> bool:
        """Whether it sets nothing."""
        return self.enabled is None and self.status is None and not self.params


def rule_settings(session: Session) -> list[RuleSetting]:
    """Every setting, wide scopes first."""
    found = [_setting(row) for row in session.scalars(select(RuleSettingRow))]
    return sorted(found, key=lambda s: (SCOPES.index(s.scope), s.target, s.rule_code))


def rule_setting(session: Session, scope: Scope, target: str, rule_code: str) -> RuleSetting:
    """The setting of that scope; an empty one where nothing is set."""
    row = session.get(RuleSettingRow, (scope, target, rule_code))
    return RuleSetting(scope, target, rule_code) if row is None else _setting(row)


def keep_rule_setting(session: Session, setting: RuleSetting) -> RuleSetting:
    """Stores the setting in place of the one before; an empty one is removed."""
    row = session.get(RuleSettingRow, (setting.scope, setting.target, setting.rule_code))
    if setting.empty:
        if row is not None:
            session.delete(row)
            session.flush()
        return setting
    if row is None:
        row = RuleSettingRow(scope=setting.scope, target=setting.target, rule_code=setting.rule_code)
        session.add(row)
    row.enabled, row.params, row.status, row.updated_at = setting.enabled, dict(setting.params), setting.status, time.time()
    session.flush()
    return _setting(row)


def _setting(row: RuleSettingRow) -> RuleSetting:
    return RuleSetting(**{one.name: getattr(row, one.name) for one in fields(RuleSetting)})
