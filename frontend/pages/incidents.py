"""All incidents of all runs: open ones first, by severity."""

from __future__ import annotations

import time
from typing import Any

from dash import Dash, html
from dash.development.base_component import Component

from frontend.address import address
from frontend.components import incident as parts
from frontend.components.controls import address_state, choice, register_controls
from frontend.components.flat import flat
from frontend.components.frame import page_frame
from frontend.components.severity import rank
from frontend.components.words import age
from frontend.views import IncidentsView
from server.control.incidents import Incident
from server.control.incidents import incidents as read_incidents
from server.queries.runs import run_summaries

PATH = "/incidents"
TITLE = "Incidents"
ORDER = 20

_STATES = (("open", "open"), ("acknowledged", "acknowledged"), ("recovered", "recovered"), ("all", "all"))
_MOST = 300


def layout(service: Any, **query: str) -> Component:
    """The page for an address."""
    view = IncidentsView.from_query(query)
    state = view.state if view.state in dict(_STATES) else "open"
    runs = {run.run_id: run for run in run_summaries(service.store)}
    with service.control.session(write=False) as session:
        every = read_incidents(session, view.run or None)
    shown = sorted((i for i in every if matches(i, state)), key=lambda i: (-rank(i.severity), -i.updated_at))
    named = [(run_id, runs[run_id].name) for run_id in sorted({i.run_id for i in every} & set(runs), key=lambda r: runs[r].name)]
    controls = html.Div(
        [
            choice("incidents", "state", "State", state, _STATES, width=170),
            choice("incidents", "run", "Run", view.run, named, anything="all runs", width=220),
        ],
        className="rlv-controls",
    )
    content = flat(_table(shown[:_MOST], runs)) if shown else html.Div([html.P(_empty(state, len(every), len(runs)))], className="rlv-note")
    counted = f"{len(shown):,} {state if state != 'all' else ''}".strip() + f" of {len(every):,}"
    facts = counted if len(shown) <= _MOST else f"{counted}, the gravest {_MOST} shown"
    return page_frame("Incidents", facts, [address_state("incidents", view.to_query(), {"state": "open", "run": ""}), controls, content])


def matches(incident: Incident, state: str) -> bool:
    """Whether an incident is in the list of that state; an acknowledged one is still open."""
    if state == "all":
        return True
    if state == "recovered":
        return incident.status == "recovered"
    seen = incident.acknowledged_at is not None
    return incident.status == "open" and seen == (state == "acknowledged")


def _empty(state: str, every: int, runs: int) -> str:
    if not runs:
        return "No runs yet, so there is nothing to judge. Connect a trainer, or open the demo."
    if every:
        word = "" if state == "all" else f"{state} "
        return f"No {word}incident. {every} in other states: choose another state above."
    return f"No incident in {runs} run{'s' if runs != 1 else ''}. What could not be judged is named on each run's page."


def _table(shown: list[Incident], runs: dict[str, Any]) -> Component:
    now = time.time()
    rows = [
        parts.incident_row(
            i,
            runs[i.run_id].name if i.run_id in runs else i.run_id,
            address("/incidents/<incident>", incident=i.id),
            address("/r/<run>", run=i.run_id),
            f"{age(max(0.0, now - i.updated_at))} ago",
        )
        for i in shown
    ]
    names = (("Severity", ""), ("Symptom", ""), ("Run", ""), ("Steps", "num"), ("First hypothesis", ""), ("State", ""), ("Updated", "num"))
    header = html.Thead(html.Tr([html.Th(name, className=kind) for name, kind in names]))
    return html.Section(html.Table([header, html.Tbody(rows)], className="rlv-table"), className="rlv-box is-flush")


def register(app: Dash, service: Any) -> None:
    """The selects write the address."""
    register_controls(app, "incidents")
