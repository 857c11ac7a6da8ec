"""Figures of the Slices page: a measure, or the share of rollouts, of a few buckets over steps."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import plotly.graph_objects as go

from frontend import theme
from frontend.components.text import visible_line
from frontend.theme import Scheme
from server.queries.slices import SliceGrid

LEAST_N = 8
MOST_LINES = 4


def lines_of(grid: SliceGrid) -> tuple[int, ...]:
    """Rows of the grid that are drawn as lines: all if few, else an even choice among the well filled ones."""
    filled = [row for row in range(len(grid.buckets)) if (grid.n[row] >= LEAST_N).sum() * 4 >= len(grid.bins)]
    rows = filled or list(range(len(grid.buckets)))
    if len(rows) <= MOST_LINES:
        return tuple(rows)
    places = np.linspace(0, len(rows) - 1, MOST_LINES).round().astype(int)
    return tuple(rows[place] for place in places)


def name_of(grid: SliceGrid, row: int) -> str:
    """A bucket's name in a legend."""
    label = grid.buckets[row].label
    return {"length": f"{label} tokens", "lag": f"lag {label}"}.get(grid.dimension.key, label)


def bucket_lines(grid: SliceGrid, what: str, rows: tuple[int, ...], onset: int | None, scheme: Scheme) -> go.Figure:
    """One line a bucket. what: value (gaps where n is under LEAST_N) or share (of the bin's rollouts)."""
    colours = theme.colours(scheme)
    figure = go.Figure()
    x = [(first + last) / 2 for first, last in grid.bins]
    percent = what == "share" or grid.measure.unit == "share"
    for place, row in enumerate(rows):
        if what == "share":
            total = np.where(grid.total > 0, grid.total, 1)
            values = np.where(grid.total > 0, 100 * grid.rollouts[row] / total, np.nan)
        else:
            values = np.where(grid.n[row] >= LEAST_N, grid.value[row] * (100 if percent else 1), np.nan)
        figure.add_trace(
            go.Scatter(
                x=x,
                # Lists, not arrays: an array would be sent as base64, which cannot be appended to. None is a gap.
                y=[None if not np.isfinite(v) else float(v) for v in values],
                mode="lines" if len(x) > 1 else "markers",
                connectgaps=False,
                name=visible_line(name_of(grid, row)),
                customdata=[[int(n), f"{a} to {b}" if a != b else str(a)] for n, (a, b) in zip(grid.n[row], grid.bins, strict=True)],
                line={"width": 1.6, "color": colours[f"series-{place % 8 + 1}"], "shape": "linear"},
                hovertemplate=f"%{{y:.3g}}{' %' if percent else ''}, n %{{customdata[0]:,}}, steps %{{customdata[1]}}",
            )
        )
    first, last = (grid.bins[0][0], grid.bins[-1][1]) if grid.bins else (0, 1)
    figure.update_layout(
        template=f"rlv-{scheme}",
        margin={**theme.MARGIN_LARGE, "t": 16},
        hovermode="x unified",
        xaxis={"range": [first, max(last, first + 1)], "nticks": 8},
        yaxis={"rangemode": "tozero"},
        shapes=_onset_shapes(onset, first, last, colours) if onset is not None else [],
        annotations=[_onset_note(onset, colours)] if onset is not None and first <= onset <= last else [],
    )
    return figure


def _onset_shapes(onset: int, first: int, last: int, colours: Mapping[str, str]) -> list[dict[str, object]]:
    base = {"xref": "x", "yref": "paper", "y0": 0, "y1": 1, "layer": "below"}
    return [
        {**base, "type": "rect", "x0": max(onset, first), "x1": last, "fillcolor": colours["window"], "line": {"width": 0}},
        {**base, "type": "line", "x0": onset, "x1": onset, "line": {"width": 1, "dash": "3px,2px", "color": colours["warn-fill"]}},
    ]


def _onset_note(onset: int, colours: Mapping[str, str]) -> dict[str, object]:
    return {
        "x": onset, "y": 1, "xref": "x", "yref": "paper", "text": f"onset {onset}", "showarrow": False,
        "xanchor": "right", "yanchor": "bottom",
        "font": {"size": 10, "color": colours["warn-text"]},
    }  # fmt: skip
