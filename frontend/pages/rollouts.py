"""Rollouts of a run: filtered, sorted and searched, each one click from its tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import dash_ag_grid as dag
from dash import ALL, ClientsideFunction, Dash, Input, Output, State, dcc, html
from dash.development.base_component import Component
from dash.exceptions import PreventUpdate

from frontend import theme
from frontend.address import NoSuchPage, address
from frontend.components.controls import address_state, choice, register_controls, text_field
from frontend.components.frame import run_frame
from frontend.components.how import no_rollouts
from frontend.components.text import visible_line
from frontend.components.words import number
from frontend.figures import rollouts as figures
from frontend.ranges import parse_range, words_of_range
from frontend.views import RolloutsView
from server.queries.rollouts import (
    OPEN,
    SORTS,
    Rollout,
    RolloutFacts,
    RolloutFilter,
    count_rollouts,
    nearest_steps,
    reward_by_length,
    rollout_facts,
    rollout_page,
    rollouts_by_step,
)
from server.queries.runs import RunSummary, run_summary

PATH = "/r/<run>/rollouts"
TITLE = "Rollouts"
ORDER = 120

TRAJECTORY = "/r/<run>/t/<place>"
_RANGES = (("step", "step"), ("score", "reward"), ("len", "length"), ("lag", "lag"))
_YES_NO = {"yes": True, "no": False}
_DEFAULTS = RolloutsView()


def layout(service: Any, run: str = "", **query: str) -> Component:
    """The page for an address. Raises NoSuchPage for an unknown run."""
    store = service.store
    found = run_summary(store, run)
    if found is None:
        raise NoSuchPage(f"There is no run {run}. The runs are listed under Runs.")
    facts = rollout_facts(store, run)
    if facts.count == 0:
        return run_frame(found, "rollouts", [no_rollouts(found.framework)])
    view = RolloutsView.from_query(query)
    chosen, wrong = filter_of(view)
    matching = count_rollouts(store, run, chosen)
    children: list[Any] = [address_state("rollouts", view.to_query(), {"sort": "-step"}), _controls(view, facts, wrong)]
    if not matching:
        children.append(_nothing(store, found, view, chosen, facts))
    else:
        children += [_charts(store, run, chosen, matching), _grid(found, view, facts, matching)]
    return run_frame(found, "rollouts", children)


def filter_of(view: RolloutsView) -> tuple[RolloutFilter, tuple[str, ...]]:
    """The filter of an address, and the keys whose text is no range (they restrict nothing and are marked)."""
    ranges = {}
    wrong = []
    for key, name in _RANGES:
        found = parse_range(getattr(view, key))
        ranges[name] = OPEN if found is None else found
        if found is None:
            wrong.append(key)
    chosen = RolloutFilter(
        **ranges,
        split="train" if view.split == "train" else "eval" if view.split == "eval" else None,
        task=view.task or None,
        difficulty=view.difficulty or None,
        finish=view.finish or None,
        group=view.group or None,
        truncated=_YES_NO.get(view.trunc),
        tokens=_YES_NO.get(view.tok),
        text=view.q or None,
    )
    return chosen, tuple(wrong)


def sort_of(text: str) -> tuple[str, bool]:
    """Column and whether it falls, from the address; an unknown one counts as the default."""
    name = text.removeprefix("-")
    return (name, text.startswith("-")) if name in SORTS else ("step", True)


def _controls(view: RolloutsView, facts: RolloutFacts, wrong: tuple[str, ...]) -> Component:
    hint = "One number or a range: 97, 90-100, 0.5-, -1..0"
    fields = [
        text_field("rollouts", "q", "Text", view.q, width=230, placeholder="in prompt, response or id"),
        text_field("rollouts", "step", "Step", view.step, width=112, placeholder=_span(facts.first_step, facts.last_step)),
        text_field("rollouts", "score", "Reward", view.score, width=124, placeholder=_span(*(facts.reward or (None, None)))),
        text_field("rollouts", "len", "Length", view.len, width=118, placeholder=_span(*(facts.length or (None, None)))),
    ]
    if facts.lag is not None:
        fields.append(text_field("rollouts", "lag", "Lag", view.lag, width=96, placeholder=_span(*facts.lag)))
    splits = [("train", "train"), ("eval", "eval")]
    fields.append(choice("rollouts", "split", "Split", view.split, splits, anything="train and eval", width=176))
    for key, label, values in (
        ("task", "Task", facts.tasks), ("difficulty", "Difficulty", facts.difficulties), ("finish", "Finish", facts.finish_reasons),
    ):  # fmt: skip
        if len(values) > 1 or getattr(view, key):
            fields.append(choice("rollouts", key, label, getattr(view, key), [(v, v) for v in values], anything="any", width=132))
    if facts.with_tokens:
        fields.append(choice("rollouts", "tok", "Tokens", view.tok, [("yes", "with arrays"), ("no", "without")], anything="any", width=164))
    if view.group:
        fields.append(text_field("rollouts", "group", "Group", view.group, width=140))
    if view.trunc:
        fields.append(choice("rollouts", "trunc", "Truncated", view.trunc, [("yes", "yes"), ("no", "no")], anything="any", width=132))
    if view != _DEFAULTS:
        fields.append(html.A("Clear", href="?", className="rlv-go rlv-clear"))
    note = [html.P(f"Not a range: {', '.join(wrong)}. {hint}.", className="rlv-wrong", role="alert")] if wrong else []
    return html.Div([html.Div(fields, className="rlv-controls", title=hint), *note])


def _span(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else words_of_range(round(low, 3), round(high, 3))


def _nothing(store: Any, run: RunSummary, view: RolloutsView, chosen: RolloutFilter, facts: RolloutFacts) -> Component:
    """Says why nothing matches and what would."""
    low, high = chosen.step
    single = low is not None and low == high
    at = f" at step {words_of_range(low, high)}" if single else f" in steps {words_of_range(low, high)}" if chosen.step != OPEN else ""
    others = [name for name in chosen.active if name != "step"]
    what = "rollouts with these filters" if others else "rollouts"
    sentence = [html.Span(f"No {what}{at}. ")]
    if chosen.step != OPEN:
        before, after = nearest_steps(store, run.run_id, chosen, int(low if low is not None else high or 0))
        near = [step for step in (before, after) if step is not None]
        if near:
            links = [(str(s), address(PATH, view.to_query(step=str(s)), run=run.run_id)) for s in near]
            anchors: list[Any] = [html.A(text, href=href, className="rlv-go") for text, href in links]
            joined = [part for anchor in anchors for part in (html.Span(" and "), anchor)][1:]
            sentence += [html.Span("Nearest: "), *joined, html.Span(".")]
            return html.Div([html.P(sentence)], className="rlv-note")
    sentence.append(html.Span(f"{facts.count:,} rollouts were read, steps {facts.first_step} to {facts.last_step}. "))
    sentence.append(html.A("Clear the filters", href=address(PATH, run=run.run_id), className="rlv-go"))
    return html.Div([html.P(sentence)], className="rlv-note")


def _charts(store: Any, run_id: str, chosen: RolloutFilter, matching: int) -> Component:
    steps, counts = rollouts_by_step(store, run_id, chosen)
    scatter = reward_by_length(store, run_id, chosen)
    scheme = theme.chosen()
    shown = f"{len(scatter.reward):,} of {scatter.total:,} drawn" if len(scatter.reward) < scatter.total else f"{scatter.total:,} rollouts"
    parts = [_chart("rollouts-by-step", "Rollouts by step", "drag to choose steps, click for one", figures.by_step(steps, counts, scheme))]
    if scatter.total:
        parts.append(
            _chart("rollouts-scatter", "Reward against length", f"{shown}, click opens one", figures.reward_by_length(scatter, scheme))
        )
    return html.Div(parts, className="rlv-pair")


def _chart(name: str, title: str, facts: str, figure: Any) -> Component:
    head = html.Div([html.B(title), html.Span(facts, className="rlv-facts")], className="rlv-card-head")
    return html.Section(
        [head, dcc.Graph(id=name, figure=figure, config={"displayModeBar": False, "responsive": True}, style={"height": "132px"})],
        className="rlv-box", **{"aria-label": title},
    )  # fmt: skip


_COLUMNS: tuple[tuple[str, str, int, dict[str, Any]], ...] = (
    ("step", "Step", 92, {"cellRenderer": "RlvLink", "sortable": True, "field": "place"}),
    ("task", "Task", 104, {"sortable": True}),
    ("prompt", "Prompt", 200, {"cellRenderer": "RlvText", "flex": 2, "minWidth": 120}),
    ("response", "Response", 320, {"cellRenderer": "RlvText", "flex": 4, "minWidth": 160}),
    ("reward", "Reward", 84, {"sortable": True, "digits": 3}),
    ("advantage", "Advantage", 98, {"sortable": True, "digits": 2}),
    ("length", "Tokens", 80, {"sortable": True, "digits": None}),
    ("lag", "Lag", 62, {"sortable": True, "digits": None}),
    ("finish", "Finish", 84, {"sortable": True}),
    ("verifier", "Verifier", 110, {"sortable": True}),
    ("group", "Group", 100, {}),
    ("id", "Id", 100, {}),
)


def column_definitions(facts: RolloutFacts, sort: str) -> list[dict[str, Any]]:
    """Columns of the grid; a field that the run never writes has no column."""
    absent = {
        "task": not facts.tasks, "reward": facts.reward is None, "advantage": not facts.with_advantage,
        "length": facts.length is None, "lag": facts.lag is None, "finish": not facts.with_finish,
        "verifier": not facts.with_verifier_seconds, "group": not facts.with_groups,
    }  # fmt: skip
    name, falling = sort_of(sort)
    made = []
    for key, title, width, more in _COLUMNS:
        if absent.get(key):
            continue
        column: dict[str, Any] = {"colId": key, "field": more.get("field", key), "headerName": title, "width": width, "sortable": False}
        column |= {k: v for k, v in more.items() if k not in ("digits", "field")}
        if "digits" in more:
            digits = "" if more["digits"] is None else f", {more['digits']}"
            column |= {"type": "rightAligned", "valueFormatter": {"function": f"rlvCell(params{digits})"}}
        if column["sortable"] and key == name and sort != "-step":
            column["sort"] = "desc" if falling else "asc"
        made.append(column)
    return made


def _grid(run: RunSummary, view: RolloutsView, facts: RolloutFacts, matching: int) -> Component:
    of = "" if matching == facts.count else f" of {facts.count:,}"
    head = html.Div(
        [
            html.Span([html.B(f"{matching:,}"), f"{of} rollouts, newest step first unless sorted"], className="rlv-facts"),
            html.Span(id="rollouts-newer", className="rlv-newer", role="status"),
        ],
        className="rlv-grid-head",
    )
    grid = dag.AgGrid(
        id="rollouts-grid",
        columnDefs=column_definitions(facts, view.sort),
        rowModelType="infinite",
        defaultColDef={"resizable": True, "suppressMovable": True, "suppressHeaderMenuButton": True},
        dashGridOptions={
            "theme": {"function": GRID_THEME},
            # The true count at once: a jump beyond the first guess would fail.
            "infiniteInitialRowCount": matching,
            "cacheBlockSize": 100,
            "maxBlocksInCache": 20,
            "rowHeight": 27,
            "headerHeight": 28,
            "enableCellTextSelection": True,
            "animateRows": False,
            "rowBuffer": 5,
        },
        style={"height": "max(320px, calc(100vh - 366px))"},
    )
    question = {"run_id": run.run_id, "query": {k: str(v) for k, v in view.to_query().items()}, "last_step": facts.last_step}
    return html.Section([dcc.Store(id="rollouts-question", data=question), head, grid], className="rlv-box rlv-grid-box")


# The grid reads CSS variables, so that it follows the theme without being drawn anew.
GRID_THEME = (
    "themeQuartz.withParams({"
    "backgroundColor: 'var(--rlv-surface)', foregroundColor: 'var(--rlv-text-1)', headerBackgroundColor: 'var(--rlv-surface-2)', "
    "headerTextColor: 'var(--rlv-text-3)', borderColor: 'var(--rlv-border)', rowHoverColor: 'var(--rlv-surface-2)', "
    "oddRowBackgroundColor: 'var(--rlv-surface)', accentColor: 'var(--rlv-accent)', browserColorScheme: 'inherit', "
    "fontFamily: 'var(--rlv-font)', fontSize: 12.5, headerFontSize: 11, headerFontWeight: 540, "
    "cellHorizontalPadding: 8, wrapperBorder: false, wrapperBorderRadius: 0, borderRadius: 0})"
)


def row_of(run_id: str, rollout: Rollout) -> dict[str, Any]:
    """One row of the grid; ingested text with hidden characters made visible."""
    place = f"{rollout.step}.{rollout.n}"
    seconds = "" if rollout.verifier_seconds is None else f" {number(rollout.verifier_seconds)} s"
    return {
        "place": place,
        "address": address(TRAJECTORY, run=run_id, place=place),
        "step": rollout.step,
        "task": _line(rollout.task),
        "prompt": _line(rollout.prompt),
        "response": _line(rollout.response),
        "reward": _json_number(rollout.reward),
        "advantage": _json_number(rollout.advantage),
        "length": rollout.response_tokens,
        "lag": rollout.policy_lag,
        "finish": _line(rollout.finish_reason),
        "verifier": f"{_line(rollout.verifier_status) or '–'}{seconds}",
        "group": _line(rollout.group_id),
        "id": _line(rollout.trajectory_id),
    }


def _line(text: str | None) -> str | None:
    return None if text is None else visible_line(text)


def _json_number(value: float | None) -> float | str | None:
    """JSON has no NaN: what is not finite goes by name."""
    return value if value is None or abs(value) < float("inf") else number(value)


def rows_for(service: Any, question: Mapping[str, Any], request: Mapping[str, Any]) -> dict[str, Any]:
    """The rows that the grid asks for, with the true count."""
    view = RolloutsView.from_query(question["query"])
    chosen, _ = filter_of(view)
    model = request.get("sortModel") or []
    sort, falling = (model[0]["colId"], model[0]["sort"] == "desc") if model else sort_of(view.sort if not model else "")
    if sort not in SORTS:
        sort, falling = "step", True
    first, last = int(request.get("startRow") or 0), int(request.get("endRow") or 100)
    run_id = question["run_id"]
    page = rollout_page(service.store, run_id, chosen, sort=sort, descending=falling, offset=first, limit=min(last - first, 1000))
    return {"rowData": [row_of(run_id, rollout) for rollout in page.rows], "rowCount": page.total}


def register(app: Dash, service: Any) -> None:
    """Rows of the grid over HTTP (its infinite model cannot use the websocket); controls and sorting write the address."""

    @app.callback(Output("rollouts-grid", "getRowsResponse"), Input("rollouts-grid", "getRowsRequest"), State("rollouts-question", "data"))
    async def rows(request: dict[str, Any] | None, question: dict[str, Any] | None) -> dict[str, Any]:
        if not request or not question:
            raise PreventUpdate
        return await asyncio.to_thread(rows_for, service, question, request)

    register_controls(app, "rollouts")
    app.clientside_callback(
        ClientsideFunction("rlv_pages", "sorted"),
        Output("rollouts-question", "storage_type"),
        Input("rollouts-grid", "getRowsRequest"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        ClientsideFunction("rlv_pages", "newer"),
        Output("rollouts-newer", "children"),
        Input("live", "data"),
        State("rollouts-question", "data"),
    )
    app.clientside_callback(
        ClientsideFunction("rlv_pages", "stepsChosen"),
        Output("url", "search", allow_duplicate=True),
        Input("rollouts-by-step", "clickData"),
        Input("rollouts-by-step", "relayoutData"),
        State({"type": "rollouts-address", "key": ALL}, "data"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        ClientsideFunction("rlv_pages", "pointChosen"),
        Output("url", "pathname", allow_duplicate=True),
        Input("rollouts-scatter", "clickData"),
        State("rollouts-question", "data"),
        prevent_initial_call=True,
    )
