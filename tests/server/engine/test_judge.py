"""Which rules are asked, what they cannot tell, and what an error in one of them does to the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest

from server.engine import needs
from server.engine.judge import RuleFailed, RuleSet
from server.engine.replay import diagnose
from server.engine.state import RunState
from server.engine.steps import START, advance
from server.engine.switches import how_to_log, switch_for
from server.queries.view import RunView
from server.rules.base import Rule


def test_a_rule_whose_metric_is_missing_is_not_asked_and_named_with_what_would_light_it(make_run: Any, level: Any) -> None:
    told = diagnose(make_run({"m": [0, 2]}), None, RuleSet([level("blind", "lag.policy.mean")], strict=True))
    assert told.not_judged == [
        {"symptom": "blind", "missing": ["lag.policy.mean"], "how": how_to_log(["lag.policy.mean"], "native")},
    ]
    assert told.cases == []


def test_one_of_the_alternatives_is_enough(make_run: Any, level: Any) -> None:
    rule = level("s", "m", own_needs=(("entropy.mean", "m"), ("eval.*", "config.group_size")))
    view = RunView(make_run({"m": [0.0, None], "x": [0, 0]}, config={"group_size": 8}), 1, 2)
    assert needs.missing(rule, view) == []
    assert (needs.has_point(rule, view), needs.has_point(rule, view.at(1))) == (False, True)


def test_an_alternative_with_a_star_is_any_series_that_fits(make_run: Any, level: Any) -> None:
    rule = level("s", "m", own_needs=(("eval.*.score",),))
    data = make_run({"m": [0] * 10, "eval.math.score": {5: 0.5}, "eval.math.tokens": {1: 9.0}})
    assert needs.missing(rule, RunView(data, 1, 4)) == ["eval.*.score"]
    assert needs.missing(rule, RunView(data, 1, 5)) == []
    assert [needs.has_point(rule, RunView(data, 1, step)) for step in (5, 6)] == [True, False]


def test_a_rule_is_asked_from_the_step_on_at_which_its_metric_appears(make_run: Any, judge: Any, level: Any, only: Any) -> None:
    assert only(judge(make_run({"m": {8: 2.0}, "x": [0.0] * 10}), level("s", "m"))).detected_step == 8


@dataclass(frozen=True)
class Broken:
    code: str = "T-broken"
    name: str = "non-finite"
    family: str = "optimiser"
    status: str = "stable"
    version: int = 1
    needs: tuple[()] = ()
    params: tuple[()] = ()
    hold_points: int = 1
    hypotheses: tuple[()] = ()
    next_checks: tuple[()] = ()

    def evaluate(self, view: Any) -> Any:
        if view.step == 2:
            raise IndexError("an empty window")
        return ()


def test_a_rule_that_stops_with_an_error_does_not_stop_the_others_and_is_named(make_run: Any, level: Any) -> None:
    told = diagnose(make_run({"m": [0, 2, 2]}), None, RuleSet([cast(Rule, Broken()), level("spike", "m")]))
    assert [case.symptom for case in told.cases] == ["spike"]
    (item,) = told.not_judged
    assert (item["symptom"], item["missing"]) == ("non-finite", [])
    assert "step 2" in item["how"] and "an empty window" in item["how"]


def test_in_strict_mode_the_error_of_a_rule_is_raised(make_run: Any, judge: Any) -> None:
    with pytest.raises(RuleFailed, match=r"T-broken.*step 2"):
        judge(make_run({"m": [0, 2, 2]}), Broken())


def test_parameters_in_force_reach_the_rule(make_run: Any, judge: Any, level: Any, only: Any) -> None:
    from server.rules.base import Finding, Param

    class Limit(level):  # type: ignore[misc]
        def evaluate(self, view: Any) -> Any:
            return [Finding(self.name, "warn", view.step, "")] if view.series("m").values[-1] > view.params["limit"] else []

    rule = Limit("s", "m", params=(Param("limit", 5.0, "x", 0, 10, "default of ours"),))
    assert only(judge(make_run({"m": [2, 6]}), rule)).detected_step == 2


def test_a_judged_step_is_never_judged_again(make_run: Any, level: Any) -> None:
    data, rules, state = make_run({"m": [0, 2, 0]}), RuleSet([level("s", "m")], strict=True), RunState("r")
    assert len(advance(state, data, START, (1, 2), rules)) == 1
    assert advance(state, data, START, (1, 2), rules) == []
    data.add("m", [1, 1, 1], [1, 2, 3], [9.0, 2.0, 0.0])
    advance(state, data, START, (1, 3), rules)
    assert [c.detected_step for c in state.cases] == [2]


@pytest.mark.parametrize(
    ("metric", "framework", "part"),
    [
        ("mismatch.logprob_diff.mean", "trl", "vllm_importance_sampling_correction=True"),
        ("mismatch.prob_diff.mean", "verl", "rollout.calculate_log_probs=True"),
        ("length.response.truncated_frac", "verl", "trainer.rollout_data_dir"),
        ("fact.mask.extra_frac", "verl", "rollout_tq"),
        ("fact.group.zero_std_frac", "trl", "log_completions=True"),
        ("kl.ref", "trl", "beta above 0"),
        ("tools.failure_frac", "verl", "is_error"),
        ("tools.failure_frac", "trl", "tools=[...]"),
        ("fact.context.rewritten_frac", "verl", "tokenization_sanity_check_mode=strict"),
        ("fact.context.rewritten_frac", "native", "prompt_token_ids"),
        ("fact.turns.loop_frac", "plain", "tool_args"),
        ("stop.max_turns.frac", "trl", "finish_reason"),
        ("tool_args", "trl", "field tool_args"),
        ("fact.duplicate.within", "native", "rollouts.jsonl"),
        ("config.group_size", "plain", "config.json"),
        ("time.rollout_s", "native", "time.step_s"),
        ("time.wait_batch_s", "verl", "timing_s/*"),
        ("engine.preemptions_rate", "trl", "vllm:num_preemptions_total"),
        ("fact.seconds.rollout.tail", "plain", "seconds (an object"),
        ("fact.repeat.prompt_frac", "native", "trajectory_id"),
        ("fact.repeat.prompt_frac", "verl", "trainer.rollout_data_dir"),
        ("reward.mean", "a-trainer-of-tomorrow", "add a column"),
    ],
)
def test_what_is_missing_comes_with_the_setting_of_that_trainer(metric: Any, framework: Any, part: Any) -> None:
    assert part in switch_for(metric, framework)


def test_one_setting_is_named_once_for_all_that_it_lights() -> None:
    told = how_to_log(["mismatch.kl", "mismatch.prob_diff.mean", "lag.policy.mean"], "verl")
    assert told.count("calculate_log_probs") == 1 and "mismatch.kl, mismatch.prob_diff.mean" in told
