"""Curves as functions: nothing is hidden, clipped or invented."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from frontend.figures.curve import Window, band_of, figure, hidden_by_log, tail, traces, wants_log
from frontend.figures.panels import MOST, PANELS, Line, choose
from server.queries.curves import Curve, Superseded, smoothed, thinned

MAIN, EVAL = Line(("a",), "main", "train"), Line(("b",), "eval", "held-out")


def curve(values: list[float], steps: list[int] | None = None, *, bad: tuple[int, ...] = (), older: tuple[Superseded, ...] = ()) -> Curve:
    mean = np.array(values, float)
    at = np.array(steps if steps is not None else range(mean.size), np.int64)
    return Curve(
        "k", "m", None, 1, at, mean, mean, mean, np.ones(mean.size, np.int64), np.array(bad, np.int64), smoothed(mean, 0.9), 1, older
    )


def test_raw_values_stay_beside_the_smoothed_line() -> None:
    raw, smooth, crosses = traces([(MAIN, curve([1, 5, 1]))], False)
    assert raw["y"] == [1.0, 5.0, 1.0]
    assert raw["opacity"] == pytest.approx(0.34)
    assert smooth["line"]["width"] > raw["line"]["width"]
    assert crosses["x"] == []


def test_a_value_that_is_not_a_number_gets_a_cross_and_a_gap() -> None:
    raw, _, crosses = traces([(MAIN, curve([1, float("nan"), 2], bad=(1,)))], False)
    assert raw["y"] == [1.0, None, 2.0]
    assert raw["connectgaps"] is False
    assert crosses["x"] == [1]


def test_an_older_attempt_is_faint_and_has_the_same_colour() -> None:
    old = Superseded(1, np.array([2, 3]), np.array([7.0, 8.0]))
    faint, raw, *_ = traces([(MAIN, curve([1, 2, 3], older=(old,)))], False)
    assert faint["y"] == [7.0, 8.0]
    assert faint["opacity"] < raw["opacity"]
    assert faint["line"]["color"] == raw["line"]["color"]


def test_a_missed_evaluation_stays_a_gap() -> None:
    held_out, _ = traces([(EVAL, curve([1, 2, 3, 4], [0, 5, 10, 40]))], False)
    assert held_out["y"] == [1.0, 2.0, 3.0, None, 4.0]


def test_a_thinned_curve_keeps_every_extreme() -> None:
    values = np.sin(np.arange(50_000) / 500.0)
    values[31_337] = 99.0
    thin = thinned(curve(values.tolist()))
    assert thin.steps.size <= 1000
    assert thin.high.max() == 99.0
    raw, *_ = traces([(MAIN, curve(values.tolist()))], False)
    assert max(v for v in raw["y"] if v is not None) == 99.0


def test_bins_of_a_growing_run_stay_where_they_are() -> None:
    values = np.arange(9000.0).tolist()
    before, after = thinned(curve(values[:7000])), thinned(curve(values[:7900]))
    assert before.bin_steps == after.bin_steps
    assert before.steps.tolist() == after.steps[: before.steps.size].tolist()


def test_the_axis_is_logarithmic_only_over_decades() -> None:
    assert wants_log([curve([10.0**e for e in (-3, -2, -1, 0, 1, 2)])])
    assert not wants_log([curve([1, 2, 3, 4, 5, 6])])
    assert not wants_log([curve([0.0] * 6 + [1e-3, 1.0, 1e3])])


def test_what_a_log_axis_cannot_show_is_counted() -> None:
    mixed = curve([0.0] + [10.0 ** (e % 6) for e in range(40)])
    assert wants_log([mixed])
    assert hidden_by_log([mixed]) == 1


def test_the_band_is_median_and_deviation_of_the_baseline() -> None:
    made = band_of(curve([1, 2, 1, 2, 1, 2, 9, 9]), Window(6, 7, (0, 5)))
    assert made is not None
    assert (made.median, made.spread, made.after) == (1.5, 1.25, 9.0)
    assert made.outside
    assert band_of(curve([1, 2]), Window(1, 1, (0, 1))) is None
    assert band_of(curve([1] * 9), None) is None


def test_every_chart_of_a_page_has_the_same_steps_and_margins() -> None:
    one = figure([(MAIN, curve([1, 2]))], steps=(0, 100), key="a")["layout"]
    other = figure([(MAIN, curve([1e-9, 5000]))], steps=(0, 100), key="b")["layout"]
    assert one["xaxis"]["range"] == other["xaxis"]["range"] == [0, 100]
    assert one["margin"] == other["margin"]


def test_window_band_and_onset_lie_below_the_lines() -> None:
    values = [1.0, 2.0] * 5
    made = figure(
        [(MAIN, curve(values))], steps=(0, 9), window=Window(6, 9, (0, 5)), band=band_of(curve(values), Window(6, 9, (0, 5))), label=True
    )
    assert all(shape["layer"] == "below" for shape in made["layout"]["shapes"])
    assert [s["label"]["text"] for s in made["layout"]["shapes"] if "label" in s] == ["onset 6"]


def test_the_tail_of_a_figure_is_what_came_later() -> None:
    made = figure([(MAIN, curve([1, 2, 3, 4]))], steps=(0, 3))
    assert [part["x"] for part in tail(made, 2)] == [[2, 3], [2, 3], []]


def test_smoothing_starts_at_the_first_value_and_skips_gaps() -> None:
    made = smoothed(np.array([2.0, float("nan"), 2.0, 4.0]), 0.9)
    assert made[0] == pytest.approx(2.0)
    assert np.isnan(made[1])
    assert 2.0 < made[3] < 4.0


def test_smoothing_on_a_log_axis_is_of_the_logarithm() -> None:
    made = smoothed(np.array([1.0, 100.0]), 0.5, True)
    assert made[1] == pytest.approx(100 ** (2 / 3))


def test_at_most_twelve_charts_and_none_without_its_metric() -> None:
    every = [metric for panel in PANELS for line in panel.lines for metric in line.alternatives]
    chosen, missing = choose(every, "eval.heldout.score")
    assert len(chosen) == MOST
    assert missing == []
    few, rest = choose(["reward.mean"], None)
    assert [c.panel.key for c in few] == ["reward"]
    assert "entropy" in [p.key for p in rest]


def test_a_curve_can_be_cut() -> None:
    cut = replace(curve([1, 2, 3], bad=(0, 2))).since(1)
    assert cut.mean.tolist() == [2.0, 3.0]
    assert cut.nonfinite_steps.tolist() == [2]
    assert cut.last == 3.0
