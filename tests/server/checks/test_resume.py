"""Checks of a resume that need rows: seeds, stale rollouts, attempts that overlap, and what the settings show."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import server.checks.resume_causes as causes
from ingest.discover import discover
from ingest.load import identify, load_run
from ingest.store.connection import Store
from server.checks.base import Finding
from server.checks.resume import newest, off_schedule, repeats
from server.queries.facts import add_facts
from server.queries.run_data import open_run, refresh
from server.queries.view import RunData, RunView
from server.rules import RULES

Rows = Sequence[Mapping[str, Any]]
Build = Callable[..., RunData]
RULE = next(rule for rule in RULES if rule.name == "resume-discontinuity")
START = 21


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Build]:
    store = Store(None)

    def build(rows: Rows, metrics: Rows = (), events: Rows = ()) -> RunData:
        folder = tmp_path / "run"
        folder.mkdir()
        full = [{"trajectory_id": f"t{n}", "reward": 1.0, **row} for n, row in enumerate(rows)]
        for name, lines in (("rollouts", full), ("metrics", metrics), ("events", events)):
            if lines:
                (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        found = discover([folder])[0][0]
        assert all(result.rejected == 0 for result in load_run(store, found))
        data = open_run(store, identify(store, found).run_id)
        refresh(data)
        add_facts(data)
        return data

    yield build
    store.close()


def steps(first: int, last: int, prompts_of: int, seed: int, attempt: int = 1, copies: int = 1) -> list[dict[str, Any]]:
    """Steps of four prompts with six responses each; prompts are those of step - prompts_of; texts come from a seed and the step."""
    rows = []
    for step in range(first, last + 1):
        source = step - prompts_of
        random = np.random.default_rng([seed, source])
        for prompt in range(4):
            for sample in range(6):
                row = {"step": step, "attempt": attempt, "prompt": f"p{source}-{prompt}", "response": f"r{random.integers(5)}"}
                row |= {"group_id": f"g{step}-{prompt}", "trajectory_id": f"{attempt}-{step}-{prompt}-{sample}"}
                rows += [row] * copies
    return rows


def told(data: RunData, check: str, step: int = START + 4, start: int = START) -> str:
    view = RunView(data, max(data.attempt_starts), step)
    result = getattr(causes, check)(view, Finding("resume-discontinuity", "warn", start, "x"))
    assert result.id == check
    assert result.note or result.missing
    return str(result.verdict)


def severity(data: RunData, step: int) -> str | None:
    params = {p.name: p.default for p in RULE.params}
    found = RULE.evaluate(RunView(data, max(data.attempt_starts), step, params))
    return found[0].severity if found else None


def test_the_same_texts_in_the_same_places_are_a_seed_that_was_reset(run: Build) -> None:
    data = run([*steps(1, 20, 0, seed=1), *steps(START, 30, 20, seed=1, attempt=2)])
    assert told(data, "seeds_reset") == "supported"
    assert told(data, "cursor_reset") == "supported"
    assert severity(data, START) == "watch"  # four prompts could be chance
    assert severity(data, START + 1) == "warn"


def test_other_texts_to_the_same_prompts_leave_the_seed_open(run: Build) -> None:
    data = run([*steps(1, 20, 0, seed=1), *steps(START, 30, 20, seed=2, attempt=2)])
    assert told(data, "seeds_reset") == "inconclusive"


def test_an_attempt_that_repeats_the_steps_of_the_one_before_exactly_was_restored(run: Build) -> None:
    data = run([*steps(1, 26, 0, seed=1), *steps(START, 30, 0, seed=1, attempt=2)])
    assert told(data, "seeds_reset") == "refuted"
    assert told(data, "cursor_reset") == "refuted"
    assert [severity(data, step) for step in range(START, 31)] == [None] * 10


def test_without_any_repeated_prompt_seeds_are_left_open(run: Build) -> None:
    assert told(run([*steps(1, 20, 0, seed=1), *steps(START, 30, 0, seed=1, attempt=2)]), "seeds_reset") == "inconclusive"


def test_without_prompts_neither_seeds_nor_cursor_can_be_told(run: Build) -> None:
    data = run([{"step": s, "attempt": 1 + (s >= START), "response": "r"} for s in range(1, 31)])
    assert told(data, "seeds_reset") == told(data, "cursor_reset") == "not_checkable"


def test_a_stretch_that_comes_again_is_found_at_its_second_step_without_any_event(run: Build) -> None:
    data = run([*steps(1, 22, 0, seed=1), *steps(23, 32, 22, seed=2)])
    assert newest(RunView(data, 1, 23)) is None
    found = newest(RunView(data, 1, 24))
    assert found is not None
    assert (found.step, found.announced, found.distance) == (23, False, 22)
    again = repeats(RunView(data, 1, 30), 23)
    assert again is not None
    assert (again.share, again.before, again.together, again.distance, again.moved_back) == (1, 0, 1, 22, True)


def test_trajectories_twice_in_their_step_are_duplicates(run: Build) -> None:
    data = run([*steps(1, 20, 0, seed=1), *steps(START, 30, 0, seed=1, attempt=2, copies=2)])
    assert told(data, "duplicated_rows") == "supported"
    assert severity(data, START) == "warn"
    # More rows a step are then no other setting.
    assert told(data, "config_changed") == "not_checkable"


def test_trajectories_once_in_their_step_are_none(run: Build) -> None:
    assert told(run([*steps(1, 20, 0, seed=1), *steps(START, 30, 0, seed=1, attempt=2)]), "duplicated_rows") == "refuted"


def test_trajectories_of_before_that_are_trained_once_more_are_reused(run: Build) -> None:
    late = [{**row, "step": row["step"] + 5} for row in steps(16, 20, 0, seed=1)]
    assert told(run([*steps(1, 20, 0, seed=1), *late]), "rollouts_reused") == "supported"


def test_new_trajectories_without_lag_are_not_reused(run: Build) -> None:
    data = run([*steps(1, 20, 0, seed=1), *steps(START, 30, 0, seed=1)])
    assert told(data, "rollouts_reused") == "refuted"


def test_a_lag_that_jumps_is_reuse_and_a_step_of_one_is_open(run: Build) -> None:
    metrics = [{"step": s, "reward.mean": 0.5, "lag.policy.max": 1 if s < START else 4} for s in range(1, 31)]
    assert told(run((), metrics), "rollouts_reused") == "supported"


def test_lag_or_ids_are_needed_to_tell_reuse(run: Build) -> None:
    assert told(run((), [{"step": s, "reward.mean": 0.5} for s in range(1, 31)]), "rollouts_reused") == "not_checkable"


def test_more_prompts_a_step_than_ever_before_are_another_setting(run: Build) -> None:
    more = [
        {**row, "prompt": f"more{row['prompt']}", "group_id": "m", "trajectory_id": f"m{row['trajectory_id']}"}
        for row in steps(START, 30, 0, seed=1)
    ]
    assert told(run([*steps(1, 20, 0, seed=1), *steps(START, 30, 0, seed=1), *more]), "config_changed") == "supported"


def test_an_event_of_the_configuration_is_another_setting(run: Build) -> None:
    metrics = [{"step": s, "reward.mean": 0.5} for s in range(1, 31)]
    events = [{"step": 20, "kind": "config", "text": "temperature 1 to 0.7"}]
    assert told(run((), metrics, events), "config_changed") == "supported"


def test_settings_that_show_and_stay_refute_a_change(run: Build) -> None:
    assert told(run([*steps(1, 20, 0, seed=1), *steps(START, 30, 0, seed=1, attempt=2)]), "config_changed") == "refuted"


def test_without_anything_that_a_setting_fixes_a_change_cannot_be_told(run: Build) -> None:
    assert told(run((), [{"step": s, "reward.mean": s / 100} for s in range(1, 31)]), "config_changed") == "not_checkable"


def rates(second: Sequence[float], first: Sequence[float] = (1e-4,) * 30) -> list[dict[str, Any]]:
    rows = [{"step": s, "attempt": 1, "lr": value} for s, value in enumerate(first, 1)]
    return rows + [{"step": START + n, "attempt": 2, "lr": value} for n, value in enumerate(second)]


def test_a_learning_rate_is_compared_with_the_same_step_of_the_attempt_before(run: Build) -> None:
    data = run((), rates([5e-5, 5e-5]))
    assert off_schedule(RunView(data, 2, START), START) == (1e-4, 5e-5)
    assert severity(data, START) == "critical"


def test_a_step_of_the_schedule_that_the_attempt_before_took_as_well_is_on_schedule(run: Build) -> None:
    data = run((), rates([5e-5] * 5, [1e-4] * 20 + [5e-5] * 10))
    assert off_schedule(RunView(data, 2, START), START) is None


def test_the_earlier_attempt_is_quiet_about_the_later_one(run: Build) -> None:
    data = run((), rates([5e-5, 5e-5]))
    params = {p.name: p.default for p in RULE.params}
    assert RULE.evaluate(RunView(data, 1, 30, params)) == ()
