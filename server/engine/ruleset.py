"""The rules that judge a run, and what people changed about them: switched off, other parameters, another status."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from server.rules.base import Rule, Status

JOINT = "joint"
"""Family of the one rule that the engine composes of the others."""


@dataclass(frozen=True)
class Changed:
    """What differs from a rule as it is written. params: only those with a value of their own."""

    enabled: bool = True
    params: Mapping[str, float] = field(default_factory=dict)
    status: Status | None = None

    def to_json(self) -> dict[str, Any]:
        """JSON values only, to be remembered with a run."""
        return {"enabled": self.enabled, "params": dict(self.params), "status": self.status}


@dataclass
class RuleSet:
    """The rules that judge, with the values of their parameters. changed: by rule code.

    strict: an error of a rule or check is raised (tests). explains: whether the checks of explanations run; without
    them a replay is quicker and finds the same incidents.
    """

    rules: Sequence[Rule]
    strict: bool = False
    changed: Mapping[str, Changed] = field(default_factory=dict)
    explains: bool = True
    params: dict[str, dict[str, float]] = field(init=False)
    by_code: dict[str, Rule] = field(init=False)
    """Every rule, those that are switched off too: their earlier incidents are still told."""
    off: frozenset[str] = field(init=False)
    """Codes of the rules that are switched off."""

    def __post_init__(self) -> None:
        nothing = Changed()
        self.params = {
            rule.code: {p.name: p.default for p in rule.params} | dict(self.changed.get(rule.code, nothing).params) for rule in self.rules
        }
        self.by_code = {rule.code: rule for rule in self.rules}
        self.off = frozenset(rule.code for rule in self.rules if not self.changed.get(rule.code, nothing).enabled)

    @property
    def active(self) -> list[Rule]:
        """Rules that are switched on."""
        return [rule for rule in self.rules if rule.code not in self.off]

    @property
    def single(self) -> list[Rule]:
        """Active rules that look at the run themselves."""
        return [rule for rule in self.active if rule.family != JOINT]

    @property
    def joint(self) -> Rule | None:
        """The active rule that is composed of the others."""
        return next((rule for rule in self.active if rule.family == JOINT), None)

    def status(self, code: str) -> Status:
        """Preview or stable, as written or as changed; a rule that is not known any more is a preview."""
        changed = self.changed.get(code)
        if changed is not None and changed.status is not None:
            return changed.status
        rule = self.by_code.get(code)
        return "preview" if rule is None else rule.status

    def moved(self, code: str) -> dict[str, float]:
        """The parameters of a rule that differ from their defaults."""
        rule = self.by_code[code]
        return {p.name: self.params[code][p.name] for p in rule.params if self.params[code][p.name] != p.default}
