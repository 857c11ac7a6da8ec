"""One rule: how it works, its parameters and who set them, and what other values would have raised."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import ALL, Dash, Input, Output, State, ctx, dcc, html, no_update
from dash.development.base_component import Component
from dash.exceptions import PreventUpdate

from frontend.address import NoSuchPage
from frontend.components import markdown
from frontend.components import rules as parts
from frontend.components.controls import address_state, choice, register_controls
from frontend.components.flat import flat
from frontend.components.frame import page_frame
from frontend.views import RuleView
from ingest.errors import RLVitalsError
from server.control.rule_settings import SCOPES, rule_settings
from server.engine.adjust import checked, rule_named
from server.engine.rule_state import RuleState, rule_states, states_of
from server.engine.settings import Place, change_rule, forget_rule
from server.queries.runs import RunSummary, run_summaries
from server.rules.base import Rule
from server.rules.document import rule_markdown, summary

PATH = "/rules/<name>"
TITLE = "Rule"
ORDER = 150

POLL_MILLISECONDS = 1000


def layout(service: Any, name: str = "", **query: str) -> Component:
    """The page for an address such as /rules/truncation?for=run:0123456789ab. Raises NoSuchPage for an unknown rule."""
    try:
        rule = rule_named(name)
    except RLVitalsError as error:
        raise NoSuchPage(str(error)) from None
    view = RuleView.from_query(query)
    runs = run_summaries(service.store)
    place = place_of(view.for_, runs)
    state = state_at(service, rule, place, runs)
    job = service.backtests.newest(rule.code)
    left = [_settings(state, view, place, runs), _backtest(job, len(runs)), flat(_hypotheses(rule))]
    body = html.Div([html.Div(left, className="incident-left"), flat(_text(rule))], className="incident rules-page")
    stores = [
        dcc.Store(id="rule-question", data={"rule": rule.code, "for": view.for_}),
        dcc.Interval(id="rule-tick", interval=POLL_MILLISECONDS, disabled=job is None or job.ended),
    ]
    sentence = html.P(summary(rule), className="incident-sentence")
    facts = html.Span(_facts(state), id="rule-facts", className="rules-facts")
    return page_frame(rule.name, facts, [sentence, body, *stores], crumbs=[("/rules", "Rules")])


def place_of(text: str, runs: Sequence[RunSummary]) -> Place:
    """The place that `for` in the address names; all runs where it names nothing that exists."""
    scope, _, target = text.partition(":")
    known = {"run": {run.run_id for run in runs}, "project": {run.project for run in runs}}.get(scope, set())
    return Place.of(scope, target) if target in known else Place()


def state_at(service: Any, rule: Rule, place: Place, runs: Sequence[RunSummary]) -> RuleState:
    """The rule as it stands at a place."""
    with service.control.session(write=False) as session:
        return next(one for one in rule_states(session, *_seen_from(place, runs)) if one.rule.code == rule.code)


def _seen_from(place: Place, runs: Sequence[RunSummary]) -> tuple[str | None, str | None]:
    """Run and project whose settings hold at a place."""
    if place.scope == "run":
        return place.target, next((run.project for run in runs if run.run_id == place.target), None)
    return None, place.target or None


def _facts(state: RuleState) -> list[Any]:
    rule, hits = state.rule, state.hits
    judged = f"{hits.useful} of {hits.judged} judged incidents useful" if hits.judged else "no incident judged yet"
    opened = f"{state.open_incidents} open incident{'s' if state.open_incidents != 1 else ''}"
    return [*parts.standing(state), html.Span(f"{rule.code} · family {rule.family} · version {rule.version} · {opened} · {judged}")]


def _settings(state: RuleState, view: RuleView, place: Place, runs: Sequence[RunSummary]) -> Component:
    projects = sorted({run.project for run in runs})
    places = [("project:" + name, f"project {name}") for name in projects]
    places += [("run:" + run.run_id, f"run {run.name}") for run in sorted(runs, key=lambda r: r.name)]
    head = html.Div(
        [
            html.H2("Parameters"),
            html.Span("hold from the next judged step on", className="rlv-facts"),
            html.Span(className="rlv-spring"),
            choice("rule", "for", "For", view.for_, places, anything="all runs", width=240),
        ],
        className="rlv-card-head",
    )
    return html.Section(
        [
            address_state("rule", view.to_query(), {"for": ""}),
            head,
            html.Div(_fields(state), id="rule-fields"),
            html.Div(
                [
                    html.Button("Save", id="rule-save", className="rlv-button is-main", n_clicks=0),
                    html.Button("Take back", id="rule-forget", className="rlv-button", n_clicks=0,
                                title=f"Takes back everything that is set for {place.words}"),
                    html.Span(id="rule-message", className="rlv-sub", role="status"),
                ],
                className="rlv-controls",
            ),
        ],
        className="rlv-box rlv-stack",
    )  # fmt: skip


def _fields(state: RuleState) -> list[Component]:
    small = {"allowDeselect": False, "size": "xs", "className": "rlv-control", "leftSectionWidth": 52, "w": 150}
    selects = [
        dmc.Select(id="rule-enabled", data=["on", "off"], value="on" if state.enabled else "off", leftSection="Judges", **small,
                   **{"aria-label": "Judges"}),
        dmc.Select(id="rule-status", data=["stable", "preview"], value=state.status, leftSection="Status", **small,
                   **{"aria-label": "Status"}),
    ]  # fmt: skip
    return [html.Div(selects, className="rlv-controls rules-selects"), html.Div(parts.param_table(state.params), className="rules-scroll")]


def _backtest(job: Any, runs: int) -> Component:
    head = html.Div([html.H2("Backtest"), html.Span("what it would have raised on the runs of this home", className="rlv-facts")])
    head.className = "rlv-card-head"
    buttons = [
        html.Button("Backtest these values", id="rule-backtest", className="rlv-button", n_clicks=0, disabled=not runs),
        html.Button("Cancel", id="rule-cancel", className="rlv-button", n_clicks=0, style=_shown(job is not None and not job.ended)),
        html.Span(id="rule-refused", className="rlv-sub", role="alert"),
    ]
    panel = html.Div([flat(html.Div(parts.backtest_panel(job, runs), className="rlv-stack"))], id="rule-result")
    return html.Section([head, html.Div(buttons, className="rlv-controls"), panel], className="rlv-box rlv-stack")


def _shown(yes: bool) -> dict[str, str]:
    return {} if yes else {"display": "none"}


def _hypotheses(rule: Rule) -> Component:
    text = markdown.sections(rule_markdown(rule))["Hypotheses"]
    head = html.Div([html.H2("Hypotheses"), html.Span("explanations that compete", className="rlv-facts")], className="rlv-card-head")
    return html.Section([head, *markdown.blocks(text)], className="rlv-box rules-text")


def _text(rule: Rule) -> Component:
    """The rule's page without what stands in tables of its own at the left."""
    found = markdown.sections(rule_markdown(rule))
    shown = [(name, body) for name, body in found.items() if name not in ("", "Parameters", "Hypotheses") and body]
    inner = [item for name, body in shown for item in (html.H3(name), *markdown.blocks(body))]
    head = html.Div([html.H2("How this rule works"), html.Span(f"rlvitals rules explain {rule.name}", className="rlv-mono")])
    head.className = "rlv-card-head"
    return html.Section([head, *inner], className="rlv-box rules-text")


def register(app: Dash, service: Any) -> None:
    """The choice of the place, saving, and the backtest with its progress."""
    register_controls(app, "rule")
    _register_settings(app, service)
    _register_backtest(app, service)


def _register_settings(app: Dash, service: Any) -> None:
    @app.callback(
        Output("rule-message", "children"), Output("rule-fields", "children"), Output("rule-facts", "children"),
        Input("rule-save", "n_clicks"), Input("rule-forget", "n_clicks"),
        State({"type": "rule-param", "name": ALL}, "value"), State({"type": "rule-param", "name": ALL}, "id"),
        State("rule-enabled", "value"), State("rule-status", "value"), State("rule-question", "data"),
        prevent_initial_call=True,
    )  # fmt: skip
    async def change(
        saved: int | None, forgotten: int | None, values: list[str], ids: list[Mapping[str, str]], enabled: str, status: str, about: Any
    ) -> Any:
        if not (saved or forgotten):
            raise PreventUpdate
        typed = {key["name"]: value for key, value in zip(ids, values, strict=True)}
        order = None if ctx.triggered_id == "rule-forget" else (typed, enabled == "on", status)
        try:
            words, state = await asyncio.to_thread(save, service, about, order)
        except RLVitalsError as error:
            return html.Span(str(error), role="alert", className="is-late"), no_update, no_update
        return words, _fields(state), _facts(state)


def save(service: Any, about: Mapping[str, str], order: tuple[Mapping[str, str], bool, str] | None) -> tuple[str, RuleState]:
    """Stores what differs from the wider scopes at the chosen place (None: takes everything back there).

    Raises:
        RLVitalsError: a value that cannot be.
    """
    rule, runs = rule_named(about["rule"]), run_summaries(service.store)
    place = place_of(about["for"], runs)
    with service.control.session() as session:
        if order is None:
            forget_rule(session, place, rule)
        else:
            typed, enabled, status = order
            values = checked(rule, typed)
            wide = [s for s in rule_settings(session) if SCOPES.index(s.scope) < SCOPES.index(place.scope)]
            around = next(one for one in states_of(wide, *_seen_from(place, runs), {}, {}) if one.rule.code == rule.code)
            params = {p.param.name: None if values[p.param.name] == p.value else values[p.param.name] for p in around.params}
            change_rule(
                session, place, rule, params,
                enabled=None if enabled == around.enabled else enabled, status=None if status == around.status else status,
            )  # fmt: skip
    run = next((run.name for run in runs if place.scope == "run" and run.run_id == place.target), None)
    where = f"run {run}" if run else place.words
    words = f"Nothing is set for {where} any more." if order is None else f"Saved for {where}; it holds from the next judged step on."
    return words, state_at(service, rule, place, runs)


def _register_backtest(app: Dash, service: Any) -> None:
    outputs = [Output("rule-result", "children"), Output("rule-tick", "disabled"), Output("rule-cancel", "style")]

    def drawn(code: str) -> list[Any]:
        job = service.backtests.newest(code)
        panel = parts.backtest_panel(job, len(run_summaries(service.store)))
        return [[flat(html.Div(panel, className="rlv-stack"))], job is None or job.ended, _shown(job is not None and not job.ended)]

    @app.callback(
        *outputs, Output("rule-refused", "children"), Input("rule-backtest", "n_clicks"),
        State({"type": "rule-param", "name": ALL}, "value"), State({"type": "rule-param", "name": ALL}, "id"),
        State("rule-question", "data"), prevent_initial_call=True,
    )  # fmt: skip
    async def begin(clicks: int | None, values: list[str], ids: list[Mapping[str, str]], about: Mapping[str, str]) -> Any:
        if not clicks:
            raise PreventUpdate
        typed = {key["name"]: value for key, value in zip(ids, values, strict=True)}
        try:
            await asyncio.to_thread(begin_backtest, service, about, typed)
        except RLVitalsError as error:
            return no_update, no_update, no_update, str(error)
        return *await asyncio.to_thread(drawn, about["rule"]), ""

    @app.callback(
        *(Output(o.component_id, o.component_property, allow_duplicate=True) for o in outputs),
        Input("rule-tick", "n_intervals"), Input("rule-cancel", "n_clicks"), State("rule-question", "data"), prevent_initial_call=True,
    )  # fmt: skip
    async def follow(_ticks: int | None, _clicks: int | None, about: Mapping[str, str]) -> Any:
        job = service.backtests.newest(about["rule"])
        if ctx.triggered_id == "rule-cancel" and job is not None:
            service.backtests.cancel(job.id)
        return await asyncio.to_thread(drawn, about["rule"])


def begin_backtest(service: Any, about: Mapping[str, str], typed: Mapping[str, str]) -> None:
    """Orders a replay over all runs; the typed values that differ from those in force are tried.

    Raises:
        RLVitalsError: a value that cannot be, or too many backtests that wait.
    """
    rule, runs = rule_named(about["rule"]), run_summaries(service.store)
    values = checked(rule, typed)
    state = state_at(service, rule, place_of(about["for"], runs), runs)
    tried = {p.param.name: values[p.param.name] for p in state.params if values[p.param.name] != p.value}
    service.backtests.submit([rule.code], {rule.code: tried} if tried else {})
