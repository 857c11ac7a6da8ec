"""Inline SVG as a Dash component. The browser part is assets/rlv-components.js, loaded with the page's other assets.

Shapes carry class names, so that their colours come from the style sheet and follow the theme. The browser part draws
a closed list of elements and attributes; text is text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

from dash.development.base_component import Component

Shape: TypeAlias = Sequence[Any]
"""[element, attributes] or [element, attributes, text or list of shapes], for example ["path", {"d": "M0 0"}]."""


class Svg(Component):
    """One drawing. shapes: list of Shape; label: what a screen reader says, None for decoration; view: width and height
    of the drawing's own units where they are not pixels."""

    _children_props: ClassVar[list[str]] = []
    _base_nodes: ClassVar[list[str]] = []
    _namespace = "rlv_components"
    _type = "Svg"

    def __init__(
        self,
        shapes: Sequence[Shape],
        width: float,
        height: float,
        label: str | None = None,
        class_name: str | None = None,
        stretch: bool = False,
        view: tuple[float, float] | None = None,
    ) -> None:
        self._prop_names = ["shapes", "width", "height", "label", "className", "stretch", "view"]
        self._type = "Svg"
        self._namespace = "rlv_components"
        self._valid_wildcard_attributes: list[str] = []
        self.available_properties = self._prop_names
        self.available_wildcard_properties: list[str] = []
        given: Mapping[str, Any] = {
            "shapes": [list(shape) for shape in shapes], "width": width, "height": height,
            "label": label, "className": class_name, "stretch": stretch or None,
            "view": list(view) if view else None,
        }  # fmt: skip
        super().__init__(**{name: value for name, value in given.items() if value is not None})


_SEVERITY: dict[str, tuple[Shape, ...]] = {
    "quiet": (("circle", {"cx": 6, "cy": 6, "r": 2.5, "className": "fill-quiet"}),),
    "info": (("circle", {"cx": 6, "cy": 6, "r": 4, "className": "ring-info"}),),
    "watch": (("path", {"d": "M6 1 11 6 6 11 1 6z", "className": "fill-watch"}),),
    "warn": (("path", {"d": "M6 .8 11.6 10.8H.4z", "className": "fill-warn"}),),
    "critical": (
        ("path", {"d": "M3.7.5h4.6l3.2 3.2v4.6l-3.2 3.2H3.7L.5 8.3V3.7z", "className": "fill-critical"}),
        ("path", {"d": "M6 3v3.6M6 8.4v.9", "className": "mark-critical"}),
    ),
    "cannot-tell": (("rect", {"x": 1.5, "y": 1.5, "width": 9, "height": 9, "rx": 1, "className": "dash-unknown"}),),
}

_VERDICT: dict[str, Shape] = {
    "supported": ("path", {"d": "M2 6.5 4.8 9.2 10 3", "className": "stroke-current"}),
    "refuted": ("path", {"d": "M3 3l6 6M9 3 3 9", "className": "stroke-current"}),
    "inconclusive": ("path", {"d": "M1.5 7c1.5-3 3-3 4.5-1s3 2 4.5-1", "className": "stroke-current"}),
    "not_checkable": ("path", {"d": "M2 6h8M6 2.6v.1M6 9.4v.1", "className": "stroke-current"}),
}


def severity_shape(severity: str, size: int = 12) -> Svg:
    """The shape of quiet, info, watch, warn, critical or cannot-tell; the word must stand beside it."""
    return Svg(_SEVERITY[severity], size, size, class_name="rlv-shape", view=(12, 12))


def verdict_shape(verdict: str) -> Svg:
    """The sign of supported, refuted, inconclusive or not_checkable; the word must stand beside it."""
    return Svg((_VERDICT[verdict],), 12, 12, class_name="rlv-shape")
