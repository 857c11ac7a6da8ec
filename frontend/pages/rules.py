"""Rules: every rule as it stands, how useful it was, and what people changed."""

from __future__ import annotations

import asyncio
from typing import Any

from dash import Dash, Input, Output, html
from dash.development.base_component import Component
from dash.exceptions import PreventUpdate

from frontend.components import rules as parts
from frontend.components.flat import flat
from frontend.components.frame import page_frame
from server.engine.rule_state import RuleState, rule_states

PATH = "/rules"
TITLE = "Rules"
ORDER = 40


def layout(service: Any, **_query: str) -> Component:
    """The page; it has no state in its address."""
    found = _read(service)
    about = html.P(
        "A stable rule has shown that it stays quiet on healthy runs; what a preview rule finds stands on the pages and reaches chat "
        "only where a channel asks for it.",
        className="rlv-sub",
    )
    return page_frame("Rules", _facts(found), [html.Div(flat(parts.rule_table(found)), id="rules-table"), about])


def _read(service: Any) -> list[RuleState]:
    with service.control.session(write=False) as session:
        return rule_states(session)


def _facts(states: list[RuleState]) -> str:
    stable = sum(state.status == "stable" for state in states)
    off = sum(not state.enabled for state in states)
    changed = sum(bool(state.changed) for state in states)
    words = [f"{len(states)} rules, {stable} stable, {len(states) - stable} preview"]
    words += [f"{off} off"] if off else []
    words += [f"{changed} with changed parameters"] if changed else []
    return " · ".join(words)


def register(app: Dash, service: Any) -> None:
    """Open incidents are counted anew when one changes."""

    @app.callback(Output("rules-table", "children"), Input("live", "data"), prevent_initial_call=True)
    async def refresh(message: dict[str, Any] | None) -> Any:
        if not message or not message["incidents"]:
            raise PreventUpdate
        return flat(parts.rule_table(await asyncio.to_thread(_read, service)))
