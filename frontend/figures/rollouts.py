"""Figures of the Rollouts page: where in the run the rows are, and reward against length."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from frontend import theme
from frontend.theme import Scheme
from server.queries.rollouts import Scatter


def by_step(steps: NDArray[np.int64], counts: NDArray[np.int64], scheme: Scheme) -> go.Figure:
    """Rollouts at each step as bars; many steps are gathered so that a bar keeps a visible width."""
    width = max(1, int(np.ceil((int(steps[-1]) - int(steps[0]) + 1) / 240))) if len(steps) else 1
    bins = (steps - (steps[0] if len(steps) else 0)) // width
    first, sums = np.unique(bins, return_index=True)[1], np.bincount(bins, weights=counts)
    places = steps[first]
    heights = sums[np.unique(bins)]
    label = "step %{x}" if width == 1 else f"{width} steps from %{{x}}"
    figure = go.Figure(
        go.Bar(
            x=(places + (width - 1) / 2).tolist() if width > 1 else places.tolist(),
            y=heights.tolist(),
            marker={"color": theme.colour("series-1", scheme), "line": {"width": 0}},
            width=[width * 0.9] * len(places),
            hovertemplate=f"%{{y:,}} rollouts, {label}<extra></extra>",
        )
    )
    figure.update_layout(
        template=f"rlv-{scheme}", margin={"l": 38, "r": 8, "t": 6, "b": 18}, hovermode="closest", dragmode="zoom", uirevision="rollouts",
        xaxis={"fixedrange": False, "nticks": 8, **_whole_steps(steps)}, yaxis={"rangemode": "tozero", "fixedrange": True, "nticks": 3},
    )  # fmt: skip
    return figure


def _whole_steps(steps: NDArray[np.int64]) -> dict[str, Any]:
    """A few steps get a range of at least eight and a tick each: there is no step 94.6."""
    if not len(steps) or steps[-1] - steps[0] >= 8:
        return {}
    middle = (int(steps[0]) + int(steps[-1])) / 2
    return {"range": [middle - 4.5, middle + 4.5], "dtick": 1, "tickformat": ",d"}


def reward_by_length(scatter: Scatter, scheme: Scheme) -> go.Figure:
    """One dot a rollout; those cut off by the length cap have another colour and shape."""
    colours = theme.colours(scheme)
    figure = go.Figure()
    # Equal rewards would lie on one line; a fixed shift that depends on the rollout alone makes the mass visible.
    spread = float(np.ptp(scatter.reward)) if len(scatter.reward) else 0.0
    shift = (((scatter.n * 2654435761 + scatter.step * 40503) % 1000) / 1000 - 0.5) * 0.06 * (spread or 1.0)
    for name, mask, colour, symbol in (
        ("ended", ~scatter.truncated, "series-1", "circle"), ("cut off", scatter.truncated, "series-2", "diamond"),
    ):  # fmt: skip
        if not mask.any():
            continue
        places = [f"{step}.{n}" for step, n in zip(scatter.step[mask].tolist(), scatter.n[mask].tolist(), strict=True)]
        figure.add_trace(
            go.Scatter(
                x=scatter.length[mask].tolist(), y=(scatter.reward + shift)[mask].tolist(), mode="markers", name=name,
                customdata=[[p, r] for p, r in zip(places, scatter.reward[mask].tolist(), strict=True)],
                marker={"size": 4, "opacity": 0.4, "color": colours[colour], "symbol": symbol},
                hovertemplate=f"%{{customdata[0]}}: reward %{{customdata[1]:.3g}}, %{{x}} tokens, {name}<extra></extra>",
            )
        )  # fmt: skip
    figure.update_layout(
        template=f"rlv-{scheme}", margin={"l": 38, "r": 8, "t": 6, "b": 18}, hovermode="closest", dragmode=False,
        xaxis={"nticks": 8, "fixedrange": True}, yaxis={"nticks": 4, "fixedrange": True},
    )  # fmt: skip
    return figure
