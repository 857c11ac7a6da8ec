"""The one way in which steps are judged, whether a finished run is replayed or a live one is followed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from server.engine.judge import Happened, Judge, RuleSet
from server.engine.needs import missing
from server.engine.state import Case, RunState
from server.engine.switches import how_to_log
from server.queries.view import Position, RunData, RunView
from server.rules import RULES
from server.rules.base import Rule

START: Position = (0, -(2**62))
"""Before every step of every attempt."""


@dataclass(frozen=True)
class Move:
    """What became of a case over the judged steps: opened, raised, recovered (in this order if several), or only touched."""

    case: Case
    opened: bool
    raised: bool
    recovered: bool


def advance(state: RunState, data: RunData, from_step: Position, to_step: Position, rules: RuleSet) -> list[Move]:
    """Judges every step of the data behind from_step up to and including to_step, in order; moves the state there.

    Steps that the state has judged are never judged again, whatever arrived for them later. The result depends on the
    steps alone: one call over many steps equals many calls over few. Returns one move for each case that a step
    touched, in order of opening.
    """
    start = max(from_step, state.judged or START)
    judge = Judge(state, data, rules)
    happened: list[Happened] = []
    for place in data.judge_order(start):
        if place > to_step:
            break
        happened += judge.judge(place)
    return _moves(state, happened)


def _moves(state: RunState, happened: list[Happened]) -> list[Move]:
    by_id: dict[str, set[str]] = {}
    for item in happened:
        by_id.setdefault(item.case.id, set()).add(item.what)
    return [
        Move(case, "opened" in what, "raised" in what, "recovered" in what and case.status == "recovered")
        for case in state.cases
        if (what := by_id.get(case.id)) is not None
    ]


def not_judged(state: RunState, data: RunData, rules: RuleSet) -> list[dict[str, Any]]:
    """Each rule that could not tell at the newest judged step: what it misses, and how this trainer logs it.

    `missing` is empty for a rule that stopped with an error or is switched off; `how` then says which.
    """
    if state.judged is None:
        return []
    attempt, step = state.judged
    told = []
    for rule in rules.single:
        absent = missing(rule, RunView(data, attempt, step))
        if absent:
            told.append({"symptom": rule.name, "missing": absent, "how": how_to_log(absent, data.run.framework)})
        elif rule.code in state.failures:
            told.append({"symptom": rule.name, "missing": [], "how": state.failures[rule.code]})
    off = (rule for rule in rules.rules if rule.code in rules.off)
    return [*told, *({"symptom": rule.name, "missing": [], "how": "the rule is switched off"} for rule in off)]


def registered() -> Sequence[Rule]:
    """Every rule of the program."""
    return RULES
