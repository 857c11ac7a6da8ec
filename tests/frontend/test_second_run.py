"""The second run of an incident's page: who is offered, what it answers, and that looking changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from frontend.components import explanations
from frontend.components.controls import run_choice
from frontend.pages import incident
from server.control.incidents import Incident, incidents, judged
from server.engine.advance import Engine
from server.queries.runs import run_summaries, run_summary

MakeRun = Callable[..., str]
WANTS = "Compare with a second run"


def unsolved(share: float) -> list[dict[str, Any]]:
    """A reward that never rises; share of groups that no answer solves."""
    rows = [{"reward.mean": 0.1 + 0.002 * (-1) ** step, "entropy.mean": 1.0, "group.solve_none_frac": share} for step in range(130)]
    return rows


@pytest.fixture
def flat(service: Any, make_run: MakeRun) -> Incident:
    """The incident of a judged run whose explanation H1g wants a second run."""
    run_id, now = make_run("flat", unsolved(0.6), {"algorithm": "grpo"}), [1e9]
    engine = Engine(service.store, service.control, clock=lambda: now[0])
    engine.advance(run_id)
    now[0] += 1e9
    engine.advance(run_id)
    return next(one for one in stored(service) if one.symptom == "reward-flat")


def stored(service: Any) -> list[Incident]:
    with service.control.session(write=False) as session:
        return incidents(session, absorbed=True)


def everything(component: Any) -> str:
    return json.dumps(component.to_plotly_json(), default=lambda c: c.to_plotly_json() if hasattr(c, "to_plotly_json") else str(c))


def text_of(parts: tuple[Any, Any]) -> str:
    return " ".join(everything(part) for part in parts)


def test_the_choice_stands_where_an_explanation_wants_a_second_run_and_nothing_is_chosen(
    service: Any, make_run: MakeRun, flat: Incident
) -> None:
    assert "There is no other run yet" in everything(incident.layout(service, incident=flat.id))
    other = make_run("base", unsolved(0.9))
    page = everything(incident.layout(service, incident=flat.id))
    assert WANTS in page and other in page and '"value": null' in page and "Needs a second run: choose one above." in page
    assert "Compares with a run that samples the base model" in page and "second run: write it" not in page
    plain = replace(flat, id="in_plain", body={**flat.body, "hypotheses": []})
    run = run_summary(service.store, flat.run_id)
    assert run is not None and WANTS not in everything(explanations.explanations(service, plain, run, ""))


def test_a_chosen_run_is_named_while_it_is_read_and_the_answers_follow(service: Any, make_run: MakeRun, flat: Incident) -> None:
    other, before = make_run("base", unsolved(0.9)), stored(service)
    page = everything(incident.layout(service, incident=flat.id, baseline=other))
    assert "Reading this run and " in page and "second-run-waiting" in page and f'"value": "{other}"' in page
    said = text_of(explanations.explained(service, flat.id, other))
    assert "With the second run " in said and "ass@G 0.40, 0.10 in the second run" in said and "No verdict changes." in said
    assert "choose one above" not in said and f"/incidents/{flat.id}" in said
    with service.control.session(write=False) as session:
        state = judged(session, flat.run_id)
    explanations.explained(service, flat.id, other)
    with service.control.session(write=False) as session:
        assert judged(session, flat.run_id) == state
    assert stored(service) == before


def test_a_verdict_that_differs_is_named_above_the_rows_and_marked_in_its_row(service: Any, make_run: MakeRun, flat: Incident) -> None:
    other = make_run("base", unsolved(0.6))
    said = text_of(explanations.explained(service, flat.id, other))
    now = next(one["verdict"] for one in flat.body["hypotheses"] if one["id"] == "H1g")
    assert now == "refuted" and "Now inconclusive: " in said and "(H1g)." in said and "was refuted" in said


@pytest.mark.parametrize(("baseline", "words"), [("zzz", "There is no run zzz"), ("own", "cannot be compared with itself")])
def test_a_run_that_cannot_be_compared_with_is_refused_above_the_stored_explanations(
    service: Any, make_run: MakeRun, flat: Incident, baseline: str, words: str
) -> None:
    make_run("base", unsolved(0.9))
    asked = flat.run_id if baseline == "own" else baseline
    page = everything(incident.layout(service, incident=flat.id, baseline=asked))
    assert words in page and '"role": "alert"' in page and "Needs a second run" in page and "second-run-waiting" not in page
    said = text_of(explanations.explained(service, flat.id, asked))
    assert words in said and "Needs a second run" in said


def test_a_run_without_a_step_is_neither_offered_nor_compared_with(service: Any, make_run: MakeRun, flat: Incident) -> None:
    empty = make_run("empty", [{"step": None, "reward.mean": 0.1}])
    assert empty not in everything(incident.layout(service, incident=flat.id))
    assert "holds no step yet" in everything(incident.layout(service, incident=flat.id, baseline=empty))


def test_a_failure_inside_is_told_and_the_stored_explanations_stay(
    service: Any, make_run: MakeRun, flat: Incident, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_given: object) -> Any:
        raise ValueError("x")

    monkeypatch.setattr(explanations, "explain_with", broken)
    said = text_of(explanations.explained(service, flat.id, make_run("base", unsolved(0.9))))
    assert "An error in RLVitals" in said and "Needs a second run" in said
    assert "not there any more" in everything(explanations.explained(service, "in_zzz", "x")[0])


def test_an_incident_whose_explanations_want_none_says_so(service: Any, make_run: MakeRun, flat: Incident) -> None:
    other, run = make_run("base", unsolved(0.9)), run_summary(service.store, flat.run_id)
    assert run is not None
    plain = replace(flat, body={**flat.body, "hypotheses": []})
    page = everything(explanations.explanations(service, plain, run, other))
    assert "No check of these explanations compares with a second run" in page and "second-run-waiting" not in page


def test_similar_runs_come_first(service: Any, make_run: MakeRun) -> None:
    for name, config in (("own", "grpo"), ("b", "grpo"), ("a", "ppo"), ("C", "grpo")):
        make_run(name, [{"reward.mean": 0.1}], {"algorithm": config})
    runs = run_summaries(service.store)
    own = next(run for run in runs if run.name == "own")
    elsewhere = [replace(runs[1], run_id="x", project="else", name="0"), replace(runs[1], run_id="y", framework="verl", name="0")]
    assert [run.name for run in explanations.similar_runs([*elsewhere, *runs], own)] == ["b", "C", "a", "0", "0"]
    page = everything(run_choice("p", "k", "l", "", explanations.similar_runs([*elsewhere, *runs], own), own))
    assert "else / 0" in page and "a \\u00b7 native ppo" in page and "Other projects" in page
