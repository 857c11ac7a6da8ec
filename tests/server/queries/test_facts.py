"""Facts against values worked out by hand, on trajectories written through the native reader."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.discover import discover
from ingest.load import identify
from ingest.load import load_run as read_run
from ingest.store.connection import Store
from server.queries.fact_list import FACTS
from server.queries.fact_text import compression, jaccard, repeats, shingles, similarities
from server.queries.facts import add_facts
from server.queries.run_data import load_run
from server.queries.view import RunData

Build = Callable[..., RunData]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Build]:
    """Makes a run of rollouts (each with a step, a trajectory id and a stop reason unless it says otherwise) with its facts."""
    store = Store(None)

    def build(rows: Sequence[Mapping[str, Any]], config: Mapping[str, Any] | None = None) -> RunData:
        folder = tmp_path / "run"
        folder.mkdir()
        full = [{"step": 1, "trajectory_id": f"t{n}", "finish_reason": "stop", **row} for n, row in enumerate(rows)]
        (folder / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in full))
        (folder / "config.json").write_text(json.dumps(config or {"algorithm": "grpo"}))
        found = discover([folder])[0][0]
        assert all(result.rejected == 0 for result in read_run(store, found))
        data = load_run(store, identify(store, found).run_id)
        add_facts(data)
        return data

    yield build
    store.close()


def value(data: RunData, fact: str, step: int = 1) -> float:
    chain = data.chain(fact, max(data.attempt_starts))
    return float(chain.values[chain.steps.tolist().index(step)])


def group(rewards: Sequence[float], advantages: Sequence[float], name: str = "g", **more: Any) -> list[dict[str, Any]]:
    pairs = zip(rewards, advantages, strict=True)
    return [
        {"group_id": name, "prompt": f"p-{name}", "response": f"r{n}", "reward": r, "advantage": a, **more}
        for n, (r, a) in enumerate(pairs)
    ]


@pytest.mark.parametrize(("aggregation", "expected"), [("token-mean", 8192 / 9592), ("seq-mean", 1 / 8), (None, 8192 / 9592)])
def test_a_cut_response_weighs_as_the_aggregation_says(run: Build, aggregation: str | None, expected: float) -> None:
    rows = [{"response": "short", "response_tokens": 200} for _ in range(7)]
    rows.append({"response": "long", "response_tokens": 8192, "finish_reason": "length"})
    data = run(rows, {"loss_agg": aggregation} if aggregation else {"algorithm": "grpo"})
    for fact in ("fact.loss_share.truncated", "fact.loss_share.outliers", "fact.loss_share.largest"):
        assert value(data, fact) == pytest.approx(expected, abs=1e-4)
    assert value(data, "fact.truncated_frac") == 1 / 8


def test_a_dropped_response_has_no_weight(run: Build) -> None:
    rows = [{"response": "a", "response_tokens": 100}, {"response": "b", "response_tokens": 900, "finish_reason": "length", "kept": False}]
    data = run(rows, {"loss_agg": "token-mean"})
    assert value(data, "fact.loss_share.truncated") == 0
    assert value(data, "fact.kept_frac") == 0.5


def test_advantages_of_a_sound_group_sum_to_zero_and_stay_in_their_bound(run: Build) -> None:
    third = -0.5773
    data = run(group([1, 0, 0, 0], [1.732, third, third, third]), {"group": 4})
    assert value(data, "fact.advantage.group_mean") == 0
    assert value(data, "fact.advantage.off_frac") == 0
    assert value(data, "fact.advantage.excess") == pytest.approx(1, abs=1e-3)
    assert value(data, "fact.advantage.reversed_frac") == 0
    assert value(data, "fact.advantage.correlation") == pytest.approx(1)


def test_a_broken_sum_a_reversed_sign_and_an_impossible_advantage_are_seen(run: Build) -> None:
    rows = [
        *group([1, 0, 0, 0], [0.0, -1, -1, -1], "off"),
        *group([1, 0, 0, 0], [-1.5, 0.5, 0.5, 0.5], "reversed", task="sort"),
        *group([1, 0, 0, 0], [3.0, -1, -1, -1], "huge"),
    ]
    data = run(rows, {"group": 4})
    assert value(data, "fact.advantage.off_frac") == pytest.approx(1 / 3)
    assert value(data, "fact.advantage.group_mean") == pytest.approx(0.75)
    assert value(data, "fact.advantage.reversed_frac") == pytest.approx(1 / 3)
    assert value(data, "fact.advantage.reversed_frac.sort") == 1
    assert value(data, "fact.advantage.excess") == pytest.approx(3 / math.sqrt(3))


def test_a_part_of_a_group_and_the_rounding_of_equal_rewards_are_not_judged(run: Build) -> None:
    data = run([*group([1, 0], [1.5, -0.5], "part"), *group([1, 1, 1, 1], [-0.0012] * 4, "equal")], {"group": 4})
    assert value(data, "fact.advantage.off_frac") == 0
    assert value(data, "fact.advantage.group_mean") == 0


def test_groups_tell_prompts_copies_and_missing_variance(run: Build) -> None:
    rows = [
        {"group_id": "a", "prompt": "p", "response": "x", "reward": 1},
        {"group_id": "a", "prompt": "p", "response": "x", "reward": 1},
        {"group_id": "b", "prompt": "q", "response": "y", "reward": 0},
        {"group_id": "b", "prompt": "other", "response": "z", "reward": 1},
    ]
    data = run(rows)
    assert value(data, "fact.group.mixed_prompt_frac") == 0.5
    assert value(data, "fact.group.zero_std_frac") == 0.5
    assert value(data, "fact.group.all_high_frac") == 0.5
    assert value(data, "fact.group.duplicate_frac") == 0.25
    assert value(data, "fact.group.distinct_positive_frac") == 0.75


def test_equal_responses_with_different_rewards_contradict(run: Build) -> None:
    rows = [{"prompt": "p", "response": "x", "reward": r} for r in (0, 1)] + [{"prompt": "q", "response": "x", "reward": 1}] * 2
    data = run(rows)
    assert value(data, "fact.reward.twin_n") == 4
    assert value(data, "fact.reward.conflict_frac") == 0.5
    assert value(data, "fact.duplicate.across_frac") == 1


def test_failed_gradings_are_told_from_zeros(run: Build) -> None:
    rows = [
        {"reward": 0, "verifier": {"status": "timeout"}, "response_tokens": 90},
        {"reward": 1, "verifier": {"status": "error"}, "response_tokens": 90},
        {"reward": 1, "verifier": {"status": "ok"}, "response_tokens": 30},
        {"reward": 0, "verifier": {"status": "ok"}, "response_tokens": 30},
    ]
    data = run(rows)
    assert value(data, "fact.verifier.timeout_frac") == 0.25
    assert value(data, "fact.verifier.error_frac") == 0.25
    assert value(data, "fact.verifier.zero_frac") == 0.25
    assert value(data, "fact.verifier.length_ratio") == 3


def tokens(loss: Sequence[int], **more: Any) -> dict[str, Any]:
    """Two prompt and four response tokens."""
    return {"prompt_tokens": 2, "response_mask": [0, 0, 1, 1, 1, 1], "loss_mask": list(loss), **more}


def test_masks_are_compared_token_by_token(run: Build) -> None:
    data = run([tokens([0, 0, 1, 1, 1, 1]), {**tokens([1, 1, 1, 1, 1, 0]), "step": 2}, {**tokens([0] * 6), "step": 3}])
    assert value(data, "fact.mask.extra_frac", 1) == value(data, "fact.mask.last_missing_frac", 1) == 0
    assert value(data, "fact.mask.extra_frac", 2) == value(data, "fact.mask.prompt_frac", 2) == 2 / 5
    assert value(data, "fact.mask.missing_frac", 2) == 1 / 4
    assert value(data, "fact.mask.last_missing_frac", 2) == 1
    assert 3 not in data.chain("fact.mask.extra_frac", 1).steps  # left out of the loss as a whole


def test_tool_tokens_in_the_loss_are_extra_but_not_of_the_prompt(run: Build) -> None:
    data = run([{"prompt_tokens": 1, "response_mask": [0, 1, 0, 0, 1], "loss_mask": [0, 1, 1, 1, 1]}])
    assert value(data, "fact.mask.extra_frac") == 0.5
    assert value(data, "fact.mask.prompt_frac") == 0


def test_the_mismatch_counts_own_tokens_and_is_split_by_lag_and_origin(run: Build) -> None:
    own = {"response_mask": [0, 1, 1], "old_logprobs": [None, -1.0, -2.0]}
    rows = [
        {**own, "rollout_logprobs": [0.0, -1.1, -2.1], "policy_lag": 0, "policy_version": 1},
        {**own, "rollout_logprobs": [0.0, -1.5, -2.5], "policy_lag": 2, "policy_version": 1},
        {**own, "rollout_logprobs": [0.0, -2.0, -3.0], "policy_lag": 2, "policy_version": 1, "origin": "synthetic"},
    ]
    data = run(rows)
    assert value(data, "fact.mismatch.lag0") == pytest.approx(0.1, abs=1e-6)
    assert value(data, "fact.mismatch.lagged") == pytest.approx(0.75, abs=1e-6)
    assert value(data, "fact.mismatch.policy") == pytest.approx(0.3, abs=1e-6)
    assert value(data, "fact.mismatch.other") == pytest.approx(1.0, abs=1e-6)
    assert value(data, "fact.mismatch.signed") < 0


def test_old_log_probs_copied_from_the_engine_say_nothing_about_a_mismatch(run: Build) -> None:
    data = run([{"response_mask": [1, 1], "old_logprobs": [-1.0, -2.0], "rollout_logprobs": [-1.0, -2.0], "policy_lag": 0}])
    assert not any(metric.startswith("fact.mismatch.mean") for metric in data.metrics())


def test_log_probs_moved_by_one_token_are_recognised(run: Build) -> None:
    old = [-0.1, -3.0, -0.2, -2.0, -0.3, -4.0, -0.1, -1.0]
    mask = [1] * 8
    moved = [*old[1:], -0.5]
    sound = [x + 0.01 * (-1) ** n for n, x in enumerate(old)]
    data = run([{"response_mask": mask, "old_logprobs": old, "rollout_logprobs": moved},
                {"step": 2, "response_mask": mask, "old_logprobs": old, "rollout_logprobs": sound}])  # fmt: skip
    assert value(data, "fact.mismatch.shifted_frac", 1) == value(data, "fact.mismatch.unrelated_frac", 1) == 1
    assert value(data, "fact.mismatch.shifted_frac", 2) == value(data, "fact.mismatch.unrelated_frac", 2) == 0


def test_the_update_is_told_by_its_spread_and_the_share_of_tokens_outside_a_tenth(run: Build) -> None:
    row = {"response_mask": [1] * 4, "old_logprobs": [-1.0] * 4, "rollout_logprobs": [-1.1] * 4}
    data = run([{**row, "current_logprobs": [-1.0, -0.8, -1.2, -1.0]}])
    assert value(data, "fact.update.signed") == pytest.approx(0, abs=1e-6)
    assert value(data, "fact.update.sd") == pytest.approx(math.sqrt(0.02), rel=1e-5)
    assert value(data, "fact.update.outside_frac") == 0.5
    assert value(data, "fact.update.engine") == pytest.approx(0.15, rel=1e-5)


def test_the_sign_of_an_update_is_its_effect_on_good_and_bad_samples(run: Build) -> None:
    def sample(step: int, advantage: float, change: float) -> dict[str, Any]:
        return {"step": step, "advantage": advantage, "response_mask": [1, 1], "old_logprobs": [-1.0, -1.0],
                "current_logprobs": [-1.0 + change, -1.0 + change], "task": "sort"}  # fmt: skip

    errors = (0.01, -0.01, 0.02, -0.02)
    right = [sample(1, a, 0.1 * a + e) for a in (1, -1) for e in errors]
    wrong = [sample(2, a, -0.1 * a + e) for a in (1, -1) for e in errors]
    few = [sample(3, a, -0.1 * a + e) for a in (1, -1) for e in errors[:3]]
    data = run([*right, *wrong, *few])
    assert value(data, "fact.update.positive", 1) == pytest.approx(0.1, abs=1e-6)
    assert value(data, "fact.sign.separation", 1) == pytest.approx(-value(data, "fact.sign.separation", 2), rel=1e-4)
    assert value(data, "fact.sign.separation", 1) > 5
    assert value(data, "fact.sign.separation.sort", 2) < -5
    assert 3 not in data.chain("fact.sign.separation", 1).steps  # three on a side have at times no spread by chance


def test_rows_without_a_lag_are_stale_when_the_trainer_was_two_versions_on(run: Build) -> None:
    row = {"response_mask": [1, 1], "old_logprobs": [-1.0, -1.0], "rollout_logprobs": [-1.2, -1.2], "policy_version": 3}
    data = run([{**row, "trainer_version": 4}, {**row, "step": 2, "trainer_version": 5}])
    assert data.chain("fact.mismatch.lagged", 1).steps.tolist() == [2]


def test_facts_whose_fields_are_not_written_are_absent(run: Build) -> None:
    data = run([{"prompt": "p", "response": "a longer answer", "reward": 1.0}])
    facts = {metric for metric in data.metrics() if metric.startswith("fact.")}
    for prefix in ("fact.mask", "fact.mismatch", "fact.advantage", "fact.verifier", "fact.lag", "fact.group", "fact.sign"):
        assert not [fact for fact in facts if fact.startswith(prefix)]
    assert "fact.reward.mean" in facts


def test_evaluation_rows_do_not_count(run: Build) -> None:
    data = run([{"reward": 1.0, "split": "train"}, {"reward": 0.0, "split": "eval"}])
    assert value(data, "fact.n") == 1
    assert value(data, "fact.reward.mean") == 1


def test_facts_behind_a_place_equal_those_of_the_whole_run(run: Build) -> None:
    rows = [{**row, "step": step} for step in (1, 2, 3, 4) for row in group([1, 0, 0.5 * step], [1, -1, 0], f"g{step}")]
    data = run(rows)
    whole = {metric: data.chain(metric, 1) for metric in data.metrics()}
    fresh = load_run(data.store, data.run.run_id)
    add_facts(fresh)
    add_facts(fresh, after=(1, 2))
    assert set(fresh.metrics()) == set(whole)
    for metric, chain in whole.items():
        assert fresh.chain(metric, 1).steps.tolist() == chain.steps.tolist()
        assert fresh.chain(metric, 1).values.tolist() == pytest.approx(chain.values.tolist())


def test_every_fact_is_explained(run: Build) -> None:
    row = tokens([0, 0, 1, 1, 1, 1], policy_lag=1, policy_version=0, old_logprobs=[None, None, -1, -2, -1, -2.0], task="a",
                 rollout_logprobs=[None, None, -1.1, -2, -1, -2.0], current_logprobs=[None, None, -1.2, -2, -1, -2.0])  # fmt: skip
    trained = [{**row, **g} for g in group([1, 0, 0, 1], [1, -1, -1, 1], verifier={"status": "ok"}, response_tokens=4)]
    limits = {"temperature": 1, "top_p": 1, "top_k": 5, "max_tokens": 9}
    asked = [{"step": s, "split": "eval", "prompt": "p", "reward": 1.0, "response_tokens": 3, "sampling": limits,
              "verifier": {"name": "exact", "version": "1"}} for s in (1, 2)]  # fmt: skip
    data = run([*trained, {**trained[0], "task": "b"}, *asked])
    derived = ("fact.mix.", "fact.task.", "fact.reward.part.", "fact.advantage.reversed_frac.", "fact.sign.separation.")
    facts = [m for m in data.metrics() if m.startswith("fact.") and not m.startswith(derived)]
    assert len(facts) > 55
    assert [fact for fact in facts if fact not in FACTS] == []


def test_similarity_is_the_shared_part_of_all_shingles() -> None:
    assert shingles("abcdef") == {"abcde", "bcdef"}
    assert jaccard(shingles("abcdef"), shingles("abcdeX")) == pytest.approx(1 / 3)
    within, across = similarities([1, 1, 2], ["abcdef", "abcdef", "zzzzzz"])
    assert (within, across) == (1, 0)
    assert math.isnan(similarities([1], ["abcdef"])[1])


@given(
    st.lists(
        st.tuples(
            st.integers(1, 3),
            st.text(st.sampled_from("ab c\nüß河が\U0001f600"), max_size=30) | st.text(st.sampled_from("abc "), min_size=5),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_similarities_are_those_of_the_sets_of_shingles(drawn: list[tuple[int, str]]) -> None:
    prompts, sets = [p for p, _ in drawn], [shingles(text) for _, text in drawn]
    first = sorted({p: at for at, p in reversed(list(enumerate(prompts)))}.values())
    pairs = list(itertools.combinations(range(len(drawn)), 2))
    inside = [jaccard(sets[i], sets[j]) for i, j in pairs if prompts[i] == prompts[j]]
    outside = [jaccard(sets[i], sets[j]) for i, j in pairs if i in first and j in first]
    expected = [sum(found) / len(found) if found else math.nan for found in (inside, outside)]
    np.testing.assert_array_equal(similarities(prompts, [text for _, text in drawn]), expected)


def test_a_tail_repeats_by_its_period_or_by_how_far_it_shrinks() -> None:
    assert repeats("the answer is 4. " * 40)
    assert repeats(" ".join("so we add one more line to the proof and go on" for _ in range(60)))
    prose = " ".join(f"{n * n} is the square of {n}, and {n**3 % 97} is left" for n in range(60))
    assert not repeats(prose)


def test_negative_mass_and_tokens_follow_length_and_what_is_kept(run: Build) -> None:
    rows = group([1, 0, 0], [1.0, -0.5, -0.5], response_tokens=100)
    rows[2]["response_tokens"] = 300
    data = run(rows, {"loss_agg": "token-mean"})
    assert value(data, "fact.advantage.negative_mass_frac") == pytest.approx((50 + 150) / (100 + 50 + 150))
    assert value(data, "fact.advantage.negative_token_frac") == pytest.approx(400 / 500)


def test_a_sequence_mean_weighs_every_response_alike_and_a_dropped_one_not_at_all(run: Build) -> None:
    rows = group([1, 0, 0], [1.0, -0.5, -0.5], response_tokens=100)
    rows[2] |= {"response_tokens": 300, "kept": False}
    data = run(rows, {"loss_agg": "seq-mean"})
    assert value(data, "fact.advantage.negative_mass_frac") == pytest.approx(0.5 / 1.5)
    assert value(data, "fact.advantage.negative_token_frac") == pytest.approx(0.5)


def test_advantages_of_tokens_alone_make_the_same_facts(run: Build) -> None:
    rows = [
        {"response": "ab", "response_tokens": 2, "rollout_logprobs": [-0.1, -0.1], "loss_mask": [1, 1], "advantages": [0.5, 0.5]},
        {"response": "abcdef", "response_tokens": 6, "rollout_logprobs": [-0.1] * 6, "loss_mask": [1] * 6, "advantages": [-0.5] * 6},
    ]
    data = run(rows)
    assert value(data, "fact.advantage.negative_mass_frac") == pytest.approx(3 / 4)
    assert value(data, "fact.advantage.negative_token_frac") == pytest.approx(6 / 8)


def test_without_advantages_there_is_no_mass(run: Build) -> None:
    data = run([{"response": "a", "response_tokens": 3}])
    assert "fact.advantage.negative_mass_frac" not in data.metrics()
    assert "fact.advantage.negative_token_frac" not in data.metrics()


def test_surprise_is_minus_log_prob_minus_entropy_over_the_same_tokens(run: Build) -> None:
    rows = [{"response": "abc", "response_mask": [0, 1, 1], "rollout_logprobs": [None, -0.5, -0.1], "entropies": [None, 0.3, 0.2]}]
    data = run(rows)
    assert value(data, "fact.entropy.surprise") == pytest.approx((0.2 - 0.1) / 2)
    assert value(data, "fact.entropy.surprise_error") == pytest.approx(math.sqrt(0.2**2 + 0.1**2) / 2)
    assert value(data, "fact.logprob.end") == pytest.approx(-0.1)


def test_longer_responses_of_a_group_are_compared_with_its_shorter_ones(run: Build) -> None:
    rows = group([1, 0, 1, 1], [0.5, -1, 0.5, 0.5])
    for row, tokens in zip(rows, (10, 12, 30, 40), strict=True):
        row["response_tokens"] = tokens
    assert value(run(rows), "fact.length.paired_gain") == pytest.approx(1.0 - 0.5)


def test_the_longest_right_responses_that_ended_set_the_need(run: Build) -> None:
    rows = group([1] * 100 + [0], [0] * 101)
    for n, row in enumerate(rows):
        row["response_tokens"] = n + 1
    rows[99] |= {"finish_reason": "length"}
    assert value(run(rows), "fact.length.correct.p99") == pytest.approx(98.02)


def test_sampling_is_read_where_it_is_written(run: Build) -> None:
    data = run([{"response": "a", "sampling": {"temperature": 0.6, "top_p": 0.9}}, {"response": "b", "sampling": {"temperature": 1.0}}])
    assert value(data, "fact.sampling.temperature") == pytest.approx(0.8)
    assert value(data, "fact.sampling.top_p") == pytest.approx(0.9)


def test_prefixes_are_compared_within_a_prompt(run: Build) -> None:
    rows = [{"prompt": "p", "response": "abcdefgh"}, {"prompt": "p", "response": "abcdxxxx"}, {"prompt": "q", "response": "abcdefgh"}]
    assert value(run(rows), "fact.similarity.prefix") == pytest.approx(4 / 8)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("the same thing again and " * 80, True),
        (" ".join(f"step {n} we add {n * 7919 % 1000} and carry {n * 31 % 97} over" for n in range(60)), False),
        ("ab" * 200, True),
    ],
)
def test_loops_are_told_from_text_that_only_looks_alike(text: str, expected: bool) -> None:
    assert repeats(text[-2000:]) is expected


def test_runs_of_words_count_where_the_tail_deflates_less_than_tenfold() -> None:
    block = [f"item {n * 7919 % 1013} costs {n * 31 % 89}" for n in range(20)]
    tail = (" ".join(block * 4))[-2000:]
    assert 4 < compression(tail) < 10
    assert repeats(tail)
    assert math.isnan(compression("short"))


def test_seven_short_answers_and_a_loop(run: Build) -> None:
    rows: list[dict[str, Any]] = [{"response": "fine", "response_tokens": 200} for _ in range(7)]
    rows.append({"response": "no end " * 1200, "response_tokens": 8192})
    data = run(rows, {"loss_agg": "token-mean"})
    assert value(data, "fact.repetitive_frac") == 1 / 8
    assert value(data, "fact.loss_share.repetitive") == pytest.approx(8192 / 9592, abs=1e-4)
    assert value(data, "fact.tail.compression") > 10


@pytest.mark.parametrize(
    ("prompt", "response", "foreign"),
    [
        ("What is two plus two?", "The answer is четыре because two and two", 6 / 33),
        ("What is two plus two, in words please?", "答案是四因为二加二等于四所以我们知道答案就是这个数字", 1.0),
        (
            "计算二加二等于多少，请给出答案",
            "答案是四因为二加二等于四 $x_1 + alpha = beta$ `return value` \\frac{1}{2} 所以答案就是四这个数",
            0.0,
        ),
        ("计算二加二等于多少，请给出答案", "答案是四因为 x 和 y 的和是四所以我们知道答案就是四 km", 0.0),
        ("Translate 二加二等于多少 to English words", "二加二等于四 means that two and two make four in total", 0.0),
        ("二加二はいくつですか", "答えは四です。二と二を足すと四になるからです。間違いありません", 0.0),
    ],
)
def test_letters_count_as_foreign_by_the_scripts_of_the_prompt(run: Build, prompt: str, response: str, foreign: float) -> None:
    data = run([{"prompt": prompt, "response": response, "reward": 1.0}])
    assert value(data, "fact.script.foreign_frac") == pytest.approx(foreign, abs=0.02)
    assert value(data, "fact.script.mixed_frac") == float(foreign > 0.05)


def test_rewards_are_split_by_mixed_script_and_ascii_text_is_plain(run: Build) -> None:
    plain = {"prompt": "Add two and two", "response": "Two and two make four, as we all know.", "reward": 1.0}
    mixed = {"prompt": "Add two and two", "response": "Two and two make четыре, как мы все знаем.", "reward": 0.0}
    data = run([plain, mixed])
    assert value(data, "fact.script.mixed_frac") == 0.5
    assert value(data, "fact.script.reward_plain") == 1.0
    assert value(data, "fact.script.reward_mixed") == 0.0
    assert value(data, "fact.script.switches") > 0


def test_digits_and_too_few_letters_say_nothing_about_language(run: Build) -> None:
    data = run([{"prompt": "S4312=", "response": "#1234"}, {"prompt": "12 + 30 =", "response": "42"}])
    assert "fact.script.foreign_frac" not in data.metrics()


def test_seconds_of_trajectories_tell_stragglers_and_environments(run: Build) -> None:
    seconds = [1.0] * 18 + [2.0, 8.0]
    rows = [{"trajectory_id": f"a{n}", "seconds": {"rollout": s, "environment": s / 4}} for n, s in enumerate(seconds)]
    data = run([*rows, *({"step": 2, "trajectory_id": f"b{n}", "seconds": {"rollout": 1.0}} for n in range(3))])
    assert value(data, "fact.seconds.rollout.tail") == 8
    assert value(data, "fact.seconds.rollout.last_tenth") == pytest.approx(1 - 1.1 / 8)
    assert value(data, "fact.seconds.environment.share") == 0.25
    assert data.chain("fact.seconds.rollout.tail", 1).steps.tolist() == [1]  # three responses have no tail
