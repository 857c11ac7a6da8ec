"""The Rules pages: how the rules stand, what is saved for whom, and what a backtest says in each of its states."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from plotly.utils import PlotlyJSONEncoder

from frontend.address import NoSuchPage
from frontend.components import markdown
from frontend.components import rules as parts
from frontend.components.feedback import feedback_buttons, pressed
from frontend.components.severity import preview_mark
from frontend.drawn import read
from frontend.pages import incident, incidents, rule, rules
from frontend.views import OverviewView
from ingest.errors import RLVitalsError
from server.control.incidents import Incident, save, set_judged
from server.control.rule_settings import rule_settings
from server.engine.adjust import rule_named
from server.engine.settings import Place, change_rule
from server.queries.runs import run_summary
from server.rules import RULES
from server.rules.document import rule_markdown

MakeRun = Callable[..., str]
TRUNCATION = rule_named("truncation")
ABOUT = {"rule": "RS101", "for": ""}
DEFAULTS = {p.name: f"{p.default:g}" for p in TRUNCATION.params}


def drawn(component: Any) -> str:
    return json.dumps(component, cls=PlotlyJSONEncoder, ensure_ascii=False)


def put(service: Any, run_id: str, number: int = 0, **more: Any) -> Incident:
    values: dict[str, Any] = {
        "id": f"in_{number:012x}", "run_id": run_id, "attempt": 1, "symptom": "truncation", "rule_code": "RS101", "rule_version": "1",
        "slice": None, "metric": "reward.mean", "severity": "warn", "status": "open", "onset_step": 10 + number, "detected_step": 12,
        "last_step": 19, "steps_by_severity": {"warn": 12}, "summary": "cut", "body": {}, "opened_at": 1.0, "updated_at": 2.0,
    }  # fmt: skip
    with service.control.session() as session:
        return save(session, Incident(**(values | more)))


def stored(service: Any) -> list[tuple[str, str, dict[str, float], bool | None, str | None]]:
    with service.control.session(write=False) as session:
        return [(s.scope, s.target, dict(s.params), s.enabled, s.status) for s in rule_settings(session)]


def test_the_list_says_how_every_rule_stands(service: Any, make_run: MakeRun) -> None:
    put(service, make_run(rows=[{"reward.mean": 0.5}]))
    with service.control.session() as session:
        change_rule(session, Place(), TRUNCATION, {"warn": 0.3}, status="preview")
        change_rule(session, Place(), rule_named("spike"), enabled=False)
    page = drawn(rules.layout(service))
    assert all(f"/rules/{one.name}" in page for one in RULES)
    assert f"{len(RULES)} rules" in page and "1 off" in page and "1 with changed parameters" in page
    assert "warn 0.3" in page and "is-off" in page


def test_a_rules_page_shows_its_text_its_hypotheses_and_its_parameters(service: Any) -> None:
    page = drawn(rule.layout(service, name="truncation"))
    for words in ("Why it matters", "When it is wrong", "H10a", "cap_too_small", "symptoms 22", "no incident judged yet", "holds no runs"):
        assert words in page, words
    assert "do not edit by hand" not in page
    with pytest.raises(NoSuchPage, match=r"Did you mean truncation\?"):
        rule.layout(service, name="truncatoin")


def test_what_differs_from_the_wider_scope_is_stored_at_the_chosen_place(service: Any, make_run: MakeRun) -> None:
    run = make_run(rows=[{"reward.mean": 0.5}])
    words, state = rule.save(service, ABOUT, ({**DEFAULTS, "warn": "0.3"}, True, "stable"))
    assert "Saved for all runs" in words and [p.param.name for p in state.changed] == ["warn"]
    assert stored(service) == [("all", "", {"warn": 0.3}, None, None)]
    of_run = {"rule": "RS101", "for": f"run:{run}"}
    rule.save(service, of_run, ({**DEFAULTS, "warn": "0.3", "watch": "0.1"}, False, "preview"))
    assert stored(service)[1:] == [("run", run, {"watch": 0.1}, False, "preview")]
    rule.save(service, of_run, (DEFAULTS, True, "stable"))
    assert stored(service)[1:] == [("run", run, {"warn": 0.2}, None, None)]
    page = drawn(rule.layout(service, name="truncation", **{"for": f"run:{run}"}))
    assert f'"value": "run:{run}"' in page and "run run-a" in page
    words, state = rule.save(service, of_run, None)
    assert words == "Nothing is set for run run-a any more." and [p.value for p in state.changed] == [0.3]
    with pytest.raises(RLVitalsError, match="lies between"):
        rule.save(service, ABOUT, ({**DEFAULTS, "warn": "3"}, True, "stable"))


def test_a_place_that_does_not_exist_counts_as_all_runs(service: Any) -> None:
    assert rule.place_of("run:gone", []) == rule.place_of("project:x", []) == rule.place_of("odd", []) == Place()


def test_a_backtest_is_ordered_followed_and_shown_with_what_it_changes(service: Any, make_run: MakeRun) -> None:
    cut = [{"length.response.truncated_frac": 0.01 if s < 30 else 0.3, "reward.mean": 0.5} for s in range(60)]
    run = make_run("cut", rows=cut)
    make_run("calm", rows=[{"length.response.truncated_frac": 0.01} for _ in range(60)])

    def panel() -> str:
        return drawn(parts.backtest_panel(service.backtests.newest("RS101"), 2))

    assert "Nothing is stored" in panel()
    rule.begin_backtest(service, ABOUT, {**DEFAULTS, "warn": "0.6"})
    assert "Waits for another backtest" in panel()
    service.backtests.start()
    end = time.monotonic() + 60
    while not service.backtests.newest("RS101").ended:
        assert time.monotonic() < end
        time.sleep(0.05)
    said = panel()
    assert "With warn 0.6" in said and "lost" in said and "1 run stayed quiet." in said and f"/r/{run}" in said
    assert "Per 1,000 steps" in said and "False alarms" not in said
    rule.begin_backtest(service, ABOUT, DEFAULTS)
    while not service.backtests.newest("RS101").ended:
        time.sleep(0.05)
    assert "With" not in panel() and "at step 3" in panel()
    service.backtests.stop()


def test_a_backtest_that_was_cancelled_or_failed_says_so(service: Any) -> None:
    job = service.backtests.submit(["RS101"])
    service.backtests.cancel(job.id)
    assert "was cancelled" in drawn(parts.backtest_panel(service.backtests.newest("RS101"), 1))
    failed = service.backtests.submit(["RS101"])
    service.backtests._change(failed.id, state="failed", error="The disk is gone.")
    assert "The disk is gone." in drawn(parts.backtest_panel(service.backtests.newest("RS101"), 1))
    with pytest.raises(RLVitalsError, match="lies between"):
        rule.begin_backtest(service, ABOUT, {**DEFAULTS, "warn": "7"})


def test_an_incident_is_judged_and_the_word_is_taken_back_by_the_same_button(service: Any, make_run: MakeRun) -> None:
    found = put(service, make_run(rows=[{"reward.mean": 0.5} for _ in range(20)]))

    def marked() -> list[str]:
        said = pressed_state()
        return [button.children for button in feedback_buttons(said) if getattr(button, "aria-pressed") == "true"]

    def pressed_state() -> Incident:
        from server.control.incidents import incident as read_incident

        with service.control.session(write=False) as session:
            now = read_incident(session, found.id)
        assert now is not None
        return now

    assert marked() == []
    pressed(service, found.id, "useful")
    assert marked() == ["Useful"]
    pressed(service, found.id, "false_alarm")
    assert marked() == ["False alarm"]
    pressed(service, found.id, "false_alarm")
    assert marked() == [] and "not there any more" in drawn(pressed(service, "in_none", "useful"))


def test_an_incident_says_that_its_rule_is_a_preview_and_with_which_parameters_it_was_found(service: Any, make_run: MakeRun) -> None:
    run = make_run(rows=[{"reward.mean": 0.5} for _ in range(20)])
    stable = put(service, run, 1, body={"rule": {"status": "stable", "changed": {}}})
    preview = put(service, run, 2, body={"rule": {"status": "preview", "changed": {"warn": 0.3}}})
    assert preview_mark(stable) is None and preview_mark(put(service, run, 3)) is None and preview_mark(preview) is not None
    page = drawn(incident.layout(service, incident=preview.id))
    assert "Found with changed parameters: warn 0.3." in page and "rlv-preview" in page and "How this rule works" in page
    plain = drawn(incident.layout(service, incident=stable.id))
    assert "changed parameters" not in plain and "rlv-preview" not in plain
    assert drawn(incidents.layout(service)).count("rlv-preview") == 1
    old = put(service, run, 4, rule_code="RS999")
    assert "How this rule works" not in drawn(incident.layout(service, incident=old.id))


def test_a_change_of_the_rules_stands_among_the_events_of_the_run(service: Any, make_run: MakeRun) -> None:
    run = make_run(rows=[{"reward.mean": 0.5} for _ in range(20)])
    note = {"attempt": 1, "step": 7, "text": "truncation: warn 0.2 to 0.3"}
    with service.control.session() as session:
        set_judged(session, run, 1, 19, {"rule_changes": [note]})
    summary = run_summary(service.store, run)
    assert summary is not None
    assert read(service, summary, OverviewView()).happened == ((7, "rule", "truncation: warn 0.2 to 0.3"),)


def test_the_text_of_every_rule_is_drawn_without_a_mark_of_markdown_left() -> None:
    for one in RULES:
        said = drawn(markdown.blocks(rule_markdown(one)))
        assert "**" not in said and "`" not in said and "|---" not in said and '"# ' not in said, one.name


def test_markdown_knows_the_forms_that_rules_use() -> None:
    found = markdown.blocks("## Head\n\nSome `code` and\n**strong** words.\n\n- one\n- two\n  more\n\n| a | b |\n|---|---|\n| 1 | `x` |")
    assert [type(block).__name__ for block in found] == ["H3", "P", "Ul", "Table"]
    assert [li.children for li in found[2].children] == [["one"], ["two more"]]
    assert markdown.sections("# t\n\nx\n\n## A\n\na\n\n## B\n\nb\n") == {"": "# t\n\nx", "A": "a", "B": "b"}
