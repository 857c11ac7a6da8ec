"""A chart of curves over steps: raw values never hidden, extremes kept, gaps open, non-finite values marked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from frontend import theme
from frontend.figures.panels import Line
from frontend.theme import Scheme
from server.queries.curves import Curve, Values, thinned

LOG_DECADES = 2.5
Trace = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Window:
    """Steps of an incident and of what it is compared with."""

    onset: int
    last: int
    baseline: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Band:
    """What is usual: median and 2.5 median absolute deviations of the baseline steps; after: median since the onset."""

    median: float
    spread: float
    after: float | None

    @property
    def outside(self) -> bool:
        """Whether the values since the onset lie outside."""
        return self.after is not None and abs(self.after - self.median) > max(self.spread, 1e-12)


def band_of(curve: Curve, window: Window | None) -> Band | None:
    """The band of a curve, or None without a baseline of at least five values."""
    if window is None or window.baseline is None:
        return None
    values = _finite(curve, *window.baseline)
    if values.size < 5:
        return None
    middle = float(np.median(values))
    later = _finite(curve, window.onset, window.last)
    return Band(middle, 2.5 * float(np.median(np.abs(values - middle))), float(np.median(later)) if later.size else None)


def _finite(curve: Curve, first: int, last: int) -> Values:
    inside = curve.mean[(curve.steps >= first) & (curve.steps <= last)]
    return inside[np.isfinite(inside)]


def wants_log(curves: Sequence[Curve]) -> bool:
    """True where the positive values span more than 2.5 decades and none of any weight is 0 or below."""
    values = np.concatenate([c.mean[np.isfinite(c.mean)] for c in curves] or [np.empty(0)])
    positive = values[values > 0]
    if positive.size < 5 or positive.size < 0.95 * values.size:
        return False
    # The lowest percent may be exact zeros of a quantity that starts at nothing.
    return bool(np.log10(positive.max() / np.percentile(positive, 1)) > LOG_DECADES)


def hidden_by_log(curves: Sequence[Curve]) -> int:
    """How many values a log axis cannot show."""
    return int(sum(np.count_nonzero(c.mean <= 0) for c in curves))


def traces(lines: Sequence[tuple[Line, Curve]], log: bool, scheme: Scheme = "light") -> list[Trace]:
    """The traces of a chart: for each line older attempts, raw values, the smoothed line; at the end the crosses."""
    made: list[Trace] = []
    bad: set[int] = set()
    for index, (line, curve) in enumerate(lines):
        colour = theme.series_colour(index, scheme)
        drawn = thinned(curve)
        bad.update(curve.nonfinite_steps.tolist())
        for old in curve.superseded:
            made.append(
                _line(
                    old.steps, _shown(old.values, log), colour, 1.0, f"attempt {old.attempt}", opacity=theme.OLD_ATTEMPT_OPACITY, role="old"
                )
            )
        if line.role == "eval":
            made.append(_evaluation(drawn, log, colour, line.label))
        elif line.role == "main" and curve.smooth.size:
            x, y = _raw(drawn)
            made.append(_line(x, _shown(y, log), colour, 1.0, line.label, opacity=theme.RAW_OPACITY, role="raw"))
            made.append(_line(drawn.steps, _shown(drawn.smooth, log), colour, 1.6, f"{line.label}, smoothed", role="smooth"))
        else:
            x, y = _raw(drawn)
            made.append(_line(x, _shown(y, log), colour, 1.0 if line.role == "peak" else 1.4, line.label, role="raw"))
    steps = sorted(bad)
    cross = {"symbol": "x-thin", "size": 6, "line": {"width": 1.5, "color": theme.colour("critical-fill", scheme)}}
    made.append(
        {
            "type": "scatter",
            "mode": "markers",
            "x": steps,
            "y": [0.02] * len(steps),
            "yaxis": "y2",
            "marker": cross,
            "name": "not a number",
            "meta": {"role": "bad"},
            "hoverinfo": "skip",
            "cliponaxis": False,
        }
    )
    return made


def _raw(curve: Curve) -> tuple[np.ndarray[Any, Any], Values]:
    """Steps and values as drawn: in bins the smallest and the largest value stand side by side."""
    if curve.bin_steps == 1:
        return curve.steps, curve.mean
    return np.repeat(curve.steps, 2), np.column_stack([curve.low, curve.high]).ravel()


def _shown(values: Values, log: bool) -> Values:
    return np.where(values > 0, values, np.nan) if log else values


def numbers(values: Any) -> list[float | int | None]:
    """A list for JSON with six significant digits; null where nothing can be drawn."""
    return [float(f"{v:.6g}") if math.isfinite(v) else None for v in np.asarray(values, dtype=float).tolist()]


def _line(x: Any, y: Any, colour: str, width: float, name: str, *, opacity: float = 1.0, role: str = "raw") -> Trace:
    return {
        "type": "scatter",
        "mode": "lines",
        "x": np.asarray(x).tolist(),
        "y": numbers(y),
        "name": name,
        "opacity": opacity,
        "line": {"color": colour, "width": width, "shape": "linear", "simplify": False},
        "connectgaps": False,
        "hoverinfo": "skip",
        "meta": {"role": role},
    }


def _evaluation(curve: Curve, log: bool, colour: str, name: str) -> Trace:
    """Points joined by a thin dash; a gap longer than twice the usual cadence stays open."""
    steps, values = curve.steps.tolist(), numbers(_shown(curve.mean, log))
    usual = float(np.median(np.diff(curve.steps))) if len(steps) > 2 else math.inf
    x: list[float] = []
    y: list[float | int | None] = []
    for position, (step, value) in enumerate(zip(steps, values, strict=True)):
        if position and step - steps[position - 1] > 2 * usual:
            x.append(step)
            y.append(None)
        x.append(step)
        y.append(value)
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "x": x,
        "y": y,
        "name": name,
        "line": {"color": colour, "width": 1, "dash": "3px,2.5px"},
        "marker": {"size": 4, "color": colour},
        "hoverinfo": "skip",
        "meta": {"role": "raw"},
    }


def shapes(
    window: Window | None, band: Band | None, seams: Sequence[int], log: bool, scheme: Scheme = "light", label: bool = False
) -> list[dict[str, Any]]:
    """Band, incident window, onset and seams of attempts, all below the lines."""
    made: list[dict[str, Any]] = []
    if band is not None and (not log or band.median + band.spread > 0):
        low, high = band.median - band.spread, band.median + band.spread
        if log:
            # Shapes on a log axis are placed by value; nothing at or below zero has a place.
            low = max(low, high * 1e-3)
        made.append({"type": "rect", "xref": "paper", "x0": 0, "x1": 1, "yref": "y", "y0": low, "y1": high, **_fill("band", scheme)})
    if window is not None:
        made.append(
            {
                "type": "rect",
                "xref": "x",
                "x0": window.onset,
                "x1": window.last,
                "yref": "paper",
                "y0": 0,
                "y1": 1,
                **_fill("window", scheme),
            }
        )
        onset = {"color": theme.colour("warn-fill", scheme), "width": 1, "dash": "3px,2px"}
        text = {
            "text": f"onset {window.onset}",
            "textposition": "end",
            "textangle": 0,
            "yanchor": "top",
            "xanchor": "right",
            "padding": 3,
            "font": {"size": 10, "color": theme.colour("warn-text", scheme)},
        }
        made.append({**_vertical(window.onset), "line": onset, "layer": "below", **({"label": text} if label else {})})
    seam = {"color": theme.colour("border-strong", scheme), "width": 1, "dash": "dot"}
    made += [{**_vertical(step), "line": seam, "layer": "below"} for step in seams]
    return made


def _vertical(step: int) -> dict[str, Any]:
    return {"type": "line", "xref": "x", "x0": step, "x1": step, "yref": "paper", "y0": 0, "y1": 1}


def _fill(token: str, scheme: Scheme) -> dict[str, Any]:
    return {"fillcolor": theme.colour(token, scheme), "line": {"width": 0}, "layer": "below"}


def figure(
    lines: Sequence[tuple[Line, Curve]],
    *,
    steps: tuple[int, int],
    window: Window | None = None,
    band: Band | None = None,
    seams: Sequence[int] = (),
    scheme: Scheme = "light",
    large: bool = False,
    label: bool = False,
    key: str = "",
) -> dict[str, Any]:
    """The figure of one chart. steps: the range of every chart of the page; label: write the onset's step."""
    curves = [curve for _, curve in lines]
    log = wants_log(curves)
    margin = theme.MARGIN_LARGE if large else theme.MARGIN_SMALL
    layout: dict[str, Any] = {
        "template": theme.template_json(scheme),
        "margin": margin,
        "hovermode": False,
        "dragmode": "zoom",
        "uirevision": key or "chart",
        "xaxis": {"range": list(steps), "nticks": 7, "tickformat": ",d"},
        "yaxis": {
            "fixedrange": True,
            "type": "log" if log else "linear",
            "nticks": 5,
            "exponentformat": "power" if log else "SI",
            "rangemode": "normal" if any(np.nanmin(c.low, initial=0.0) < 0 for c in curves) else "nonnegative",
        },
        "yaxis2": {"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True},
        "shapes": shapes(window, band, seams, log, scheme, label),
        "meta": {"chart": key, "bin": bin_of(curves), "log": log},
    }
    if log:
        layout["yaxis"]["dtick"] = _decades(curves)
    return {"data": traces(lines, log, scheme), "layout": layout}


def _decades(curves: Sequence[Curve]) -> int:
    """Decades between two ticks, so that three or so are written."""
    values = np.concatenate([c.mean[np.isfinite(c.mean) & (c.mean > 0)] for c in curves])
    return max(1, round(float(np.log10(values.max() / values.min())) / 3))


def bin_of(curves: Sequence[Curve]) -> int:
    """The widest bin of a chart's curves once thinned."""
    return max((thinned(curve).bin_steps for curve in curves), default=1)


def tail(made: Mapping[str, Any], since: int) -> list[dict[str, list[Any]]]:
    """Of each trace of a figure the points from a step on: what a page that has the rest must be given."""
    cut = []
    for trace in made["data"]:
        x, y = trace["x"], trace["y"]
        first = next((i for i, step in enumerate(x) if step >= since), len(x))
        cut.append({"x": x[first:], "y": y[first:]})
    return cut
