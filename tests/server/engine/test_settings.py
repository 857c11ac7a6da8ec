"""What people change about rules: what is refused, what holds for a run, and what the engine makes of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ingest.errors import SettingsError
from server.control.models import Control, RuleSettingRow
from server.control.rule_settings import rule_setting, rule_settings
from server.engine.adjust import proposals, rule_named
from server.engine.replay import diagnose
from server.engine.ruleset import Changed, RuleSet
from server.engine.settings import Place, change_rule, changed_rules, forget_rule, told_changes
from server.engine.state import RunState
from server.engine.steps import advance
from server.rules.base import Param

TRUNCATION = rule_named("truncation")
ALL, PROJECT, RUN = Place(), Place("project", "math"), Place("run", "r1")


@pytest.fixture
def control() -> Iterator[Control]:
    store = Control("sqlite://")
    store.migrate()
    yield store
    store.close()


def test_the_narrower_scope_counts(control: Control) -> None:
    with control.session() as session:
        change_rule(session, RUN, TRUNCATION, {"warn": 0.4})
        change_rule(session, ALL, TRUNCATION, {"warn": 0.3, "watch": 0.1}, status="preview")
        change_rule(session, PROJECT, TRUNCATION, {"warn": "0.35"}, enabled=False)

        def in_force(run: str | None, project: str | None) -> Changed:
            return changed_rules(session, run, project)["RS101"]

        assert in_force(None, None) == in_force("r2", "code") == Changed(True, {"warn": 0.3, "watch": 0.1}, "preview")
        assert in_force("r2", "math") == Changed(False, {"warn": 0.35, "watch": 0.1}, "preview")
        assert in_force("r1", "math") == Changed(False, {"warn": 0.4, "watch": 0.1}, "preview")
        change_rule(session, RUN, TRUNCATION, {"warn": 0.2}, enabled=True)
        assert in_force("r1", "math") == Changed(True, {"watch": 0.1}, "preview")
        forget_rule(session, RUN, TRUNCATION)
        assert in_force("r1", "math").params == {"warn": 0.35, "watch": 0.1}


def test_a_setting_is_changed_in_part_and_vanishes_when_it_says_nothing(control: Control) -> None:
    with control.session() as session:
        change_rule(session, ALL, TRUNCATION, {"warn": 0.3, "watch": 0.1})
        change_rule(session, ALL, TRUNCATION, {"warn": None}, enabled=False)
        kept = rule_setting(session, "all", "", "RS101")
        assert (kept.params, kept.enabled, kept.status) == ({"watch": 0.1}, False, None)
        change_rule(session, ALL, TRUNCATION, {"watch": 0.05}, enabled=None)  # the default says nothing for all runs
        assert rule_settings(session) == [] and changed_rules(session) == {}


@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        ({"warm": 0.3}, r"no parameter warm\. Did you mean warn\?"),
        ({"zzz": 0.3}, r"no parameter zzz\. It has watch, warn, critical"),
        ({"warn": 1.5}, r"truncation\.warn lies between 0 and 1 \(0\.\.1\); 1\.5 does not"),
        ({"warn": "much"}, r"needs a number, and 'much' is none"),
        ({"warn": "nan"}, "needs a number"),
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence_and_nothing_is_stored(control: Control, params: Any, sentence: str) -> None:
    with control.session() as session:
        with pytest.raises(SettingsError, match=sentence):
            change_rule(session, ALL, TRUNCATION, params)
        assert rule_settings(session) == []


def test_places_names_and_statuses_are_checked(control: Control) -> None:
    for scope, target in (("every", ""), ("all", "x"), ("run", ""), ("project", "")):
        with pytest.raises(SettingsError):
            Place.of(scope, target)
    with pytest.raises(SettingsError, match=r"There is no rule truncatoin\. Did you mean truncation\?"):
        rule_named("truncatoin")
    with control.session() as session, pytest.raises(SettingsError, match="no status 'done'"):
        change_rule(session, ALL, TRUNCATION, status="done")
    assert proposals(["truncation.warn=0.1", "RS101.watch=0.01"]) == {"RS101": {"warn": 0.1, "watch": 0.01}}
    for text in ("truncation=0.1", "truncation.warn", "truncation.warn="):
        with pytest.raises(SettingsError):
            proposals([text])


def test_what_a_newer_rule_no_longer_knows_or_allows_is_left_out(control: Control) -> None:
    with control.session() as session:
        session.add(RuleSettingRow(scope="all", target="", rule_code="RS101", params={"old": 1, "warn": 7}, status="odd", updated_at=0))
        session.flush()
        assert changed_rules(session) == {}


def test_a_change_is_told_as_one_sentence_a_rule() -> None:
    rules = RuleSet([TRUNCATION])
    before = {"RS101": Changed(params={"warn": 0.3}).to_json()}
    after = {"RS101": Changed(False, {"watch": 0.1}, "preview").to_json()}
    assert told_changes(before, after, rules) == ["truncation: switched off, watch 0.05 to 0.1, warn 0.3 to 0.2, status preview"]
    assert told_changes(after, {}, rules) == ["truncation: switched on, watch 0.1 to 0.05, status stable"]
    assert told_changes(after, after, rules) == []


WARN = Param("warn", 1.0, "x", 0, 10, "default of ours")


def test_an_incident_says_with_which_parameters_and_status_it_was_found(make_run: Any, level: Any) -> None:
    rule = level("spike", "m", params=(WARN,), status="preview")
    told = diagnose(make_run({"m": [0, 2]}), None, RuleSet([rule], changed={rule.code: Changed(params={"warn": 1.5})})).to_json()
    assert told["incidents"][0]["rule"] == {"code": rule.code, "version": "1", "status": "preview", "changed": {"warn": 1.5}}
    assert told["notes"] == ["rules are changed for this run: spike: warn 1 to 1.5"]
    plain = diagnose(make_run({"m": [0, 2]}), None, RuleSet([rule])).to_json()
    assert plain["incidents"][0]["rule"]["changed"] == {} and "notes" not in plain


def test_a_rule_that_is_switched_off_closes_its_incident_and_is_named_as_not_judging(make_run: Any, level: Any) -> None:
    rule, other = level("spike", "m"), level("reward-flat", "n")
    data, state = make_run({"m": [0, 2, 2, 2], "n": [0, 0, 0, 2]}), RunState("r")
    advance(state, data, (0, 0), (1, 2), RuleSet([rule, other], strict=True))
    moves = advance(state, data, (1, 2), (1, 4), RuleSet([rule, other], True, {rule.code: Changed(enabled=False)}))
    assert [(m.case.symptom, m.opened, m.recovered) for m in moves] == [("spike", False, True), ("reward-flat", True, False)]
    closed = state.cases[0]
    assert (closed.status, closed.last_step) == ("recovered", 2) and "the rule was switched off" in closed.notes[-1]
    told = diagnose(data, None, RuleSet([rule], changed={rule.code: Changed(enabled=False)})).to_json()
    assert told["incidents"] == [] and told["rules"]["count"] == 0
    assert told["not_judged"] == [{"symptom": "spike", "missing": [], "how": "the rule is switched off"}]
