"""The explanations of one incident, tested once more with a second run to compare with. Nothing of it is stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ingest.errors import RLVitalsError
from ingest.store.connection import Store
from server.checks.base import SECOND_RUN
from server.control.incidents import Incident, judged
from server.control.models import Control
from server.engine.judge import Judge
from server.engine.replay import in_memory, judge_all
from server.engine.ruleset import RuleSet
from server.engine.settings import changed_rules
from server.engine.state import Case, RunState
from server.engine.steps import registered
from server.queries.runs import RunSummary, run_summary
from server.queries.view import RunData, RunFacts


class NoSecondRun(RLVitalsError):
    """A run that cannot be compared with, or an incident that cannot be explained again; the message says why."""


class UnknownSecondRun(NoSecondRun):
    """There is no run of that id."""


@dataclass(frozen=True)
class Explained:
    """The hypotheses of an incident in the form of `diagnose --json`, best first, both runs seen up to `step`."""

    second: RunFacts
    step: int
    hypotheses: Sequence[Mapping[str, Any]]


def wants_second_run(hypotheses: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a check of these hypotheses could not be computed because no second run was chosen."""
    return any(SECOND_RUN in (check.get("missing") or ()) for hypothesis in hypotheses for check in hypothesis.get("checks") or ())


def second_run(store: Store, run_id: str, baseline: str) -> RunSummary:
    """The run that an incident of `run_id` is to be compared with; cheap, no row is read.

    Raises:
        NoSecondRun: it is the same run, or holds no step yet. UnknownSecondRun: there is none of that id.
    """
    found = run_summary(store, baseline)
    if found is None:
        raise UnknownSecondRun(f"There is no run {baseline} to compare with.")
    if baseline == run_id:
        raise NoSecondRun(f"{found.name} is the run of this incident itself: it cannot be compared with itself.")
    if found.newest_step is None:
        raise NoSecondRun(f"The run {found.name} holds no step yet, so there is nothing to compare with.")
    return found


def explain_with(store: Store, control: Control, incident: Incident, baseline: str) -> Explained:
    """Runs the checks of an incident as `rlvitals diagnose --baseline` does, at the step of its last explanation.

    Reads both runs whole: about a second of computing for two runs of a few hundred steps with rollouts.

    Raises:
        NoSecondRun: see second_run(); or the incident is no longer found by the rules as they are now.
    """
    second_run(store, incident.run_id, baseline)
    run = run_summary(store, incident.run_id)
    if run is None:
        raise NoSecondRun(f"The run {incident.run_id} of this incident is not in the store any more.")
    # The state first: the rows read after it then reach at least as far.
    with control.session(write=False) as session:
        found = judged(session, run.run_id)
        rules = RuleSet(registered(), changed=changed_rules(session, run.run_id, run.project))
    state = RunState.from_json(run.run_id, (found.state or {}).get("engine") if found is not None else None)
    data, second = in_memory(store, run.run_id), in_memory(store, baseline)
    data.second = second
    case = next((case for case in state.cases if case.id == incident.id), None)
    if case is None:  # the engine forgets a case long after it recovered
        case = next((case for case in judge_all(data, None, rules).cases if case.id == incident.id), None)
    elif case.rule_code in rules.by_code:
        _explain(state, case, data, rules)
    if case is None or case.rule_code not in rules.by_code:
        reason = f"The rules as they are now do not find this incident any more (it is of rule {incident.rule_code}, version"
        raise NoSecondRun(f"{reason} {incident.rule_version}), so its explanations cannot be tested again.")
    return Explained(second.run, _step(case), case.hypotheses)


def _explain(state: RunState, case: Case, data: RunData, rules: RuleSet) -> None:
    # What the run did later must not lead the explanations of what it did before.
    place = case.last_attempt, _step(case)
    known = [other for other in state.cases if other.rule_code in rules.by_code]
    state.cases = [other for other in known if other is case or (other.attempt, other.first_step) <= place]
    Judge(state, data, rules).explain(case, _step(case))


def _step(case: Case) -> int:
    return case.last_step if case.explained_step is None else case.explained_step
