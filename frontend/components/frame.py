"""What stands around the content of a page: top bar, page header, run header with tabs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import dcc, html
from dash.development.base_component import Component

from frontend.components.svg import Svg
from frontend.components.text import visible_line
from frontend.components.words import age, count, seconds
from server.queries.runs import RunSummary

TABS: tuple[tuple[str, str, str], ...] = (
    ("overview", "Overview", "/r/{}"),
    ("slices", "Slices", "/r/{}/slices"),
    ("rollouts", "Rollouts", "/r/{}/rollouts"),
)

_BRAND = (
    ("rect", {"x": 1, "y": 1, "width": 18, "height": 18, "rx": 5, "className": "brand-box"}),
    ("path", {"d": "M4 10.5h2.6l2-5 3 9.5 2-6 .9 1.5H16", "className": "brand-line"}),
)
_SUN = (
    ("circle", {"cx": 8, "cy": 8, "r": 6, "className": "stroke-current"}),
    ("path", {"d": "M8 2a6 6 0 0 1 0 12z", "className": "fill-current"}),
)

Children = Sequence[Any]


def _demo_banner() -> Component:
    """What a newcomer must know: these runs are not theirs and go away, and how theirs are read."""
    return html.Span(
        [
            html.Span("Demo: recorded runs, gone when it stops. ", className="rlv-demo-what"),
            "Your own run: ",
            html.Code("rlvitals serve --watch FOLDER"),
        ],
        className="rlv-demo",
    )


def top_bar(pages: Sequence[tuple[str, str]], current: str, open_incidents: int, demo: bool) -> list[Component]:
    """Brand, the pages that exist (address, title), theme switch, help."""
    links = [
        dcc.Link(
            [title, html.Span(count(open_incidents), className="rlv-count") if path == "/incidents" and open_incidents else None],
            href=path,
            className="rlv-nav" + (" is-here" if path == current else ""),
        )
        for path, title in pages
    ]
    return [
        dcc.Link([Svg(_BRAND, 20, 20), html.Span("RLVitals")], href="/runs", className="rlv-brand"),
        html.Nav(links, className="rlv-navs", **{"aria-label": "Pages"}),
        html.Span(className="rlv-spring"),
        _demo_banner() if demo else html.Span(),
        html.Span(id="rlv-connection", className="rlv-connection", role="status"),
        dmc.ColorSchemeToggle(
            lightIcon=Svg(_SUN, 16, 16),
            darkIcon=Svg(_SUN, 16, 16),
            variant="default",
            size=28,
            radius="md",
            **{"aria-label": "Light or dark"},
        ),
        _help(),
    ]


def _help() -> Component:
    rows = [
        ("/runs", "all runs"), ("/r/RUN", "one run: strip, incidents, curves"), ("/r/RUN/slices", "metric by length, lag, task"),
        ("/r/RUN/rollouts", "its answers, filtered"), ("/incidents/ID", "one incident with its evidence"),
        ("/rules", "every rule, its parameters, backtest"), ("/sources", "what was read, and what was not"), ("/api/docs", "the API"),
    ]  # fmt: skip
    table = html.Table([html.Tbody([html.Tr([html.Td(html.Code(a)), html.Td(b)]) for a, b in rows])], className="rlv-table")
    words = [
        html.P("Everything you see has an address that can be pasted into chat."),
        table,
        html.P(
            "Curves: move to read every chart at one step, click for the rollouts of that step, drag to zoom all, double click to reset."
        ),
    ]
    return dmc.HoverCard(
        [
            dmc.HoverCardTarget(html.Button("?", className="rlv-icon-button", **{"aria-label": "Help"})),
            dmc.HoverCardDropdown(html.Div(words, className="rlv-help")),
        ],
        width=420, position="bottom-end", openDelay=0,
    )  # fmt: skip


def page_frame(title: str, facts: Any, children: Children, actions: Children = (), crumbs: Sequence[tuple[str, str]] = ()) -> Component:
    """A page that belongs to no run: title, one line of facts, actions at the right. crumbs: (address, text) before the title."""
    above = [item for path, text in crumbs for item in (dcc.Link(visible_line(text), href=path), html.Span("/", className="rlv-slash"))]
    head = html.Div(
        [html.Div([*above, html.H1(title), html.Span(facts, className="rlv-facts")], className="rlv-head-line")], className="rlv-head-text"
    )
    return html.Div(
        [
            html.Header([head, html.Div(list(actions), className="rlv-head-actions")], className="rlv-head"),
            html.Main(list(children), className="rlv-main"),
        ]
    )


def run_frame(run: RunSummary, tab: str, children: Children, chips: Children = ()) -> Component:
    """A page of one run: name, state, newest step and its age, tabs. tab: a key of TABS. chips: beside the state."""
    name = html.H1(html.Bdi(visible_line(run.name)))
    project = html.Bdi(visible_line(run.project), className="rlv-project")
    tabs = [
        dcc.Link(title, href=path.format(run.run_id), className="rlv-tab" + (" is-here" if key == tab else "")) for key, title, path in TABS
    ]
    return html.Div(
        [
            html.Header(
                [
                    html.Div(
                        [
                            html.Div(
                                [project, html.Span("/", className="rlv-slash"), name, html.Span(id="run-state"), *chips],
                                className="rlv-head-line",
                            ),
                            html.Div(id="run-facts", className="rlv-facts"),
                        ],
                        className="rlv-head-text",
                    ),
                    html.Nav(tabs, className="rlv-tabs", **{"aria-label": "Views of this run"}),
                ],
                className="rlv-head rlv-head-run",
            ),
            dcc.Store(id="run-id", data=run.run_id),
            html.Main(list(children), className="rlv-main"),
        ],
        **{"data-run": run.run_id},
    )


def state_chip(run: RunSummary) -> Component:
    """Running, stalled or finished: shape, word, colour."""
    shape = {"running": "is-running", "stalled": "is-stalled", "finished": "is-finished"}[run.state]
    return html.Span([html.Span(className="rlv-state-dot"), run.state.capitalize()], className=f"rlv-state {shape}")


def run_facts(run: RunSummary, attempts: int, now: float | None = None) -> list[Any]:
    """The line below a run's name."""
    moment = time.time() if now is None else now
    facts: list[Any] = []
    if run.newest_step is None:
        facts.append("No step read yet")
    else:
        of = f" of {count(run.planned_steps)}" if run.planned_steps and run.newest_step <= run.planned_steps else ""
        facts.append(html.Span(["Step ", html.B(count(run.newest_step), className="num"), of]))
    facts.append(last_step(run, moment))
    if run.tokens is not None:
        facts.append(f"{count(run.tokens)} tokens")
    facts.append(
        ", ".join(
            part
            for part in (visible_line(run.algorithm or "").upper(), f"{run.framework} {visible_line(run.framework_version or 'files')}")
            if part
        )
    )
    facts.append(f"attempt {attempts}")
    return [item for fact in facts for item in (fact, html.Span(" · ", className="rlv-dot"))][:-1]


def last_step(run: RunSummary, now: float) -> Component:
    """How old the newest step is, against what is usual for this run."""
    usual = f", usual step {seconds(run.usual_step_seconds)}" if run.usual_step_seconds else ""
    if run.freshness == "read once":
        return html.Span(f"read once, not followed{usual}")
    moved = html.B(age(now - run.last_step_at), className="rlv-age", **{"data-at": str(run.last_step_at)})
    if run.freshness == "checkpoints":
        return html.Span(["written at checkpoints, newest step ", moved, " old"])
    return html.Span(["last step ", moved, f" ago{usual}"], className="is-late" if run.state == "stalled" else None)
