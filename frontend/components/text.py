"""Text that was ingested, as text children only: never Markdown, never markup."""

from __future__ import annotations

from dash import html
from dash.development.base_component import Component

from ingest.text import visible, visible_line

__all__ = ["block", "line", "mono", "visible", "visible_line"]


def line(text: str, class_name: str | None = None) -> Component:
    """One line: hidden characters and line ends get visible marks; the direction of the text cannot leak out."""
    return html.Bdi(visible_line(text), className=class_name)


def mono(text: str) -> Component:
    """A metric id, a key or a path that can be copied."""
    return html.Bdi(visible_line(text), className="rlv-mono")


def block(text: str) -> Component:
    """Several lines as they are, with hidden characters made visible."""
    return html.Pre(visible(text), className="rlv-text", dir="auto")
