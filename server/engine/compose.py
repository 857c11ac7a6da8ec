"""What several rules say together: severities that agree or are held back, the joint collapse and the order of onset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from server.engine.ruleset import JOINT
from server.engine.state import FAMILIES, WARN, Case, RunState, finding_of, level
from server.rules.base import SEVERITIES, Evidence, Finding, Rule

WITHIN_STEPS = 10
"""Families agree when their findings lie at most so far apart (symptoms 0.3, 8)."""
CLEAR_LEAD_STEPS = 5
"""A lead by more than this names the family that moved first (symptoms 8)."""
LOOK_BACK_STEPS = 60
"""How long before a reward drop another family may have moved to be its likely beginning."""
JOINT_FAMILIES = 3

Spoken = tuple[Rule, Finding]


def remember(state: RunState, spoken: Sequence[Spoken], step: int) -> None:
    """Notes which families are beyond their limits at this step."""
    for rule, finding in spoken:
        for family in _families(rule, finding):
            if level(finding.severity) >= level("watch"):
                state.watched[family] = step
            if level(finding.severity) >= WARN:
                state.warned[family] = step


def weighed(state: RunState, rule: Rule, finding: Finding, step: int) -> tuple[Finding, list[str]]:
    """The finding at the severity that the rest of the run gives it, and why it changed.

    Two families that warn within 10 steps raise each other by one level. A single family without an effect on quality
    stays at warn (symptoms 0.4), unless the finding says that it is hard.
    """
    own = _families(rule, finding)
    others = sorted(_near(state.warned, step) - {*own, rule.family})
    agree = bool(own) and bool(others)
    severity = finding.severity
    if severity == "warn" and agree:
        note = f"raised by one level: {_listed([*own, *others])} moved within {WITHIN_STEPS} steps"
        return replace(finding, severity=SEVERITIES[level(severity) + 1]), [note]
    quality = "quality" in own or "quality" in _near(state.watched, step)
    if severity == "critical" and not (finding.hard or agree or quality):
        return replace(finding, severity="warn"), ["kept at warn: no other family moved and quality holds"]
    return finding, []


def joint_finding(state: RunState, rule: Rule, step: int) -> Finding | None:
    """The joint collapse at this step: at least three of five families beyond their limits within 10 steps, quality among them."""
    beyond = _near(state.warned, step)
    if len(beyond) < JOINT_FAMILIES or "quality" not in beyond:
        return None
    parts = parts_of(state, step)
    if not parts:
        return None
    together: dict[int, list[str]] = {}
    for family, onset in families_in_order(parts):
        together.setdefault(onset, []).append(family)
    story = ", then ".join(f"{_listed(names)} (step {onset})" for onset, names in together.items())
    summary = f"{len(beyond)} of {len(FAMILIES)} families left their limits within {WITHIN_STEPS} steps: {story}."
    first = parts[0]
    evidence = tuple(row for case in parts for row in _evidence(case))
    return Finding(rule.name, "critical", first.onset_step, summary, first.metric, None, evidence[:10], (), hard=True)


def parts_of(state: RunState, step: int, joint: Case | None = None) -> list[Case]:
    """Cases that a joint collapse at this step is made of, in order of onset: at warn, of the five families, still near."""
    cases = [
        case
        for case in state.cases
        if case.family in FAMILIES
        and case.first_at("warn") is not None
        and (case.status == "open" or 0 <= step - case.last_step < WITHIN_STEPS)
        and case.absorbed_by in (None, joint.id if joint else None)
    ]
    return sorted(cases, key=lambda case: (case.onset_step, case.first_step))


def absorb(state: RunState, joint: Case, step: int) -> list[Case]:
    """Puts the parts under the joint case and lists them in order of onset; the cases that were not under it before."""
    new = [case for case in parts_of(state, step, joint) if case.absorbed_by is None]
    for case in new:
        case.absorbed_by = joint.id
    parts = sorted((case for case in state.cases if case.absorbed_by == joint.id), key=lambda c: (c.onset_step, c.first_step))
    joint.absorbed = [
        {"symptom": case.symptom, "onset_step": case.onset_step, "detected_step": case.first_at("warn"), "slice": case.slice,
         "metric": case.metric, "severity": case.severity, "incident_id": case.id}
        for case in parts
    ]  # fmt: skip
    if parts:
        joint.onset_step = max(joint.floor_step, min(joint.onset_step, parts[0].onset_step))
    return new


def still_down(state: RunState, attempt: int, step: int) -> Case | None:
    """The joint collapse whose effect on quality is still open: it has not recovered, and lasts until this step."""
    joint = next((case for case in state.open_cases() if case.family == JOINT), None)
    if joint is None or not any(case.absorbed_by == joint.id and "quality" in case.families for case in state.open_cases()):
        return None
    joint.last_step, joint.last_attempt, joint.quiet_points = step, attempt, 0
    return joint


def families_in_order(cases: Sequence[Case]) -> list[tuple[str, int]]:
    """Each family with its earliest onset, in order of onset."""
    first: dict[str, int] = {}
    for family, onset in (pair for case in cases for pair in case.families.items()):
        first[family] = min(first.get(family, onset), onset)
    return sorted(first.items(), key=lambda item: (item[1], FAMILIES.index(item[0]) if item[0] in FAMILIES else len(FAMILIES)))


def leaders(state: RunState, case: Case) -> list[Case]:
    """The cases whose explanations an effect borrows: those of the family that moved first, in order of onset.

    For a joint collapse these are among its parts; for a reward drop, cases of the other families that began before it
    or within 10 steps of it (not those of groups: equal rewards in a group follow from the rewards). Where no family
    leads by more than 5 steps, all that moved with the first one.
    """
    if case.absorbed:
        inside = {part["incident_id"] for part in case.absorbed}
        candidates = [other for other in state.cases if other.id in inside]
    else:
        candidates = [other for other in state.cases if other is not case and _precedes(other, case)]
    order = families_in_order(candidates)
    if not order:
        return []
    first = order[0][1]
    lead = {family for family, onset in order if onset <= first + CLEAR_LEAD_STEPS}
    return sorted((c for c in candidates if lead & c.families.keys()), key=lambda c: (c.onset_step, c.first_step))


def _precedes(other: Case, case: Case) -> bool:
    return (
        other.family not in ("quality", "groups", JOINT)
        and level(other.severity) >= level("watch")
        and case.onset_step - LOOK_BACK_STEPS <= other.onset_step <= case.onset_step + WITHIN_STEPS
        and other.last_step >= case.onset_step - WITHIN_STEPS
    )


def _families(rule: Rule, finding: Finding) -> list[str]:
    """Those of the five that the finding counts for."""
    return [family for family, _ in finding.families or ((rule.family, 0),) if family in FAMILIES]


def _near(seen: dict[str, int], step: int) -> set[str]:
    return {family for family, at in seen.items() if 0 <= step - at < WITHIN_STEPS}


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]


def _evidence(case: Case) -> list[Evidence]:
    return list(finding_of(case).evidence[:2])
