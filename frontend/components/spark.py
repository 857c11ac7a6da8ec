"""A curve in a table cell: no axes, its own range, the incident's window shaded, a dot at the end."""

from __future__ import annotations

import math
from collections.abc import Sequence

from frontend.components.svg import Shape, Svg

_PAD = 2.5


def spark(
    steps: Sequence[float],
    values: Sequence[float],
    *,
    since: float | None = None,
    style: str = "spark-1",
    width: float = 104,
    height: float = 22,
    label: str | None = None,
) -> Svg | None:
    """The curve, or None without a finite value. since: step from which the ground is shaded; gaps stay gaps."""  # fmt: skip
    finite = [v for v in values if math.isfinite(v)]
    if not finite:
        return None
    low, high = min(finite), max(finite)
    first, last = float(steps[0]), float(steps[-1])

    def x(step: float) -> float:
        return _PAD + (width - 2 * _PAD) * ((step - first) / (last - first) if last > first else 0.5)

    def y(value: float) -> float:
        return height - _PAD - (height - 2 * _PAD) * ((value - low) / (high - low) if high > low else 0.5)

    path, pen, end = [], "M", (0.0, 0.0)
    for step, value in zip(steps, values, strict=True):
        if not math.isfinite(value):
            pen = "M"
            continue
        end = (x(step), y(value))
        path.append(f"{pen}{end[0]:.1f} {end[1]:.1f}")
        pen = "L"
    shapes: list[Shape] = []
    if since is not None and since <= last:
        left = x(max(since, first))
        shapes.append(
            ["rect", {"x": round(left, 1), "y": 0, "width": round(width - left, 1), "height": height, "rx": 2, "className": "spark-window"}]
        )
    shapes.append(["path", {"d": "".join(path), "className": f"spark {style}"}])
    shapes.append(["circle", {"cx": round(end[0], 1), "cy": round(end[1], 1), "r": 1.8, "className": f"spark-dot {style}"}])
    return Svg(shapes, width, height, label=label)
