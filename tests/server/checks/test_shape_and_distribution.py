"""Checks of shape, endings, distribution, negatives and language: every answer that each of them can give."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

import server.checks.distribution as distribution
import server.checks.endings as endings
import server.checks.language as language
import server.checks.negatives as negatives
import server.checks.sampler as sampler
import server.checks.shape as shape
from ingest.store.connection import Store
from server.checks.base import Check, Finding
from server.queries.view import Event, RunData, RunFacts, RunView

BEFORE, SINCE = 40, 12
ONSET = BEFORE + 1

Levels = Mapping[str, tuple[float | None, float | None]]
Ask = Callable[..., str]


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    opened = Store(None)
    yield opened
    opened.close()


@pytest.fixture
def ask(store: Store) -> Ask:
    """The verdict of a check on a run whose series step from one level to another at the onset, with a small ripple."""

    def verdict(check: Check, levels: Levels, config: Mapping[str, Any] | None = None, events: Sequence[Event] = ()) -> str:
        data = RunData(store, RunFacts("r", "p", "n", "native", None, dict(config or {}), dict(config or {})), tuple(events), {1: 1})
        for metric, (before, since) in levels.items():
            pairs = [(n + 1, before if n < BEFORE else since) for n in range(BEFORE + SINCE)]
            known = [(step, value * (1 + 0.01 * (-1) ** step)) for step, value in pairs if value is not None]
            data.add(metric, [1] * len(known), [s for s, _ in known], [v for _, v in known])
        view = RunView(data, 1, BEFORE + SINCE)
        result = check(view, Finding("s", "warn", ONSET, "seen"))
        assert result.note or result.missing
        return result.verdict

    return verdict


def _surprise(before: float, since: float, error: float = 0.02) -> Levels:
    return {"fact.entropy.surprise": (before, since), "fact.entropy.surprise_error": (error, error)}


CASES: list[tuple[Check, Levels, dict[str, Any], str]] = [
    (sampler.sampler_changed, {"fact.sampling.temperature": (1.0, 0.6)}, {}, "supported"),
    (sampler.sampler_changed, {"fact.sampling.temperature": (1.0, 1.0), **_surprise(0.001, -0.1)}, {}, "supported"),
    (sampler.sampler_changed, _surprise(0.001, 6.0), {}, "supported"),
    (sampler.sampler_changed, _surprise(0.3, 0.3), {}, "refuted"),
    (sampler.sampler_changed, _surprise(0.001, 0.022), {}, "inconclusive"),
    (sampler.sampler_changed, {"entropy.sampled": (0.5, 0.2), "entropy.mean": (0.5, 0.5)}, {}, "supported"),
    (sampler.sampler_changed, {"entropy.sampled": (0.5, 0.2), "entropy.mean": (0.5, 0.2)}, {}, "refuted"),
    (sampler.sampler_changed, {"entropy.rollout.mean": (0.5, 0.5), "entropy.mean": (0.5, 0.5)}, {}, "inconclusive"),
    (sampler.sampler_changed, {"entropy.mean": (0.5, 0.5)}, {}, "not_checkable"),
    (sampler.sampler_hidden, _surprise(0.3, 0.3), {}, "supported"),
    (sampler.sampler_hidden, _surprise(0.001, 0.001), {}, "refuted"),
    (sampler.sampler_hidden, _surprise(0.001, 0.017), {}, "inconclusive"),
    (sampler.sampler_hidden, {"entropy.mean": (1, 1)}, {}, "not_checkable"),
    (distribution.averaging_artefact, {"entropy.mean": (0.3, 0.9), "fact.entropy.response": (0.3, 0.3)}, {}, "supported"),
    (distribution.averaging_artefact, {"fact.entropy.loss": (0.3, 0.6), "fact.entropy.response": (0.3, 0.3)}, {}, "supported"),
    (distribution.averaging_artefact, {"entropy.mean": (0.3, 0.9), "fact.entropy.response": (0.3, 0.9)}, {}, "refuted"),
    (distribution.averaging_artefact, {"entropy.mean": (0.3, 0.33), "fact.entropy.response": (0.3, 0.3)}, {}, "inconclusive"),
    (distribution.averaging_artefact, {"entropy.mean": (0.3, 0.9)}, {}, "not_checkable"),
    (distribution.rate_rose_before, {"lr": (1e-4, 1e-3)}, {}, "supported"),
    (distribution.rate_rose_before, {"lr": (1e-4, 1e-4)}, {}, "refuted"),
    (distribution.rate_rose_before, {"lr": (1e-4, 1.3e-4)}, {}, "inconclusive"),
    (distribution.rate_rose_before, {"lr": (1e-4, 1e-3)}, {"lr_warmup_steps": 60}, "not_checkable"),
    (distribution.rate_rose_before, {"lr": (None, 1e-3)}, {}, "not_checkable"),
    (distribution.coefficient_negative, {}, {"ent_coef": -0.1}, "supported"),
    (distribution.coefficient_negative, {}, {"kl_coef": 0.01}, "inconclusive"),
    (distribution.coefficient_negative, {}, {}, "not_checkable"),
    (distribution.entropy_rose, {"entropy.mean": (0.5, 0.1)}, {}, "refuted"),
    (distribution.entropy_rose, {"entropy.mean": (0.1, 0.5)}, {}, "inconclusive"),
    (distribution.entropy_fell, {"entropy.mean": (0.1, 0.5)}, {}, "refuted"),
    (distribution.entropy_fell, {}, {}, "not_checkable"),
    (distribution.negatives_weigh, {"fact.advantage.negative_mass_frac": (0.5, 0.7)}, {}, "supported"),
    (distribution.negatives_weigh, {"adv.mean": (0.01, -0.5), "adv.abs_mean": (0.6, 0.6)}, {}, "supported"),
    (distribution.negatives_weigh, {"fact.advantage.negative_mass_frac": (0.5, 0.5)}, {}, "refuted"),
    (
        distribution.negatives_weigh,
        {"fact.advantage.negative_mass_frac": (0.5, 0.5), "fact.gradient.negative_rare_frac": (0.3, 0.8)},
        {},
        "supported",
    ),
    (distribution.negatives_weigh, {"reward.mean": (0.5, 0.5)}, {}, "not_checkable"),
    (
        distribution.negatives_or_drift,
        {"fact.advantage.negative_mass_frac": (0.5, 0.9), "mismatch.logprob_diff.mean": (0.01, 0.01)},
        {},
        "supported",
    ),
    (
        distribution.negatives_or_drift,
        {"fact.advantage.negative_mass_frac": (0.5, 0.5), "mismatch.logprob_diff.mean": (0.01, 0.2)},
        {},
        "supported",
    ),
    (
        distribution.negatives_or_drift,
        {"fact.advantage.negative_mass_frac": (0.5, 0.5), "mismatch.logprob_diff.mean": (0.01, 0.01)},
        {},
        "refuted",
    ),
    (distribution.negatives_or_drift, {"fact.advantage.negative_mass_frac": (0.5, 0.5)}, {}, "inconclusive"),
    (distribution.negatives_or_drift, {}, {}, "not_checkable"),
    (distribution.entropy_bonus, {}, {"ent_coef": 0.01}, "supported"),
    (distribution.entropy_bonus, {}, {"ent_coef": 0.0, "clip_low": 0.2, "clip_high": 0.2}, "refuted"),
    (distribution.entropy_bonus, {}, {"ent_coef": 0.0, "clip_low": 0.2, "clip_high": 0.28}, "inconclusive"),
    (
        distribution.entropy_bonus,
        {"clip.frac_high": (0.001, 0.02), "clip.frac_low": (0.001, 0.001)},
        {"clip_low": 0.2, "clip_high": 0.28},
        "supported",
    ),
    (distribution.entropy_bonus, {}, {}, "not_checkable"),
    (endings.cut_are_rewarded, {"fact.reward.truncated.mean": (0.5, 0.6), "fact.reward.terminated.mean": (0.7, 0.7)}, {}, "supported"),
    (endings.cut_are_rewarded, {"fact.reward.truncated.mean": (0.1, 0.05), "fact.reward.terminated.mean": (0.7, 0.7)}, {}, "inconclusive"),
    (endings.cut_are_rewarded, {"length.response.truncated_frac": (0.01, 0.95), "reward.mean": (0.85, 0.85)}, {}, "supported"),
    (endings.cut_are_rewarded, {"length.response.truncated_frac": (0.01, 0.5), "reward.mean": (0.85, 0.4)}, {}, "inconclusive"),
    (endings.cut_are_rewarded, {"reward.mean": (0.5, 0.5)}, {}, "not_checkable"),
    (endings.right_keep_length, {"fact.truncated_frac": (0.01, 0.6), "fact.length.correct.mean": (100, 101)}, {}, "supported"),
    (endings.right_keep_length, {"fact.truncated_frac": (0.01, 0.6), "fact.length.correct.mean": (100, 180)}, {}, "refuted"),
    (endings.right_keep_length, {"fact.truncated_frac": (0.01, 0.01), "fact.length.correct.mean": (100, 101)}, {}, "refuted"),
    (endings.right_keep_length, {"fact.truncated_frac": (0.01, 0.6), "fact.length.correct.mean": (100, 125)}, {}, "inconclusive"),
    (
        endings.right_keep_length,
        {"fact.truncated_frac": (0.01, 0.6), "fact.length.correct.mean": (100, 101), "entropy.mean": (0.2, 2.0)},
        {},
        "inconclusive",
    ),
    (endings.right_keep_length, {"fact.truncated_frac": (0.01, 0.6)}, {}, "not_checkable"),
    (endings.right_keep_length, {"fact.truncated_frac": (0.01, 1.0), "length.response.terminated.mean": (100, 0)}, {}, "not_checkable"),
    (endings.end_token_rarer, {"fact.logprob.end": (-0.01, -0.4)}, {}, "supported"),
    (endings.end_token_rarer, {"fact.logprob.end": (-0.01, -0.01)}, {}, "inconclusive"),
    (endings.end_token_rarer, {}, {}, "not_checkable"),
    (endings.end_too_early, {"fact.logprob.end": (-0.1, -3.0)}, {}, "supported"),
    (endings.end_too_early, {"fact.logprob.end": (-0.1, -0.1)}, {}, "refuted"),
    (endings.end_too_early, {"fact.logprob.end": (-0.1, -0.8)}, {}, "inconclusive"),
    (endings.end_too_early, {}, {}, "not_checkable"),
    (endings.cap_above_need, {"fact.length.correct.p99": (100, 100)}, {"max_response_tokens": 110}, "supported"),
    (endings.cap_above_need, {"fact.length.correct.p99": (100, 100)}, {"max_response_tokens": 400}, "refuted"),
    (endings.cap_above_need, {"fact.length.correct.p99": (100, 100)}, {"max_response_tokens": 150}, "inconclusive"),
    (endings.cap_above_need, {"fact.length.correct.p99": (100, 100)}, {}, "not_checkable"),
    (distribution.coverage_kept, {"group.solve_none_frac": (0.3, 0.1), "fact.group.distinct_positive_frac": (0.8, 0.7)}, {}, "supported"),
    (distribution.coverage_kept, {"group.solve_none_frac": (0.1, 0.4)}, {}, "refuted"),
    (
        distribution.coverage_kept,
        {"group.solve_none_frac": (0.3, 0.1), "fact.group.distinct_positive_frac": (0.8, 0.2)},
        {},
        "inconclusive",
    ),
    (distribution.coverage_kept, {}, {}, "not_checkable"),
    (shape.metric_differs, {"length.response.truncated_frac": (0, 0), "fact.truncated_frac": (0.3, 0.3)}, {}, "supported"),
    (shape.metric_differs, {"length.response.truncated_frac": (0.3, 0.3), "fact.truncated_frac": (0.3, 0.3)}, {}, "refuted"),
    (shape.metric_differs, {"length.response.truncated_frac": (0, 0), "length.response.max": (900, 905)}, {}, "refuted"),
    (shape.metric_differs, {"length.response.truncated_frac": (0, 0)}, {}, "not_checkable"),
    (shape.metric_differs, {}, {}, "not_checkable"),
    (shape.tails_repeat, {"fact.repetitive_frac": (0.01, 0.2)}, {}, "supported"),
    (shape.tails_repeat, {"fact.repetitive_frac": (0.001, 0.001), "fact.tail.compression": (2.5, 6)}, {}, "supported"),
    (shape.tails_repeat, {"fact.repetitive_frac": (0.001, 0.001), "fact.tail.compression": (2.5, 2.6)}, {}, "refuted"),
    (shape.tails_repeat, {}, {}, "not_checkable"),
    (shape.longer_is_better, {"fact.length.paired_gain": (0.1, 0.1)}, {}, "supported"),
    (shape.longer_is_better, {"fact.length.paired_gain": (0.1, -0.1)}, {}, "refuted"),
    (shape.longer_is_better, {"fact.length.paired_gain": (0.1, None)}, {}, "not_checkable"),
    (shape.short_pays, {"fact.length.reward_correlation": (0.1, -0.5)}, {}, "supported"),
    (shape.short_pays, {"fact.length.reward_correlation": (0.1, 0.5)}, {}, "refuted"),
    (shape.short_pays, {"fact.length.reward_correlation": (0.1, 0.05)}, {"reward": {"length_penalty": 0.1}}, "supported"),
    (shape.short_pays, {"fact.length.reward_correlation": (0.1, 0.05)}, {"reward": {"length_penalty": 0}}, "inconclusive"),
    (shape.short_pays, {}, {}, "not_checkable"),
    (shape.loops_from_start, {"fact.repetitive_frac": (0.3, 0.3)}, {}, "supported"),
    (shape.loops_from_start, {"fact.repetitive_frac": (0.01, 0.3)}, {}, "refuted"),
    (shape.loops_from_start, {}, {}, "not_checkable"),
    (shape.loops_grew, {"fact.repetitive_frac": (0.01, 0.3)}, {}, "supported"),
    (shape.loops_grew, {"fact.repetitive_frac": (0.3, 0.3)}, {}, "refuted"),
    (shape.loops_grew, {}, {}, "not_checkable"),
    (
        shape.mix_longer,
        {"fact.mix.task.a": (0.8, 0.2), "fact.mix.task.b": (0.2, 0.8), "fact.task.length.a": (10, 10), "fact.task.length.b": (90, 90)},
        {},
        "supported",
    ),
    (
        shape.mix_shorter,
        {"fact.mix.task.a": (0.8, 0.2), "fact.mix.task.b": (0.2, 0.8), "fact.task.length.a": (90, 90), "fact.task.length.b": (10, 10)},
        {},
        "supported",
    ),
    (
        shape.mix_shorter,
        {"fact.mix.task.a": (0.5, 0.5), "fact.mix.task.b": (0.5, 0.5), "fact.task.length.a": (90, 20), "fact.task.length.b": (90, 20)},
        {},
        "refuted",
    ),
    (shape.mix_shorter, {}, {}, "not_checkable"),
    (negatives.positives_fall, {"fact.update.positive": (0.01, -0.02)}, {}, "supported"),
    (negatives.positives_fall, {"fact.update.positive": (0.01, 0.02)}, {}, "refuted"),
    (negatives.positives_fall, {"fact.update.positive": (0.01, None)}, {}, "not_checkable"),
    (negatives.probability_leaks, {"entropy.mean": (0.2, 0.5), "reward.mean": (0.6, 0.2)}, {}, "supported"),
    (negatives.probability_leaks, {"entropy.mean": (0.2, 0.2), "reward.mean": (0.6, 0.2)}, {}, "refuted"),
    (negatives.probability_leaks, {"entropy.mean": (0.2, 0.5), "reward.mean": (0.2, 0.6)}, {}, "inconclusive"),
    (negatives.probability_leaks, {}, {}, "not_checkable"),
    (negatives.positives_overweighted, {"fact.advantage.negative_mass_frac": (0.5, 0.1), "entropy.mean": (0.5, 0.1)}, {}, "supported"),
    (negatives.positives_overweighted, {"fact.advantage.negative_mass_frac": (0.5, 0.9)}, {}, "refuted"),
    (negatives.positives_overweighted, {"fact.advantage.negative_mass_frac": (0.3, 0.3), "entropy.mean": (0.5, 0.5)}, {}, "inconclusive"),
    (negatives.positives_overweighted, {}, {}, "not_checkable"),
    (negatives.no_harm, {"eval.heldout.score": (0.3, 0.5)}, {}, "supported"),
    (negatives.no_harm, {"eval.heldout.score": (0.5, 0.3), "reward.mean": (0.3, 0.5)}, {}, "refuted"),
    (negatives.no_harm, {}, {}, "not_checkable"),
    (
        negatives.wrong_are_long,
        {"fact.length.wrong.mean": (100, 400), "fact.length.correct.mean": (100, 100), "fact.advantage.negative_mass_frac": (0.5, 0.8)},
        {},
        "supported",
    ),
    (
        negatives.wrong_are_long,
        {"fact.length.wrong.mean": (100, 110), "fact.length.correct.mean": (100, 100), "fact.advantage.negative_mass_frac": (0.5, 0.98)},
        {},
        "refuted",
    ),
    (negatives.wrong_are_long, {"fact.length.wrong.mean": (100, 110)}, {}, "not_checkable"),
    (negatives.tasks_harder, {"fact.difficulty": (3, 5)}, {}, "supported"),
    (negatives.tasks_harder, {"fact.difficulty": (3, 3)}, {}, "refuted"),
    (negatives.tasks_harder, {}, {}, "not_checkable"),
    (negatives.off_policy, {"mismatch.logprob_diff.mean": (0.01, 0.3)}, {}, "supported"),
    (negatives.off_policy, {"lag.policy.mean": (4, 4)}, {}, "supported"),
    (negatives.off_policy, {"lag.policy.mean": (4, 4), "mismatch.logprob_diff.mean": (0.01, 0.01)}, {"clip_dual": 3}, "refuted"),
    (negatives.off_policy, {}, {}, "not_checkable"),
    (language.mixed_score_as_well, {"fact.script.reward_mixed": (0.6, 0.6), "fact.script.reward_plain": (0.6, 0.6)}, {}, "supported"),
    (language.mixed_score_as_well, {"fact.script.reward_mixed": (0.2, 0.2), "fact.script.reward_plain": (0.6, 0.6)}, {}, "refuted"),
    (language.mixed_score_as_well, {"fact.script.reward_mixed": (0.5, 0.5), "fact.script.reward_plain": (0.6, 0.6)}, {}, "inconclusive"),
    (language.mixed_score_as_well, {}, {}, "not_checkable"),
    (language.quality_holds, {"reward.mean": (0.6, 0.6)}, {}, "supported"),
    (language.quality_holds, {"reward.mean": (0.6, 0.2)}, {}, "refuted"),
    (language.quality_holds, {}, {}, "not_checkable"),
    (language.damage_begins, {"entropy.mean": (0.3, 0.9), "reward.mean": (0.6, 0.2)}, {}, "supported"),
    (language.damage_begins, {"entropy.mean": (0.3, 0.3), "reward.mean": (0.6, 0.6)}, {}, "refuted"),
    (language.damage_begins, {"entropy.mean": (0.3, 0.9), "reward.mean": (0.6, 0.6)}, {}, "inconclusive"),
    (language.damage_begins, {}, {}, "not_checkable"),
]


@pytest.mark.parametrize(("check", "levels", "config", "expected"), CASES, ids=[f"{c[0].__name__}-{n}" for n, c in enumerate(CASES)])
def test_verdict(ask: Ask, check: Check, levels: Levels, config: dict[str, Any], expected: str) -> None:
    assert ask(check, levels, config) == expected


def test_an_event_that_names_the_entropy_term_speaks_for_it(ask: Ask) -> None:
    event = Event(1, ONSET - 2, "note", "entropy coefficient 0.0 to 0.01")
    assert ask(distribution.entropy_bonus, {}, {"clip_low": 0.2, "clip_high": 0.2}, [event]) == "supported"


def test_pay_for_length_counts_only_where_it_began_within_the_run(store: Store) -> None:
    def since(values: Mapping[int, float], step: int) -> int | None:
        data = RunData(store, RunFacts("r", "p", "n", "native", None, {}, {}), (), {1: 1})
        data.add("length.response.mean", [1] * 100, range(1, 101), [50.0] * 100)
        data.add("fact.length.correct_correlation", [1] * len(values), list(values), list(values.values()))
        return shape.length_paid_since(RunView(data, 1, step))

    began = dict.fromkeys(range(60, 101), 0.8)
    assert since(began, 100) == 60
    assert since(began, 68) is None  # nine points
    assert since(dict.fromkeys(range(1, 101), 0.8), 100) is None
    assert since(dict.fromkeys(range(60, 101), 0.2), 100) is None
    assert since(dict.fromkeys(range(60, 81), 0.8), 100) is None  # ended


@pytest.mark.parametrize(("now", "expected"), [(0.05, "supported"), (0.011, "refuted"), (0.025, "inconclusive")])
def test_a_mismatch_without_a_past_is_measured_against_before_the_onset(store: Store, now: float, expected: str) -> None:
    data = RunData(store, RunFacts("r", "p", "n", "native", None, {}, {}), (), {1: 1})
    data.add("mismatch.logprob_diff.mean", [1] * 6, range(5, 35, 5), [0.01, 0.01, 0.01, now, now, now])
    view = RunView(data, 1, 30)
    assert distribution.engine_drifted(view, Finding("s", "warn", 20, "seen")).verdict == expected
    assert distribution.engine_drifted(view, Finding("s", "warn", 10, "seen")).verdict == "not_checkable"


@pytest.mark.parametrize(
    ("updates", "entropy", "expected"),
    [(1, 0.5, "supported"), (1, 0.1, "refuted"), (1, 0.13, "inconclusive"), (8, 0.5, "inconclusive"), (None, 0.5, "not_checkable")],
)
def test_a_second_run_with_fewer_updates_says_what_they_cost(store: Store, updates: int | None, entropy: float, expected: str) -> None:
    def run(config: dict[str, Any], value: float) -> RunData:
        data = RunData(store, RunFacts("r", "p", "n", "native", None, config, config), (), {1: 1})
        data.add("entropy.mean", [1] * 30, range(1, 31), [value] * 30)
        return data

    finding = Finding("s", "warn", 20, "seen")
    data = run({"updates_per_batch": 4}, 0.1)
    assert distribution.holds_with_fewer_updates(RunView(data, 1, 30), finding).missing == ("second run",)
    data.second = run({"updates_per_batch": updates} if updates else {}, entropy)
    assert distribution.holds_with_fewer_updates(RunView(data, 1, 30), finding).verdict == expected


def test_batches_that_all_end_at_one_length_were_cut_whatever_the_metric_says(store: Store) -> None:
    data = RunData(store, RunFacts("r", "p", "n", "native", None, {}, {}), (), {1: 1})
    data.add("length.response.truncated_frac", [1] * 10, range(1, 11), [0.0] * 10)
    data.add("length.response.max", [1] * 10, range(1, 11), [4096.0] * 10)
    assert shape.metric_differs(RunView(data, 1, 10), Finding("truncation", "warn", 5, "seen")).verdict == "supported"


def test_the_share_of_the_trajectories_counts_where_the_metric_hides_it(store: Store) -> None:
    data = RunData(store, RunFacts("r", "p", "n", "native", None, {}, {}), (), {1: 1})
    assert shape.truncated_metric(RunView(data, 1, 10)) is None
    data.add("length.response.truncated_frac", [1] * 10, range(1, 11), [0.0] * 10)
    assert shape.truncated_metric(RunView(data, 1, 10)) == "length.response.truncated_frac"
    data.add("fact.truncated_frac", [1] * 10, range(1, 11), [0.04] * 5 + [0.4] * 5)
    assert shape.truncated_metric(RunView(data, 1, 5)) == "length.response.truncated_frac"
    assert shape.truncated_metric(RunView(data, 1, 10)) == "fact.truncated_frac"
