"""Checks of reward, groups, verifier and evaluation on rows written through the native reader, for each of their answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from ingest.discover import discover
from ingest.load import identify
from ingest.load import load_run as read_run
from ingest.store.connection import Store
from server.checks import groups, held_out, reward, verifier
from server.checks.base import Check, CheckResult, Finding
from server.queries.facts import add_facts
from server.queries.run_data import load_run
from server.queries.view import RunData, RunView

Rows = list[dict[str, Any]]
Build = Callable[..., RunData]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Build]:
    """Makes a run of rollouts with its facts; all of a module lie in one store."""
    store = Store(None)

    def build(rows: Sequence[Mapping[str, Any]]) -> RunData:
        folder = tmp_path_factory.mktemp("run")
        full = [{"trajectory_id": f"t{n}", "finish_reason": "stop", **row} for n, row in enumerate(rows)]
        (folder / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in full))
        (folder / "config.json").write_text(json.dumps({"algorithm": "grpo"}))
        found = discover([folder])[0][0]
        assert all(result.rejected == 0 for result in read_run(store, found))
        data = load_run(store, identify(store, found).run_id)
        add_facts(data)
        return data

    yield build
    store.close()


def ask(check: Check, data: RunData, step: int, onset: int) -> CheckResult:
    return check(RunView(data, 1, step), Finding("any", "warn", onset, "a finding"))


def group(step: int, number: int, answers: Sequence[tuple[str, float]], **more: Any) -> Rows:
    """Responses of one group: the last word of each and its reward."""
    shared = {"step": step, "group_id": f"g{step}-{number}", "prompt": f"p{step}-{number}"} | more
    return [{**shared, "response": f"thinking {n} so {word}", "reward": value} for n, (word, value) in enumerate(answers)]


RIGHT = [("42", 1.0)] * 3 + [("7", 0.0)]
LENIENT = [("42", 1.0)] * 2 + [("7", 1.0), ("42", 0.0)]


def accepted(kind: Callable[[int], Sequence[tuple[str, float]]]) -> Rows:
    return [row for step in range(1, 61) for number in range(6) for row in group(step, number, kind(step))]


def test_different_accepted_answers_are_seen_against_the_runs_start(run: Build) -> None:
    data = run(accepted(lambda step: LENIENT if step > 40 else RIGHT))
    found = verifier.acceptance(RunView(data, 1, 50))
    assert found is not None
    assert (found.before, found.now, found.onset, found.rose) == (0.0, 1.0, 41, True)
    assert ask(verifier.accepts_different, data, 50, 41).verdict == "supported"
    assert ask(held_out.grader_exploited, data, 60, 45).verdict == "supported"
    assert ask(verifier.accepts_different, data, 40, 41).verdict == "refuted"


def test_a_grader_that_always_took_several_answers_is_not_new(run: Build) -> None:
    data = run(accepted(lambda step: LENIENT))
    assert ask(verifier.accepts_different, data, 60, 41).verdict == "inconclusive"


def test_without_groups_no_accepted_answers_can_be_compared(run: Build) -> None:
    rows = [{key: v for key, v in row.items() if key != "group_id"} for row in accepted(lambda step: RIGHT)]
    assert ask(verifier.accepts_different, run(rows), 60, 41).verdict == "not_checkable"


@pytest.mark.parametrize(("late", "verdict"), [("1. " * 40, "supported"), ("", "refuted")])
def test_a_surface_that_moved_with_the_reward_speaks_for_exploitation(run: Build, late: str, verdict: str) -> None:
    rows = accepted(lambda step: RIGHT)
    for row in rows:
        if row["step"] > 30:
            row["response"] = late + row["response"]
    assert ask(held_out.grader_exploited, run(rows), 60, 31).verdict == verdict


@pytest.mark.parametrize(("again", "verdict"), [(0.9, "supported"), (0.5, "refuted")])
def test_prompts_seen_before_are_compared_with_fresh_ones_of_the_same_kind(run: Build, again: float, verdict: str) -> None:
    rows: Rows = []
    for step in range(1, 61):
        for number in range(6):
            old = number < 3
            prompt = f"question {number:03d}" if old else f"question {step * 10 + number:03d}"
            value = (again if old and step > 1 else 0.5) + 0.05 * ((step + number) % 3 - 1)
            rows += group(step, number, [("a", value), ("b", value)], prompt=prompt, task="sum")
    assert ask(held_out.repeats_gain, run(rows), 60, 40).verdict == verdict


def test_prompts_that_never_come_back_cannot_be_learnt_by_heart(run: Build) -> None:
    assert ask(held_out.repeats_gain, run(accepted(lambda step: RIGHT)), 60, 40).verdict == "refuted"


@pytest.mark.parametrize(
    ("before", "now", "verdict"),
    [(1.0, 0.2, "supported"), (0.2, 0.2, "inconclusive"), (1.0, 1.0, "refuted"), (None, None, "not_checkable")],
)
def test_sampling_of_the_evaluation_against_training(run: Build, before: float | None, now: float | None, verdict: str) -> None:
    rows: Rows = []
    for step in range(1, 101):
        rows += group(step, 0, RIGHT, sampling={"temperature": 1.0})
        value = now if step > 60 else before
        rows += group(step, 1, RIGHT, split="eval", **({"sampling": {"temperature": value}} if value is not None else {}))
    assert ask(held_out.sampling_differs, run(rows), 100, 61).verdict == verdict


@pytest.mark.parametrize(("copies", "verdict"), [(True, "supported"), (False, "refuted")])
def test_members_of_a_group_that_agree_more_than_its_prompt_explains(run: Build, copies: bool, verdict: str) -> None:
    rows: Rows = []
    for step in range(1, 61):
        value = float(step % 2)
        rewards = [value] * 4 if copies else [0.0, 1.0, 0.0, 1.0]
        rows += group(step, 0, [("a", reward) for reward in rewards], prompt=f"p{step % 5}")
    assert ask(groups.more_equal_than_chance, run(rows), 60, 40).verdict == verdict


@pytest.mark.parametrize(("equal", "verdict"), [(6, "supported"), (0, "refuted")])
def test_a_filter_that_keeps_groups_of_equal_rewards(run: Build, equal: int, verdict: str) -> None:
    rows: Rows = []
    for number in range(14):
        answers = [("a", 1.0), ("b", 1.0 if number < equal or number > 11 else 0.0)]
        rows += group(1, number, answers, kept=number <= 11)
    assert ask(groups.filter_misses, run(rows), 1, 1).verdict == verdict


def test_without_a_filter_at_work_there_is_nothing_to_miss(run: Build) -> None:
    data = run([row for number in range(14) for row in group(1, number, RIGHT, kept=True)])
    assert ask(groups.filter_misses, data, 1, 1).verdict == "not_checkable"


@pytest.mark.parametrize(("wrong", "verdict"), [(4, "supported"), (1, "inconclusive"), (0, "refuted")])
def test_prompts_that_fail_at_every_visit_although_responses_agree(run: Build, wrong: int, verdict: str) -> None:
    rows: Rows = []
    for step in (1, 20):
        for number in range(40):
            answers = [("42", 0.0 if number < wrong else 1.0)] * 4
            rows += group(step, number, answers, prompt=f"p{number}")
    assert ask(verifier.bad_gold, run(rows), 20, 1).verdict == verdict


def test_prompts_seen_once_do_not_show_a_wrong_gold_answer(run: Build) -> None:
    assert ask(verifier.bad_gold, run(accepted(lambda step: RIGHT)), 60, 1).verdict == "not_checkable"


@pytest.mark.parametrize(("always", "verdict"), [(3, "supported"), (0, "refuted")])
def test_failures_that_come_back_with_the_same_prompts(run: Build, always: int, verdict: str) -> None:
    rows: Rows = []
    for step in range(1, 11):
        for number in range(30):
            fails = number < always or (step == number % 10 + 1)
            more = {"failure_type": "parse"} if fails else {}
            rows += group(step, number, [("42", 0.0 if fails else 1.0)], prompt=f"p{number}", **more)
    assert ask(verifier.failures_repeat, run(rows), 10, 1).verdict == verdict


@pytest.mark.parametrize(("bad", "verdict"), [(1.0, "supported"), (0.0, "refuted")])
def test_failures_of_one_worker(run: Build, bad: float, verdict: str) -> None:
    rows: Rows = []
    for number in range(60):
        at = number % 3
        lost = at == 0 and bad > 0
        rows += group(1, number, [("42", 0.0 if lost else 1.0)], extra={"worker": at})
    assert ask(verifier.one_worker, run(rows), 1, 1).verdict == verdict


@pytest.mark.parametrize(("seconds", "verdict"), [(5.0, "supported"), (0.1, "refuted")])
def test_gradings_that_ran_into_a_limit(run: Build, seconds: float, verdict: str) -> None:
    rows: Rows = []
    for number in range(40):
        late = number < 10
        rows += group(1, number, [("42", 0.0)], verifier={"status": "timeout" if late else "ok", "seconds": seconds if late else 0.1})
    assert ask(verifier.slow_gradings, run(rows), 1, 1).verdict == verdict


@pytest.mark.parametrize(("new", "verdict"), [("2", "supported"), ("1", "refuted"), (None, "inconclusive")])
def test_another_version_of_the_verifier_in_the_rows(run: Build, new: str | None, verdict: str) -> None:
    rows: Rows = []
    for step in range(1, 21):
        version = "1" if step < 11 else new
        named = {"verifier": {"name": "exact", "version": version, "status": "ok"}} if new is not None else {}
        rows += group(step, 0, RIGHT, **named)
    assert ask(verifier.version_changed, run(rows), 20, 11).verdict == verdict


@pytest.mark.parametrize(("alike", "verdict"), [(40, "supported"), (15, "refuted")])
def test_failures_of_one_kind(run: Build, alike: int, verdict: str) -> None:
    kinds = ["parse"] * alike + ["wrong", "empty", "format"] * ((40 - alike) // 3 + 1)
    rows = [row for number in range(40) for row in group(1, number, [("42", 0.0)], failure_type=kinds[number])]
    assert ask(reward.failures_alike, run(rows), 1, 1).verdict == verdict


@pytest.mark.parametrize(("base", "verdict"), [(True, "refuted"), (False, "supported"), (None, "not_checkable")])
def test_coverage_against_a_second_run(run: Build, base: bool | None, verdict: str) -> None:
    """The trained run solves two of six prompts; base True: the second run solves none of them, False: as many."""

    def solved(step: int, number: int, those: int) -> Rows:
        return group(step, number, RIGHT if number < those else [("7", 0.0)] * 4)

    data = run([row for step in range(1, 21) for number in range(6) for row in solved(step, number, 2)])
    if base is not None:
        other = 1 if base else 2
        data.second = run([row for step in range(1, 21) for number in range(6) for row in solved(step, number, other)])
    assert ask(reward.base_covers, data, 20, 1).verdict == verdict
