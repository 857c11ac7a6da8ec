"""The incident and the list of incidents: evidence, verdicts, links into the window, and Acknowledge."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from frontend.address import NoSuchPage
from frontend.components import incident as parts
from frontend.components.severity import urgency
from frontend.components.words import sentence
from frontend.figures.incident import median_of, observation, step_range
from frontend.pages import incident, incidents
from server.control.incidents import Incident, save
from server.queries.curves import curve
from server.queries.runs import run_summary

MakeRun = Callable[..., str]


def body(**more: Any) -> dict[str, Any]:
    return {
        "evidence": [
            {"metric": "reward.mean", "before": 0.8, "after": 0.4, "baseline_steps": [0, 9], "n": 10, "note": ""},
            {"metric": "kl.ref", "before": 0.1, "after": 0.3, "baseline_steps": [0, 9], "n": 10, "note": ""},
        ],
        "hypotheses": [
            hypothesis("H6b", 3, "refuted", check("floor", "refuted", note="lag 0 agrees")),
            hypothesis("H6a", 1, "supported", check("grows", "supported", {"rank": 0.5}), check("flat", "refuted", note="flat above 1")),
            hypothesis("H6f", 4, "not_checkable", check("other", "not_checkable", missing=["lag.policy.mean"])),
        ],
        "next_checks": ["Bound the lag."], "trajectories": [], "absorbed": [], "notes": ["raised by one level"], **more,
    }  # fmt: skip


def hypothesis(code: str, rank: int, verdict: str, *checks: Any) -> dict[str, Any]:
    return {"id": code, "title": f"title of {code}", "rank": rank, "verdict": verdict, "computable_from": "metrics", "checks": list(checks)}


def check(name: str, verdict: str, observed: Any = None, missing: Any = (), note: str = "") -> dict[str, Any]:
    return {"id": name, "verdict": verdict, "observed": observed or {}, "missing": list(missing), "note": note}


def make(run_id: str, **more: Any) -> Incident:
    values: dict[str, Any] = {
        "id": "in_0123456789ab", "run_id": run_id, "attempt": 1, "symptom": "reward-drop", "rule_code": "RS081", "rule_version": "1",
        "slice": None, "metric": "reward.mean", "severity": "critical", "status": "open", "onset_step": 10, "detected_step": 12,
        "last_step": 19, "steps_by_severity": {"warn": 10, "critical": 12}, "summary": "reward is down 0.4, since step 10",
        "body": body(), "opened_at": 1.0, "updated_at": 2.0,
    }  # fmt: skip
    return Incident(**(values | more))


def rows() -> list[dict[str, Any]]:
    return [{"reward.mean": 0.8 if step < 10 else 0.4, "kl.ref": 0.1 if step < 10 else 0.3} for step in range(20)]


def answers() -> list[dict[str, Any]]:
    return [
        {"step": step, "trajectory_id": f"{step}-{i}", "group_id": f"g{step}", "prompt": "p", "response": f"r{i}", "task": task,
         "reward": (0.8 if step < 10 else 0.4 if task == "a" else 0.7), "response_tokens": 5 + i}
        for step in range(20) for i, task in enumerate(("a", "b", "a", "b"))
    ]  # fmt: skip


def put(service: Any, found: Incident) -> Incident:
    with service.control.session() as session:
        return save(session, found)


def everything(component: Any) -> str:
    return json.dumps(component.to_plotly_json(), default=lambda c: c.to_plotly_json() if hasattr(c, "to_plotly_json") else str(c))


def test_the_page_shows_evidence_verdicts_what_speaks_against_and_what_is_missing(service: Any, make_run: MakeRun) -> None:
    found = put(service, make(make_run(rows=rows(), rollouts=answers())))
    page = everything(incident.layout(service, incident=found.id))
    for words in ("Reward is down 0.4, since step 10.", "title of H6a", "Against: flat above 1.", "Rank 0.500.", "Needs lag.policy.mean"):
        assert words in page
    assert page.index("title of H6a") < page.index("title of H6b") < page.index("title of H6f")
    assert "is-first-supported" in page and "Bound the lag." in page and "Raised by one level." in page and "RS081" in page


def test_the_page_links_into_the_exact_window(service: Any, make_run: MakeRun) -> None:
    run = make_run(rows=rows(), rollouts=answers())
    page = everything(incident.layout(service, incident=put(service, make(run)).id))
    assert f"/r/{run}/rollouts?step=10-19" in page and f"/r/{run}/slices?incident=in_0123456789ab" in page
    assert f"/r/{run}/rollouts?step=10-19&task=a&split=train" in page and f"/r/{run}/t/19.0" in page


def test_rollouts_with_token_arrays_are_offered_where_the_window_has_any(service: Any, make_run: MakeRun) -> None:
    tokens = {"token_ids": [1, 2, 3], "response_tokens": 2, "prompt_tokens": 1}
    before, inside = answers(), answers()
    before[0] |= tokens
    inside[-1] |= tokens
    for name, rollouts, offered in (("none", answers(), False), ("before", before, False), ("inside", inside, True)):
        run = make_run(name, rows=rows(), rollouts=rollouts)
        page = everything(incident.layout(service, incident=put(service, make(run, id=f"in_{run}")).id))
        assert (f"/r/{run}/rollouts?step=10-19&tok=yes" in page) is offered


def test_of_equally_grave_incidents_the_explained_one_leads() -> None:
    open_question = make("r", onset_step=5, body=body(hypotheses=[]))
    explained = make("r", onset_step=9, body=body(hypotheses=[{"id": "H6a", "verdict": "supported"}]))
    milder = make("r", onset_step=1, severity="warn")
    assert sorted([milder, open_question, explained], key=urgency) == [explained, open_question, milder]


def test_rollouts_named_by_the_rule_come_first_in_its_order(service: Any, make_run: MakeRun) -> None:
    run = make_run(rows=rows(), rollouts=answers())
    page = everything(incident.layout(service, incident=put(service, make(run, body=body(trajectories=["11.2", "99.0", "10.0"]))).id))
    assert "named by the rule" in page and page.index(f"/r/{run}/t/11.2") < page.index(f"/r/{run}/t/10.0") and "99.0" not in page


def test_an_incident_of_a_run_without_rollouts_or_curve_still_has_its_page(service: Any, make_run: MakeRun) -> None:
    run = make_run(rows=[{"lr": 1.0}] * 20)
    page = everything(incident.layout(service, incident=put(service, make(run, metric="fact.x.frac")).id))
    assert "has no curve of its own" in page and "No rollouts were read for this run" in page


def test_an_incident_with_an_empty_body_still_has_its_page(service: Any, make_run: MakeRun) -> None:
    run = make_run(rows=rows())
    page = everything(incident.layout(service, incident=put(service, make(run, body={}, metric=None, steps_by_severity={})).id))
    assert "lists no hypotheses" in page


def test_an_unknown_incident_is_not_found(service: Any) -> None:
    with pytest.raises(NoSuchPage):
        incident.layout(service, incident="in_zzz")


def test_a_joint_collapse_lists_its_parts_in_order_of_onset(words_of: Any) -> None:
    joined = [{"symptom": "spike", "onset_step": 9, "detected_step": 12}, {"symptom": "truncation", "onset_step": 5, "detected_step": 6}]
    words = words_of(parts.absorbed(joined))
    assert words.index("truncation") < words.index("spike")


def test_acknowledging_is_stored_told_and_shown(service: Any, make_run: MakeRun, words_of: Any) -> None:
    found = put(service, make(make_run(rows=rows())))
    assert "Acknowledge" in words_of(incident.acknowledgement(found))
    assert "Acknowledged 0 s ago" in words_of(incident.acknowledged(service, found.id))
    assert "not there any more" in words_of(incident.acknowledged(service, "in_zzz"))
    page = everything(incidents.layout(service, state="acknowledged"))
    assert found.id in page and found.id not in everything(incidents.layout(service))


@pytest.mark.parametrize(("state", "shown"), [("open", "a"), ("recovered", "b"), ("acknowledged", "c"), ("all", "abc"), ("zzz", "a")])
def test_the_list_shows_the_incidents_of_a_state(service: Any, make_run: MakeRun, state: str, shown: str) -> None:
    run = make_run(rows=rows())
    put(service, make(run, id="in_a", onset_step=1))
    put(service, make(run, id="in_b", onset_step=2, status="recovered"))
    put(service, make(run, id="in_c", onset_step=3, acknowledged_at=1.0))
    page = everything(incidents.layout(service, state=state))
    assert {name for name in "abc" if f"/incidents/in_{name}" in page} == set(shown)


def test_an_empty_list_says_why(service: Any, make_run: MakeRun, words_of: Any) -> None:
    assert "No runs yet" in words_of(incidents.layout(service))
    run = make_run(rows=rows())
    assert "No incident in 1 run." in words_of(incidents.layout(service))
    put(service, make(run, status="recovered"))
    assert "No open incident. 1 in other states" in words_of(incidents.layout(service))


def test_hostile_words_in_a_summary_are_text(service: Any, make_run: MakeRun) -> None:
    found = put(service, make(make_run(rows=rows()), summary="<script>x</script>\u202e", slice="<img>"))
    page = everything(incident.layout(service, incident=found.id))
    assert "<script>x</script>" in page and "\\u202e" not in page and "dangerously" not in page


def test_the_windows_are_the_baseline_and_what_follows_the_onset(service: Any, make_run: MakeRun) -> None:
    run = run_summary(service.store, make_run(rows=rows()))
    assert run is not None
    assert incident.spans_of(make(run.run_id), run) == incident.Spans((0, 9), (10, 19))
    assert incident.spans_of(make(run.run_id, status="recovered", last_step=14), run).after == (10, 14)


def test_the_chart_carries_band_window_onset_and_the_steps_of_each_severity(service: Any, make_run: MakeRun) -> None:
    found = curve(service.store, make_run(rows=rows()), "reward.mean")
    assert found is not None
    assert (median_of(found, 0, 9), median_of(found, 10, 19), median_of(found, 90, 99)) == (0.8, 0.4, None)
    from frontend.figures.curve import Window

    made = observation(found, "Reward", Window(10, 19, (0, 9)), step_range([found], 30), {"warn": 10, "critical": 12, "odd": 3}, "light")
    marks = [trace for trace in made["data"] if trace.get("meta", {}).get("role") == "mark"]
    assert [mark["text"] for mark in marks] == [["10 warn"], ["12 critical"]] and len({mark["marker"]["symbol"] for mark in marks}) == 2
    assert made["layout"]["xaxis"]["range"] == [0, 30] and len(made["layout"]["shapes"]) == 3


def test_sentences_start_large_and_end_with_a_stop() -> None:
    assert [sentence(t) for t in ("a b", "Done.", " why? ", "", "reward.mean fell")] == ["A b.", "Done.", "Why?", "", "reward.mean fell."]
    assert parts.observed({"a_b": 0.5, "c": "x", "d": None}) == "a b 0.500, c x"
