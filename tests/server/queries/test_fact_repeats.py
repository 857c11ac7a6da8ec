"""Facts of repetition against values worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingest.discover import discover
from ingest.load import identify, load_run
from ingest.store.connection import Store
from server.queries.fact_repeats import repeat_facts
from server.queries.fact_rows import FactSeries
from server.queries.fact_table import tables
from server.queries.run_data import open_run, refresh
from server.queries.view import Position, RunData, RunFacts

Build = Callable[[Sequence[Mapping[str, Any]]], RunData]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Build]:
    store = Store(None)

    def build(rows: Sequence[Mapping[str, Any]]) -> RunData:
        folder = tmp_path / "run"
        folder.mkdir()
        full = [{"trajectory_id": f"t{n}", "reward": 1.0, **row} for n, row in enumerate(rows)]
        (folder / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in full))
        found = discover([folder])[0][0]
        assert all(result.rejected == 0 for result in load_run(store, found))
        data = open_run(store, identify(store, found).run_id)
        refresh(data)
        return data

    yield build
    store.close()


def step(number: int, prompts: str, answer: str = "a", **more: Any) -> list[dict[str, Any]]:
    """One trajectory for each letter of prompts."""
    return [{"step": number, "prompt": p, "response": answer + p, **more} for p in prompts]


def repeats(data: RunData, after: Position | None = None) -> FactSeries:
    """The facts of a run whose rows make one table."""
    found = [repeat_facts(data, table, after) for table in tables(data, after)]
    assert len(found) < 2
    return found[0] if found else {}


def told(data: RunData, name: str) -> dict[tuple[int, int], float]:
    attempts, steps, values = repeats(data).get(f"fact.repeat.{name}", ([], [], []))
    return {(int(a), int(s)): float(v) for a, s, v in zip(attempts, steps, values, strict=True)}


def test_prompts_of_earlier_steps_and_of_one_and_the_same_step_are_counted(run: Build) -> None:
    data = run([*step(1, "abcd"), *step(2, "efgh"), *step(3, "abex")])
    assert told(data, "prompts") == {(1, 1): 4, (1, 2): 4, (1, 3): 4}
    assert told(data, "prompt_frac") == {(1, 1): 0, (1, 2): 0, (1, 3): 0.75}
    assert told(data, "block_frac")[1, 3] == 0.5  # a and b come from step 1, e from step 2
    assert told(data, "distance") == {(1, 3): 2}


def test_several_responses_to_a_prompt_count_it_once_and_its_newest_use_counts(run: Build) -> None:
    data = run([*step(1, "ab"), *step(2, "ac"), *step(3, "aaab")])
    assert told(data, "prompts")[1, 3] == 2
    assert told(data, "prompt_frac")[1, 3] == 1
    assert told(data, "block_frac")[1, 3] == 0.5
    assert told(data, "distance")[1, 3] in (1, 2)


def test_equal_texts_of_the_same_prompt_are_repeats_and_those_of_another_prompt_are_none(run: Build) -> None:
    rows = [*step(1, "ab"), *step(2, "a"), *step(2, "b", "other"), {"step": 2, "prompt": "c", "response": "aa"}]
    assert told(run(rows), "response_frac") == {(1, 1): 0, (1, 2): pytest.approx(1 / 3)}


def test_steps_that_a_later_attempt_gave_up_are_not_its_past(run: Build) -> None:
    rows = [*step(1, "ab"), *step(2, "cd"), *step(3, "ef"), *step(2, "cd", "new", attempt=2), *step(3, "ab", attempt=2)]
    data = run(rows)
    assert told(data, "prompt_frac") == {(1, 1): 0, (1, 2): 0, (1, 3): 0, (2, 2): 0, (2, 3): 1}
    assert told(data, "distance") == {(2, 3): 2}


def test_responses_of_an_earlier_attempt_at_the_same_step_are_told_apart(run: Build) -> None:
    data = run([*step(1, "ab"), *step(2, "cd"), *step(2, "c", attempt=2), *step(2, "d", "new", attempt=2), *step(3, "ab", attempt=2)])
    assert told(data, "attempt_frac") == {(2, 2): 0.5}


def test_trajectories_that_are_twice_in_their_step_are_counted(run: Build) -> None:
    rows = [{"step": 1, "trajectory_id": i, "prompt": "p", "response": "r"} for i in ("x", "y", "x", "z")]
    data = run([*rows, {"step": 2, "trajectory_id": "x", "prompt": "p", "response": "r"}])
    assert told(data, "duplicate_frac") == {(1, 1): 0.5, (1, 2): 0}


def test_without_prompts_only_ids_are_compared(run: Build) -> None:
    data = run([{"step": 1, "response": "r"}, {"step": 2, "response": "r"}])
    assert set(repeats(data)) == {"fact.repeat.duplicate_frac"}


def test_a_run_without_trajectories_has_no_such_fact() -> None:
    store = Store(None)
    data = RunData(store, RunFacts("none", "p", "n", "native", None, {}, {}), (), {})
    assert repeats(data) == {}
    store.close()


@pytest.mark.parametrize("remembered", [True, False])
@pytest.mark.parametrize("after", [(1, 1), (1, 4), (1, 6), (2, 5)])
def test_a_refresh_gives_what_the_whole_run_gives(run: Build, after: tuple[int, int], remembered: bool) -> None:
    random = np.random.default_rng(4)
    rows = [r for s in range(1, 7) for r in step(s, "".join(random.choice(list("abcdefghij"), 4)))]
    rows += [r for s in range(4, 9) for r in step(s, "".join(random.choice(list("abcdefghij"), 4)), attempt=2)]
    data = run(rows)
    whole = repeats(data)
    if not remembered:
        data.kept.clear()
    part = repeats(data, after)
    again = repeats(data, after)
    assert part.keys() <= whole.keys()
    for name, (attempts, steps, values) in whole.items():
        late = [(a, s) > after for a, s in zip(attempts.tolist(), steps.tolist(), strict=True)]
        for found in (part, again):
            if any(late):
                assert found[name][0].tolist() == attempts[late].tolist()
                assert found[name][1].tolist() == steps[late].tolist()
                assert found[name][2].tolist() == values[late].tolist()
