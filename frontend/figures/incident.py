"""Figures of an incident's page: its metric with baseline band, onset and the steps at which it grew graver."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from frontend import theme
from frontend.figures.curve import Window, band_of, figure
from frontend.figures.panels import Line
from frontend.theme import Scheme
from server.queries.curves import Curve

_SYMBOLS = {"info": "circle-open", "watch": "diamond", "warn": "triangle-up", "critical": "octagon"}


def window_of(incident: Any, before: tuple[int, int], after: tuple[int, int]) -> Window:
    """The window drawn behind the curves."""
    return Window(incident.onset_step, max(after[1], incident.onset_step), before)


def step_range(curves: Iterable[Curve], newest: int | None) -> tuple[int, int]:
    """The steps of every chart of the page."""
    found = [curve for curve in curves if curve.steps.size]
    first = min((int(curve.steps[0]) for curve in found), default=0)
    last = max((int(curve.steps[-1]) for curve in found), default=first + 1)
    return first, max(last, newest or 0, first + 1)


def median_of(curve: Curve, first: int, last: int) -> float | None:
    """Median of the finite values of steps first..last, None without one."""
    inside = curve.mean[(curve.steps >= first) & (curve.steps <= last)]
    finite = inside[np.isfinite(inside)]
    return float(np.median(finite)) if finite.size else None


def observation(
    curve: Curve, title: str, window: Window, steps: tuple[int, int], grew: Mapping[str, int], scheme: Scheme, *, small: bool = False
) -> dict[str, Any]:
    """One curve with band, window and onset. grew: severity to the first step at it, drawn as shape and word."""
    lines = [(Line((curve.key,), "main", title), curve if curve.smooth.size else replace(curve, smooth=curve.mean))]
    made = figure(lines, steps=steps, window=window, band=band_of(curve, window), scheme=scheme, large=True, label=not small, key=curve.key)
    layout = made["layout"]
    layout["hovermode"] = "x"
    layout["margin"] = {**theme.MARGIN_LARGE, "t": 4 if small else 14, "b": 5 if small else 20}
    if small:
        layout["xaxis"]["showticklabels"] = False
        layout["yaxis"]["nticks"] = 3
    else:
        made["data"] = [*made["data"], *_marks(curve, grew, layout["meta"]["log"], scheme)]
    return made


def _beside(curve: Curve, place: int, value: float, before: int) -> str:
    """Right of the mark, since the onset is named left of its line; every second one left, so that close steps do not overlap.

    Away from the nearer edge, so that the curve, which goes on from the mark, does not run through the word.
    """
    side = "left" if before % 2 or place > 0.85 * curve.steps.size else "right"
    return f"{'bottom' if value > np.nanmedian(curve.mean) else 'top'} {side}"


def _marks(curve: Curve, grew: Mapping[str, int], log: bool, scheme: Scheme) -> list[dict[str, Any]]:
    colours = theme.colours(scheme)
    made: list[dict[str, Any]] = []
    for severity, step in sorted(grew.items(), key=lambda item: item[1]):
        place = int(np.searchsorted(curve.steps, step))
        if severity not in _SYMBOLS or place >= curve.steps.size:
            continue
        value = float(curve.mean[place])
        if not np.isfinite(value) or (log and value <= 0):
            continue
        token = "accent" if severity == "info" else f"{severity}-fill"
        text = "info-text" if severity == "info" else f"{severity}-text"
        made.append(
            {
                "type": "scatter", "mode": "markers+text", "x": [int(curve.steps[place])], "y": [value],
                "text": [f"{step} {severity}"],
                "textposition": _beside(curve, place, value, len(made)),
                "textfont": {"size": 10, "color": colours[text]},
                "marker": {"size": 11, "symbol": _SYMBOLS[severity], "color": colours[token]},
                "hovertemplate": f"{severity} since step {step}<extra></extra>", "cliponaxis": False, "meta": {"role": "mark"},
            }
        )  # fmt: skip
    return made
