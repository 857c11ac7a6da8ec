"""Ranking explanations by the checks that were computed."""

from __future__ import annotations

from typing import Any

import pytest

from server.engine.assess import CheckFailed, Question, assess
from server.queries.view import RunView
from server.rules.base import CheckResult, Finding, Hypothesis

FINDING = Finding("spike", "warn", 1, "")


@pytest.fixture
def told(make_run: Any) -> Any:
    """The answers for hypotheses on a small run, by id."""
    view = RunView(make_run({"m": [0.0]}), 1, 1)

    def ask(*hypotheses: Any, strict: Any = True) -> Any:
        return assess([Question(h, view, FINDING) for h in hypotheses], strict=strict)

    return ask


def test_each_supporting_check_triples_and_each_refuting_one_thirds_the_weight(told: Any, answers: Any) -> None:
    yes, no, unsure = answers("supported"), answers("refuted"), answers("inconclusive")
    ranked = told(
        Hypothesis("once", "", "metrics", (yes,)),
        Hypothesis("against", "", "metrics", (no,)),
        Hypothesis("twice", "", "metrics", (yes, yes)),
        Hypothesis("even", "", "metrics", (yes, no)),
        Hypothesis("unsure", "", "metrics", (unsure,)),
    )
    assert [(h["id"], h["verdict"], h["rank"]) for h in ranked] == [
        ("twice", "supported", 1),
        ("once", "supported", 2),
        ("even", "inconclusive", 3),
        ("unsure", "inconclusive", 4),
        ("against", "refuted", 5),
    ]


def test_a_prior_weight_of_four_outweighs_one_supporting_check(told: Any, answers: Any) -> None:
    ranked = told(
        Hypothesis("seen", "", "metrics", (answers("supported"),)),
        Hypothesis("usual", "", "metrics", (answers("inconclusive"),), prior=4.0),
    )
    assert [h["id"] for h in ranked] == ["usual", "seen"]


def test_an_action_is_not_checkable_and_names_what_a_person_would_do(told: Any) -> None:
    (only,) = told(Hypothesis("H4a", "gain", "action", action="evaluate the checkpoint of step 100"))
    assert (only["verdict"], only["action"]) == ("not_checkable", "evaluate the checkpoint of step 100")
    assert only["checks"] == [
        {"id": "action", "verdict": "not_checkable", "observed": {}, "missing": [], "note": "evaluate the checkpoint of step 100"}
    ]


def test_a_check_without_its_inputs_names_them_and_changes_no_weight(told: Any, answers: Any) -> None:
    lacking, seen = answers("not_checkable", ("lag.policy.mean",)), answers("supported")
    first, second = told(Hypothesis("blind", "", "metrics", (lacking,)), Hypothesis("part", "", "metrics", (lacking, seen)))
    assert (first["id"], first["verdict"]) == ("part", "supported")
    assert (second["verdict"], second["checks"][0]["missing"]) == ("not_checkable", ["lag.policy.mean"])


def test_what_was_observed_is_json_even_where_it_is_no_number(told: Any) -> None:
    import json

    import numpy as np

    def check(view: Any, finding: Any) -> Any:
        return CheckResult("c", "supported", {"nan": float("nan"), "numpy": np.float64(0.5), "text": "x", "none": None})

    (only,) = told(Hypothesis("h", "", "metrics", (check,)))
    assert json.loads(json.dumps(only["checks"][0]["observed"], allow_nan=False)) == {"nan": "nan", "numpy": 0.5, "text": "x", "none": None}


def broken(view: Any, finding: Any) -> Any:
    raise ZeroDivisionError("no groups")


def test_a_check_that_stops_with_an_error_is_told_as_not_checkable(told: Any, answers: Any) -> None:
    ranked = told(Hypothesis("h", "", "metrics", (broken, answers("supported"))), strict=False)
    assert ranked[0]["verdict"] == "supported"
    assert ranked[0]["checks"][0]["verdict"] == "not_checkable" and "no groups" in ranked[0]["checks"][0]["note"]


def test_in_strict_mode_the_error_of_a_check_is_raised(told: Any) -> None:
    with pytest.raises(CheckFailed, match="broken of spike at step 1"):
        told(Hypothesis("h", "", "metrics", (broken,)))
