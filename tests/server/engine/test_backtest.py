"""Backtests: what counts as a false alarm, what other parameters change, and how many runs are in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ingest.errors import RLVitalsError
from server.engine.backtest import Label, Stopped, Subject, backtest_json, label_of, run_backtest, table
from server.engine.ruleset import Changed
from server.rules.base import Param

WARN = Param("warn", 1.0, "x", 0, 10, "default of ours")
HEALTHY = Label("label")


@pytest.fixture
def spike(level: Any) -> Any:
    return level("spike", "m", warn=1.0, critical=5.0, hold_points=2, hard=True, params=(WARN,))


def test_every_incident_of_a_healthy_run_and_every_one_before_the_onset_is_a_false_alarm(make_run: Any, spike: Any) -> None:
    twice = {"m": [0, 2, 0, 0, *[0] * 30, 2, 0, 0]}
    runs = [Subject(make_run(twice), HEALTHY), Subject(make_run(twice), Label("label", onset=20))]
    done = run_backtest(runs, [spike], {})
    assert [[one.false_alarm for one in result.raised] for result in done.before] == [[True, True], [True, False]]
    (row,) = table(done.rules, done.before)
    assert (row.raised, row.runs, row.false_alarms, row.steps, row.quiet_steps) == (4, 2, 3, 74, 37 + 19)
    assert row.false_per_1000 == pytest.approx(1000 * 3 / 56)


def test_symptoms_that_are_true_of_the_run_are_no_false_alarm(make_run: Any, spike: Any) -> None:
    done = run_backtest([Subject(make_run({"m": [0, 2]}), Label("label", fine=frozenset({"spike"})))], [spike], {})
    assert done.before[0].raised[0].false_alarm is False and table(done.rules, done.before)[0].false_alarms == 0


def test_without_a_label_nothing_is_called_false_and_the_rate_is_of_all_steps(make_run: Any, spike: Any) -> None:
    done = run_backtest([Subject(make_run({"m": [0, 2, 0, 0]}))], [spike], {})
    (row,) = table(done.rules, done.before)
    assert (row.false_per_1000, row.raised_per_1000, done.before[0].quiet_steps) == (None, 250.0, None)
    told = backtest_json(done)
    assert told["rules"][0]["false_alarms"] is None and told["runs"][0]["incidents"][0]["false_alarm"] is None
    assert "difference" not in told


def test_a_run_without_any_step_counts_nothing(make_run: Any, spike: Any) -> None:
    done = run_backtest([Subject(make_run({}), HEALTHY)], [spike], {})
    (row,) = table(done.rules, done.before)
    assert (row.steps, row.quiet_steps, row.raised_per_1000, done.before[0].steps) == (0, 0, None, None)


def test_the_severity_asked_for_decides_from_which_step_an_incident_counts(make_run: Any, spike: Any) -> None:
    data = {"m": [0, 2, 2, 9, 0]}
    at_warn, at_critical = (run_backtest([Subject(make_run(data))], [spike], {}, s).before[0].raised for s in ("warn", "critical"))
    assert (at_warn[0].step, at_critical[0].step, at_critical[0].onset_step) == (2, 4, 2)
    assert run_backtest([Subject(make_run({"m": [0, 2]}))], [spike], {}, "critical").before[0].raised == ()


def test_other_parameters_gain_lose_and_move_incidents(make_run: Any, spike: Any) -> None:
    slow = [0.0, 0.5, 1.5, 2.5, 3.5, 0, 0, 0]
    brief = [*[0.0] * 40, 1.2, 0, 0]
    run = make_run({"m": slow + brief})
    stricter = run_backtest([Subject(run)], [spike], {spike.code: {"warn": 2.0}})
    (change,) = stricter.changes
    assert [(old.step, new.step) for old, new in change.moved] == [(3, 4)]
    assert [one.step for one in change.lost] == [49] and change.gained == ()
    laxer = run_backtest([Subject(run)], [spike], {spike.code: {"warn": 0.4}})
    assert [(old.step, new.step) for old, new in laxer.changes[0].moved] == [(3, 2)]
    gaining = run_backtest([Subject(make_run({"m": [0, 0.7, 0]}))], [spike], {spike.code: {"warn": 0.4}})
    assert [one.step for one in gaining.changes[0].gained] == [2]
    told = backtest_json(stricter)
    assert told["changed"] == {"spike": {"warn": 2.0}} and told["difference"][0]["moved"][0]["steps"] == 1
    json.dumps(told)


def test_parameters_that_change_nothing_give_no_difference(make_run: Any, spike: Any) -> None:
    done = run_backtest([Subject(make_run({"m": [0, 2, 0]}))], [spike], {spike.code: {"warn": 1.1}})
    assert done.changes == [] and done.before[0].raised == done.after[0].raised


def test_a_rule_that_is_not_changed_is_asked_once_for_both_replays(make_run: Any, level: Any, spike: Any) -> None:
    asked = []

    class Counted(level):  # type: ignore[misc]
        def evaluate(self, view: Any) -> Any:
            asked.append(view.step)
            return super().evaluate(view)

    run_backtest([Subject(make_run({"m": [0, 2, 0]}))], [Counted("reward-flat", "m"), spike], {spike.code: {"warn": 5.0}})
    assert asked == [1, 2, 3]


def test_what_people_set_for_the_run_holds_before_the_tried_values(make_run: Any, spike: Any) -> None:
    run = make_run({"m": [0, 2, 0]})
    set_higher = Subject(run, changed={spike.code: Changed(params={"warn": 3.0})})
    assert run_backtest([set_higher], [spike], {}).before[0].raised == ()
    tried = run_backtest([set_higher], [spike], {spike.code: {"warn": 1.0}})
    assert [one.step for one in tried.changes[0].gained] == [2]
    assert run_backtest([Subject(run, changed={spike.code: Changed(enabled=False)})], [spike], {}).before[0].raised == ()


def test_the_parts_of_a_joint_collapse_count_for_their_own_rules(make_run: Any, level: Any, joint: Any) -> None:
    rules = [level(name, name, family=family) for name, family in (("a", "quality"), ("b", "shape"), ("c", "optimiser"))]
    done = run_backtest([Subject(make_run({name: [0, 2, 2] for name in "abc"}), HEALTHY)], [*rules, joint], {})
    assert [row.raised for row in table(done.rules, done.before)] == [1, 1, 1, 1]


def test_one_run_is_let_go_before_the_next_is_read(make_run: Any, spike: Any) -> None:
    import weakref

    alive: list[Any] = []

    def runs() -> Iterator[Subject]:
        for _ in range(3):
            assert [one for one in alive if one() is not None] == []
            subject = Subject(make_run({"m": [0, 2, 0]}))
            alive.append(weakref.ref(subject.data))
            yield subject
            del subject

    assert len(run_backtest(runs(), [spike], {}).before) == len(alive) == 3


def test_a_backtest_stops_between_two_steps(make_run: Any, spike: Any) -> None:
    looks = iter([False, False, True])
    with pytest.raises(Stopped):
        run_backtest([Subject(make_run({"m": [0, 0, 0, 0]}))], [spike], {}, stop=lambda: next(looks))


def test_a_label_is_read_as_the_scorer_reads_it(tmp_path: Path) -> None:
    def read(**label: Any) -> Label | None:
        (tmp_path / "label.json").write_text(json.dumps(label))
        return label_of(tmp_path)

    assert label_of(tmp_path / "none") is None
    assert read(healthy=True, steps={"first": 1, "last": 9}) == Label("label", steps=(1, 9))
    assert read(onset_step=5, symptoms=["spike"], also_ok=["reward-drop"]) == Label("label", 5, frozenset({"reward-drop"}))
    seen = read(no_visible_effect=True, onset_step=5, symptoms=["spike"], also_ok=["reward-drop"])
    assert seen == Label("label", None, frozenset({"reward-drop", "spike"}))
    (tmp_path / "metrics.jsonl").touch()
    assert label_of(tmp_path / "metrics.jsonl") == seen
    for wrong in ("[]", "{", '{"healthy": false}', '{"onset_step": "x"}'):
        (tmp_path / "label.json").write_text(wrong)
        with pytest.raises(RLVitalsError, match="is no label of a run"):
            label_of(tmp_path)
