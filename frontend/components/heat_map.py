"""A map of buckets by steps: every cell a link, n printed in it, small where few rollouts stand behind it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from dash import html
from dash.development.base_component import Component

from frontend.components.text import visible_line
from server.queries.slices import Bucket, SliceGrid

SMALL_N = 8
TINY_N = 4
ROW_PIXELS = 37
_HEAT_STEPS = 8


def heat_map(
    grid: SliceGrid,
    *,
    show: Callable[[float], str],
    link: Callable[[Bucket, tuple[int, int]], str],
    onset: int | None,
    before: Sequence[str],
) -> Component:
    """The cells with their row and step labels.

    show: the words of a value; link: the address behind a cell; onset: step of the dashed line; before: for each
    bucket the words of its value before the onset.
    """
    low, high = span_of(grid)
    focus = next(((r, c) for r in reversed(range(len(grid.buckets))) for c in range(len(grid.bins)) if grid.rollouts[r, c]), None)
    rows = []
    for row in reversed(range(len(grid.buckets))):
        cells = [_cell(grid, row, column, low, high, show, link, before[row], focus) for column in range(len(grid.bins))]
        rows += [html.Div(visible_line(grid.buckets[row].label), className="heat-label"), html.Div(cells, className="heat-row")]
    parts: list[Any] = [html.Div(rows, className="heat-rows"), _axis(grid, onset)]
    if onset is not None and grid.bins and grid.bins[0][0] <= onset <= grid.bins[-1][1]:
        parts.append(_onset(grid, onset))
    label = f"{grid.measure.title} by {plain(grid.dimension.title)} and step"
    return html.Div(parts, className="heat-map", role="group", **{"aria-label": label})


def plain(title: str) -> str:
    """A title inside a sentence: a first Latin letter is made small, a sign keeps its form."""
    return title[:1].lower() + title[1:] if title[:1].isascii() else title


def span_of(grid: SliceGrid) -> tuple[float, float]:
    """Least and greatest value of cells with enough rollouts (of all cells if none has); shares and counts start at 0."""
    enough = grid.value[(grid.n >= SMALL_N) & np.isfinite(grid.value)]
    values = enough if enough.size else grid.value[np.isfinite(grid.value)]
    if not values.size:
        return 0.0, 1.0
    low, high = float(values.min()), float(values.max())
    return min(low, 0.0), high if high > min(low, 0.0) else min(low, 0.0) + 1.0


def heat_background(value: float, low: float, high: float) -> tuple[str, bool]:
    """The CSS colour of a value on the sequential scale, and whether it is on the upper half."""
    share = min(1.0, max(0.0, (value - low) / (high - low)))
    place = share * (_HEAT_STEPS - 1)
    lower = min(int(place), _HEAT_STEPS - 2)
    percent = round(100 * (place - lower))
    return f"color-mix(in oklab, var(--rlv-heat-{lower + 2}) {percent}%, var(--rlv-heat-{lower + 1}))", share >= 0.5


def _cell(
    grid: SliceGrid,
    row: int,
    column: int,
    low: float,
    high: float,
    show: Callable[[float], str],
    link: Callable[[Bucket, tuple[int, int]], str],
    before: str,
    focus: tuple[int, int] | None,
) -> Component:
    rollouts, n, value = int(grid.rollouts[row, column]), int(grid.n[row, column]), float(grid.value[row, column])
    if not rollouts:
        return html.Span(className="heat-none")
    bucket, steps = grid.buckets[row], grid.bins[column]
    known = math.isfinite(value)
    colour, upper = heat_background(value, low, high) if known else ("transparent", False)
    size = "" if n >= SMALL_N or not known else " is-small" if n >= TINY_N else " is-tiny"
    words = f"step {steps[0]}" if steps[0] == steps[1] else f"steps {steps[0]} to {steps[1]}"
    unit = f" {grid.measure.unit}" if grid.measure.unit and grid.measure.unit != "share" else ""
    total = int(grid.total[column])
    facts = [
        [grid.measure.title, f"{show(value)}{unit}" if known else "not written"],
        ["Rollouts", f"{rollouts:,} of {total:,}"],
    ]
    if n != rollouts:
        facts.append(["With a value", f"{n:,}"])
    if before:
        facts.append(["Before onset, same bucket", before])
    title = f"{grid.dimension.title} {visible_line(bucket.label)}, {words}"
    # A measure of tokens is of the rollouts that have them, and the link leads to those.
    linked = n if grid.measure.tokens and n else rollouts
    one = linked == 1
    return html.A(
        html.Span(str(n) if not size else "", style={"background": colour}, className="heat-fill" + (" is-upper" if upper else "")),
        href=link(bucket, steps),
        className=f"heat-cell rlv-go{size}" + ("" if known else " is-unknown"),
        tabIndex=0 if focus == (row, column) else -1,
        **{
            "data-card": json.dumps([title, facts, "Click: this rollout" if one else f"Click: these {linked:,} rollouts"]),
            "data-row": str(len(grid.buckets) - 1 - row),
            "data-column": str(column),
            "aria-label": f"{title}: {facts[0][1]}, n {n}",
        },
    )


def _axis(grid: SliceGrid, onset: int | None) -> Component:
    count = len(grid.bins)
    every = max(1, math.ceil(count / 10))
    labels = []
    for index in range(0, count, every):
        labels.append(html.Span(str(grid.bins[index][0]), style={"left": f"{100 * (index + 0.5) / count:.3f}%"}))
    return html.Div([html.Span("step", className="heat-label"), html.Div(labels, className="heat-steps")], className="heat-axis")


def _onset(grid: SliceGrid, onset: int) -> Component:
    first, last = grid.bins[0][0], grid.bins[0][1]
    width = last - first + 1
    share = (onset - first) / (width * len(grid.bins))
    return html.Div(
        html.Div(html.Span(f"onset {onset}"), className="heat-onset", style={"left": f"{100 * share:.3f}%"}), className="heat-onset-track"
    )


def legend(grid: SliceGrid, show: Callable[[float], str]) -> Component:
    """The scale and what the sizes mean."""
    low, high = span_of(grid)
    small = [("heat-key", f"n under {SMALL_N}"), ("heat-key is-tiny", f"n under {TINY_N}"), ("heat-key is-none", "none")]
    return html.Div(
        [
            html.Span(grid.measure.title),
            html.Span(show(low), className="num"),
            html.Span(className="heat-ramp"),
            html.Span(show(high), className="num"),
            *[part for name, words in small for part in (html.Span(className=name), html.Span(words))],
        ],
        className="heat-legend",
    )
