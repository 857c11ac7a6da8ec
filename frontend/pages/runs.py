"""Runs: every run on one row, those in trouble first."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dash_mantine_components as dmc
from dash import ClientsideFunction, Dash, Input, Output, State, dcc, html
from dash.development.base_component import Component

from frontend.address import address, query_of
from frontend.components import states
from frontend.components.frame import page_frame, state_chip
from frontend.components.severity import gravest, mark, rank, urgency
from frontend.components.spark import spark
from frontend.components.svg import Svg
from frontend.components.text import visible_line
from frontend.components.words import MINUS, age, count, number
from frontend.views import RunsView
from ingest.schema.metrics import primary_eval
from server.queries.curves import eval_metrics, sparklines
from server.queries.runs import RunSummary, run_summaries

PATH = "/runs"
TITLE = "Runs"
ORDER = 10

_A_PAGE = 100
_STATES = {"running": 0, "stalled": 1, "finished": 2}
Line = tuple[Sequence[float], Sequence[float]]


@dataclass(frozen=True)
class Row:
    """One run with what the table shows of it. eval_best: the highest evaluation so far."""

    run: RunSummary
    incidents: Sequence[Any]
    reward: Line | None
    evaluation: Line | None
    entropy: Line | None

    @property
    def since(self) -> int | None:
        """The earliest onset of an open incident."""
        return min((i.onset_step for i in self.incidents), default=None)

    @property
    def severity(self) -> str | None:
        """The gravest open incident's."""
        return gravest(i.severity for i in self.incidents)


def layout(service: Any, **query: str) -> Component:
    """The page for an address such as /runs?q=grpo&state=open&sort=-reward."""
    view = RunsView.from_query(query)
    rows = read(service)
    return page_frame(
        "Runs",
        html.Span(_facts(rows, shown(rows, view)), id="runs-facts"),
        [_controls(rows, view), html.Div(table(rows, view), id="runs-body")],
    )


def register(app: Dash, service: Any) -> None:
    """Filtering as one types, and new rows without a reload."""

    @app.callback(
        Output("runs-body", "children"),
        Output("runs-facts", "children"),
        Input("runs-q", "value"),
        Input("live", "data"),
        State("url", "search"),
        prevent_initial_call=True,
    )
    async def refresh(text: str | None, message: Mapping[str, Any] | None, search: str | None) -> Any:
        view = RunsView.from_query({**query_of(search), "q": text or ""})
        rows = await asyncio.to_thread(read, service)
        return table(rows, view), _facts(rows, shown(rows, view))

    app.clientside_callback(
        ClientsideFunction("rlv", "keepQuery"), Output("runs-q", "data-kept"), Input("runs-q", "value"), prevent_initial_call=True
    )


def read(service: Any) -> list[Row]:
    """Every run with its open incidents and small curves."""
    runs = run_summaries(service.store)
    evals = {run_id: primary_eval(ids) for run_id, ids in eval_metrics(service.store).items()}
    lines = sparklines(service.store, ["reward.mean", "entropy.mean", *{m for m in evals.values() if m}])
    by_run = _incidents(service)
    made = []
    for run in runs:
        chosen = evals.get(run.run_id)
        made.append(
            Row(
                run,
                by_run.get(run.run_id, []),
                _line(lines.get((run.run_id, "reward.mean"))),
                _line(lines.get((run.run_id, chosen))) if chosen else None,
                _line(lines.get((run.run_id, "entropy.mean"))),
            )
        )
    return made


def _line(found: Any) -> Line | None:
    return None if found is None else (found[0].tolist(), found[1].tolist())


def _incidents(service: Any) -> dict[str, list[Any]]:
    from server.control.incidents import open_incidents

    found: dict[str, list[Any]] = {}
    with service.control.session(write=False) as session:
        for incident in open_incidents(session, None):
            if incident.severity != "info":  # noted on the run's own page
                found.setdefault(incident.run_id, []).append(incident)
    return {run: sorted(items, key=urgency) for run, items in found.items()}


def shown(rows: Sequence[Row], view: RunsView) -> list[Row]:
    """The rows of a view in its order."""
    words = view.q.lower().split()
    kept = [
        row
        for row in rows
        if all(word in f"{row.run.project} {row.run.name} {row.run.framework} {row.run.algorithm or ''}".lower() for word in words)
        and (not view.state or (bool(row.incidents) if view.state == "open" else row.run.state == view.state))
        and (not view.project or row.run.project == view.project)
    ]
    key = _SORTS.get(view.sort.removeprefix("-"))
    if key is None:
        return sorted(kept, key=_trouble_first)
    with_value = [row for row in kept if key(row) is not None]
    without = [row for row in kept if key(row) is None]
    return sorted(with_value, key=key, reverse=view.sort.startswith("-")) + without


def _trouble_first(row: Row) -> tuple[int, int, float]:
    return (_STATES[row.run.state], -rank(row.severity), -row.run.last_seen)


def _last(line: Line | None) -> float | None:
    return next((v for v in reversed(line[1]) if v == v), None) if line else None


_SORTS: dict[str, Callable[[Row], Any]] = {
    "run": lambda r: r.run.name.lower(),
    "state": lambda r: _STATES[r.run.state],
    "last": lambda r: -r.run.last_step_at,
    "step": lambda r: r.run.newest_step,
    "incidents": lambda r: rank(r.severity),
    "reward": lambda r: _last(r.reward),
    "eval": lambda r: _last(r.evaluation),
    "pace": lambda r: 60 / r.run.usual_step_seconds if r.run.usual_step_seconds else None,
    "tokens": lambda r: r.run.tokens,
    "algorithm": lambda r: r.run.algorithm,
}


def _facts(rows: Sequence[Row], kept: Sequence[Row]) -> str:
    if not rows:
        return "nothing read yet"
    running = sum(r.run.state == "running" for r in rows)
    stalled = sum(r.run.state == "stalled" for r in rows)
    incidents = sum(len(r.incidents) for r in rows)
    on = sum(bool(r.incidents) for r in rows)
    parts = [f"{len(kept)} shown of {len(rows)}", f"{running} running", f"{stalled} stalled" if stalled else ""]
    parts.append(f"{incidents} open incidents on {on} runs" if incidents else "no open incident")
    return " · ".join(part for part in parts if part)


def _controls(rows: Sequence[Row], view: RunsView) -> Component:
    chips = [("All", ""), ("Running", "running"), ("Stalled", "stalled"), ("Finished", "finished"), ("With open incidents", "open")]
    links = [
        dcc.Link(
            title,
            href=address(PATH, view.to_query(state=state, page=1)),
            className="rlv-filter" + (" is-here" if view.state == state else ""),
        )
        for title, state in chips
    ]
    projects = sorted({row.run.project for row in rows})
    for project in projects if 1 < len(projects) <= 6 else ():
        chosen = view.project == project
        href = address(PATH, view.to_query(project="" if chosen else project, page=1))
        links.append(dcc.Link(f"Project: {visible_line(project)}", href=href, className="rlv-filter" + (" is-here" if chosen else "")))
    search = dmc.TextInput(
        id="runs-q",
        value=view.q,
        placeholder="Filter by name, project or algorithm",
        debounce=250,
        size="xs",
        w=300,
        **{"aria-label": "Filter runs"},
    )
    return html.Div([search, *links], className="rlv-controls")


_HEADS: tuple[tuple[str, str, str], ...] = (
    ("run", "Run", ""),
    ("state", "State", ""),
    ("last", "Last step", "num"),
    ("step", "Step", "num"),
    ("", "", ""),
    ("incidents", "Open incidents", ""),
    ("", "Reward", ""),
    ("reward", "last", "num"),
    ("", "Held-out eval", ""),
    ("eval", "below best, last", "num"),
    ("", "Entropy", ""),
    ("pace", "Steps/min", "num"),
    ("tokens", "Tokens", "num"),
    ("algorithm", "Algorithm", ""),
)


def table(rows: Sequence[Row], view: RunsView, now: float | None = None) -> list[Component]:
    """The table of a view, a page of it at a time."""
    if not rows:
        return [_empty()]
    kept = shown(rows, view)
    if not kept:
        return [states.note("No run fits this filter. ", dcc.Link("Show all runs", href=PATH), title="Nothing here")]
    moment = time.time() if now is None else now
    head = html.Thead(html.Tr([_head(key, text, kind, view) for key, text, kind in _HEADS]))
    first = (max(view.page, 1) - 1) * _A_PAGE
    body = html.Tbody([_row(row, moment) for row in kept[first : first + _A_PAGE]])
    pages = (len(kept) + _A_PAGE - 1) // _A_PAGE
    turn = (
        [dcc.Link(f"Page {n}", href=address(PATH, view.to_query(page=n)), className="rlv-filter") for n in range(1, pages + 1)]
        if pages > 1
        else []
    )
    legend = html.Div(
        [
            mark("critical", "critical"),
            mark("warn", "warn"),
            mark("watch", "watch"),
            html.Span(className="rlv-swatch-window"),
            "since onset",
            html.Span("Sparklines cover the whole run, each with its own y-range"),
            *turn,
        ],
        className="rlv-legend-line",
    )
    return [html.Div(html.Table([head, body], className="rlv-table rlv-runs"), className="rlv-box is-flush"), legend]


def _head(key: str, text: str, kind: str, view: RunsView) -> Component:
    if not key:
        return html.Th(text, className=kind, scope="col")
    down = view.sort == f"-{key}"
    following = key if down else f"-{key}" if view.sort == key or kind == "num" else key
    sign = " ↓" if down else " ↑" if view.sort == key else ""
    return html.Th(dcc.Link(text + sign, href=address(PATH, view.to_query(sort=following, page=1))), className=kind, scope="col")


def _row(row: Row, now: float) -> Component:
    run, since = row.run, row.since
    stale = "is-late" if run.state == "stalled" else None
    pace = 60 / run.usual_step_seconds if run.usual_step_seconds else None
    return html.Tr(
        [
            html.Td(dcc.Link(html.Bdi(visible_line(run.name)), href=address("/r/<run>", run=run.run_id)), className="is-name"),
            html.Td(state_chip(run)),
            html.Td(_last_step(run, now), className="num" + (f" {stale}" if stale else "")),
            html.Td(count(run.newest_step), className="num"),
            html.Td(_progress(run)),
            html.Td(_open(row)),
            *_curve(row.reward, since, "spark-1", "Reward"),
            *_curve(row.evaluation, since, "spark-2", "Held-out eval", best=True),
            html.Td(_spark(row.entropy, since, "spark-plain", "Entropy")),
            html.Td(number(pace) if pace else "–", className="num"),
            html.Td(count(run.tokens), className="num"),
            html.Td(visible_line(run.algorithm or "–").upper()),
        ]
    )


def _last_step(run: RunSummary, now: float) -> Any:
    old = age(now - run.last_step_at)
    if run.freshness == "followed":
        return html.Span(old, className="rlv-age", **{"data-at": str(run.last_step_at)})
    return html.Span(old, title="written at checkpoints" if run.freshness == "checkpoints" else "read once, not followed")


def _progress(run: RunSummary) -> Component | None:
    if run.newest_step is None or not run.planned_steps:
        return None
    share = min(1.0, (run.newest_step + 1) / run.planned_steps)
    style = "bar-on" if run.state == "running" else "bar-off"
    bar = (
        ("rect", {"x": 0, "y": 0, "width": 40, "height": 4, "rx": 2, "className": "bar-ground"}),
        ("rect", {"x": 0, "y": 0, "width": round(40 * share, 1), "height": 4, "rx": 2, "className": style}),
    )
    return Svg(bar, 40, 4, label=f"{100 * share:.0f} % of {run.planned_steps} steps")


def _open(row: Row) -> Any:
    if not row.incidents:
        return html.Span("none", className="rlv-sub-inline")
    first, *rest = row.incidents
    shown_first = dcc.Link(mark(first.severity, first.symptom, f"from {first.onset_step}"), href=address("/incidents/<id>", id=first.id))
    if not rest:
        return shown_first
    return [shown_first, html.Span(mark(rest[0].severity, "", f"{len(rest)} more"), className="rlv-more")]


def _spark(line: Line | None, since: int | None, style: str, label: str) -> Component | None:
    if line is None:
        return None
    last = _last(line)
    return spark(*line, since=since, style=style, width=60 if style == "spark-plain" else 104, label=f"{label}, last {number(last)}")


def _curve(line: Line | None, since: int | None, style: str, label: str, best: bool = False) -> list[Component]:
    last = _last(line)
    below: Any = None
    if best and line and last is not None:
        gap = max(v for v in line[1] if v == v) - last
        below = html.Span(f"{MINUS}{gap:.2f} ", className="rlv-sub-inline") if gap >= 0.05 else None
    value = [below, html.B(number(last))] if line else html.Span("not logged", className="rlv-sub-inline")
    return [html.Td(_spark(line, since, style, label)), html.Td(value, className="num")]


def _empty() -> Component:
    return states.note(
        "Follow a trainer's folder with ",
        states.command("rlvitals serve --watch PATH"),
        ", read one once with ",
        states.command("rlvitals ingest PATH"),
        ", or open recorded runs with ",
        states.command("rlvitals demo"),
        ".",
        title="No runs yet",
    )
