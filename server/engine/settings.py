"""What people change about rules: checked when it is stored, and put together for a run when it is judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, cast, get_args

from sqlalchemy.orm import Session

from ingest.errors import SettingsError
from server.control.rule_settings import SCOPES, RuleSetting, Scope, keep_rule_setting, rule_setting, rule_settings
from server.engine.adjust import checked, param_named
from server.engine.ruleset import Changed, RuleSet
from server.rules import RULES
from server.rules.base import Rule, Status

KEEP: Literal["keep"] = "keep"
"""Leaves as it is what the scope sets."""

Switch: TypeAlias = bool | Literal["keep"] | None
Standing: TypeAlias = str | None
"""preview, stable, None (as the wider scope has it) or keep."""


@dataclass(frozen=True)
class Place:
    """Where a setting holds. target: empty for all runs, a project's name, a run's id."""

    scope: Scope = "all"
    target: str = ""

    @classmethod
    def of(cls, scope: str, target: str) -> Place:
        """The place of that scope and target.

        Raises:
            SettingsError: an unknown scope, or a target that the scope does not have or lacks.
        """
        if scope not in SCOPES:
            raise SettingsError(f"There is no scope {scope!r}; there are {', '.join(SCOPES)}.")
        if (scope == "all") == bool(target):
            wrong = (
                "Settings for all runs have no target."
                if target
                else f"Settings for a {scope} need its {'name' if scope == 'project' else 'id'}."
            )
            raise SettingsError(wrong)
        return cls(scope, target)

    @property
    def words(self) -> str:
        """For a sentence."""
        return "all runs" if self.scope == "all" else f"{self.scope} {self.target}"


def change_rule(
    session: Session,
    place: Place,
    rule: Rule,
    params: Mapping[str, float | str | None] | None = None,
    *,
    enabled: Switch = KEEP,
    status: Standing = KEEP,
) -> RuleSetting:
    """Changes what one scope sets for a rule and keeps the rest of it; a parameter that is None is set no more.

    A parameter at its default value in the scope of all runs is not kept: it says nothing.

    Raises:
        SettingsError: an unknown parameter (with the nearest name), a value outside its range, an unknown status.
    """
    before = rule_setting(session, place.scope, place.target, rule.code)
    given = dict(params or {})
    for name in given:
        param_named(rule, name)
    kept = {name: value for name, value in before.params.items() if name not in given}
    kept |= checked(rule, {name: value for name, value in given.items() if value is not None})
    if place.scope == "all":
        kept = {name: value for name, value in kept.items() if not _is_default(rule, name, value)}
    if status not in (KEEP, None, *get_args(Status)):
        raise SettingsError(f"There is no status {status!r}; there are {', '.join(get_args(Status))}.")
    return keep_rule_setting(
        session,
        replace(
            before,
            params=kept,
            enabled=before.enabled if enabled == KEEP else enabled,
            status=before.status if status == KEEP else status,
        ),
    )


def forget_rule(session: Session, place: Place, rule: Rule) -> None:
    """Removes everything that one scope sets for a rule."""
    keep_rule_setting(session, RuleSetting(place.scope, place.target, rule.code))


def changes_for(
    settings: Sequence[RuleSetting], run_id: str | None, project: str | None, rules: Sequence[Rule] = RULES
) -> dict[str, Changed]:
    """What holds for a run, by rule code: its own settings over its project's over those of all runs.

    Both None: for all runs. What a rule no longer knows or allows is left out; a rule without a change too.
    """
    found: dict[str, Changed] = {}
    for rule in rules:
        enabled, params, status = True, dict[str, float](), None
        for setting in (s for s in settings if s.rule_code == rule.code and holds(s, run_id, project)):
            enabled = setting.enabled if setting.enabled is not None else enabled
            status = setting.status if setting.status in get_args(Status) else status
            params |= {name: value for name, value in setting.params.items() if _allowed(rule, name, value)}
        params = {name: value for name, value in params.items() if not _is_default(rule, name, value)}
        changed = Changed(enabled, params, cast(Status | None, status))
        if changed != Changed():
            found[rule.code] = changed
    return found


def holds(setting: RuleSetting, run_id: str | None, project: str | None) -> bool:
    """Whether a setting holds for a run of a project."""
    return setting.scope == "all" or setting.target == (run_id if setting.scope == "run" else project)


def changed_rules(
    session: Session, run_id: str | None = None, project: str | None = None, rules: Sequence[Rule] = RULES
) -> dict[str, Changed]:
    """changes_for() of what is stored."""
    return changes_for(rule_settings(session), run_id, project, rules)


def told_changes(before: Mapping[str, Any], after: Mapping[str, Any], rules: RuleSet) -> list[str]:
    """One sentence a rule whose settings differ; both as Changed.to_json() by rule code."""
    nothing = Changed().to_json()
    lines = []
    for rule in rules.rules:
        old, new = before.get(rule.code, nothing), after.get(rule.code, nothing)
        words = []
        if old["enabled"] != new["enabled"]:
            words.append("switched on" if new["enabled"] else "switched off")
        defaults = {p.name: p.default for p in rule.params}
        for name, default in defaults.items():
            pair = (old["params"].get(name, default), new["params"].get(name, default))
            if pair[0] != pair[1]:
                words.append(f"{name} {pair[0]:g} to {pair[1]:g}")
        if old["status"] != new["status"]:
            words.append(f"status {new['status'] or rule.status}")
        if words:
            lines.append(f"{rule.name}: {', '.join(words)}")
    return lines


def _allowed(rule: Rule, name: str, value: float) -> bool:
    return any(p.name == name and p.low <= value <= p.high for p in rule.params)


def _is_default(rule: Rule, name: str, value: float) -> bool:
    return any(p.name == name and p.default == value for p in rule.params)
