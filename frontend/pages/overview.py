"""Overview: is the run alive, what moved first, and since when."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import dash_mantine_components as dmc
import numpy as np
from dash import ClientsideFunction, Dash, Input, Output, State, dcc, html
from dash.development.base_component import Component
from dash.exceptions import PreventUpdate
from fastapi import HTTPException

from frontend import theme
from frontend.address import NoSuchPage, address, query_of
from frontend.components import overview as pieces
from frontend.components import states
from frontend.components.frame import run_frame
from frontend.components.severity import rank
from frontend.components.words import change, count, number
from frontend.families import strip
from frontend.figures import curve as curves_figure
from frontend.figures.curve import Window, band_of
from frontend.figures.panels import Chosen, Line, Panel, choose
from frontend.theme import Scheme
from frontend.views import OverviewView
from ingest.schema.metrics import primary_eval
from server.queries.curves import Curve, curves, events, metrics_of, series_list, smoothed
from server.queries.runs import RunSummary, run_summary

PATH = "/r/<run>"
TITLE = "Overview"
ORDER = 110

_MOST_INCIDENTS = 3
_SMOOTHINGS = (1, 10, 50)
_SINGLE = "series"


@dataclass(frozen=True)
class Drawn:
    """Everything the charts of a run are made of."""

    run: RunSummary
    view: OverviewView
    chosen: Sequence[Chosen]
    missing: Sequence[Panel]
    curves: Mapping[str, Curve]
    incidents: Sequence[Any]
    window: Window | None
    seams: tuple[int, ...]
    span: tuple[int, int]
    evaluation: str | None
    happened: tuple[tuple[int, str, str], ...]

    @property
    def shown_steps(self) -> tuple[int, int]:
        """The steps of every chart."""
        return (self.view.from_ if self.view.from_ >= 0 else self.span[0], self.view.to if self.view.to >= 0 else self.span[1])


def layout(service: Any, run: str = "", **query: str) -> Component:
    """The page for an address such as /r/0123456789ab?smooth=50&s=critic/loss."""
    found = run_summary(service.store, run)
    if found is None:
        raise NoSuchPage(f"There is no run {run}. The runs are listed under Runs.")
    view = OverviewView.from_query(query)
    drawn = read(service, found, view)
    if not drawn.curves and not drawn.chosen and found.newest_step is None:
        return run_frame(found, "overview", [_no_steps(run)])
    return run_frame(found, "overview", [html.Div(status(service, drawn), id="overview-status", className="rlv-stack"), *_charts(drawn), *_series(service, drawn)])


def _no_steps(run: str) -> Component:
    return states.note(
        "Nothing with a step was read yet. ", dcc.Link("Sources", href=address("/sources", {"run": run})),
        " shows what was read of it and what was turned away.", title="No steps yet",
    )  # fmt: skip


def read(service: Any, run: RunSummary, view: OverviewView, only: Sequence[str] | None = None) -> Drawn:
    """Curves and incidents of a run; only: keys of the charts that are asked for."""
    store = service.store
    logged = metrics_of(store, run.run_id)
    evaluation = primary_eval(logged)
    chosen, missing = choose(logged, evaluation)
    if only is not None:
        chosen = [c for c in chosen if c.panel.key in only]
    names = [metric for c in chosen for _, metric in c.metrics]
    if view.s and (only is None or _SINGLE in only):
        names.append(view.s)
    if evaluation and only is None:
        names.append(evaluation)
    found = _smoothed(curves(store, run.run_id, list(dict.fromkeys(names))), chosen, view.smooth)
    incidents = _incidents(service, run.run_id)
    window = _window(incidents, run.newest_step)
    first = min((int(c.steps[0]) for c in found.values()), default=0)
    newest = run.newest_step if run.newest_step is not None else max((int(c.steps[-1]) for c in found.values()), default=0)
    happened = tuple((event.step, event.kind, event.text) for event in events(store, run.run_id)) if only is None else ()
    seams = tuple(sorted({int(old.steps[0]) for c in found.values() for old in c.superseded}))
    return Drawn(run, view, chosen, missing, found, incidents, window, seams, (first, max(newest, first + 1)), evaluation, happened)


def _smoothed(found: Mapping[str, Curve], chosen: Sequence[Chosen], points: int) -> dict[str, Curve]:
    """The curves with their smoothed values; on a chart with a log axis of the logarithm."""
    if points <= 1:
        return dict(found)
    logged: set[str] = set()
    for item in chosen:
        names = [metric for _, metric in item.metrics if metric in found]
        if curves_figure.wants_log([found[name] for name in names]):
            logged.update(names)
    logged.update(name for name in found if name not in logged and curves_figure.wants_log([found[name]]))
    weight = 1 - 1 / points
    return {name: replace(curve, smooth=smoothed(curve.mean, weight, name in logged)) for name, curve in found.items()}


def _incidents(service: Any, run_id: str) -> list[Any]:
    from server.control.incidents import open_incidents

    with service.control.session(write=False) as session:
        return sorted(open_incidents(session, run_id), key=lambda i: (-rank(i.severity), i.onset_step))


def _window(incidents: Sequence[Any], newest: int | None) -> Window | None:
    """The steps of the gravest incident, and the baseline of its evidence."""
    if not incidents:
        return None
    worst = incidents[0]
    rows = [row["baseline_steps"] for row in worst.body.get("evidence") or () if row.get("baseline_steps")]
    baseline = (int(rows[0][0]), int(rows[0][1])) if rows else None
    return Window(worst.onset_step, max(worst.last_step, worst.onset_step, newest or 0), baseline)


def status(service: Any, drawn: Drawn) -> list[Component]:
    """Health strip and open incidents."""
    from server.control.incidents import judged, not_judged

    with service.control.session(write=False) as session:
        done = judged(session, drawn.run.run_id)
        blocked = list(not_judged(session, drawn.run.run_id))
    cells = strip(drawn.incidents, blocked, _known_symptoms(), done is not None)
    newest = drawn.run.newest_step or 0
    cards = [
        pieces.incident_card(incident, _onsets(drawn) if index == 0 else (), drawn.run.run_id, newest, main=index == 0)
        for index, incident in enumerate(drawn.incidents[:_MOST_INCIDENTS])
    ]
    more = len(drawn.incidents) - len(cards)
    parts: list[Any] = [pieces.strip_cells(cells, drawn.run.run_id), *cards]
    if more > 0:
        parts.append(dcc.Link(f"{more} more open incidents of this run", href=address("/incidents", {"run": drawn.run.run_id}), className="rlv-more-link"))
    if not drawn.incidents and done is not None:
        able = sum(cell.severity != "cannot-tell" for cell in cells)
        parts.append(html.P(f"No incident in {count(done.step + 1)} steps. {able} families judged, {len(cells) - able} cannot be.", className="rlv-sub rlv-calm"))
    return parts


def _known_symptoms() -> list[str]:
    from server.rules import RULES

    return [name for rule in RULES for name in (rule.name, *getattr(rule, "also", ()))]


def _onsets(drawn: Drawn) -> list[dict[str, Any]]:
    """For each chart's first line the step at which it left its band for good, before and after."""
    found = []
    worst = drawn.incidents[0]
    for chosen in drawn.chosen:
        _, metric = chosen.metrics[-1] if chosen.panel.key == "reward" else chosen.metrics[0]
        curve = drawn.curves.get(metric)
        band = band_of(curve, drawn.window) if curve is not None else None
        if curve is None or band is None or not band.outside or drawn.window is None:
            continue
        step = _left_band(curve, band.median, band.spread, drawn.window)
        if step is not None:
            title = "Held-out eval" if metric == drawn.evaluation else chosen.panel.title
            found.append({"title": title, "step": step, "before": band.median, "after": band.after, "score": chosen.panel.score, "severity": worst.severity if step <= worst.onset_step else "warn"})
    return found


def _left_band(curve: Curve, median: float, spread: float, window: Window) -> int | None:
    """The first of three values in a row outside the band, from shortly before the onset on."""
    from_step = window.baseline[1] + 1 if window.baseline else window.onset
    late = curve.since(min(from_step, window.onset))
    outside = np.abs(late.mean - median) > spread
    run = outside[:-2] & outside[1:-1] & outside[2:] if outside.size >= 3 else np.zeros(0, bool)
    hits = np.flatnonzero(run)
    return int(late.steps[hits[0]]) if hits.size else None


def _charts(drawn: Drawn) -> list[Component]:
    """Control row, the charts in order, what is missing, the event lane."""
    cards = [chart(drawn, chosen, index, len(drawn.chosen)) for index, chosen in enumerate(drawn.chosen)]
    grid = html.Div(cards, id="overview-charts", className="rlv-charts", **{"data-run": drawn.run.run_id, "data-smooth": str(drawn.view.smooth)})
    return [_controls(drawn), grid, *_missing(drawn), html.Div(_lane(drawn), id="overview-lane")]


def chart(drawn: Drawn, chosen: Chosen, index: int, of: int) -> Component:
    """One card."""
    made, lines, value, moved, note = chart_parts(drawn, chosen, index, of, theme.chosen())
    return pieces.chart_card(chosen.panel.key, chosen.panel.title, chosen.panel.unit, made, [line.label for line, _ in lines], value, moved, note)


Parts = tuple[dict[str, Any], list[tuple[Line, Curve]], "float | None", "tuple[str, str] | None", str]


def chart_parts(drawn: Drawn, chosen: Chosen, index: int, of: int, scheme: Scheme) -> Parts:
    """Figure, lines, newest value, change with its severity, and a note for the header."""
    lines = [(line, drawn.curves[metric]) for line, metric in chosen.metrics if metric in drawn.curves]
    lead = lines[0][1]
    band = band_of(lead, drawn.window)
    columns = 4
    made = curves_figure.figure(
        lines, steps=drawn.shown_steps, window=drawn.window, band=band, seams=drawn.seams, scheme=scheme,
        show_steps=index >= of - (of % columns or columns), label=index == 0, key=chosen.panel.key,
    )  # fmt: skip
    moved = None
    if band is not None and band.outside and drawn.incidents:
        moved = (change(band.median, band.after, score=chosen.panel.score), drawn.incidents[0].severity)
    hidden = curves_figure.hidden_by_log([c for _, c in lines]) if made["layout"]["meta"]["log"] else 0
    bad = int(sum(c.nonfinite_steps.size for _, c in lines))
    note = ", ".join(text for text in (f"{hidden} at or below 0" if hidden else "", f"{bad} not finite" if bad else "") if text)
    return made, lines, lead.last, moved, note


def _controls(drawn: Drawn) -> Component:
    window = drawn.window
    said = ["Shaded: incident window."] if window else []
    if window and window.baseline:
        said.insert(0, f"Grey band: steps {window.baseline[0]} to {window.baseline[1]}, median ± 2.5 MAD.")
    said.append("Drag to zoom all, double click to reset, click for the rollouts.")
    smoothing = [
        dcc.Link("off" if n == 1 else str(n), href=address(PATH, drawn.view.to_query(smooth=n), run=drawn.run.run_id), className="rlv-segment" + (" is-here" if drawn.view.smooth == n else ""))
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
    return [html.P([f"No chart for {names}: this run logs no such metric (for example {example}). The hatched cells above say how to log it."], className="rlv-sub")]


def _lane(drawn: Drawn) -> Component:
    marks = _marks(drawn)
    evaluations = drawn.curves[drawn.evaluation].steps.tolist() if drawn.evaluation in drawn.curves else []
    return pieces.lane(marks, evaluations, drawn.happened, *drawn.shown_steps)


def _marks(drawn: Drawn) -> list[tuple[int, str, str]]:
    """Incidents at the step they reached their severity; those too near to be read apart share one mark."""
    apart = max(1, (drawn.shown_steps[1] - drawn.shown_steps[0]) // 6)
    marks: list[tuple[int, str, str]] = []
    for incident in sorted(drawn.incidents, key=_reached):
        step = _reached(incident)
        if marks and step - marks[-1][0] < apart:
            first, severity, text = marks[-1]
            marks[-1] = (first, max(severity, incident.severity, key=rank), f"{text}, {step if step != first else ''} {incident.symptom}".replace("  ", " "))
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
            scheme=theme.chosen(), large=True, key=_SINGLE,
        )  # fmt: skip
        parts.append(pieces.chart_card(_SINGLE, view.s, curve.unit or "", figure, [view.s], curve.last, None, large=True))
    elif view.s:
        parts.append(html.P("This run has no series of that name. Choose one from the list.", className="rlv-sub"))
    found = series_list(service.store, run_id)
    search = dmc.TextInput(id="overview-q", value=view.q, placeholder="Filter by name, for example grad|norm", debounce=200, size="xs", w=300, **{"aria-label": "Filter series"})
    head = html.Div([html.H2("All series", className="rlv-section"), html.Span(f"{count(len(found))} logged, unknown keys included", className="rlv-sub"), html.Span(className="rlv-spring"), search], className="rlv-controls")
    table = html.Div(series_rows(found, view, run_id), id="overview-series")
    return [html.Div([head, *parts, table], className="rlv-box rlv-stack", id="series")]


def series_rows(found: Sequence[Any], view: OverviewView, run_id: str) -> Component:
    """The list for the text in the field: all words of one of the parts between bars must occur."""
    wanted = [part.split() for part in view.q.lower().split("|") if part.strip()]
    kept = [row for row in found if not wanted or any(all(w in f"{row.key} {row.metric or ''}".lower() for w in words) for words in wanted)]
    return pieces.series_table(kept, view.s, view.to_query(), run_id)


def register(app: Dash, service: Any) -> None:
    """Live status, the list of series, and the route from which open charts take new rows."""

    @app.callback(  # type: ignore[untyped-decorator]
        Output("overview-status", "children"), Output("overview-lane", "children"),
        Input("live", "data"), State("run-id", "data"), State("url", "search"), prevent_initial_call=True,
    )  # fmt: skip
    async def refresh(message: Mapping[str, Any] | None, run_id: str, search: str | None) -> Any:
        if not message or not any(item["run_id"] == run_id for item in message["incidents"]):
            raise PreventUpdate
        return await asyncio.to_thread(_refreshed, service, run_id, OverviewView.from_query(query_of(search)))

    @app.callback(  # type: ignore[untyped-decorator]
        Output("overview-series", "children"), Input("overview-q", "value"), State("run-id", "data"), State("url", "search"), prevent_initial_call=True
    )
    async def search(text: str | None, run_id: str, address_query: str | None) -> Any:
        view = OverviewView.from_query({**query_of(address_query), "q": text or ""})
        return series_rows(await asyncio.to_thread(series_list, service.store, run_id), view, run_id)

    app.clientside_callback(ClientsideFunction("rlv", "keepQuery"), Output("overview-q", "data-kept"), Input("overview-q", "value"), prevent_initial_call=True)

    @app.server.get("/live/runs/{run_id}/charts", include_in_schema=False)  # type: ignore[untyped-decorator]
    async def charts(run_id: str, keys: str, since: int = 0, smooth: int = 10, s: str = "", scheme: str = "light") -> dict[str, Any]:
        view = OverviewView(smooth=smooth, s=s)
        return await asyncio.to_thread(tails, service, run_id, view, keys.split(","), since, "dark" if scheme == "dark" else "light")


def _refreshed(service: Any, run_id: str, view: OverviewView) -> tuple[Any, Any]:
    run = run_summary(service.store, run_id)
    if run is None:
        raise PreventUpdate
    drawn = read(service, run, view)
    return status(service, drawn), _lane(drawn)


def tails(service: Any, run_id: str, view: OverviewView, keys: Sequence[str], since: int, scheme: Scheme) -> dict[str, Any]:
    """For each chart the points from a step on, its shapes and header; `bin` tells a page whether its own bins still fit.

    Raises:
        HTTPException: 404 for an unknown run.
    """
    run = run_summary(service.store, run_id)
    if run is None:
        raise HTTPException(404, f"There is no run {run_id}.")
    drawn = read(service, run, view, only=keys)
    answer: dict[str, Any] = {}
    for index, chosen in enumerate(drawn.chosen):
        made, _, value, moved, _ = chart_parts(drawn, chosen, index, len(drawn.chosen), scheme)
        answer[chosen.panel.key] = _tail(made, since, value, moved)
    curve = drawn.curves.get(view.s) if view.s else None
    if curve is not None and _SINGLE in keys:
        line = Line((view.s,), "main" if view.smooth > 1 else "plain", view.s)
        made = curves_figure.figure([(line, curve)], steps=drawn.span, window=drawn.window, band=band_of(curve, drawn.window), seams=drawn.seams, scheme=scheme, key=_SINGLE)
        answer[_SINGLE] = _tail(made, since, curve.last, None)
    return {"steps": list(drawn.span), "charts": answer}


def _tail(made: Mapping[str, Any], since: int, value: float | None, moved: tuple[str, str] | None) -> dict[str, Any]:
    width = made["layout"]["meta"]["bin"]
    start = since // width * width
    shapes = [{k: v for k, v in shape.items() if k != "label"} for shape in made["layout"]["shapes"]]
    return {"from": start, "bin": width, "traces": curves_figure.tail(made, start), "shapes": shapes, "value": number(value), "moved": list(moved) if moved else None}

