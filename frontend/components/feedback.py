"""Whether an incident was worth hearing of: two small buttons on its page, pressed again to take it back."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from dash import ALL, Dash, Input, Output, State, ctx, html
from dash.development.base_component import Component
from dash.exceptions import PreventUpdate

from server.control.incidents import Feedback, Incident, incident, set_feedback

_WORDS: tuple[tuple[Feedback, str, str], ...] = (("useful", "Useful", "u"), ("false_alarm", "False alarm", "f"))
_ABOUT = "Counts for the rule's hit rate. Press again to take it back."


def feedback_buttons(found: Incident) -> list[Component]:
    """Useful and False alarm; the one that was said is marked."""
    return [
        html.Button(
            words,
            id={"type": "incident-feedback", "said": said},
            className="rlv-segment" + (" is-here" if found.feedback == said else ""),
            title=_ABOUT,
            n_clicks=0,
            **{"aria-pressed": "true" if found.feedback == said else "false", "data-key": key},
        )
        for said, words, key in _WORDS
    ]


def register_feedback(app: Dash, service: Any) -> None:
    """A press is stored, a second press of the same button takes it back."""

    @app.callback(
        Output("incident-feedback", "children"),
        Input({"type": "incident-feedback", "said": ALL}, "n_clicks"),
        State("incident-id", "data"),
        prevent_initial_call=True,
    )
    async def press(_clicks: list[int | None], incident_id: str) -> Any:
        chosen = ctx.triggered_id
        # Buttons that are drawn anew report themselves unpressed.
        if not isinstance(chosen, dict) or not any(entry["value"] for entry in ctx.triggered):
            raise PreventUpdate
        return await asyncio.to_thread(pressed, service, incident_id, cast(Feedback, chosen["said"]))


def pressed(service: Any, incident_id: str, said: Feedback) -> Any:
    """Stores or takes back what a person says; the buttons after it."""
    with service.control.session() as session:
        before = incident(session, incident_id)
        found = set_feedback(session, incident_id, None if before is not None and before.feedback == said else said)
    if found is None:
        return html.Span("This incident is not there any more. Reload the page.", role="alert")
    return feedback_buttons(found)
