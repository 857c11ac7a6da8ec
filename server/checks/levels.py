"""Levels of a metric on both sides of an onset."""

from __future__ import annotations

import math
from collections.abc import Sequence

from server.checks.measure import finite
from server.detectors.middle import median
from server.queries.view import RunView


def since_onset_levels(view: RunView, metrics: Sequence[str], onset: int) -> tuple[float, float] | None:
    """Median of at most 50 points before an onset and of at most 5 newest ones since, of the first metric that has both.

    None where none has three points before and one since.
    """
    for metric in metrics:
        series = finite(view.series(metric))
        before, since = series.values[series.steps < onset][-50:], series.values[series.steps >= onset][-5:]
        if len(before) >= 3 and len(since):
            return median(before), median(since)
    return None


def log_factor(levels: tuple[float, float]) -> float:
    """Natural logarithm of the level since the onset over that before it; values below 1e-4 count as 1e-4."""
    return math.log(max(levels[1], 1e-4) / max(levels[0], 1e-4))
