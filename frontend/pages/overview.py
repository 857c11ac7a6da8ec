"""Overview: is the run alive, what moved first, and since when."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import dash_mantine_components as dmc
from dash import ClientsideFunction, Dash, Input, Output, State, dcc, html
from dash.development.base_component import Component
from dash.exceptions import PreventUpdate
from fastapi import HTTPException

from frontend import theme
from frontend.address import NoSuchPage, address, query_of
from frontend.components import overview as pieces
from frontend.components import states
from frontend.components.families import strip
from frontend.components.frame import run_frame
from frontend.components.severity import rank
from frontend.components.text import visible_line
from frontend.components.words import count
from frontend.drawn import SINGLE, Drawn, chart_parts, onsets, read, tails
from frontend.figures import curve as curves_figure
from frontend.figures.curve import band_of
from frontend.figures.panels import Chosen, Line
from frontend.theme import Scheme
from frontend.views import OverviewView
from server.queries.curves import series_list
from server.queries.runs import run_summary

PATH = "/r/<run>"
TITLE = "Overview"
ORDER = 110

_MOST_INCIDENTS = 3
_SMOOTHINGS = (1, 10, 50)


def layout(service: Any, run: str = "", **query: str) -> Component:
    """The page for an address such as /r/0123456789ab?smooth=50&s=critic/loss."""
    found = run_summary(service.store, run)
    if found is None:
        raise NoSuchPage(f"There is no run {run}. The runs are listed under Runs.")
    view = OverviewView.from_query(query)
    drawn = read(service, found, view)
    if not drawn.curves and not drawn.chosen and found.newest_step is None:
        return run_frame(found, "overview", [html.Div(_no_steps(run), className="rlv-waits")])
    return run_frame(
        found,
        "overview",
        [html.Div(status(service, drawn), id="overview-status", className="rlv-stack"), *_charts(drawn), *_series(service, drawn)],
    )


def _no_steps(run: str) -> Component:
    return states.note(
        "Nothing with a step was read yet. ", dcc.Link("Sources", href=address("/sources", {"run": run})),
        " shows what was read of it and what was turned away.", title="No steps yet",
    )  # fmt: skip


def status(service: Any, drawn: Drawn) -> list[Component]:
    """Health strip and open incidents."""
    from server.control.incidents import judged, not_judged

    with service.control.session(write=False) as session:
        done = judged(session, drawn.run.run_id)
        blocked = list(not_judged(session, drawn.run.run_id))
    cells = strip(drawn.incidents, blocked, _known_symptoms(), done is not None)
    newest = drawn.run.newest_step or 0
    cards = [
        pieces.incident_card(incident, onsets(drawn) if index == 0 else (), drawn.run.run_id, newest, main=index == 0)
        for index, incident in enumerate(drawn.incidents[:_MOST_INCIDENTS])
    ]
    more = len(drawn.incidents) - len(cards)
    parts: list[Any] = [pieces.strip_cells(cells, drawn.run.run_id), *cards]
    if more > 0:
        parts.append(
            dcc.Link(
                f"{more} more open incident{'s' if more > 1 else ''} of this run",
                href=address("/incidents", {"run": drawn.run.run_id}),
                className="rlv-more-link",
            )
        )
    if not drawn.incidents and done is not None:
        able = sum(cell.severity != "cannot-tell" for cell in cells)
        parts.append(
            html.P(
                f"No incident in {count(done.step + 1)} steps. {able} families judged, {len(cells) - able} cannot be.",
                className="rlv-sub rlv-calm",
            )
        )
    return parts


def _known_symptoms() -> list[str]:
    from server.rules import RULES

    return [name for rule in RULES for name in (rule.name, *getattr(rule, "also", ()))]


def _charts(drawn: Drawn) -> list[Component]:
    """Control row, the charts in order, what is missing, the event lane."""
    cards = [chart(drawn, chosen, first=index == 0) for index, chosen in enumerate(drawn.chosen)]
    about = {
        "data-run": drawn.run.run_id,
        "data-smooth": str(drawn.view.smooth),
        "data-steps": f"{drawn.span[0]},{drawn.span[1]}",
        "data-panels": drawn.panels,
    }
    grid = html.Div(cards, id="overview-charts", className="rlv-charts", **about)
    return [_controls(drawn), grid, *_missing(drawn), html.Div(_lane(drawn), id="overview-lane")]


def chart(drawn: Drawn, chosen: Chosen, *, first: bool) -> Component:
    """One card."""
    made, lines, value, moved, note = chart_parts(drawn, chosen, theme.chosen(), first=first)
    return pieces.chart_card(
        chosen.panel.key, chosen.panel.title, chosen.panel.unit, made, [line.label for line, _ in lines], value, moved, note
    )


def _controls(drawn: Drawn) -> Component:
    window = drawn.window
    said = ["Shaded: incident window."] if window else []
    if window and window.baseline:
        said.insert(0, f"Grey band: steps {window.baseline[0]} to {window.baseline[1]}, median ± 2.5 MAD.")
    said.append("Drag to zoom all, double click to reset, click for the rollouts.")
    smoothing = [
        dcc.Link(
            "off" if n == 1 else str(n),
            href=address(PATH, drawn.view.to_query(smooth=n), run=drawn.run.run_id),
            className="rlv-segment" + (" is-here" if drawn.view.smooth == n else ""),
        )
        for n in _SMOOTHINGS
    ]
    return html.Div(
        [
            html.H2("Curves", className="rlv-section"),
            html.Span(" ".join(said), className="rlv-sub"),
            html.Span(className="rlv-spring"),
            html.Span(id="overview-reading", className="rlv-reading"),
            html.Span(["Smoothing", html.Span(smoothing, className="rlv-segments")], className="rlv-control-label"),
        ],
        className="rlv-controls rlv-curve-controls",
    )


def _missing(drawn: Drawn) -> list[Component]:
    if not drawn.missing:
        return []
    names = ", ".join(panel.title for panel in drawn.missing)
    first = drawn.missing[0].lines[0].alternatives[0]
    example = "an evaluation score" if first == "eval" else first
    return [
        html.P(
            [f"No chart for {names}: this run logs no such metric (for example {example}). The hatched cells above say how to log it."],
            className="rlv-sub",
        )
    ]


def _lane(drawn: Drawn) -> Component:
    marks = _marks(drawn)
    evaluation = drawn.curves.get(drawn.evaluation or "")
    evaluations = evaluation.steps.tolist() if evaluation is not None else []
    return pieces.lane(marks, evaluations, drawn.happened, *drawn.shown_steps)


def _marks(drawn: Drawn) -> list[tuple[int, str, str]]:
    """Incidents at the step they reached their severity; those too near to be read apart share one mark."""
    apart = max(1, (drawn.shown_steps[1] - drawn.shown_steps[0]) // 6)
    marks: list[tuple[int, str, str]] = []
    for incident in sorted(drawn.incidents, key=_reached):
        step = _reached(incident)
        if marks and step - marks[-1][0] < apart:
            first, severity, text = marks[-1]
            marks[-1] = (
                first,
                max(severity, incident.severity, key=rank),
                f"{text}, {step if step != first else ''} {incident.symptom}".replace("  ", " "),
            )
        else:
            marks.append((step, incident.severity, f"{step} {incident.symptom}"))
    return marks


def _reached(incident: Any) -> int:
    return int(incident.steps_by_severity.get(incident.severity, incident.onset_step))


def _series(service: Any, drawn: Drawn) -> list[Component]:
    """The searchable list of all series, and the chart of the one that is chosen."""
    view, run_id = drawn.view, drawn.run.run_id
    parts: list[Component] = []
    curve = drawn.curves.get(view.s) if view.s else None
    if curve is not None:
        line = Line((view.s,), "main" if view.smooth > 1 else "plain", view.s)
        figure = curves_figure.figure(
            [(line, curve)], steps=drawn.shown_steps, window=drawn.window, band=band_of(curve, drawn.window), seams=drawn.seams,
            scheme=theme.chosen(), large=True, key=SINGLE,
        )  # fmt: skip
        parts.append(pieces.chart_card(SINGLE, visible_line(view.s), curve.unit or "", figure, [view.s], curve.last, None, large=True))
    elif view.s:
        parts.append(html.P("This run has no series of that name. Choose one from the list.", className="rlv-sub"))
    found = series_list(service.store, run_id)
    search = dmc.TextInput(
        id="overview-q",
        value=view.q,
        placeholder="Filter by name, for example grad|norm",
        debounce=200,
        size="xs",
        w=300,
        **{"aria-label": "Filter series"},
    )
    head = html.Div(
        [
            html.H2("All series", className="rlv-section"),
            html.Span(f"{count(len(found))} logged, unknown keys included", className="rlv-sub"),
            html.Span(className="rlv-spring"),
            search,
        ],
        className="rlv-controls",
    )
    table = html.Div(series_rows(found, view, run_id), id="overview-series")
    return [html.Div([head, *parts, table], className="rlv-box rlv-stack", id="series")]


def series_rows(found: Sequence[Any], view: OverviewView, run_id: str) -> Component:
    """The list for the text in the field: all words of one of the parts between bars must occur."""
    wanted = [part.split() for part in view.q.lower().split("|") if part.strip()]
    kept = [row for row in found if not wanted or any(all(w in f"{row.key} {row.metric or ''}".lower() for w in words) for words in wanted)]
    return pieces.series_table(kept, view.s, view.to_query(), run_id)


def register(app: Dash, service: Any) -> None:
    """Live status, the list of series, and the route from which open charts take new rows."""

    @app.callback(
        Output("overview-status", "children"), Output("overview-lane", "children"),
        Input("live", "data"), State("run-id", "data"), State("url", "search"), prevent_initial_call=True,
    )  # fmt: skip
    async def refresh(message: Mapping[str, Any] | None, run_id: str, search: str | None) -> Any:
        # The lane and the count of judged steps need not move with every row.
        told = message and (
            any(item["run_id"] == run_id for item in message["incidents"]) or (run_id in message["rows"] and message["seq"] % 4 == 1)
        )
        if not told:
            raise PreventUpdate
        return await asyncio.to_thread(_refreshed, service, run_id, OverviewView.from_query(query_of(search)))

    @app.callback(
        Output("overview-series", "children"),
        Input("overview-q", "value"),
        State("run-id", "data"),
        State("url", "search"),
        prevent_initial_call=True,
    )
    async def search(text: str | None, run_id: str, address_query: str | None) -> Any:
        view = OverviewView.from_query({**query_of(address_query), "q": text or ""})
        return series_rows(await asyncio.to_thread(series_list, service.store, run_id), view, run_id)

    app.clientside_callback(
        ClientsideFunction("rlv", "keepQuery"), Output("overview-q", "data-kept"), Input("overview-q", "value"), prevent_initial_call=True
    )

    @app.server.get("/live/runs/{run_id}/charts", include_in_schema=False)
    async def charts(run_id: str, keys: str, since: int = 0, smooth: int = 10, s: str = "", scheme: str = "light") -> dict[str, Any]:
        view = OverviewView(smooth=smooth, s=s)
        chosen: Scheme = "dark" if scheme == "dark" else "light"
        found = await asyncio.to_thread(tails, service, run_id, view, keys.split(","), since, chosen)
        if found is None:
            raise HTTPException(404, f"There is no run {run_id}.")
        return found


def _refreshed(service: Any, run_id: str, view: OverviewView) -> tuple[Any, Any]:
    run = run_summary(service.store, run_id)
    if run is None:
        raise PreventUpdate
    drawn = read(service, run, replace(view, smooth=1, s=""))
    return status(service, drawn), _lane(drawn)
