"""The one way in which steps are judged, whether a finished run is replayed or a live one is followed."""

from __future__ import annotations

from dataclasses import dataclass

from server.engine.judge import Happened, Judge, RuleSet
from server.engine.state import Case, RunState
from server.queries.view import Position, RunData

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
