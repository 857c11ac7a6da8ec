"""The rules over a whole run at once: what the live engine would have found, with the same steps."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ingest.store.connection import Store
from server.engine.judge import Judge
from server.engine.ruleset import Changed, RuleSet
from server.engine.settings import told_changes
from server.engine.state import Case, RunState
from server.engine.steps import START, advance, not_judged, registered
from server.queries.facts import add_facts
from server.queries.run_data import load_run
from server.queries.view import Position, RunData, RunFacts
from server.rules.base import Rule

SCHEMA = 1


@dataclass(frozen=True)
class Diagnosis:
    """What the rules found in one run. first_step, last_step: None where nothing was logged."""

    run: RunFacts
    first_step: int | None
    last_step: int | None
    cases: Sequence[Case]
    """In order of detection; without those that a joint collapse tells."""
    not_judged: Sequence[dict[str, Any]]
    rules: RuleSet
    second: RunFacts | None = None
    """The run that checks compared with."""
    notes: Sequence[str] = ()

    def to_json(self) -> dict[str, Any]:
        """Exactly contracts `diagnose --json`."""
        run = self.run
        told: dict[str, Any] = {
            "schema": SCHEMA,
            "run": {"run_id": run.run_id, "name": run.name, "framework": run.framework, "algorithm": run.algorithm},
            "steps": {"first": self.first_step, "last": self.last_step},
            "incidents": [case_json(case) for case in self.cases],
            "not_judged": list(self.not_judged),
            "rules": {"version": rules_version(self.rules.rules), "count": len(self.rules.active)},
        }
        if self.second is not None:
            told["baseline"] = {"run_id": self.second.run_id, "name": self.second.name}
        if self.notes:
            told["notes"] = list(self.notes)
        return told


def replay(
    store: Store,
    run_id: str,
    until: int | None = None,
    second: RunData | None = None,
    *,
    rules: Sequence[Rule] | None = None,
    strict: bool = False,
    changed: Mapping[str, Changed] | None = None,
) -> Diagnosis:
    """Judges every step of a run; until: steps behind it are not looked at, as if the run had not come so far.

    second is a run to compare with (see in_memory), which may lie in another store: checks that need one use it. changed: what
    people set for the rules on this run, by rule code; it then holds for the run from its first step.

    Raises:
        KeyError: no such run.
    """
    data = in_memory(store, run_id)
    data.second = second
    return diagnose(data, until, RuleSet(registered() if rules is None else rules, strict, changed or {}))


def in_memory(store: Store, run_id: str) -> RunData:
    """A run with its facts, as rules look at it.

    Raises:
        KeyError: no such run.
    """
    data = load_run(store, run_id)
    add_facts(data)
    return data


def diagnose(data: RunData, until: int | None, rules: RuleSet) -> Diagnosis:
    """replay() of a run in memory."""
    state = judge_all(data, until, rules)
    steps = [step for _, step in _order(data, until)]
    cases = sorted((c for c in state.cases if c.absorbed_by is None), key=lambda c: (c.attempt, c.detected_step, c.first_step, c.rule_code))
    in_force = {code: one.to_json() for code, one in rules.changed.items()}
    notes = [f"rules are changed for this run: {text}" for text in told_changes({}, in_force, rules)]
    second = None if data.second is None else data.second.run
    return Diagnosis(
        data.run, min(steps, default=None), max(steps, default=None), cases, not_judged(state, data, rules), rules, second, notes
    )


def judge_all(data: RunData, until: int | None, rules: RuleSet) -> RunState:
    """What the engine knows after it has judged every step of a run in memory, up to `until` if given."""
    state = RunState(data.run.run_id)
    order = _order(data, until)
    if order:
        # With `until`, an attempt that goes past it must not hide a later attempt that started before it.
        for start, end in _stretches(order):
            advance(state, data, start, end, rules)
        _explain_open(state, data, rules)
    return state


def _order(data: RunData, until: int | None) -> list[Position]:
    return [place for place in data.judge_order() if until is None or place[1] <= until]


def case_json(case: Case) -> dict[str, Any]:
    """One incident as contracts `diagnose --json` shows it."""
    body = case.body()
    return {
        "symptom": case.symptom,
        "metric": case.metric,
        "severity": case.severity,
        "onset_step": case.onset_step,
        "detected_step": case.detected_step,
        "steps_by_severity": case.steps_by_severity,
        "last_step": case.last_step,
        "status": case.status,
        "slice": case.slice,
        "summary": case.summary,
        "absorbed": body["absorbed"],
        "evidence": body["evidence"],
        "hypotheses": body["hypotheses"],
        "next_checks": body["next_checks"],
        "trajectories": body["trajectories"],
        "notes": body["notes"],
        "rule": {"code": case.rule_code, "version": case.rule_version, **body["rule"]},
        "attempt": case.attempt,
        "incident_id": case.id,
    }


def rules_version(rules: Sequence[Rule]) -> str:
    """Changes when a rule is added, removed or changed."""
    text = ",".join(sorted(f"{rule.code}:{rule.version}" for rule in rules))
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _stretches(order: Sequence[Position]) -> list[tuple[Position, Position]]:
    ends: dict[int, Position] = {place[0]: place for place in order}
    return [(START, ends[attempt]) for attempt in sorted(ends)]


def _explain_open(state: RunState, data: RunData, rules: RuleSet) -> None:
    assert state.judged is not None
    attempt, step = state.judged
    judge = Judge(state, data, rules)
    for case in judge.unsettled(attempt):
        judge.explain(case, step)
