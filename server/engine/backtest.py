"""What rules would have raised on runs that are known, as they are and with other parameters.

Counts as the labelled runs are scored: an incident counts from the first step at which it was at the severity asked for;
on a healthy run every one is a false alarm, on a faulty one every one before the onset, unless its symptom is known to be
true of the run. The parts of a joint collapse count for their own rules.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

from ingest.errors import RLVitalsError
from server.engine.judge import Judge
from server.engine.ruleset import Changed, RuleSet
from server.engine.state import Case, RunState
from server.queries.view import RunData
from server.rules.base import SEVERITIES, Finding, Rule

SAME_STEPS = 20
"""Incidents of one rule whose stretches lie at most so far apart are the same one, seen with other parameters."""

Stop: TypeAlias = Callable[[], bool]


class Stopped(Exception):
    """The backtest was cancelled."""


@dataclass(frozen=True)
class Label:
    """What is known of a run. onset None: it is healthy. fine: symptoms that are true of it and no false alarm."""

    origin: Literal["label", "feedback"]
    onset: int | None = None
    fine: frozenset[str] = frozenset()
    steps: tuple[int, int] | None = None
    """First and last step by the label; None: those of the run."""


@dataclass(frozen=True)
class Subject:
    """A run to be replayed. changed: what people set for the rules on this run, by rule code."""

    data: RunData
    label: Label | None = None
    changed: Mapping[str, Changed] = field(default_factory=dict)


@dataclass(frozen=True)
class Raised:
    """An incident at the severity asked for or above. step: the first at which it was. false_alarm None: nothing is known."""

    rule: str
    symptom: str
    slice: str | None
    severity: str
    attempt: int
    onset_step: int
    step: int
    last_step: int
    false_alarm: bool | None

    def to_json(self) -> dict[str, Any]:
        """As `backtest --json` shows it."""
        return {
            "rule": self.rule, "symptom": self.symptom, "slice": self.slice, "severity": self.severity, "attempt": self.attempt,
            "onset_step": self.onset_step, "raised_step": self.step, "last_step": self.last_step, "false_alarm": self.false_alarm,
        }  # fmt: skip


@dataclass(frozen=True)
class RunResult:
    """One run replayed. quiet_steps: steps at which nothing was wrong; None: nothing is known about the run.

    levels: incidents of each rule by the highest severity reached, those below the severity asked for too.
    """

    run_id: str
    name: str
    steps: tuple[int, int] | None
    label: str | None
    quiet_steps: int | None
    raised: tuple[Raised, ...]
    levels: Mapping[str, Mapping[str, int]]

    @property
    def count(self) -> int:
        """Steps that it spans."""
        return 0 if self.steps is None else self.steps[1] - self.steps[0] + 1


@dataclass(frozen=True)
class Changes:
    """What other parameters change on one run, for all rules. moved: the incident before and after."""

    run_id: str
    name: str
    gained: tuple[Raised, ...]
    lost: tuple[Raised, ...]
    moved: tuple[tuple[Raised, Raised], ...]

    @property
    def any(self) -> bool:
        """Whether anything differs."""
        return bool(self.gained or self.lost or self.moved)


@dataclass
class Backtest:
    """The answer: each run as the rules are, and with the changed parameters where some were given."""

    rules: Sequence[Rule]
    severity: str
    proposed: Mapping[str, Mapping[str, float]]
    """Parameters to try, by rule code and name; empty: none."""
    before: list[RunResult] = field(default_factory=list)
    after: list[RunResult] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)
    """Runs that could not be replayed, with the reason."""

    @property
    def changes(self) -> list[Changes]:
        """The differences on each run that has any."""
        pairs = zip(self.before, self.after, strict=False)
        return [found for found in (differences(old, new) for old, new in pairs) if found.any]


def label_of(folder: Path) -> Label | None:
    """What label.json in a run's folder says; None without one.

    Raises:
        RLVitalsError: the file is no label.
    """
    path = folder / "label.json" if folder.is_dir() else folder.parent / "label.json"
    if not path.is_file():
        return None
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        quiet = bool(told.get("healthy") or told.get("no_visible_effect"))
        fine = frozenset(told.get("also_ok") or ()) | frozenset((told.get("symptoms") or ()) if told.get("no_visible_effect") else ())
        steps = told.get("steps")
        span = None if steps is None else (int(steps["first"]), int(steps["last"]))
        return Label("label", None if quiet else int(told["onset_step"]), fine, span)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise RLVitalsError(f"{path} is no label of a run ({error}); it needs healthy, or onset_step.") from None


def replayed(data: RunData, rules: RuleSet, label: Label | None, severity: str, stop: Stop = lambda: False) -> RunResult:
    """One run judged from its first to its last step.

    Raises:
        Stopped: `stop` said so.
    """
    state = RunState(data.run.run_id)
    judge = Judge(state, data, rules)
    order = data.judge_order()
    for place in order:
        if stop():
            raise Stopped
        judge.judge(place)
    steps = [step for _, step in order]
    span = (min(steps), max(steps)) if steps else None
    raised = tuple(_raised(case, rules, severity, label) for case in state.cases if case.first_at(severity) is not None)
    levels: dict[str, dict[str, int]] = {}
    for case in state.cases:
        of_rule = levels.setdefault(case.rule_code, {})
        of_rule[case.severity] = of_rule.get(case.severity, 0) + 1
    told = None if label is None else label.origin
    in_order = tuple(sorted(raised, key=lambda r: (r.attempt, r.step, r.rule)))
    return RunResult(data.run.run_id, data.run.name, span, told, _quiet_steps(label, span), in_order, levels)


def run_backtest(
    runs: Iterable[Subject],
    rules: Sequence[Rule],
    proposed: Mapping[str, Mapping[str, float]],
    severity: str = "warn",
    *,
    stop: Stop = lambda: False,
    on_run: Callable[[Backtest], None] = lambda _: None,
) -> Backtest:
    """Replays rules over runs that are handed over one at a time, so that no more than one is in memory.

    proposed: parameters to try, by rule code. on_run is called after each run. Only what the given rules say is
    seen: where rules are left out, no other family raises or holds back their severities.

    Raises:
        Stopped: `stop` said so.
    """
    done = Backtest(rules, severity, proposed)
    for subject in runs:
        remembered = [rule if rule.code in proposed else cast(Rule, _Remembered(rule)) for rule in rules] if proposed else rules
        old = RuleSet(remembered, changed=subject.changed, explains=False)
        done.before.append(replayed(subject.data, old, subject.label, severity, stop))
        if proposed:
            new = RuleSet(remembered, changed=subject.changed, explains=False)
            for code, values in proposed.items():
                new.params[code] = new.params[code] | dict(values)
            done.after.append(replayed(subject.data, new, subject.label, severity, stop))
        del subject  # the next run is read before the loop would let go of this one
        on_run(done)
    return done


class _Remembered:
    """A rule whose parameters stay as they are: the second replay of a run takes its findings from the first."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._found: dict[tuple[int, int], tuple[Finding, ...]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rule, name)

    def evaluate(self, view: Any) -> Sequence[Finding]:
        """The rule's findings at the step."""
        place = (view.attempt, view.step)
        if place not in self._found:
            self._found[place] = tuple(self._rule.evaluate(view))
        return self._found[place]


def differences(before: RunResult, after: RunResult) -> Changes:
    """Which incidents other parameters bring, lose and move.

    Incidents are paired by rule, symptom, slice and attempt where their steps overlap or nearly do.
    """
    left = list(after.raised)
    lost: list[Raised] = []
    moved: list[tuple[Raised, Raised]] = []
    for old in before.raised:
        near = [new for new in left if _same(old, new)]
        if not near:
            lost.append(old)
            continue
        new = min(near, key=lambda n: abs(n.step - old.step))
        left.remove(new)
        if (new.step, new.severity) != (old.step, old.severity):
            moved.append((old, new))
    return Changes(before.run_id, before.name, tuple(left), tuple(lost), tuple(moved))


def _same(old: Raised, new: Raised) -> bool:
    if (old.rule, old.symptom, old.slice, old.attempt) != (new.rule, new.symptom, new.slice, new.attempt):
        return False
    starts, ends = (old.onset_step, new.onset_step), (old.last_step, new.last_step)
    return max(starts) <= min(ends) + SAME_STEPS


def _raised(case: Case, rules: RuleSet, severity: str, label: Label | None) -> Raised:
    step = case.first_at(severity)
    assert step is not None
    name = rules.by_code[case.rule_code].name
    false_alarm = None if label is None else (label.onset is None or step < label.onset) and case.symptom not in label.fine
    return Raised(name, case.symptom, case.slice, case.severity, case.attempt, case.onset_step, step, case.last_step, false_alarm)


def _quiet_steps(label: Label | None, span: tuple[int, int] | None) -> int | None:
    if label is None or span is None:
        return None
    first, last = label.steps or span
    return max(0, last - first + 1 if label.onset is None else label.onset - first)


@dataclass(frozen=True)
class RuleRow:
    """One rule over all runs. per_1000: of quiet steps where runs are labelled, else None; raised_per_1000: of all steps."""

    code: str
    name: str
    status: str
    levels: Mapping[str, int]
    runs: int
    """Runs with an incident at the severity or above."""
    raised: int
    steps: int
    quiet_steps: int
    false_alarms: int

    @property
    def false_per_1000(self) -> float | None:
        """False alarms per 1,000 quiet steps; None: no run says what is quiet."""
        return 1000 * self.false_alarms / self.quiet_steps if self.quiet_steps else None

    @property
    def raised_per_1000(self) -> float | None:
        """Incidents per 1,000 steps of any kind; None: no step."""
        return 1000 * self.raised / self.steps if self.steps else None

    def to_json(self) -> dict[str, Any]:
        """As `backtest --json` shows it."""
        return {
            "code": self.code, "name": self.name, "status": self.status, "incidents": dict(self.levels), "runs": self.runs,
            "raised": self.raised, "steps": self.steps, "raised_per_1000_steps": self.raised_per_1000,
            "quiet_steps": self.quiet_steps, "false_alarms": self.false_alarms if self.quiet_steps else None,
            "false_alarms_per_1000_quiet_steps": self.false_per_1000,
        }  # fmt: skip


def table(rules: Sequence[Rule], results: Sequence[RunResult]) -> list[RuleRow]:
    """One row a rule, in the order of decision."""
    rows = []
    steps, quiet = sum(r.count for r in results), sum(r.quiet_steps or 0 for r in results)
    for rule in rules:
        own = [[one for one in result.raised if one.rule == rule.name] for result in results]
        levels: dict[str, int] = {name: sum(result.levels.get(rule.code, {}).get(name, 0) for result in results) for name in SEVERITIES}
        wrong = sum(one.false_alarm is True for some in own for one in some)
        rows.append(RuleRow(rule.code, rule.name, rule.status, levels, sum(map(bool, own)), sum(map(len, own)), steps, quiet, wrong))
    return rows


def backtest_json(done: Backtest) -> dict[str, Any]:
    """The answer of `rlvitals backtest --json`."""
    names = {rule.code: rule.name for rule in done.rules}
    told: dict[str, Any] = {
        "schema": 1,
        "severity": done.severity,
        "runs": [_run_json(result) for result in done.before],
        "failed": [{"run": name, "reason": reason} for name, reason in done.failed],
        "rules": [row.to_json() for row in table(done.rules, done.before)],
        "changed": {names[code]: dict(values) for code, values in done.proposed.items()},
    }
    if done.proposed:
        told["with_changes"] = {
            "runs": [_run_json(result) for result in done.after],
            "rules": [row.to_json() for row in table(done.rules, done.after)],
        }
        told["difference"] = [change_json(change) for change in done.changes]
    return told


def _run_json(result: RunResult) -> dict[str, Any]:
    steps = None if result.steps is None else {"first": result.steps[0], "last": result.steps[1]}
    return {
        "run_id": result.run_id, "name": result.name, "steps": steps, "label": result.label, "quiet_steps": result.quiet_steps,
        "incidents": [one.to_json() for one in result.raised],
    }  # fmt: skip


def change_json(change: Changes) -> dict[str, Any]:
    """The differences on one run; steps: by how many steps later (negative: earlier) an incident is raised."""
    return {
        "run_id": change.run_id,
        "name": change.name,
        "gained": [one.to_json() for one in change.gained],
        "lost": [one.to_json() for one in change.lost],
        "moved": [
            {**new.to_json(), "steps": new.step - old.step, "severity_before": old.severity, "raised_step_before": old.step}
            for old, new in change.moved
        ],
    }
