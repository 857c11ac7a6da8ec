"""Judging one step of one run: every rule, then what they say together, then the explanations of what changed."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from server.engine import cases, compose, needs
from server.engine.assess import Question, assess
from server.engine.ruleset import JOINT, RuleSet
from server.engine.state import Case, RunState, finding_of
from server.queries.view import Event, Position, RunData, RunView
from server.rules.base import Finding, Rule

__all__ = ["BORROWING", "Happened", "Judge", "RuleFailed", "RuleSet"]

_log = logging.getLogger(__name__)

SETTLED_STEPS = 20
"""So far behind its onset an open case is explained anew with what the run has logged since. Later, the 50 points that checks
take for the past would lie behind the onset themselves, and nothing would seem to have moved."""

BORROWING = frozenset({"reward-drop"})
"""Symptoms that are effects: they list the hypotheses of the family that moved first (contracts). So does a joint collapse."""


class RuleFailed(Exception):
    """A rule stopped with an error; raised in strict mode only."""


@dataclass(frozen=True)
class Happened:
    """A case that changed at a step, with what became of it."""

    case: Case
    what: str
    """opened, raised, recovered, absorbed, or continued (nothing that is news)."""


class Judge:
    """Judges steps of one run, in order. A step gives the same result whatever lies behind it in the data."""

    def __init__(self, state: RunState, data: RunData, rules: RuleSet) -> None:
        self.state, self.data, self.rules = state, data, rules
        self._ready: dict[tuple[str, int], bool] = {}

    def judge(self, place: Position) -> list[Happened]:
        """Judges the step at that place and moves the state there."""
        with _unworried():
            return self._judge(place)

    def _judge(self, place: Position) -> list[Happened]:
        attempt, step = place
        happened: list[Happened] = []
        if self.state.judged is not None and attempt != self.state.judged[0]:
            happened += [Happened(case, "recovered") for case in cases.leave_branch(self.state, step)]
        happened += [Happened(case, "recovered") for case in cases.switched_off(self.state, self.rules.off)]
        view = RunView(self.data, attempt, step)
        spoken, quiet = self._findings(view)
        compose.remember(self.state, spoken, step)
        happened += self._file(view, spoken, quiet)
        happened += self._joint(view)
        self.state.judged = place
        for item in happened:
            if item.what in ("opened", "raised"):
                self.explain(item.case, step)
            elif item.what == "recovered":
                self.explain(item.case, item.case.last_step)
        return happened + self._settle(attempt, step)

    def _settle(self, attempt: int, step: int) -> list[Happened]:
        """Open cases whose cause can be told better by now are explained once more."""
        due = [case for case in self.unsettled(attempt) if settles_at(case) <= step]
        for case in due:
            self.explain(case, step)
        return [Happened(case, "continued") for case in due]

    def unsettled(self, attempt: int) -> list[Case]:
        """Open cases of the attempt that were explained for the last time before enough steps had followed their onset."""
        return [
            c
            for c in self.state.open_cases()
            if c.last_attempt == attempt and (c.explained_step is None or c.explained_step < settles_at(c))
        ]

    def by_clock(self, rule: Rule, view: RunView, finding: Finding) -> Case:
        """Files and explains a finding that time brought and no step."""
        case, _ = cases.take(self.state, rule, view, finding)
        self.explain(case, view.step)
        return case

    def view(self, rule: Rule, attempt: int, step: int) -> RunView:
        """The run as the rule sees it at a step."""
        return RunView(self.data, attempt, step, self.rules.params[rule.code])

    def _findings(self, view: RunView) -> tuple[list[tuple[Rule, Finding]], list[Rule]]:
        """What the rules say at the step, and the rules that ran through and said nothing."""
        spoken: list[tuple[Rule, Finding]] = []
        quiet: list[Rule] = []
        for rule in self.rules.single:
            if not self._can_judge(rule, view):
                continue
            found = self._evaluate(rule, self.view(rule, view.attempt, view.step))
            if found is None:
                continue
            quiet.append(rule)
            spoken += [(rule, finding) for finding in cases.merged(found)]
        return spoken, quiet

    def _can_judge(self, rule: Rule, view: RunView) -> bool:
        key = (rule.code, view.attempt)
        if not self._ready.get(key, False):
            self._ready[key] = not needs.missing(rule, view)
        return self._ready[key]

    def _evaluate(self, rule: Rule, view: RunView) -> list[Finding] | None:
        try:
            return list(rule.evaluate(view))
        except Exception as error:
            if self.rules.strict:
                raise RuleFailed(f"rule {rule.code} ({rule.name}) at step {view.step}: {error!r}") from error
            if rule.code not in self.state.failures:
                _log.exception("rule %s failed on run %s at step %s", rule.code, view.run.run_id, view.step)
                self.state.failures[rule.code] = f"the rule stopped with an error at step {view.step}: {error!r}"
            return None

    def _file(self, view: RunView, spoken: Sequence[tuple[Rule, Finding]], ran: Sequence[Rule]) -> list[Happened]:
        happened: list[Happened] = []
        heard: set[tuple[str, str, str | None]] = set()
        for rule, raw in spoken:
            finding, notes = compose.weighed(self.state, rule, raw, view.step)
            case, what = cases.take(self.state, rule, view, finding, [*notes, *_planned(view.planned)])
            if what in ("opened", "raised"):
                self._stamp(case)
            heard.add(case.key)
            happened.append(Happened(case, "continued" if what == "reopened" else what))
        for rule in ran:
            happened += self._quiet(rule, view, heard)
        return happened

    def _quiet(self, rule: Rule, view: RunView, heard: Iterable[tuple[str, str, str | None]]) -> list[Happened]:
        silent = [case for case in self._newest_of(rule) if case.key not in heard and _counts(case)]
        if not silent or not (rule.family == JOINT or needs.has_point(rule, view)):
            return []
        return [Happened(case, "recovered" if cases.be_quiet(case, rule.hold_points) else "continued") for case in silent]

    def _newest_of(self, rule: Rule) -> list[Case]:
        newest = {case.key: case for case in self.state.cases if case.rule_code == rule.code}
        return list(newest.values())

    def _joint(self, view: RunView) -> list[Happened]:
        rule = self.rules.joint
        if rule is None:
            return []
        finding = compose.joint_finding(self.state, rule, view.step)
        if finding is None:
            lasting = compose.still_down(self.state, view.attempt, view.step)
            happened = self._quiet(rule, view, ()) if lasting is None else [Happened(lasting, "continued")]
        else:
            case, what = cases.take(self.state, rule, view, finding, _planned(view.planned))
            if what in ("opened", "raised"):
                self._stamp(case)
            happened = [Happened(case, "continued" if what == "reopened" else what)]
        for case in self.state.open_cases():
            if case.family == JOINT:
                new = compose.absorb(self.state, case, view.step)
                happened += [Happened(part, "absorbed") for part in new]
                if new and case not in [h.case for h in happened if h.what in ("opened", "raised")]:
                    self.explain(case, view.step)
        return happened

    def _stamp(self, case: Case) -> None:
        """Says with which parameters and status the rule found what the case tells now."""
        case.changed, case.rule_status = self.rules.moved(case.rule_code), self.rules.status(case.rule_code)

    def explain(self, case: Case, step: int) -> None:
        """Runs the checks of a case as the run stood at a step, and ranks its explanations."""
        if not self.rules.explains:
            return
        joint = case.family == JOINT
        leading = compose.leaders(self.state, case) if joint or case.symptom in BORROWING else []
        sources = [*leading, case]
        questions: dict[str, Question] = {}
        for source in sources:
            rule = self.rules.by_code[source.rule_code]
            view, finding = self.view(rule, case.last_attempt, step), finding_of(source)
            for hypothesis in rule.hypotheses:
                questions.setdefault(hypothesis.id, Question(hypothesis, view, finding))
        with _unworried():
            case.hypotheses = assess(list(questions.values()), strict=self.rules.strict)
        case.explained_step = step
        checks = (check for source in (*sources, case) for check in self.rules.by_code[source.rule_code].next_checks)
        case.next_checks = list(dict.fromkeys(checks))


def _unworried() -> np.errstate:
    # A trainer may log 1e300: what overflows in a square is infinite, and no reason to stop.
    return np.errstate(over="ignore", invalid="ignore", divide="ignore")


def settles_at(case: Case) -> int:
    """The step from which on the explanations of a case are final unless it gets graver."""
    return max(case.detected_step, case.onset_step + SETTLED_STEPS)


def _counts(case: Case) -> bool:
    return case.status == "open" or case.closed_points < cases.COOL_DOWN_POINTS


def _planned(event: Event | None) -> list[str]:
    return [] if event is None else [f"baselines begin at step {event.step} ({event.kind}: {event.text})"]
