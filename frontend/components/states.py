"""What a page shows when it has nothing, waits, or fails: always a sentence that says what to do."""

from __future__ import annotations

import dash_mantine_components as dmc
from dash import html
from dash.development.base_component import Component


def note(sentence: str, *more: Component | str, title: str | None = None) -> Component:
    """An empty state: a title, one sentence, and what to do next."""
    heading = [html.H2(title, className="rlv-note-title")] if title else []
    return html.Div([*heading, html.P([sentence, *more])], className="rlv-note")


def command(text: str) -> Component:
    """A command to copy."""
    return html.Code(text, className="rlv-command")


def failed(sentence: str) -> Component:
    """The error state of a page."""
    return html.Div(
        [html.H2("This page could not be drawn", className="rlv-note-title"), html.P(sentence)], className="rlv-note", role="alert"
    )


def waiting() -> Component:
    """Grey shapes in the final sizes while a page is read."""
    return html.Div(
        [dmc.Skeleton(height=58, radius="lg"), dmc.Skeleton(height=44, radius="lg"), dmc.Skeleton(height=420, radius="lg")],
        className="rlv-waiting", **{"aria-hidden": "true"},
    )  # fmt: skip
