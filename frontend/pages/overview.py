"""Runs."""
from __future__ import annotations
from typing import Any
from dash import html
PATH = "/r/<run>"
TITLE = "Overview"
ORDER = 10
def layout(service: Any, **query: str) -> Any:
    return html.Div("x")
def register(app: Any, service: Any) -> None:
    pass
