"""The state machine of one rule and slice: a finding opens, raises or continues a case; quiet points close it.

Cool-down (symptoms 0.3): within 20 points after a case recovered, a new finding continues that case, and is news only
if its severity is higher than any before.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

from server.engine.state import Case, RunState, case_id, finding_json, level
from server.queries.view import RunView
from server.rules.base import Finding, Rule

COOL_DOWN_POINTS = 20
_MOST_EVIDENCE = 8

Step: TypeAlias = Literal["opened", "raised", "continued", "reopened"]


def merged(findings: Sequence[Finding]) -> list[Finding]:
    """One finding for each symptom and slice: the most severe speaks, the others add their evidence."""
    groups: dict[tuple[str, str | None], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.symptom, finding.slice), []).append(finding)
    return [_one(group) for group in groups.values()]


def _one(group: Sequence[Finding]) -> Finding:
    if len(group) == 1:
        return group[0]
    first = max(group, key=lambda f: level(f.severity))
    families: dict[str, int] = {}
    for name, onset in (pair for f in group for pair in f.families):
        families[name] = min(onset, families.get(name, onset))
    same = [f for f in group if f.severity == first.severity]
    others = [row for f in group if f is not first for row in f.evidence]
    return replace(
        first,
        onset_step=min(f.onset_step for f in same),
        evidence=(*first.evidence, *others)[:_MOST_EVIDENCE],
        trajectories=tuple(dict.fromkeys(t for f in group for t in f.trajectories)),
        families=tuple(families.items()),
    )


def take(state: RunState, rule: Rule, view: RunView, finding: Finding, notes: Sequence[str] = ()) -> tuple[Case, Step]:
    """Files a finding of the judged step; the case and what became of it."""
    key = (rule.code, finding.symptom, finding.slice)
    before = state.newest(key)
    if before is None or (before.status == "recovered" and before.closed_points >= COOL_DOWN_POINTS):
        return _open(state, rule, view, finding, before, notes), "opened"
    reopened = before.status == "recovered"
    before.status, before.quiet_points, before.closed_points = "open", 0, 0
    before.last_step, before.last_attempt = view.step, view.attempt
    before.onset_step = min(before.onset_step, max(finding.onset_step, before.floor_step))
    _moved(before, finding)
    if level(finding.severity) <= level(before.severity):
        return before, "reopened" if reopened else "continued"
    _say(before, finding, view, notes)
    return before, "raised"


def _open(state: RunState, rule: Rule, view: RunView, finding: Finding, before: Case | None, notes: Sequence[str]) -> Case:
    floor = before.last_step + 1 if before is not None and before.last_attempt == view.attempt else -(2**62)
    case = Case(
        id=case_id(view.run.run_id, view.attempt, (rule.code, finding.symptom, finding.slice), view.step),
        attempt=view.attempt,
        rule_code=rule.code,
        rule_version=str(rule.version),
        family=rule.family,
        symptom=finding.symptom,
        slice=finding.slice,
        metric=finding.metric,
        severity=finding.severity,
        onset_step=max(min(int(finding.onset_step), view.step), floor),
        first_step=view.step,
        floor_step=floor,
        detected_step=view.step,
        last_step=view.step,
        last_attempt=view.attempt,
        finding={},
        next_checks=list(rule.next_checks),
    )
    _say(case, finding, view, notes)
    _moved(case, finding)
    state.cases.append(case)
    return case


def _moved(case: Case, finding: Finding) -> None:
    for family, onset in finding.families or ((case.family, finding.onset_step),):
        case.families[family] = max(case.floor_step, min(onset, case.families.get(family, onset)))


def _say(case: Case, finding: Finding, view: RunView, notes: Sequence[str]) -> None:
    case.severity, case.metric = finding.severity, finding.metric
    case.detected_step = view.step
    case.steps_by_severity = {**case.steps_by_severity, finding.severity: view.step}
    case.finding = finding_json(finding)
    case.notes = [*case.notes, *(note for note in notes if note not in case.notes)]


def be_quiet(case: Case, hold_points: int) -> bool:
    """Counts a point of the rule without a finding; True if the case recovers by it."""
    if case.status == "recovered":
        case.closed_points += 1
        return False
    case.quiet_points += 1
    if case.quiet_points < max(1, hold_points):
        return False
    case.status, case.closed_points = "recovered", 0
    return True


def leave_branch(state: RunState, first_step: int) -> list[Case]:
    """A later attempt took over at that step: open cases that began at or after it belong to steps that no longer count.

    They recover; what began before goes on in the new attempt. Returns the cases that recovered.
    """
    left = [case for case in state.open_cases() if case.onset_step >= first_step]
    for case in left:
        case.status, case.closed_points = "recovered", COOL_DOWN_POINTS
        case.notes = [*case.notes, f"a later attempt started at step {first_step}, before this began"]
    for seen in (state.watched, state.warned):
        for family in [f for f, step in seen.items() if step >= first_step]:
            del seen[family]
    return left


def switched_off(state: RunState, codes: Collection[str]) -> list[Case]:
    """Closes the open cases of rules that people switched off, since nothing would ever close them; returns them."""
    closed = [case for case in state.open_cases() if case.rule_code in codes] if codes else []
    for case in closed:
        case.status, case.closed_points = "recovered", COOL_DOWN_POINTS
        case.notes = [*case.notes, "closed because the rule was switched off"]
    return closed
