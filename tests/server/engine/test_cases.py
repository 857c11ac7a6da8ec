"""The state machine of one rule and slice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from server.engine.state import RunState
from server.queries.view import Event, RunView
from server.rules.base import Finding


def test_a_finding_opens_an_incident_at_its_severity_and_step(make_run: Any, judge: Any, level: Any, only: Any) -> None:
    case = only(judge(make_run({"m": [0, 0, 2, 2]}), level("spike", "m")))
    assert (case.severity, case.onset_step, case.detected_step, case.last_step, case.status) == ("warn", 3, 3, 4, "open")
    assert case.steps_by_severity == {"warn": 3}


def test_each_severity_is_recorded_with_its_first_step_and_a_fall_is_not_recorded(make_run: Any, judge: Any, level: Any, only: Any) -> None:
    rule = level("spike", "m", watch=1, warn=2, critical=3, hard=True)
    case = only(judge(make_run({"m": [0, 1.5, 1.5, 2.5, 1.5, 3.5, 3.5, 2.5]}), rule))
    assert case.steps_by_severity == {"watch": 2, "warn": 4, "critical": 6}
    assert (case.severity, case.detected_step, case.onset_step, case.last_step) == ("critical", 6, 2, 8)
    assert case.summary == "m is 3.5"


def test_it_recovers_after_hold_points_without_a_finding_and_keeps_its_history(make_run: Any, judge: Any, level: Any, only: Any) -> None:
    values = [0, 2, 0, 0, 2, 0, 0, 0, 0]
    case = only(judge(make_run({"m": values}), level("spike", "m", hold_points=3)))
    assert (case.status, case.detected_step, case.last_step, case.closed_points) == ("recovered", 2, 5, 1)


def test_two_quiet_points_do_not_close_an_incident_that_holds_three(make_run: Any, judge: Any, level: Any, only: Any) -> None:
    assert only(judge(make_run({"m": [0, 2, 0, 0]}), level("spike", "m", hold_points=3))).status == "open"


def test_steps_without_a_point_of_the_rule_do_not_count_as_quiet(make_run: Any, judge: Any, level: Any, only: Any) -> None:
    series = {"m": {1: 0, 2: 2, 12: 0}, "other": dict.fromkeys(range(1, 20), 0.0)}
    case = only(judge(make_run(series), level("spike", "m", hold_points=2)))
    assert (case.status, case.quiet_points) == ("open", 1)


def test_within_the_cool_down_a_new_finding_continues_the_same_incident_without_news(make_run: Any, step_by_step: Any, level: Any) -> None:
    values = [0, 2, 0, 0, 0, 2, 2]
    news = {
        step: [(m.opened, m.raised, m.recovered) for m in moves] for step, moves in step_by_step(make_run({"m": values}), level("s", "m"))
    }
    assert news[2] == [(True, False, False)]
    assert news[5] == [(False, False, True)]
    assert news[6] == news[7] == [(False, False, False)]


def test_within_the_cool_down_a_higher_severity_is_news(make_run: Any, judge: Any, step_by_step: Any, level: Any, only: Any) -> None:
    data = make_run({"m": [0, 2, 0, 0, 0, 5]})
    rule = level("s", "m", critical=4, hard=True)
    assert [m.raised for _, moves in step_by_step(data, rule) for m in moves][-1]
    assert only(judge(data, rule)).steps_by_severity == {"warn": 2, "critical": 6}


def test_after_the_cool_down_a_finding_opens_a_second_incident_behind_the_first(make_run: Any, judge: Any, level: Any) -> None:
    state = judge(make_run({"m": [0, 2, *[0] * 24, 2]}), level("s", "m", hold_points=3))
    assert [(c.detected_step, c.status) for c in state.cases] == [(2, "recovered"), (27, "open")]
    assert state.cases[0].id != state.cases[1].id


def test_the_last_quiet_point_of_the_cool_down_decides(make_run: Any, judge: Any, level: Any) -> None:
    quiet = 3 + 20
    assert len(judge(make_run({"m": [2, *[0] * (quiet - 1), 2]}), level("s", "m", hold_points=3)).cases) == 1
    assert len(judge(make_run({"m": [2, *[0] * quiet, 2]}), level("s", "m", hold_points=3)).cases) == 2


@dataclass(frozen=True)
class Told:
    """Says at each step what it was told to say: {step: findings}."""

    says: Mapping[int, Sequence[Finding]]
    code: str = "T-told"
    name: str = "spike"
    family: str = "groups"
    status: str = "stable"
    version: int = 1
    needs: tuple[tuple[str, ...], ...] = (("m",),)
    params: tuple[()] = ()
    hold_points: int = 3
    hypotheses: tuple[()] = ()
    next_checks: tuple[()] = ()

    def evaluate(self, view: RunView) -> Sequence[Finding]:
        return self.says.get(view.step, ())


def test_the_earliest_onset_is_kept(make_run: Any, judge: Any, only: Any) -> None:
    says = {5: [Finding("spike", "warn", 4, "")], 6: [Finding("spike", "warn", 2, "")], 7: [Finding("spike", "warn", 7, "")]}
    assert only(judge(make_run({"m": [0.0] * 7}), Told(says))).onset_step == 2


def test_an_onset_behind_the_judged_step_is_drawn_back_to_it(make_run: Any, judge: Any, only: Any) -> None:
    assert only(judge(make_run({"m": [0.0] * 5}), Told({3: [Finding("spike", "warn", 9, "")]}))).onset_step == 3


def test_a_second_incident_never_begins_before_the_end_of_the_first(make_run: Any, judge: Any) -> None:
    says = {2: [Finding("spike", "warn", 1, "")], 40: [Finding("spike", "warn", 1, "")], 41: [Finding("spike", "warn", 1, "")]}
    state = judge(make_run({"m": [0.0] * 41}), Told(says))
    assert [c.onset_step for c in state.cases] == [1, 3]


def test_slices_are_incidents_of_their_own(make_run: Any, judge: Any) -> None:
    says = {2: [Finding("spike", "warn", 2, "", slice="task=copy"), Finding("spike", "watch", 1, "", slice="task=sort")]}
    state = judge(make_run({"m": [0.0] * 3}), Told(says))
    assert [(c.slice, c.severity, c.onset_step) for c in state.cases] == [("task=copy", "warn", 2), ("task=sort", "watch", 1)]


def test_findings_of_one_step_and_slice_are_one_incident_of_the_highest_severity(make_run: Any, judge: Any, only: Any) -> None:
    says = {2: [Finding("spike", "watch", 1, "loss", "loss.policy"), Finding("spike", "warn", 2, "gradient", "grad.norm")]}
    case = only(judge(make_run({"m": [0.0] * 2}), Told(says)))
    assert (case.metric, case.severity, case.onset_step, case.steps_by_severity) == ("grad.norm", "warn", 2, {"warn": 2})


def test_numbers_that_json_does_not_have_are_named_in_the_note(make_run: Any, judge: Any, only: Any) -> None:
    from server.rules.base import Evidence

    finding = Finding("spike", "warn", 2, "", evidence=(Evidence("loss.policy", 0.1, float("nan"), note="first"),))
    row = only(judge(make_run({"m": [0.0] * 2}), Told({2: [finding]}))).finding["evidence"][0]
    assert (row["before"], row["after"], row["note"]) == (0.1, None, "first; after nan")


def test_a_state_that_was_stored_and_read_back_is_the_same(make_run: Any, judge: Any, level: Any) -> None:
    import json

    state = judge(make_run({"m": [0, 2, 0, 0, 0, 0, 3]}), level("s", "m"))
    assert RunState.from_json(state.run_id, json.loads(json.dumps(state.to_json()))) == state


def test_a_case_that_was_stored_before_findings_named_families_has_that_of_its_rule(make_run: Any, judge: Any, level: Any) -> None:
    stored = judge(make_run({"m": [0, 2, 0, 0, 0, 0, 3]}), level("s", "m")).to_json()
    families = [case.pop("families") for case in stored["cases"]]
    assert [case.families for case in RunState.from_json("r", stored).cases] == families


def test_a_state_of_another_format_is_not_trusted() -> None:
    assert RunState.from_json("r", {"format": 99, "judged": [1, 2]}) == RunState("r")


def test_a_later_attempt_closes_what_began_on_steps_that_no_longer_count(make_run: Any, judge: Any, level: Any) -> None:
    first = {step: 2.0 if step >= 8 else 0.0 for step in range(1, 11)}
    data = make_run({"m": first}, second={"m": dict.fromkeys(range(6, 9), 0.0)})
    case = judge(data, level("s", "m", hold_points=9)).cases[0]
    assert (case.status, case.onset_step, case.attempt) == ("recovered", 8, 1)
    assert case.notes == ["a later attempt started at step 6, before this began"]


def test_what_began_before_a_later_attempt_goes_on_in_it(make_run: Any, judge: Any, level: Any, only: Any) -> None:
    first = {step: 2.0 if step >= 3 else 0.0 for step in range(1, 11)}
    data = make_run({"m": first}, second={"m": dict.fromkeys(range(6, 9), 2.0)})
    case = only(judge(data, level("s", "m")))
    assert (case.status, case.onset_step, case.last_step, case.last_attempt) == ("open", 3, 8, 2)


def test_the_same_fault_in_a_later_attempt_is_an_incident_of_that_attempt(make_run: Any, judge: Any, level: Any) -> None:
    first = {step: 2.0 if step >= 8 else 0.0 for step in range(1, 11)}
    second = {step: 2.0 if step >= 8 else 0.0 for step in range(6, 11)}
    state = judge(make_run({"m": first}, second={"m": second}), level("s", "m"))
    assert [(c.attempt, c.onset_step, c.status) for c in state.cases] == [(1, 8, "recovered"), (2, 8, "open")]


@pytest.mark.parametrize("kind", ["resume", "curriculum", "config"])
def test_a_planned_event_restarts_the_baseline_and_is_told_in_the_incident(
    kind: Any, make_run: Any, judge: Any, level: Any, only: Any
) -> None:
    data = make_run({"m": [0, 0, 0, 0, 2]}, events=[Event(1, 3, kind, "planned so"), Event(1, 4, "checkpoint", "saved")])
    views = {step: RunView(data, 1, step) for step in (2, 3, 5)}
    assert views[2].planned is None and views[2].baseline_start < 0
    assert views[3].baseline_start == views[5].baseline_start == 3
    assert only(judge(data, level("s", "m"))).notes == [f"baselines begin at step 3 ({kind}: planned so)"]


def test_a_curriculum_step_of_the_configuration_is_known_only_once_it_is_reached(make_run: Any) -> None:
    config = {"planned_events": [{"step": 4, "kind": "curriculum", "text": "harder tasks"}]}
    data = make_run({"m": [0.0] * 6}, config=config)
    assert [RunView(data, 1, step).planned for step in (3, 4)] == [None, Event(1, 4, "curriculum", "harder tasks")]


def test_an_event_of_steps_that_a_later_attempt_replaced_restarts_no_baseline(make_run: Any) -> None:
    data = make_run({"m": [0.0] * 10}, second={"m": dict.fromkeys(range(6, 12), 0.0)}, events=[Event(1, 8, "config", "changed")])
    assert RunView(data, 1, 9).baseline_start == 8
    assert RunView(data, 2, 9).baseline_start == 6


def test_the_onset_is_a_number_that_json_can_write(make_run: Any, judge: Any, only: Any) -> None:
    import json

    import numpy as np

    case = only(judge(make_run({"m": [0.0] * 3}), Told({3: [Finding("spike", "warn", np.int64(2), "")]})))  # type: ignore[arg-type]
    assert json.loads(json.dumps(case.onset_step)) == 2
