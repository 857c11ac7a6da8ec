"""Falls of noisy slices and drift of shares: hand-made windows, no sight of the future, and how often noise is taken for more."""

from __future__ import annotations

import numpy as np
import pytest

from server.detectors.falls import discoveries, falls, split_at
from server.detectors.mix import drift


def test_windows_hold_the_samples_asked_for() -> None:
    values = np.array([0.8] * 20 + [0.5] * 10) + np.tile([0.01, -0.01], 15)
    found = falls(values, np.full(30, 10.0), (50,), (0,))
    assert (found.new_first[-1], found.old_last[-1], found.old_first[-1]) == (25, 24, 0)
    assert found.change[24] == pytest.approx(0.5 - 0.8, abs=0.01)
    assert found.z[24] < -4 and found.p[24] < 1e-6
    assert np.isnan(found.p[:8]).all()


def test_an_older_window_sees_what_the_one_just_before_hides() -> None:
    values = np.concatenate((np.full(60, 0.8), np.linspace(0.8, 0.5, 60))) + np.random.default_rng(1).normal(0, 0.1, 120)
    near, far = (falls(values, np.full(120, 10.0), (100,), gaps) for gaps in ((0,), (0, 40)))
    assert far.z[-1] <= near.z[-1]
    assert far.old_last[-1] < near.old_last[-1]


def test_a_prefix_gives_a_prefix() -> None:
    rng = np.random.default_rng(2)
    values, samples = rng.normal(0.5, 0.1, 150), rng.integers(4, 40, 150).astype(float)
    whole, part = (falls(values[:n], samples[:n], (100, 400), (0, 50)) for n in (150, 90))
    assert np.array_equal(whole.z[:90], part.z, equal_nan=True)


def test_noise_is_seldom_a_fall() -> None:
    rng = np.random.default_rng(3)
    loud = sum(
        bool((falls(rng.binomial(16, 0.7, 300) / 16, np.full(300, 16.0), (200, 800), (0, 50), share=0.25).z < -4).any()) for _ in range(60)
    )
    assert loud <= 2


def test_samples_that_depend_on_each_other_count_for_less() -> None:
    rng = np.random.default_rng(4)
    groups = rng.binomial(2, 0.7, 200) / 2
    alone = rng.binomial(16, 0.7, 200) / 16
    step = np.where(np.arange(200) < 150, 0.0, -0.1)
    one, other = (falls(v + step, np.full(200, 16.0), (200,), (0,)).z for v in (groups, alone))
    assert np.nanmin(one) > np.nanmin(other)


def test_too_few_samples_are_not_judged() -> None:
    assert np.isnan(falls(np.full(40, 0.5), np.full(40, 1.0), (200,), (0,)).p).all()
    assert np.isnan(falls(np.array([0.5]), np.ones(1), (1,), (0,)).p).all()


def test_discoveries_follow_benjamini_and_hochberg() -> None:
    assert discoveries([0.01, 0.04, 0.03, 0.5], 0.05) == [True, False, False, False]
    assert discoveries([0.01, 0.02, 0.03, 0.5], 0.05) == [True, True, True, False]
    assert discoveries([0.01, float("nan")], 0.05) == [True, False]
    assert discoveries([], 0.05) == []


def test_a_level_splits_where_it_falls() -> None:
    assert split_at(np.array([1.0, 1, 1, 0, 0]), np.ones(5)) == 3
    assert split_at(np.array([1.0]), np.ones(1)) == 0


def test_the_index_of_two_halves_is_that_of_the_formula() -> None:
    shares = np.array([[0.5] * 50 + [0.8] * 30, [0.5] * 50 + [0.2] * 30])
    found = drift(shares, np.full(80, 1e6), 50, 20, 200)
    assert found.excess[-1] == pytest.approx(0.3 * np.log(0.8 / 0.5) + -0.3 * np.log(0.2 / 0.5), rel=1e-3)
    assert np.isnan(found.excess[:69]).all() and not np.isnan(found.excess[69])
    assert found.start[-1] == 60


def test_draws_of_one_mix_are_no_drift() -> None:
    rng = np.random.default_rng(5)
    shares = np.stack([rng.multinomial(8, [0.4, 0.3, 0.2, 0.1]) / 8 for _ in range(400)], axis=1)
    assert np.nanmax(drift(shares, np.full(400, 8.0), 50, 20, 200).excess) < 0.1


def test_batches_of_one_source_widen_the_noise() -> None:
    rng = np.random.default_rng(6)
    shares = np.eye(4)[rng.integers(0, 4, 300)].T
    found = drift(shares, np.full(300, 64.0), 50, 20, 200)
    assert found.dispersion > 10
    assert np.nanmax(found.excess) < 0.25


def test_one_label_or_a_short_run_has_no_drift() -> None:
    assert np.isnan(drift(np.ones((1, 90)), np.full(90, 8.0), 50, 20, 200).excess).all()
    assert np.isnan(drift(np.full((2, 40), 0.5), np.full(40, 8.0), 50, 20, 200).excess).all()


def test_a_label_that_is_still_to_come_changes_nothing_before_it() -> None:
    rng = np.random.default_rng(7)
    shares = np.stack([rng.multinomial(16, [0.6, 0.4]) / 16 for _ in range(120)], axis=1)
    later = np.vstack([shares, np.zeros(120)])
    later[:, 110:] = np.array([[0.2], [0.2], [0.6]])
    whole, part = drift(later, np.full(120, 16.0), 50, 20, 200), drift(shares[:, :110], np.full(110, 16.0), 50, 20, 200)
    assert np.array_equal(whole.excess[:110], part.excess, equal_nan=True)
    assert whole.excess[-1] > 0.25
