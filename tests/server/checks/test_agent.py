"""Checks of agents that read turns: the same calls before and after, and what single turns decide."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import server.checks.agent as agent
from ingest.discover import discover
from ingest.load import identify
from ingest.load import load_run as read_run
from ingest.store.connection import Store
from server.checks.base import Finding
from server.checks.examples import with_examples
from server.queries.facts import add_facts
from server.queries.run_data import load_run
from server.queries.view import RunView

Turn = Mapping[str, Any]
Look = Callable[[Sequence[Mapping[str, Any]]], RunView]
FROM_11 = Finding("agent-loop-fault", "warn", 11, "", "fact.tools.error_frac")


@pytest.fixture
def look(tmp_path: Path) -> Iterator[Look]:
    """The view at the last step of a run with these rollouts."""
    store = Store(None)

    def build(rows: Sequence[Mapping[str, Any]]) -> RunView:
        folder = tmp_path / "run"
        folder.mkdir()
        full = [{"trajectory_id": f"t{n}", "finish_reason": "stop", **row} for n, row in enumerate(rows)]
        (folder / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in full))
        found = discover([folder])[0][0]
        assert all(result.rejected == 0 for result in read_run(store, found))
        data = load_run(store, identify(store, found).run_id)
        add_facts(data)
        return RunView(data, 1, max(int(row["step"]) for row in rows))

    yield build
    store.close()


def call(argument: str, failed: bool) -> list[Turn]:
    return [
        {"role": "assistant", "content": "a call", "tool_name": "search", "tool_args": {"q": argument}},
        {"role": "tool", "content": "no" if failed else "yes", "tool_name": "search", "is_error": failed},
    ]


def episodes(steps: range, sound: float, broken: float, share_of_bad: float, retries_succeed: bool = False) -> list[dict[str, Any]]:
    """Sixteen trajectories a step of two calls. Calls for good fail at the rate `sound`, those for bad at `broken`."""
    chance = random.Random(steps.start)
    rows = []
    for step in steps:
        for _ in range(16):
            turns: list[Turn] = []
            for name in ("one", "two"):
                kind = "bad" if chance.random() < share_of_bad else "good"
                failed = chance.random() < (broken if kind == "bad" else sound)
                turns += call(f"{kind} {name}", failed)
                turns += call(f"{kind} {name}", not retries_succeed) if failed else []
            rows.append({"step": step, "turns": [*turns, {"role": "assistant", "content": "done"}]})
    return rows


def test_calls_that_used_to_succeed_and_fail_now_are_the_environments(look: Look) -> None:
    view = look([*episodes(range(1, 11), 0.05, 0.9, 0.05), *episodes(range(11, 16), 0.5, 0.9, 0.05)])
    told = agent.environment_fails(view, FROM_11)
    assert told.verdict == "supported"
    assert told.observed["actual"] > 2 * told.observed["expected"]  # type: ignore[operator]
    assert told.observed["retry_ok_frac"] == 0


def test_calls_that_always_failed_and_are_made_more_often_are_the_policys(look: Look) -> None:
    view = look([*episodes(range(1, 11), 0.02, 0.9, 0.1), *episodes(range(11, 16), 0.02, 0.9, 0.6)])
    told = agent.environment_fails(view, FROM_11)
    assert told.verdict == "refuted"
    assert told.observed["error_frac"] > 0.3  # type: ignore[operator]


def test_failures_that_succeed_when_repeated_are_the_environments_even_from_the_start(look: Look) -> None:
    view = look(episodes(range(1, 6), 0.4, 0.4, 0.0, retries_succeed=True))
    told = agent.environment_fails(view, Finding("agent-loop-fault", "warn", 1, "", "fact.tools.error_frac"))
    assert told.verdict == "supported"
    assert told.observed["calls"] is None


def test_few_failures_refute_the_environment(look: Look) -> None:
    view = look([*episodes(range(1, 11), 0.01, 0.01, 0.0), *episodes(range(11, 16), 0.01, 0.01, 0.0)])
    assert agent.environment_fails(view, FROM_11).verdict == "refuted"


def test_without_earlier_steps_and_repeats_the_environment_cannot_be_judged(look: Look) -> None:
    turns = [*call("a", True), {"role": "assistant", "content": "done"}]
    view = look([{"step": 1, "turns": turns} for _ in range(4)])
    told = agent.environment_fails(view, Finding("agent-loop-fault", "warn", 1, "", "fact.tools.error_frac"))
    assert (told.verdict, told.missing) == ("not_checkable", ("tool_name", "tool_args", "is_error"))


def choices(reward: Callable[[int, int, random.Random], float]) -> list[dict[str, Any]]:
    """Groups of eight that choose left or right twice; observations are the same for all, so that states are shared."""
    chance = random.Random(5)
    rows = []
    for group in range(12):
        for _ in range(8):
            first, second = chance.randrange(2), chance.randrange(2)
            turns: list[Turn] = []
            for choice in (first, second):
                turns.append({"role": "assistant", "content": "left" if choice else "right"})
                turns.append({"role": "user", "content": "go on"})
            turns.append({"role": "assistant", "content": "done"})
            rows.append({"step": 1, "group_id": f"g{group}", "reward": reward(first, second, chance), "turns": turns})
    return rows


@pytest.mark.parametrize(
    ("reward", "verdict"),
    [
        (lambda first, second, chance: float(first), "supported"),
        (lambda first, second, chance: float(chance.random() < 0.5), "refuted"),
        (lambda first, second, chance: first + second + chance.gauss(0, 0.3), "inconclusive"),
    ],
    ids=["the first choice", "chance", "both alike"],
)
def test_whether_one_turn_decides_the_reward(look: Look, reward: Callable[[int, int, random.Random], float], verdict: str) -> None:
    told = agent.few_turns_decide(look(choices(reward)), FROM_11)
    assert told.verdict == verdict
    assert told.observed["shared_states"] > 0.5  # type: ignore[operator]


def test_without_groups_no_turn_can_be_judged(look: Look) -> None:
    rows = [{**row, "group_id": None} for row in choices(lambda first, second, chance: float(first))]
    assert agent.few_turns_decide(look(rows), FROM_11).verdict == "not_checkable"


def test_examples_are_the_newest_since_the_onset(look: Look) -> None:
    good, bad = ([*call("a", failed), {"role": "assistant", "content": "done"}] for failed in (False, True))
    view = look([{"step": step, "turns": turns} for step in range(8, 16) for turns in ((good, bad) if step != 15 else (good, good))])
    assert with_examples(view, FROM_11, "fact.tools.error.example").trajectories == ("12.1", "13.1", "14.1")
