"""Many elements as one Dash component: each Dash component costs the browser a subscription, hundreds of them seconds.

The browser part is assets/flat.js. Build with `dash.html` as usual and wrap the outermost element in `flat`.
"""

from __future__ import annotations

from typing import Any, ClassVar

from dash.development.base_component import Component

_PLAIN = {"className", "style", "title", "role", "tabIndex", "href", "id", "colSpan", "dir", "hidden", "lang"}


class Flat(Component):
    """A tree of plain elements drawn by one component: [element, attributes, children], text is text."""

    _children_props: ClassVar[list[str]] = []
    _base_nodes: ClassVar[list[str]] = []
    _namespace = "rlv_flat"
    _type = "Flat"

    def __init__(self, tree: Any, id: str | None = None) -> None:
        self._prop_names = ["id", "tree"]
        self._type = "Flat"
        self._namespace = "rlv_flat"
        self._valid_wildcard_attributes: list[str] = []
        self.available_properties = self._prop_names
        self.available_wildcard_properties: list[str] = []
        given = {"tree": tree} if id is None else {"id": id, "tree": tree}
        super().__init__(**given)


def flat(component: Any) -> Flat:
    """The component and everything below it as one; callbacks cannot reach what is inside.

    Raises:
        TypeError: something inside is neither a `dash.html` element, a `dcc.Link`, an Svg nor text.
    """
    return Flat(_tree(component))


def _tree(node: Any) -> Any:
    if node is None or isinstance(node, str):
        return node
    if isinstance(node, int | float):
        return str(node)
    if isinstance(node, list | tuple):
        return [_tree(child) for child in node]
    if not isinstance(node, Component):
        raise TypeError(f"{type(node).__name__} cannot be drawn inside a flat component.")
    kind = str(node._type)
    properties: dict[str, Any] = node.to_plotly_json()["props"]
    if kind == "Svg":
        return ["Svg", properties]
    if kind == "Flat":
        return properties["tree"]
    children = _tree(properties.get("children"))
    attributes = {k: v for k, v in properties.items() if k in _PLAIN or k.startswith(("data-", "aria-"))}
    if kind == "Link":
        attributes["className"] = f"{attributes.get('className', '')} rlv-go".strip()
        return ["a", attributes, children]
    if node._namespace != "dash_html_components":
        raise TypeError(f"{kind} cannot be drawn inside a flat component.")
    return [kind.lower(), attributes, children]
