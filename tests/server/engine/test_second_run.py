"""An incident explained again with a second run: what `diagnose --baseline` would say of it, and nothing stored."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ingest.discover import discover
from ingest.load import load_run
from ingest.store.connection import Store
from server.control.incidents import Incident, incidents, judged, save, set_judged
from server.control.models import Control
from server.engine.advance import Engine
from server.engine.replay import in_memory, replay
from server.engine.second_run import NoSecondRun, UnknownSecondRun, explain_with, wants_second_run

Load = Callable[..., str]


@pytest.fixture
def store() -> Iterator[Store]:
    made = Store(None)
    yield made
    made.close()


@pytest.fixture
def control() -> Iterator[Control]:
    made = Control("sqlite://")
    made.migrate()
    yield made
    made.close()


@pytest.fixture
def load(store: Store, tmp_path: Path) -> Load:
    """Reads a run whose reward never rises; unsolved: share of groups that no answer solves; steps 0: a row that says no step. Its id."""

    def make(name: str, unsolved: float = 0.6, steps: int = 130) -> str:
        folder = tmp_path / "team" / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps({"algorithm": "grpo"}))
        rows = [
            {"step": step, "reward.mean": 0.1 + 0.002 * (-1) ** step, "entropy.mean": 1.0, "group.solve_none_frac": unsolved}
            for step in range(1, steps + 1)
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows or [{"step": None, "reward.mean": 0.1}]))
        (found,) = discover([folder])[0]
        list(load_run(store, found))
        return found.run_id

    return make


@pytest.fixture
def flat(store: Store, control: Control, load: Load) -> Incident:
    """The stored incident of a judged run whose reward is flat."""
    run_id, now = load("flat"), [1e9]
    engine = Engine(store, control, clock=lambda: now[0])
    engine.advance(run_id)
    now[0] += 1e9
    engine.advance(run_id)
    with control.session(write=False) as session:
        return next(one for one in incidents(session, run_id) if one.symptom == "reward-flat")


def verdict(hypotheses: Any, code: str = "H1g") -> str:
    return next(str(one["verdict"]) for one in hypotheses if one["id"] == code)


@pytest.mark.parametrize(("unsolved", "expected"), [(0.6, "supported"), (0.9, "refuted")])
def test_a_second_run_decides_what_was_not_checkable(
    store: Store, control: Control, load: Load, flat: Incident, unsolved: float, expected: str
) -> None:
    assert wants_second_run(flat.body["hypotheses"])
    found = explain_with(store, control, flat, load("base", unsolved))
    checks = next(one["checks"] for one in found.hypotheses if one["id"] == "H1g")
    assert next(check["verdict"] for check in checks if check["id"] == "base_covers") == expected
    assert not wants_second_run(found.hypotheses) and found.second.name == "base"


def test_it_says_what_a_replay_with_the_second_run_says_and_changes_nothing(
    store: Store, control: Control, load: Load, flat: Incident
) -> None:
    other = load("base", 0.9)

    def stored() -> Any:
        with control.session(write=False) as session:
            return incidents(session, absorbed=True), judged(session, flat.run_id)

    before = stored()
    found = explain_with(store, control, flat, other)
    told = replay(store, flat.run_id, second=in_memory(store, other)).to_json()
    (same,) = [one for one in told["incidents"] if one["incident_id"] == flat.id]
    assert list(found.hypotheses) == same["hypotheses"] and found.step <= 130
    assert stored() == before


def test_an_incident_that_the_engine_has_forgotten_is_found_by_a_replay(store: Store, control: Control, load: Load, flat: Incident) -> None:
    other = load("base", 0.9)
    remembered = explain_with(store, control, flat, other)
    with control.session() as session:
        found = judged(session, flat.run_id)
        assert found is not None and found.state is not None
        set_judged(session, flat.run_id, found.attempt, found.step, {**found.state, "engine": None})
    assert explain_with(store, control, flat, other) == remembered


def test_a_run_that_cannot_be_compared_with_is_refused_with_a_sentence(store: Store, control: Control, load: Load, flat: Incident) -> None:
    with pytest.raises(UnknownSecondRun, match="no run zzz"):
        explain_with(store, control, flat, "zzz")
    with pytest.raises(NoSecondRun, match="flat is the run of this incident itself"):
        explain_with(store, control, flat, flat.run_id)
    with pytest.raises(NoSecondRun, match="empty holds no step yet"):
        explain_with(store, control, flat, load("empty", steps=0))


def test_an_incident_that_the_rules_find_no_more_is_not_explained_again(store: Store, control: Control, load: Load, flat: Incident) -> None:
    with control.session() as session:
        gone = save(session, replace(flat, id="in_gone", rule_code="RS999"))
    with pytest.raises(NoSecondRun, match="RS999, version"):
        explain_with(store, control, gone, load("base"))
