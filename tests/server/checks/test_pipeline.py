"""Checks of the pipeline that need seconds of trajectories or a course over many steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

import server.checks.pipeline as pipeline
from ingest.schema.records import Json
from ingest.store.connection import Store
from server.checks.base import Finding
from server.queries.view import RunData, RunFacts, RunView

SEEN = Finding("pipeline-inefficiency", "info", 1, "x")


@pytest.fixture
def store() -> Iterator[Store]:
    opened = Store(None)
    yield opened
    opened.close()


def make(store: Store, config: dict[str, Json] | None = None, **series: Sequence[float]) -> RunView:
    """A run whose metrics are named with _ for a dot."""
    data = RunData(store, RunFacts("run", "p", "n", "native", None, config or {}, {}), (), {1: 1})
    for name, values in series.items():
        data.add(name.replace("__", "."), [1] * len(values), range(1, len(values) + 1), values)
    return RunView(data, 1, max(len(values) for values in series.values()))


def times(store: Store, **series: Sequence[float]) -> pipeline.StepTimes:
    made = pipeline.step_times(make(store, None, **series), pipeline.SLOWER)
    assert made is not None
    return made


def test_the_overlap_factor_is_0_in_sequence_1_within_the_longest_and_between_otherwise(store: Store) -> None:
    def factor(total: float) -> float | None:
        return pipeline.overlap(times(store, time__step_s=[total] * 10, time__rollout_s=[60.0] * 10, time__update_s=[30.0] * 10))

    assert factor(90) == 0
    assert factor(60) == 1
    assert factor(75) == 0.5


def test_overlap_is_not_told_of_a_sum_of_one_stage_or_of_few_points(store: Store) -> None:
    assert pipeline.overlap(times(store, time__rollout_s=[6.0] * 10, time__update_s=[3.0] * 10)) is None
    assert pipeline.overlap(times(store, time__step_s=[9.0] * 10, time__rollout_s=[6.0] * 10)) is None
    assert pipeline.overlap(times(store, time__step_s=[9.0] * 9, time__rollout_s=[6.0] * 9, time__update_s=[3.0] * 9)) is None


def test_without_a_total_the_stages_that_do_work_are_added_up(store: Store) -> None:
    found = times(store, time__rollout_s=[6.0] * 4, time__update_s=[2.0] * 4, time__wait_batch_s=[5.0] * 4)
    assert found.total.tolist() == [8.0] * 4
    assert pipeline.shares(found)["generation"] == 0.75


def test_a_single_stage_is_no_step(store: Store) -> None:
    assert pipeline.step_times(make(store, None, time__rollout_s=[6.0] * 4), 1.3) is None


def test_slow_steps_in_a_row_are_counted_and_nothing_later_changes_the_count(store: Store) -> None:
    values = [10.0] * 30 + [14.0] * 12 + [10.0] * 3
    view = make(store, None, time__step_s=values)
    whole = pipeline.step_times(view, 1.3)
    part = pipeline.step_times(view.at(36), 1.3)
    assert whole is not None and part is not None
    assert whole.lasting[29:45].tolist() == [*range(13), 0, 0, 0]
    assert part.lasting.tolist() == whole.lasting[:36].tolist()


def test_the_growth_is_divided_among_the_stages(store: Store) -> None:
    series = {"time__step_s": [10.0] * 20 + [20.0] * 10, "time__rollout_s": [5.0] * 20 + [13.0] * 10}
    found = pipeline.growth(times(store, **series, time__update_s=[4.0] * 20 + [6.0] * 10), 21)
    assert found == {"generation": (0.8, 5.0, 13.0), "the policy update": (0.2, 4.0, 6.0)}
    assert pipeline.growth(times(store, **series), 1) == {}


@pytest.mark.parametrize(("longest", "verdict"), [(True, "supported"), (False, "refuted")])
def test_generation_that_follows_the_longest_response_alone_points_to_stragglers(store: Store, longest: bool, verdict: str) -> None:
    random = np.random.default_rng(3)
    most, mean = random.uniform(100, 400, 60).tolist(), random.uniform(50, 60, 60).tolist()
    series = {"length__response__max": most, "length__response__mean": mean, "time__update_s": [1.0] * 60}
    view = make(store, None, time__rollout_s=[value / 10 for value in (most if longest else mean)], **series)
    assert pipeline.stragglers(view, SEEN).verdict == verdict


def test_stragglers_cannot_be_told_without_seconds_or_lengths(store: Store) -> None:
    found = pipeline.stragglers(make(store, None, time__rollout_s=[6.0] * 4, time__update_s=[2.0] * 4), SEEN)
    assert found.verdict == "not_checkable" and found.missing


@pytest.mark.parametrize(("tail", "verdict"), [(6, "supported"), (3, "inconclusive"), (1.5, "refuted")])
def test_the_slowest_response_against_the_usual_one_decides_on_stragglers(store: Store, tail: float, verdict: str) -> None:
    assert pipeline.stragglers(make(store, None, fact__seconds__rollout__tail=[tail] * 5), SEEN).verdict == verdict
    traj = {"time__traj_rollout__max": [tail * 3] * 5, "time__traj_rollout__mean": [3.0] * 5}
    assert pipeline.stragglers(make(store, None, **traj), SEEN).verdict == verdict


@pytest.mark.parametrize(
    ("series", "verdict"),
    [
        ({"engine__kv_cache_frac": [0.99] * 5, "engine__waiting": [12.0] * 5}, "supported"),
        ({"engine__kv_cache_frac": [0.99] * 5, "engine__waiting": [0.0] * 5}, "inconclusive"),
        ({"engine__kv_cache_frac": [0.5] * 5}, "refuted"),
        ({"engine__waiting": [12.0] * 5}, "not_checkable"),
    ],
)
def test_a_full_cache_counts_while_requests_wait(store: Store, series: dict[str, list[float]], verdict: str) -> None:
    assert pipeline.engine_short_of_cache(make(store, None, **series), SEEN).verdict == verdict


@pytest.mark.parametrize(
    ("series", "verdict"),
    [
        ({"errors__rollout_frac": [0.3] * 5}, "supported"),
        ({"errors__rollout_frac": [0.05] * 5}, "inconclusive"),
        ({"errors__rollout_frac": [0.0] * 5, "fact__seconds__environment__share": [0.1] * 5}, "refuted"),
        ({"reward__mean": [0.5] * 5}, "not_checkable"),
    ],
)
def test_failing_rollouts_and_slow_environments(store: Store, series: dict[str, list[float]], verdict: str) -> None:
    assert pipeline.environment_slow(make(store, None, **series), SEEN).verdict == verdict


@pytest.mark.parametrize(("kept", "verdict"), [(0.3, "supported"), (0.6, "inconclusive"), (0.9, "refuted")])
def test_work_that_is_thrown_away(store: Store, kept: float, verdict: str) -> None:
    assert pipeline.work_discarded(make(store, None, fact__kept_frac=[kept] * 10), SEEN).verdict == verdict
