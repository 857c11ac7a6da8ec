"""The one finding that no step can bring: a followed run from which nothing has come for far too long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from server.engine.judge import Judge
from server.engine.state import Case, RunState
from server.queries.runs import RunSummary
from server.queries.view import RunData
from server.rules.base import Finding, Rule
from server.rules.run_stalled import RunStalled

FEW_STEPS = 5
"""A live run brings no more new steps than this at a time; the first reading of an old file brings many."""
_KEPT = 200


@dataclass
class Rhythm:
    """When new steps of a run arrived, as this process saw it: times are Unix seconds, the newest last."""

    arrivals: list[float] = field(default_factory=list)
    live: int = 0
    """How many of the newest arrivals in a row brought few steps."""

    def arrived(self, new_steps: int, now: float) -> None:
        """New steps became known."""
        self.arrivals = [*self.arrivals[-_KEPT:], now]
        self.live = self.live + 1 if new_steps <= FEW_STEPS else 0


def stalled(rhythm: Rhythm, summary: RunSummary, judge: Judge, now: float) -> Case | None:
    """Opens the incident of a run that stands still, and explains it; None where it goes on, has ended or cannot be told.

    Only a run whose steps arrived one by one while this process watched can stand still: an old log that is followed was
    finished before.
    """
    state, rule = judge.state, _rule(judge.rules.rules)
    if rule is None or state.judged is None or rhythm.live < 3 or summary.freshness != "followed" or summary.state == "finished":
        return None
    if any(case.rule_code == rule.code and case.status == "open" and case.severity == "critical" for case in state.cases):
        return None
    attempt, step = state.judged
    view = judge.view(rule, attempt, step)
    limit = rule.limit(view, rhythm.arrivals[-rhythm.live :])
    quiet = now - rhythm.arrivals[-1]
    if limit is None or quiet <= limit:
        return None
    text = f"nothing for {quiet / 60:.0f} min after step {step}, above its limit of {limit / 60:.0f} min"
    return judge.by_clock(rule, view, Finding(rule.name, "critical", step, text, "fact.wall_time", hard=True))


def goes_on(state: RunState, data: RunData) -> list[Case]:
    """Closes the incident of a run that stood still, now that a step has come; where steps have times the rule itself does so."""
    if "fact.wall_time" in data.metrics():
        return []
    went = [case for case in state.open_cases() if case.rule_code == RunStalled.code]
    for case in went:
        case.status, case.closed_points = "recovered", 0
    return went


def _rule(rules: Sequence[Rule]) -> RunStalled | None:
    return next((rule for rule in rules if isinstance(rule, RunStalled)), None)
