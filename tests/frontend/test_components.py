"""Words, small drawings and the health strip."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from frontend.components.families import FAMILIES, strip
from frontend.components.spark import spark
from frontend.components.svg import Svg, severity_shape
from frontend.components.words import age, change, count, number, seconds
from frontend.views import RunsView


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.7864, "0.786"),
        (-0.05, "−0.0500"),
        (12345.0, "12,345"),
        (0.0, "0"),
        (None, "–"),
        (float("nan"), "NaN"),
        (float("-inf"), "−∞"),
        (1.5e-7, "1.50e−7"),
    ],
)
def test_numbers_have_three_digits_and_a_true_minus(value: float | None, text: str) -> None:
    assert number(value) == text


def test_counts_ages_and_durations() -> None:
    assert [count(v) for v in (148, 193_000, 2_500_000, None)] == ["148", "193 k", "2.5 M", "–"]
    assert [age(v) for v in (0.4, 18 * 60, 3 * 3600, 3 * 86400)] == ["0 s", "18 min", "3 h", "3 d"]
    assert seconds(0.53) == "0.53 s"


@pytest.mark.parametrize(
    ("before", "after", "score", "text"),
    [
        (0.0016, 0.372, False, "×232"),
        (0.69, 0.634, True, "−0.0560"),
        (0.0, 17.9, False, "0 → 17.9"),
        (1.0, 0.92, False, "−8 %"),
        (None, 1.0, False, "–"),
    ],
)
def test_a_change_is_a_ratio_a_difference_or_a_percentage(before: float | None, after: float, score: bool, text: str) -> None:
    assert change(before, after, score=score) == text


def test_a_sparkline_keeps_gaps_and_shades_from_the_onset() -> None:
    drawn: Any = spark([0, 1, 2, 3], [1.0, float("nan"), 2.0, 3.0], since=2)
    window, path, dot = drawn.shapes
    assert window[0] == "rect"
    assert path[1]["d"].count("M") == 2
    assert dot[0] == "circle"
    assert spark([0, 1], [float("nan")] * 2) is None


def test_a_flat_sparkline_lies_in_the_middle() -> None:
    drawn: Any = spark([5], [1.0])
    assert drawn.shapes[0][1]["d"] == "M52.0 11.0"


def test_drawings_carry_no_colour_and_no_markup() -> None:
    shape = severity_shape("critical").to_plotly_json()
    assert shape["namespace"] == "rlv_components"
    assert "fill" not in str(shape["props"]["shapes"]).replace("fill-critical", "")
    assert "label" not in Svg([], 1, 1).to_plotly_json()["props"]


def incident(symptom: str, severity: str, step: int) -> Any:
    return SimpleNamespace(symptom=symptom, severity=severity, onset_step=step, steps_by_severity={severity: step}, slice=None)


def test_the_strip_tells_quiet_from_not_judged() -> None:
    known = ["entropy-collapse", "entropy-explosion", "staleness-harm", "reward-flat"]
    blocked: list[dict[str, Any]] = [
        {"symptom": "staleness-harm", "missing": ["lag.policy.mean"], "how": "log it"},
        {"symptom": "entropy-collapse", "missing": ["x"], "how": None},
    ]
    cells = {cell.family.key: cell for cell in strip([incident("reward-flat", "watch", 9)], blocked, known, True)}
    assert (cells["reward"].severity, cells["reward"].words) == ("watch", "watch from 9")
    assert (cells["staleness"].severity, cells["staleness"].reasons) == (
        "cannot-tell",
        (("staleness-harm", ("lag.policy.mean",), "log it"),),
    )
    assert cells["entropy"].severity == "quiet"
    assert cells["agent"].words == "no rule yet"


def test_before_the_first_judged_step_nothing_is_called_quiet() -> None:
    assert {cell.severity for cell in strip([], [], ["reward-flat", "spike"], False)} == {"cannot-tell"}


def test_the_strip_has_sixteen_families_and_no_symptom_twice() -> None:
    symptoms = [symptom for family in FAMILIES for symptom in family.symptoms]
    assert len(FAMILIES) == 16
    assert len(symptoms) == len(set(symptoms))


def test_a_view_goes_into_the_address_and_comes_back() -> None:
    view = RunsView(q="a b", sort="-reward", page=3)
    assert RunsView.from_query({key: str(value) for key, value in view.to_query().items()}) == view
    assert RunsView.from_query({"page": "x", "unknown": "1"}) == RunsView()
