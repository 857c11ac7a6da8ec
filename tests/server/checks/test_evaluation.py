"""What explains an evaluation that changed and a reward that rose by one part: each answer that a check can give."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import server.checks.evaluation as evaluation
import server.checks.parts as parts
from ingest.store.connection import Store
from server.checks.base import Finding
from server.queries.view import Event, RunData, RunFacts, RunView

Make = Callable[..., RunView]
ONSET = 101
CHANGED = Finding("eval-budget-changed", "warn", ONSET, "it changed", "eval.heldout.score")
EVERY = 5


@pytest.fixture
def run() -> Iterator[Make]:
    """A run whose series have a point every five steps from step 1 on."""
    store = Store(None)

    def make(series: Mapping[str, Sequence[float]], *events: Event, config: Mapping[str, Any] | None = None) -> RunView:
        data = RunData(store, RunFacts("r", "p", "n", "native", None, {}, config or {}), events, {1: 1})
        for metric, values in series.items():
            data.add(metric, [1] * len(values), [1 + EVERY * n for n in range(len(values))], values)
        return RunView(data, 1, max(step for _, step in data.judge_order()))

    yield make
    store.close()


def noisy(*levels: tuple[float, int], seed: int = 0, by: float = 0.02) -> list[float]:
    flat = np.concatenate([np.full(n, level) for level, n in levels])
    return [float(v) for v in flat + np.random.default_rng(seed).normal(0, by, len(flat))]


SCORE = {"eval.heldout.score": noisy((0.7, 20), (0.55, 20), seed=1), "reward.mean": noisy((0.7, 40), seed=2)}
STILL = {"fact.eval.max_tokens": [4096.0] * 40, "fact.eval.temperature": [0.6] * 40}


def test_a_setting_that_changed_is_the_budget_and_settings_that_stand_are_not(run: Make) -> None:
    moved = run({**SCORE, "fact.eval.max_tokens": [4096.0] * 20 + [512.0] * 20})
    assert evaluation.budget_moved(moved, CHANGED).verdict == "supported"
    assert evaluation.budget_moved(run({**SCORE, **STILL}), CHANGED).verdict == "refuted"
    assert evaluation.budget_moved(run(SCORE), CHANGED).verdict == "not_checkable"


def test_a_change_long_after_the_onset_of_another_symptom_is_found(run: Make) -> None:
    view = run({**SCORE, "fact.eval.max_tokens": [4096.0] * 30 + [512.0] * 10})
    early = Finding("eval-not-following-reward", "warn", 21, "", "eval.heldout.score")
    assert evaluation.budget_moved(view, early).verdict == "supported"


def test_a_change_before_the_onset_is_not_its_budget(run: Make) -> None:
    view = run({**SCORE, **STILL, "fact.eval.max_tokens": [4096.0] * 5 + [512.0] * 35})
    assert evaluation.budget_moved(view, CHANGED).verdict == "refuted"


def test_a_grader_is_no_budget_and_is_told_by_itself(run: Make) -> None:
    view = run({**SCORE, **STILL, "fact.eval.grader": [7.0] * 20 + [9.0] * 20})
    assert evaluation.budget_moved(view, CHANGED).verdict == "refuted"
    assert evaluation.grader_moved(view, CHANGED).verdict == "supported"
    assert evaluation.grader_moved(run({**SCORE, "fact.eval.grader": [7.0] * 40}), CHANGED).verdict == "refuted"
    assert evaluation.grader_moved(run(SCORE), CHANGED).verdict == "not_checkable"


@pytest.mark.parametrize(
    ("overlap", "verdict"),
    [
        ([1.0] * 20 + [0.2] + [1.0] * 19, "supported"),
        ([1.0] * 40, "refuted"),
        ([0.3, 0.4] * 20, "inconclusive"),
        ([1.0] * 10, "not_checkable"),
    ],
)
def test_items_are_others_where_they_were_always_the_same(run: Make, overlap: list[float], verdict: str) -> None:
    assert evaluation.items_differ(run({**SCORE, "fact.eval.overlap": overlap}), CHANGED).verdict == verdict


def test_a_score_that_breaks_down_while_training_holds_is_the_harness(run: Make) -> None:
    broken = {**SCORE, "eval.heldout.score": noisy((0.7, 20), (0.05, 20), seed=3, by=0.01)}
    assert evaluation.harness_failed(run(broken), CHANGED).verdict == "supported"
    assert evaluation.harness_failed(run(SCORE), CHANGED).verdict == "refuted"
    third = {**SCORE, "eval.heldout.score": noisy((0.7, 20), (0.25, 20), seed=3, by=0.01)}
    assert evaluation.harness_failed(run(third), CHANGED).verdict == "inconclusive"
    assert evaluation.harness_failed(run({"reward.mean": [0.5] * 40}), CHANGED).verdict == "not_checkable"


def test_a_score_and_a_reward_that_break_down_together_are_not_the_harness(run: Make) -> None:
    both = {m: noisy((0.7, 20), (0.05, 20), seed=s, by=0.01) for s, m in enumerate(("eval.heldout.score", "reward.mean"))}
    assert evaluation.harness_failed(run(both), CHANGED).verdict == "inconclusive"


def test_one_evaluation_that_rises_alone_is_contamination(run: Make) -> None:
    up = {**SCORE, "eval.heldout.score": noisy((0.5, 20), (0.8, 20), seed=4)}
    assert evaluation.contaminated(run({**up, "eval.other.score": noisy((0.5, 40), seed=5)}), CHANGED).verdict == "supported"
    assert evaluation.contaminated(run({**up, "eval.other.score": noisy((0.5, 20), (0.8, 20), seed=5)}), CHANGED).verdict == "refuted"
    assert evaluation.contaminated(run(up), CHANGED).verdict == "not_checkable"
    assert evaluation.contaminated(run(SCORE), CHANGED).verdict == "refuted"
    assert evaluation.contaminated(run({"reward.mean": [0.5] * 40}), CHANGED).verdict == "not_checkable"


def test_an_event_between_the_two_evaluations_announces_a_change(run: Make) -> None:
    series = {**SCORE, "fact.eval.max_tokens": [4096.0] * 36 + [512.0] * 4}
    named = Event(1, 179, "config", "eval.max_tokens 4096 -> 512")
    for event, found in ((named, True), (named._replace(step=150), False), (named._replace(text="lr 1e-6"), False)):
        view = run(series, event)
        (change,) = [c for c in evaluation.changes(view) if c.kind == "setting"]
        assert (change.before, change.after, change.step, change.since) == (4096, 512, 181, 176)
        assert (evaluation.announced(view, change) is not None) is found


def test_few_items_are_equal_by_chance_more_often_than_many(run: Make) -> None:
    rng = np.random.default_rng(6)
    few, many = ([float(v) for v in rng.binomial(n, 0.5, 30) / n] for n in (16, 4000))
    assert evaluation.frozen(run({"eval.heldout.score": [*few, *[0.5] * 4]})) is None
    still = evaluation.frozen(run({"eval.heldout.score": [*many, *[0.51234] * 4]}))
    assert still is not None and still.n == 4 and still.step == 1 + EVERY * 30
    assert evaluation.frozen(run({"eval.heldout.score": many})) is None


PARTED = Finding("format-only-gain", "warn", ONSET, "it rose", "reward.fn.accuracy.mean")
RISE = [0.2] * 20 + [0.2 + 0.02 * n for n in range(20)]


def test_parts_by_their_names() -> None:
    assert [parts.kind_of(n) for n in ("accuracy", "answer_format", "exact_match", "length_penalty", "helpfulness")] == [
        "accuracy", "format", "accuracy", "format", "other"]  # fmt: skip


def test_a_rise_by_format_alone_supports_it_and_one_by_accuracy_refutes_it(run: Make) -> None:
    flat = noisy((0.3, 40), seed=7, by=0.005)
    base = {"reward.mean": [a + 0.3 for a in RISE]}
    alone = run({**base, "reward.fn.format.mean": RISE, "reward.fn.accuracy.mean": flat})
    told = parts.format_explains(alone, PARTED)
    assert told.verdict == "supported" and told.observed["format_share"] == pytest.approx(1, abs=0.1)
    other = run({**base, "reward.fn.format.mean": flat, "reward.fn.accuracy.mean": RISE})
    assert parts.format_explains(other, PARTED).verdict == "refuted"
    assert parts.format_explains(run(base), PARTED).verdict == "not_checkable"


def test_weights_of_the_configuration_scale_the_parts(run: Make) -> None:
    series = {"reward.mean": RISE, "reward.fn.format.mean": RISE, "reward.fn.accuracy.mean": RISE}
    found = parts.explained(run(series, config={"reward_weights": {"format": 3.0, "accuracy": 1.0}}), (51, 100), (151, 200))
    assert found is not None and found.share == pytest.approx(0.75)


@pytest.mark.parametrize(("values", "verdict"), [([0.0] * 40, "supported"), ([0.0] * 39 + [0.1], "refuted")])
def test_accuracy_that_was_never_earned(run: Make, values: list[float], verdict: str) -> None:
    assert parts.accuracy_never_earned(run({"reward.fn.accuracy.mean": values, "reward.fn.format.mean": RISE}), PARTED).verdict == verdict
    assert parts.accuracy_never_earned(run({"reward.mean": RISE}), PARTED).verdict == "not_checkable"
