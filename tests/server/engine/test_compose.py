"""What several rules say together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from server.rules.base import Hypothesis

CALM = [0.0] * 40


def at(*steps: int, value: float = 2.0) -> list[float]:
    return [value if step in steps else 0.0 for step in range(1, 41)]


def from_step(first: int, value: float = 2.0, last: int = 40) -> list[float]:
    return [value if first <= step <= last else 0.0 for step in range(1, 41)]


def by_symptom(state: Any) -> Any:
    return {case.symptom: case for case in state.cases}


@pytest.fixture
def family(level: Any) -> Any:
    """A rule of a family on the metric of the same name."""

    def make(name: Any, **options: Any) -> Any:
        return level(f"{name}-moves", name, family=name, **options)

    return make


def test_a_single_family_stays_at_warn_while_quality_holds(make_run: Any, judge: Any, family: Any, only: Any) -> None:
    case = only(judge(make_run({"shape": from_step(10, 9.0)}), family("shape", critical=5)))
    assert (case.severity, case.steps_by_severity) == ("warn", {"warn": 10})
    assert case.notes == ["kept at warn: no other family moved and quality holds"]


def test_a_finding_that_is_hard_may_be_critical_by_itself(make_run: Any, judge: Any, family: Any, only: Any) -> None:
    assert only(judge(make_run({"shape": from_step(10, 9.0)}), family("shape", critical=5, hard=True))).severity == "critical"


def test_a_watch_of_quality_lets_another_family_be_critical(make_run: Any, judge: Any, family: Any) -> None:
    state = judge(
        make_run({"shape": from_step(10, 9.0), "quality": from_step(15)}), family("shape", critical=5), family("quality", watch=1, warn=99)
    )
    assert by_symptom(state)["shape-moves"].steps_by_severity == {"warn": 10, "critical": 15}
    assert by_symptom(state)["quality-moves"].severity == "watch"


def test_two_families_that_warn_within_ten_steps_raise_each_other(make_run: Any, judge: Any, family: Any) -> None:
    state = judge(make_run({"shape": at(10), "engine": at(19)}), family("shape"), family("engine"))
    assert by_symptom(state)["engine-moves"].steps_by_severity == {"critical": 19}
    assert by_symptom(state)["engine-moves"].notes == ["raised by one level: engine and shape moved within 10 steps"]
    assert by_symptom(state)["shape-moves"].severity == "warn"


def test_two_families_more_than_ten_steps_apart_do_not(make_run: Any, judge: Any, family: Any) -> None:
    state = judge(make_run({"shape": at(10), "engine": at(20)}), family("shape"), family("engine"))
    assert {case.severity for case in state.cases} == {"warn"}


def test_two_rules_of_one_family_do_not_raise_each_other(make_run: Any, judge: Any, level: Any) -> None:
    rules = [level(name, name, family="shape") for name in ("length-growth", "truncation")]
    state = judge(make_run({"length-growth": from_step(10), "truncation": from_step(10)}), *rules)
    assert {case.severity for case in state.cases} == {"warn"}


def test_a_family_outside_the_five_neither_raises_nor_is_raised(make_run: Any, judge: Any, family: Any) -> None:
    state = judge(make_run({"verifier": from_step(10), "shape": from_step(10)}), family("verifier"), family("shape"))
    assert {case.severity for case in state.cases} == {"warn"}


def collapse(make_run: Any, judge: Any, family: Any, joint: Any, engine: Any = 10, shape: Any = 13, quality: Any = 18, **more: Any) -> Any:
    series = {"engine": from_step(engine), "shape": from_step(shape), "quality": from_step(quality)}
    return judge(make_run({**series, **more}), family("engine"), family("shape"), family("quality"), joint)


def test_three_families_with_quality_are_a_joint_collapse_that_absorbs_them_in_order_of_onset(
    make_run: Any, judge: Any, family: Any, joint: Any
) -> None:
    state = collapse(make_run, judge, family, joint)
    case = by_symptom(state)["joint-collapse"]
    assert (case.severity, case.onset_step, case.steps_by_severity) == ("critical", 10, {"critical": 18})
    told = [(part["symptom"], part["onset_step"], part["detected_step"]) for part in case.absorbed]
    assert told == [("engine-moves", 10, 10), ("shape-moves", 13, 13), ("quality-moves", 18, 18)]
    assert {part.absorbed_by for part in state.cases if part is not case} == {case.id}
    assert (
        case.summary == "3 of 5 families left their limits within 10 steps: engine (step 10), then shape (step 13), then quality (step 18)."
    )


def test_without_quality_nothing_collapses_jointly(make_run: Any, judge: Any, family: Any, joint: Any) -> None:
    series = {name: from_step(10) for name in ("engine", "shape", "optimiser", "distribution")}
    state = judge(make_run(series), *(family(name) for name in series), joint)
    assert "joint-collapse" not in by_symptom(state)


def test_two_families_with_quality_are_no_joint_collapse(make_run: Any, judge: Any, family: Any, joint: Any) -> None:
    state = judge(make_run({"engine": from_step(10), "quality": from_step(12)}), family("engine"), family("quality"), joint)
    assert "joint-collapse" not in by_symptom(state)


def test_a_watch_is_no_part_of_a_joint_collapse(make_run: Any, judge: Any, family: Any, joint: Any) -> None:
    series = {"engine": from_step(10), "shape": from_step(10), "quality": from_step(10)}
    state = judge(make_run(series), family("engine", watch=1, warn=9), family("shape"), family("quality"), joint)
    assert "joint-collapse" not in by_symptom(state)


def test_families_that_moved_and_settled_long_before_do_not_count(make_run: Any, judge: Any, family: Any, joint: Any) -> None:
    series = {"engine": from_step(1, last=5), "shape": from_step(20), "quality": from_step(20)}
    assert "joint-collapse" not in by_symptom(judge(make_run(series), *(family(name) for name in series), joint))


def test_what_moves_later_joins_the_joint_collapse(make_run: Any, judge: Any, family: Any, joint: Any) -> None:
    series = {"engine": from_step(10), "shape": from_step(13), "quality": from_step(18), "optimiser": from_step(25)}
    state = judge(make_run(series), *(family(name) for name in series), joint)
    assert [part["symptom"] for part in by_symptom(state)["joint-collapse"].absorbed][-1] == "optimiser-moves"
    assert len([c for c in state.cases if c.symptom == "joint-collapse"]) == 1


def test_a_joint_collapse_recovers_when_its_families_are_back(make_run: Any, judge: Any, family: Any, joint: Any) -> None:
    series = {name: from_step(10, last=14) for name in ("engine", "shape", "quality")}
    case = by_symptom(judge(make_run(series), *(family(name) for name in series), joint))["joint-collapse"]
    assert case.status == "recovered"


def test_a_joint_collapse_lasts_while_quality_stays_down(make_run: Any, judge: Any, family: Any, joint: Any) -> None:
    series = {"engine": from_step(10, last=14), "shape": from_step(10, last=14), "quality": from_step(10)}
    case = by_symptom(judge(make_run(series), *(family(name) for name in series), joint))["joint-collapse"]
    assert (case.status, case.last_step) == ("open", 40)


def test_one_finding_may_show_two_families_each_with_its_own_onset(make_run: Any, judge: Any, level: Any, family: Any, joint: Any) -> None:
    both = level("spike", "optimiser", family="optimiser", families=(("optimiser", 11), ("distribution", 9)))
    state = judge(make_run({"optimiser": from_step(11), "quality": from_step(14)}), both, family("quality"), joint)
    case = by_symptom(state)["joint-collapse"]
    told = "3 of 5 families left their limits within 10 steps: distribution (step 9), then optimiser (step 11), then quality (step 14)."
    assert case.summary == told
    assert [part["symptom"] for part in case.absorbed] == ["spike", "quality-moves"]


def explained(name: Any, *hypotheses: Any) -> Any:
    return {"name": f"{name}-moves", "metric": name, "family": name, "hypotheses": hypotheses}


@pytest.fixture
def parts(level: Any, answers: Any) -> Any:
    yes, no = answers("supported"), answers("refuted")
    engine = level(
        **explained("engine", Hypothesis("H7a", "numerics", "tokens", (yes,)), Hypothesis("H7f", "wrong weights", "tokens", (no,)))
    )
    shape = level(**explained("shape", Hypothesis("H10b", "no end", "metrics", (yes, yes))))
    quality = level(
        "reward-drop", "quality", family="quality", hypotheses=(Hypothesis("H13z", "grader", "trajectories", (no,)),), next_checks=("read",)
    )
    return engine, shape, quality


def ids(case: Any) -> Any:
    return [h["id"] for h in case.hypotheses]


def test_a_joint_collapse_lists_the_hypotheses_of_the_family_with_a_clear_lead(make_run: Any, judge: Any, joint: Any, parts: Any) -> None:
    series = {"engine": from_step(10), "shape": from_step(16), "quality": from_step(18)}
    case = by_symptom(judge(make_run(series), *parts, joint))["joint-collapse"]
    assert ids(case) == ["H7a", "H7f"]
    assert case.hypotheses[0]["verdict"] == "supported" and case.hypotheses[1]["verdict"] == "refuted"


def test_a_joint_collapse_lists_its_own_hypotheses_behind_those_of_the_family_that_moved_first(
    make_run: Any, judge: Any, joint: Any, parts: Any, answers: Any
) -> None:
    own = replace(joint, hypotheses=(Hypothesis("H8g", "event", "metrics", (answers("supported"),), prior=0.8),))
    series = {"engine": from_step(10), "shape": from_step(16), "quality": from_step(18)}
    assert ids(by_symptom(judge(make_run(series), *parts, own))["joint-collapse"]) == ["H7a", "H8g", "H7f"]


def test_families_that_moved_almost_together_share_the_hypotheses_of_a_joint_collapse(
    make_run: Any, judge: Any, joint: Any, parts: Any
) -> None:
    series = {"engine": from_step(10), "shape": from_step(12), "quality": from_step(18)}
    case = by_symptom(judge(make_run(series), *parts, joint))["joint-collapse"]
    assert ids(case) == ["H10b", "H7a", "H7f"]


def test_a_reward_drop_lists_the_hypotheses_of_the_family_that_moved_before_it_and_its_own(make_run: Any, judge: Any, parts: Any) -> None:
    state = judge(make_run({"engine": from_step(10), "quality": from_step(25)}), *parts)
    case = by_symptom(state)["reward-drop"]
    assert ids(case) == ["H7a", "H7f", "H13z"]
    assert case.next_checks == ["look at it", "read"]


def test_groups_of_equal_rewards_do_not_explain_a_reward_drop(make_run: Any, judge: Any, parts: Any, level: Any, answers: Any) -> None:
    equal = level(**explained("groups", Hypothesis("H9a", "hard", "tokens", (answers("supported"),))))
    state = judge(make_run({"groups": from_step(20), "quality": from_step(25)}), *parts, equal)
    assert ids(by_symptom(state)["reward-drop"]) == ["H13z"]


def test_a_reward_drop_with_nothing_before_it_lists_its_own(make_run: Any, judge: Any, parts: Any) -> None:
    assert ids(by_symptom(judge(make_run({"quality": from_step(25)}), *parts))["reward-drop"]) == ["H13z"]


def test_what_moved_long_before_a_reward_drop_and_settled_is_not_its_beginning(make_run: Any, judge: Any, parts: Any) -> None:
    state = judge(make_run({"engine": from_step(2, last=4), "quality": from_step(30)}), *parts)
    assert ids(by_symptom(state)["reward-drop"]) == ["H13z"]
