"""What explains a slice that fell and a mix that moved, on trajectories written through the native reader."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import server.checks.mix as mix
import server.checks.slices as slices
from ingest.discover import discover
from ingest.load import identify
from ingest.load import load_run as read_run
from ingest.store.connection import Store
from server.checks.base import Finding
from server.queries.facts import add_facts
from server.queries.run_data import load_run
from server.queries.view import RunView

Row = dict[str, Any]
Make = Callable[..., RunView]
ONSET, LAST = 41, 70
FALL = Finding("slice-regression", "warn", ONSET, "a fell", "fact.task.reward.a", "a")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Make]:
    """A run of 70 steps, eight responses a step to tasks a and b; change(row, step) writes one row anew, metrics lists its log."""
    store = Store(None)

    def make(
        change: Callable[[Row, int], Row | None] | None = None, metrics: Mapping[str, Callable[[int], float]] | None = None
    ) -> RunView:
        folder = tmp_path / "run"
        folder.mkdir()
        rows = []
        for step in range(1, LAST + 1):
            for n in range(8):
                task = "ab"[n % 2]
                prompt = f"{'Add' if task == 'a' else 'Sort'} {(7 * step + n) % 10} numbers"
                row = {"step": step, "trajectory_id": f"{step}-{n}", "task": task, "prompt": prompt, "response": f"{prompt}: {n % 3}",
                       "reward": 1.0 if n % 3 else 0.0, "difficulty": 3, "prompt_tokens": 20 + n % 4}  # fmt: skip
                made = change(row, step) if change else row
                if made is not None:
                    rows.append(made)
        (folder / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        log = [{"step": s, **{name: value(s) for name, value in (metrics or {}).items()}} for s in range(1, LAST + 1)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in log if len(row) > 1))
        (folder / "config.json").write_text("{}")
        found = discover([folder])[0][0]
        assert all(result.rejected == 0 for result in read_run(store, found))
        data = load_run(store, identify(store, found).run_id)
        add_facts(data)
        return RunView(data, 1, LAST)

    yield make
    store.close()


def since(step: int, row: Row, **changes: Any) -> Row:
    """The row with changes from the onset on, for task a."""
    return {**row, **changes} if step >= ONSET and row["task"] == "a" else row


def told(verdict: str, *checks: Any) -> None:
    for check in checks:
        assert check.verdict == verdict, (check.id, check.note, check.observed, check.missing)


def test_equal_responses_that_score_as_before_point_to_the_policy(run: Make) -> None:
    view = run()
    told("supported", slices.same_pairs_hold(view, FALL))
    told("refuted", slices.labels_contradict(view, FALL))


def test_equal_responses_that_score_otherwise_point_to_the_labels(run: Make) -> None:
    view = run(lambda row, step: since(step, row, reward=1 - row["reward"]))
    told("supported", slices.labels_contradict(view, FALL))
    told("refuted", slices.same_pairs_hold(view, FALL))


def test_equal_responses_that_contradict_each_other_within_a_step_point_to_the_grading(run: Make) -> None:
    def doubled(row: Row, step: int) -> Row:
        same = {**row, "response": "same", "prompt": f"new {step}"}
        return since(step, same, reward=float(row["trajectory_id"].endswith(("0", "2")))) if step >= ONSET else {**same, "reward": 1.0}

    told("supported", slices.labels_contradict(run(doubled), FALL))


def test_white_space_and_case_do_not_make_another_response(run: Make) -> None:
    view = run(lambda row, step: since(step, row, response=row["response"].upper() + " \n"))
    told("supported", slices.same_pairs_hold(view, FALL))


def test_without_rows_of_both_sides_pairs_cannot_tell(run: Make) -> None:
    view = run(lambda row, step: row if step < ONSET else None, {"reward.task.a.mean": lambda s: 0.5})
    told("not_checkable", slices.same_pairs_hold(view, FALL), slices.labels_contradict(view, FALL))


def noisy(level: Callable[[int], float], seed: int) -> Callable[[int], float]:
    noise = np.random.default_rng(seed).normal(0, 0.02, LAST + 1)
    return lambda step: float(level(step) + noise[step])


HELD = noisy(lambda s: 0.8, 1)
FELL = noisy(lambda s: 0.8 if s < ONSET else 0.5, 2)


def wrong(row: Row, step: int) -> Row:
    """New prompts throughout, so that no pair of equal responses exists, and no success of task a since the onset."""
    return since(step, {**row, "prompt": f"{row['prompt']} of {step}"}, reward=0.0)


def test_an_evaluation_that_falls_too_is_a_real_regression(run: Make) -> None:
    view = run(wrong, {"eval.a.score": FELL, "eval.b.score": HELD})
    told("supported", slices.evaluation_fell(view, FALL))
    told("inconclusive", slices.labels_contradict(view, FALL))


def test_an_evaluation_that_holds_while_training_falls_points_to_the_labels(run: Make) -> None:
    view = run(wrong, {"eval.a.score": HELD, "eval.b.score": HELD})
    told("refuted", slices.evaluation_fell(view, FALL))
    told("supported", slices.labels_contradict(view, FALL))


def test_an_evaluation_that_holds_says_nothing_about_labels_where_the_prompts_became_harder(run: Make) -> None:
    view = run(lambda row, step: since(step, wrong(row, step), difficulty=6), {"eval.a.score": HELD, "eval.b.score": HELD})
    told("inconclusive", slices.labels_contradict(view, FALL))
    told("supported", slices.harder_prompts(view, FALL))


def test_prompts_that_stay_as_they_were_are_no_curriculum(run: Make) -> None:
    view = run()
    told("refuted", slices.harder_prompts(view, FALL), slices.other_prompts(view, FALL))


def test_without_an_evaluation_of_the_slice_a_regression_cannot_be_told(run: Make) -> None:
    told("not_checkable", slices.evaluation_fell(run(), FALL))


def test_prompts_of_another_kind_under_the_same_name_are_other_labels(run: Make) -> None:
    told("supported", slices.other_prompts(run(lambda row, step: since(step, row, prompt="Translate this")), FALL))


def test_prompts_that_return_under_another_task_are_other_labels(run: Make) -> None:
    def swapped(row: Row, step: int) -> Row:
        return {**row, "task": "ba"["ab".index(row["task"])]} if step >= ONSET else row

    told("supported", slices.other_prompts(run(swapped), FALL))


@pytest.mark.parametrize(("status", "verdict"), [("timeout", "supported"), ("ok", "refuted")])
def test_unanswered_gradings_of_the_slice_explain_it(run: Make, status: str, verdict: str) -> None:
    view = run(lambda row, step: since(step, {**row, "verifier": {"status": "ok"}}, verifier={"status": status}))
    told(verdict, slices.gradings_unanswered(view, FALL))


@pytest.mark.parametrize(("kept", "verdict"), [(False, "supported"), (True, "refuted")])
def test_rows_of_the_slice_that_are_kept_otherwise_explain_it(run: Make, kept: bool, verdict: str) -> None:
    view = run(lambda row, step: since(step, {**row, "kept": True}, kept=kept))
    told(verdict, slices.kept_otherwise(view, FALL))


def test_fields_that_are_not_written_are_named(run: Make) -> None:
    view = run()
    assert slices.kept_otherwise(view, FALL).missing == ("kept",)
    assert slices.gradings_unanswered(view, FALL).missing == ("verifier.status",)
    assert slices.epoch_boundary(view, FALL).missing == ("training/epoch",)


@pytest.mark.parametrize(("turn", "verdict"), [(ONSET + 2, "supported"), (ONSET - 25, "refuted")])
def test_an_epoch_that_begins_at_the_onset_explains_it(run: Make, turn: int, verdict: str) -> None:
    told(verdict, slices.epoch_boundary(run(metrics={"train/epoch": lambda s: 1.0 if s < turn else 2.0}), FALL))


@pytest.mark.parametrize(("tokens", "verdict"), [(90, "supported"), (21, "refuted")])
def test_longer_prompts_of_the_evaluation_explain_its_fall(run: Make, tokens: int, verdict: str) -> None:
    def evaluated(row: Row, step: int) -> Row:
        return {**row, "split": "eval", "prompt_tokens": tokens} if row["trajectory_id"].endswith(("0", "1")) else row

    view = run(evaluated)
    told(verdict, slices.evaluation_longer(view, Finding("slice-regression", "warn", ONSET, "a fell", "eval.a.score", "a")))
    told("refuted", slices.evaluation_longer(view, FALL))


MOVED = Finding("mix-drift", "warn", ONSET, "the mix moved", "fact.mix.task.a")


def test_kept_tasks_that_leave_the_issued_ones_are_filtering(run: Make) -> None:
    view = run(lambda row, step: since(step, {**row, "kept": True}, kept=False))
    told("supported", mix.kept_differs(view, MOVED))


def test_kept_tasks_that_are_the_issued_ones_are_none(run: Make) -> None:
    told("refuted", mix.kept_differs(run(lambda row, step: {**row, "kept": True}), MOVED))


def test_without_kept_filtering_cannot_be_told(run: Make) -> None:
    assert mix.kept_differs(run(), MOVED).missing == ("kept", "task")


def test_tasks_that_fall_by_themselves_are_a_regression_and_shares_are_not(run: Make) -> None:
    told("supported", mix.values_fell(run(lambda row, step: since(step, row, reward=0.0)), MOVED))


def test_a_reward_that_moves_with_the_shares_is_the_mix(run: Make) -> None:
    def other(row: Row, step: int) -> Row | None:
        row = {**row, "reward": 0.9 if row["task"] == "a" else 0.1}
        return None if step >= ONSET and row["task"] == "a" and not row["trajectory_id"].endswith("0") else row

    view = run(other)
    told("refuted", mix.values_fell(view, MOVED))
    parts = mix.decomposition(view, (1, ONSET - 1), (ONSET, LAST))
    assert parts is not None
    assert parts.total == pytest.approx(0.9 * 0.2 + 0.1 * 0.8 - 0.5)
    assert parts.values == pytest.approx(0)
    assert parts.share == pytest.approx(1)


def test_source_ids_of_a_mix(run: Make) -> None:
    def renamed(row: Row, step: int) -> Row:
        return {**row, "task": "a"} if step >= ONSET else row

    told("supported", mix.source_ids_changed(run(renamed), MOVED))


def test_source_ids_that_stay_are_refuted_and_another_mix_cannot_tell(run: Make) -> None:
    view = run()
    told("refuted", mix.source_ids_changed(view, MOVED))
    told("not_checkable", mix.source_ids_changed(view, Finding("mix-drift", "warn", ONSET, "", "fact.mix.origin.policy")))


@pytest.mark.parametrize(("now", "verdict"), [(10, "supported"), (20, "refuted")])
def test_training_prompts_that_become_shorter_than_the_evaluation_s(run: Make, now: int, verdict: str) -> None:
    def sized(row: Row, step: int) -> Row:
        if row["trajectory_id"].endswith(("0", "1")):
            return {**row, "split": "eval", "prompt_tokens": 20}
        return {**row, "prompt_tokens": 20 if step < ONSET else now}

    told(verdict, mix.lengths_part(run(sized), MOVED))
