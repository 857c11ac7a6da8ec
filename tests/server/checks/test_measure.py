"""What is worked out once for a whole chain equals what the plain definition says at each step, with gaps, ties and NaN."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.checks.measure import block_chain, block_means, evidence, finite, history, noise, points, reward_range, rolled, shift, trend_of
from server.checks.value import reached
from server.detectors.baseline import rolling
from server.detectors.drift import best_so_far
from server.detectors.trend import trend
from server.queries.view import Event, RunData, RunFacts, RunView

VALUE = st.one_of(st.integers(-3, 4).map(float), st.just(math.nan), st.just(math.inf), st.floats(-2, 2))
POINTS = st.lists(st.tuples(st.integers(1, 3), VALUE), min_size=1, max_size=60)


def run(drawn: list[tuple[int, float]], events: tuple[Event, ...] = (), metric: str = "reward.mean") -> RunData:
    """Points at growing steps, the distance before each as drawn."""
    data = RunData(cast(Any, None), RunFacts("r", "p", "r", "native", None, {}, {}), events, {1: 0})
    steps = np.cumsum([gap for gap, _ in drawn])
    data.add(metric, np.ones(len(drawn)), steps, np.array([value for _, value in drawn]))
    return data


def views(data: RunData) -> list[RunView]:
    return [RunView(data, 1, step) for step in range(int(data.chain("reward.mean", 1).steps[-1]) + 3)]


@settings(max_examples=40)
@given(drawn=POINTS, event=st.one_of(st.none(), st.integers(0, 40)))
def test_points_and_history_are_the_finite_points_up_to_the_step(drawn: list[Any], event: int | None) -> None:
    data = run(drawn, () if event is None else (Event(1, event, "stage", ""),))
    for view in views(data):
        for found, plain in (
            (points(view, "reward.mean"), finite(view.series("reward.mean").since(view.baseline_start))),
            (history(view, "reward.mean"), finite(view.series("reward.mean"))),
        ):
            assert (found.steps.tolist(), found.values.tolist()) == (plain.steps.tolist(), plain.values.tolist())


@settings(max_examples=40)
@given(drawn=POINTS)
def test_the_reward_range_is_that_of_the_points_so_far(drawn: list[Any]) -> None:
    for view in views(run(drawn)):
        seen = finite(view.series("reward.mean")).values.tolist()
        assert reward_range(view) == (min([0.0, *seen]), max([1.0, *seen]))


@settings(max_examples=40)
@given(drawn=POINTS, steps=st.integers(2, 6))
def test_means_of_blocks_are_cut_from_those_of_the_whole_chain(drawn: list[Any], steps: int) -> None:
    for view in views(run(drawn)):
        means, n = block_chain(view, "reward.mean", steps)
        plain = block_means(points(view, "reward.mean"), steps, view.step)
        assert (means.steps[:n].tolist(), means.values[:n].tolist()) == (plain.steps.tolist(), plain.values.tolist())


@settings(max_examples=25)
@given(drawn=st.lists(st.tuples(st.integers(1, 3), VALUE), min_size=20, max_size=90))
def test_baselines_of_all_points_are_those_of_the_points_so_far_however_the_run_grew(drawn: list[Any]) -> None:
    whole, live = run(drawn), run(drawn[:1])
    steps = np.cumsum([gap for gap, _ in drawn])
    for at, view in enumerate(RunView(whole, 1, int(step)) for step in steps):
        if at:
            live.add("reward.mean", [1], [int(steps[at])], [drawn[at][1]], after=(1, int(steps[at - 1])))
        seen = RunView(live, 1, view.step)
        values = points(view, "reward.mean").values
        for found in (rolled(view, "reward.mean"), rolled(seen, "reward.mean")):
            assert np.array_equal(found[0].values, values)
            for array, plain in zip(found[1:], rolling(values), strict=True):
                assert np.array_equal(array, plain, equal_nan=True)


@given(values=st.lists(st.floats(-5, 5), min_size=1, max_size=60))
def test_the_noise_is_that_of_the_differences(values: list[float]) -> None:
    view = RunView(run([(1, value) for value in values]), 1, len(values))
    jumps = np.diff(values[-50:])
    if len(values) < 4:
        assert noise(view, "reward.mean") == math.inf
    else:
        mad = 1.4826 * np.median(np.abs(jumps - np.median(jumps)))
        assert noise(view, "reward.mean") == pytest.approx(max(mad, 0.5 * np.std(jumps)) / math.sqrt(2), rel=1e-12, abs=1e-300)


@given(drawn=POINTS, old=st.tuples(st.integers(0, 60), st.integers(0, 60)), new=st.tuples(st.integers(0, 60), st.integers(0, 60)))
def test_a_shift_compares_the_means_of_two_stretches(drawn: list[Any], old: Any, new: Any) -> None:
    view = views(run(drawn))[-1]
    series = points(view, "reward.mean")
    parts = [series.values[(series.steps >= a) & (series.steps <= b)] for a, b in (old, new)]
    found = shift(view, "reward.mean", old, new)
    assert (found is None) == any(not len(part) for part in parts)
    if found is not None:
        assert (found.before, found.after) == (float(np.mean(parts[0])), float(np.mean(parts[1])))


def test_what_is_asked_twice_at_a_step_is_worked_out_once(monkeypatch: Any) -> None:
    data = run([(1, float(n % 7)) for n in range(80)])
    lengths: list[int] = []

    def counted(steps: Any, values: Any) -> Any:
        lengths.append(len(values))
        return trend(steps, values)

    monkeypatch.setattr("server.checks.measure.trend", counted)
    first, again = (trend_of(RunView(data, 1, 70), "reward.mean") for _ in range(2))
    later = trend_of(RunView(data, 1, 71), "reward.mean")
    assert first is again
    assert (later[1].steps[-1], lengths) == (71, [60, 60])


@given(values=st.lists(st.integers(-4, 4).map(float), max_size=40))
def test_the_best_so_far_is_the_highest_order_statistic_of_all_windows(values: list[float]) -> None:
    plain = [max((sorted(values[i : i + 6])[3] for i in range(n - 5)), default=-math.inf) for n in range(1, len(values) + 1)]
    assert best_so_far(np.array(values), 6, 3).tolist() == plain


@given(values=st.lists(st.integers(-4, 4).map(float), min_size=8, max_size=60), held=st.integers(5, 8), level=st.floats(-4, 4))
def test_a_level_was_reached_if_the_median_of_a_whole_block_lay_above_it(values: list[float], held: int, level: float) -> None:
    found = reached(np.array(values), held, level)
    for n in range(len(values) + 1):
        plain = any(sorted(values[i : i + held])[held // 2] > level for i in range(0, n - held, held))
        blocks = len(range(0, n - held, held))
        assert (blocks > 0 and found[blocks - 1]) == plain


def test_evidence_tells_of_the_points_since_the_onset_alone(view: Callable[..., RunView]) -> None:
    seen = view(series={"m": {step: 0.0 if step < 10 else 0.6 for step in range(12)}, "late": {0: 1.0, 5: 2.0}})
    found = evidence(seen, "m", onset=10)
    assert found is not None
    assert (found.before, found.after, found.n) == (0.0, 0.6, 10)  # three of the newest five points lie before it
    old = evidence(seen, "late", onset=10)
    assert old is not None
    assert (old.before, old.after) == (1.5, 1.5)
