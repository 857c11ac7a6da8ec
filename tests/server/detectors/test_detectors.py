"""Detectors against values worked out by hand and against scipy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau, theilslopes
from scipy.stats import rankdata as scipy_ranks

from server.detectors.baseline import Baseline, baseline, median_spread, robust_z, rolling
from server.detectors.change import change_point
from server.detectors.drift import cusum, ewma, ewma_limit, page_hinkley
from server.detectors.level import beyond, share, since
from server.detectors.middle import mean, median
from server.detectors.spike import spikes
from server.detectors.trend import autocorrelation, trend
from server.queries.rank import rankdata

SERIES = st.lists(st.floats(-100, 100).map(lambda x: round(x, 3)), min_size=1, max_size=90).map(np.array)


def test_the_spread_is_the_scaled_median_deviation_with_its_floors() -> None:
    assert median_spread(np.array([1.0, 2, 3, 4, 100]), floor=0) == pytest.approx((3, 1.4826))
    assert median_spread(np.full(9, 4.0)) == pytest.approx((4, 0.2))
    assert median_spread(np.full(9, 0.0), least=0.01) == (0, 0.01)


def test_a_baseline_ends_before_the_gap_and_wants_enough_points() -> None:
    values = np.arange(100.0)
    found = baseline(values, window=50, gap=5)
    assert found is not None
    assert (found.first, found.last, found.n, found.median) == (45, 94, 50, 69.5)
    assert baseline(values[:14], fewest=10, gap=5) is None
    assert baseline(values[:15], fewest=10, gap=5) is not None


def test_a_distance_without_any_spread_is_infinite() -> None:
    flat = Baseline(1.0, 0.0, 0, 9)
    assert robust_z(1.0, flat) == 0
    assert robust_z(0.5, flat) == -np.inf
    assert robust_z(4.0, Baseline(1.0, 1.5, 0, 9)) == 2


@given(SERIES)
def test_rolling_baselines_equal_those_made_one_by_one(values: np.ndarray) -> None:
    middle, spread = rolling(values, window=20, gap=3, fewest=5)
    for at in range(len(values)):
        one = baseline(values[: at + 1], window=20, gap=3, fewest=5)
        if one is None:
            assert np.isnan(middle[at])
        else:
            assert (middle[at], spread[at]) == pytest.approx((one.median, one.spread))


@given(SERIES, st.integers(1, 89))
def test_detectors_use_nothing_after_the_point_they_judge(values: np.ndarray, cut: int) -> None:
    cut = min(cut, len(values))
    for detector in (spikes, ewma, page_hinkley, lambda v: cusum(v, 1.0, 0.5)):
        assert np.array_equal(detector(values)[:cut], detector(values[:cut]))


def test_a_spike_needs_both_its_distance_and_its_factor() -> None:
    rng = np.random.default_rng(1)
    calm = 1 + 0.02 * rng.normal(size=60)
    for height, expected in ((2.9, False), (5.0, True)):
        values = np.append(calm, height)
        assert bool(spikes(values)[-1]) is expected
        assert not spikes(values)[:-1].any()
    assert not spikes(np.append(calm, 0.0))[-1]


def test_the_ewma_and_its_band() -> None:
    assert ewma(np.array([1.0, 2, 2])).tolist() == pytest.approx([1, 1.2, 1.36])
    assert ewma_limit(0.3, width=5, weight=0.2) == pytest.approx(0.5)


def test_page_hinkley_sums_what_falls_below_the_running_mean() -> None:
    values = np.array([1.0, 1, 1, 0, 0])
    # means 1, 1, 1, .75, .6: steps -.05, -.05, -.05, .70, .55
    assert page_hinkley(values, slack=0.05).tolist() == pytest.approx([0, 0, 0, 0.7, 1.25])
    assert not page_hinkley(np.linspace(0, 1, 50)).any()


def test_cusum_starts_again_at_zero() -> None:
    assert cusum(np.array([0.0, 3, 3, -9, 2]), target=1, slack=0.5).tolist() == pytest.approx([0, 1.5, 3, 0, 0.5])


def test_a_trend_has_the_slope_and_tau_of_scipy() -> None:
    rng = np.random.default_rng(3)
    steps = np.arange(1, 61)
    values = np.round(0.02 * steps + rng.normal(0, 0.3, 60), 1)
    found = trend(steps, values)
    assert found.slope == pytest.approx(theilslopes(values, steps).slope)
    # scipy divides by pairs without ties, tau here by all pairs
    pairs = 60 * 59 / 2
    _, ties = np.unique(values, return_counts=True)
    untied = np.sqrt(pairs * (pairs - (ties * (ties - 1) / 2).sum()))
    assert found.tau == pytest.approx(kendalltau(steps, values).statistic * untied / pairs)


def test_the_p_value_of_a_trend_with_ties_is_scipys_without_autocorrelation() -> None:
    rng = np.random.default_rng(12)
    steps = np.arange(1, 41)
    values = np.round(0.01 * steps + rng.normal(0, 0.5, 40), 1)
    found = trend(steps, values)
    plain = kendalltau(steps, values, method="asymptotic").pvalue
    assert autocorrelation(values - found.slope * steps) <= 0
    assert found.p == pytest.approx(plain, rel=0.05)


def test_autocorrelated_noise_is_a_trend_less_often_than_its_p_value_says_without_correction() -> None:
    rng = np.random.default_rng(5)
    corrected, plain = 0, 0
    for _ in range(100):
        values = np.zeros(60)
        for at in range(1, 60):
            values[at] = 0.7 * values[at - 1] + rng.normal()
        corrected += int(trend(np.arange(60), values).p < 0.01)
        plain += int(kendalltau(np.arange(60), values).pvalue < 0.01)
    assert corrected < plain / 3


def test_short_and_constant_series_have_no_trend() -> None:
    assert trend(np.arange(7), np.arange(7.0)).p == 1
    assert trend(np.arange(30), np.full(30, 2.0)).p == 1


def test_a_straight_line_is_a_trend_although_its_rest_is_rounding() -> None:
    assert trend(np.arange(20), 0.5 + 0.007 * np.arange(20.0)).p < 1e-6


def test_the_change_point_is_where_the_level_moved() -> None:
    rng = np.random.default_rng(2)
    values = np.concatenate((rng.normal(0, 1, 40), rng.normal(10, 1, 30)))
    found = change_point(values)
    assert found is not None
    assert found.position == 40
    assert (found.before, found.after) == pytest.approx((0, 10), abs=0.5)


def test_no_change_point_in_noise_or_among_too_few_points() -> None:
    rng = np.random.default_rng(2)
    assert change_point(rng.normal(0, 1, 100)) is None
    assert change_point(np.arange(15.0)) is None


def test_levels_count_the_newest_points_and_say_since_when() -> None:
    values = np.array([0.0, 2, 0, 0, 0, 2, np.nan, 2, 2])
    assert beyond(values, 1, of=4) == 3
    assert since(values, 1, allowed=1) == 5
    assert since(values, 1, allowed=3) == 1
    assert since(np.array([2.0, 0, 0, 0]), 1) == 4
    assert share(values, 1) == pytest.approx(0.5)
    assert share(np.array([np.nan]), 1) == 0


MIXED = st.lists(st.one_of(st.floats(-9, 9), st.integers(-2, 2).map(float), st.sampled_from([np.nan, np.inf, -np.inf])), max_size=500)


@given(MIXED)
def test_median_and_mean_are_numpys(drawn: list[float]) -> None:
    values = np.array(drawn)
    with np.errstate(invalid="ignore"):
        expected = np.median(values) if len(values) else np.nan
        assert np.array_equal(median(values), expected, equal_nan=True)
        assert np.array_equal(median(drawn), expected, equal_nan=True)
        assert not len(values) or np.array_equal(mean(values), np.mean(values), equal_nan=True)


@given(st.integers(0, 2**32 - 1), st.integers(390, 410))
def test_the_median_of_a_long_series_is_numpys(seed: int, n: int) -> None:
    values = np.random.default_rng(seed).normal(size=n).round(1)
    assert median(values) == np.median(values)
    values[seed % n] = np.nan
    assert np.isnan(median(values))


@given(
    st.lists(st.sampled_from([0.0, 1.0, 1.0, 1.0, np.nan]), max_size=30),
    st.lists(st.tuples(st.integers(1, 300), st.integers(1, 4)), max_size=5),
    st.integers(0, 3),
)
def test_the_newest_stretch_is_found_however_long_it_is(few: list[float], blocks: list[tuple[int, int]], allowed: int) -> None:
    values = np.array([value for above, below in blocks for value in [1.0] * above + [0.0] * below] + few)
    n = len(values)
    above = [at for at in range(n) if values[at] > 0.5]
    expected = n
    if above and above[-1] >= n - 1 - allowed:
        expected = above[-1]
        for at in reversed(above[:-1]):
            if expected - at > allowed + 1:
                break
            expected = at
    assert since(values, 0.5, allowed) == expected
    assert since(-values, -0.5, allowed, below=True) == expected


@given(SERIES, st.integers(0, 90))
def test_arrays_from_a_position_on_are_the_rest_of_those_from_the_start(values: np.ndarray, start: int) -> None:
    start = min(start, len(values))
    for whole, part in zip(rolling(values, 20, 3, 5), rolling(values, 20, 3, 5, start=start), strict=True):
        np.testing.assert_array_equal(whole[start:], part)
    np.testing.assert_array_equal(spikes(values)[start:], spikes(values, start=start))


@given(st.lists(st.one_of(st.integers(-3, 3).map(float), st.floats(-9, 9)), max_size=40))
def test_ranks_are_scipys(drawn: list[float]) -> None:
    assert rankdata(drawn).tolist() == scipy_ranks(drawn).tolist()
