"""Parts of the Rules pages: the list, the parameters, what a backtest found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import html
from dash.development.base_component import Component

from frontend.address import address
from frontend.components.severity import chip, status_chip
from frontend.components.text import line, mono
from server.backtests import BacktestJob
from server.engine.backtest import Backtest, Changes, Raised, RunResult, table
from server.engine.rule_state import ParamState, RuleState
from server.rules.base import SEVERITIES
from server.rules.document import summary
from server.symptoms import SYMPTOMS

_MOST_RUNS = 40


def value_words(value: float) -> str:
    """A parameter's value as it is typed."""
    return f"{value:g}"


def rule_table(states: Sequence[RuleState]) -> Component:
    """One row a rule."""
    heads = (("Rule", ""), ("What it observes", ""), ("Status", ""), ("Open now", "num"), ("Useful", "num"), ("Parameters", ""))
    head = html.Thead(html.Tr([html.Th(text, className=kind, scope="col") for text, kind in heads]))
    body = html.Tbody([_row(state) for state in states])
    return html.Section(html.Table([head, body], className="rlv-table is-wide rules-table"), className="rlv-box is-flush")


def _row(state: RuleState) -> Component:
    rule = state.rule
    href = address("/rules/<name>", name=rule.name)
    changed = [html.Div(f"{p.param.name} {value_words(p.value)}", className="is-alert") for p in state.changed]
    opened: Any = "0"
    if state.open_incidents:
        opened = html.A(str(state.open_incidents), href=address("/incidents"), className="rlv-go is-alert")
    count, title, said = len(rule.params), SYMPTOMS[rule.name].title, summary(rule)
    return html.Tr(
        [
            html.Td(
                [html.A(html.B(rule.name), href=href, className="rlv-go"), html.Div([rule.code, f" · {rule.family}"], className="rlv-sub")]
            ),
            html.Td([title, html.Div(said, className="rlv-sub") if said.rstrip(".") != title else None]),
            html.Td(html.Div(standing(state), className="rules-standing")),
            html.Td(opened, className="num"),
            html.Td(hit_words(state), className="num"),
            html.Td(changed or html.Span(f"{count} at default" if count else "none", className="rlv-sub")),
        ],
        className=None if state.enabled else "is-off",
    )


def standing(state: RuleState) -> list[Component]:
    """Preview or stable, and whether it is switched off."""
    chips = [status_chip(state.status)]
    if not state.enabled:
        chips.append(html.Span("off", className="rlv-chip is-not-checkable"))
    return chips


def hit_words(state: RuleState) -> str:
    """Useful incidents among those that were judged."""
    hits = state.hits
    return f"{hits.useful} of {hits.judged}" if hits.judged else "–"


def param_table(params: Sequence[ParamState]) -> Component:
    """Parameters with a field for each value; a changed one says by whom."""
    if not params:
        return html.P("This rule has no parameters.", className="rlv-sub")
    heads = (("Parameter", ""), ("In force", ""), ("Default", "num"), ("Range", ""), ("Unit", ""), ("Set by", ""), ("Source", ""))
    head = html.Thead(html.Tr([html.Th(text, className=kind, scope="col") for text, kind in heads]))
    return html.Table([head, html.Tbody([_param(param) for param in params])], className="rlv-table rules-params")


def _param(state: ParamState) -> Component:
    param = state.param
    field = dmc.TextInput(
        id={"type": "rule-param", "name": param.name}, value=value_words(state.value), size="xs", w=84, className="rlv-control",
        **{"aria-label": f"{param.name}, in force"},
    )  # fmt: skip
    return html.Tr(
        [
            html.Td([mono(param.name), html.Div(param.help, className="rlv-sub") if param.help else None]),
            html.Td(field),
            html.Td(value_words(param.default), className="num"),
            html.Td(f"{value_words(param.low)} to {value_words(param.high)}", className="rules-range"),
            html.Td(param.unit),
            html.Td(html.B(line(state.origin)) if state.origin != "default" else "default"),
            html.Td(param.source, className="rlv-sub"),
        ],
        className="is-chosen" if state.changed else None,
    )


def backtest_panel(job: BacktestJob | None, runs: int) -> list[Component]:
    """What the backtest of a rule says, or how far it is. runs: how many the home holds."""
    if job is None:
        if not runs:
            return [html.P("The home holds no runs to replay. Read one with rlvitals ingest PATH.", className="rlv-sub")]
        words = "Replays this rule alone over every run of the home, as it is and with the values above. Nothing is stored."
        return [html.P(words, className="rlv-sub")]
    if job.state == "waiting":
        return [html.P("Waits for another backtest.", role="status")]
    if job.state == "running":
        bar = html.Div(html.Span(style={"width": f"{100 * job.done / max(1, job.total):.0f}%"}), className="rules-progress")
        return [html.P(f"{job.done} of {job.total} runs replayed.", role="status"), bar]
    if job.state == "cancelled":
        return [html.P("The backtest was cancelled.", role="status")]
    if job.state == "failed" or job.result is None:
        return [html.P(job.error or "The backtest failed.", role="alert", className="is-late")]
    return _result(job.result)


def _result(done: Backtest) -> list[Component]:
    if not done.before:
        return [html.P("There is no run to replay.", role="status")]
    changes = {change.run_id: change for change in done.changes}
    after: list[RunResult | None] = list(done.after) if done.proposed else [None] * len(done.before)
    told = [(old, new, changes.get(old.run_id)) for old, new in zip(done.before, after, strict=True) if old.raised or old.run_id in changes]
    parts: list[Component] = [_numbers(done)]
    if told:
        tried = [f"With {_tried(done)}"] if done.proposed else []
        head = html.Thead(html.Tr([html.Th(text, scope="col") for text in ("Run", "As it is", *tried)]))
        body = html.Tbody([_run_row(*one) for one in told[:_MOST_RUNS]])
        parts.append(html.Table([head, body], className="rlv-table is-wide rules-backtest"))
    quiet = len(done.before) - len(told)
    rest = [f"{quiet} run{'s' if quiet != 1 else ''} stayed quiet."] if quiet else []
    rest += [f"{len(told) - _MOST_RUNS} more runs: rlvitals backtest lists them."] if len(told) > _MOST_RUNS else []
    rest += [f"{name} could not be replayed: {reason}." for name, reason in done.failed]
    return [*parts, html.P(" ".join(rest), className="rlv-sub")]


def _tried(done: Backtest) -> str:
    return ", ".join(f"{name} {value_words(value)}" for values in done.proposed.values() for name, value in values.items())


def _numbers(done: Backtest) -> Component:
    """Incidents by severity and their rate, before and after."""
    rows = [("As it is", table(done.rules, done.before)[0])]
    if done.proposed:
        rows.append((f"With {_tried(done)}", table(done.rules, done.after)[0]))
    labelled = bool(rows[0][1].quiet_steps)
    rate = ("False alarms", "Per 1,000 quiet steps") if labelled else ("Raised", "Per 1,000 steps")
    heads = [("", ""), *((name.capitalize(), "num") for name in SEVERITIES), ("Runs", "num"), *((name, "num") for name in rate)]
    head = html.Thead(html.Tr([html.Th(text, className=kind, scope="col") for text, kind in heads]))
    body = []
    for words, row in rows:
        counted = (row.false_alarms, row.false_per_1000) if labelled else (row.raised, row.raised_per_1000)
        cells = [*(str(row.levels[name]) for name in SEVERITIES), f"{row.runs} of {len(done.before)}", str(counted[0])]
        cells.append("–" if counted[1] is None else f"{counted[1]:.2f}")
        body.append(html.Tr([html.Td(html.B(words)), *(html.Td(cell, className="num") for cell in cells)]))
    return html.Table([head, html.Tbody(body)], className="rlv-table")


def _run_row(before: RunResult, after: RunResult | None, change: Changes | None) -> Component:
    run = html.A(html.B(line(before.name)), href=address("/r/<run>", run=before.run_id), className="rlv-go")
    span = "" if before.steps is None else f"steps {before.steps[0]:,} to {before.steps[1]:,}"
    label = {"feedback": ", healthy by feedback", "label": ", labelled"}.get(before.label or "", "")
    cells = [html.Td([run, html.Div(f"{span}{label}", className="rlv-sub")]), html.Td([_raised(one) for one in before.raised] or "quiet")]
    if after is not None:
        cells.append(html.Td(_change(change) if change is not None else html.Span("the same", className="rlv-sub")))
    return html.Tr(cells)


def _raised(one: Raised, note: str = "") -> Component:
    false = ", a false alarm" if one.false_alarm else ""
    where = f" in {one.slice}" if one.slice else ""
    return html.Div([chip(one.severity), html.Span([f" at step {one.step:,}", line(where), false, note])], className="rules-raised")


def _change(change: Changes) -> list[Component]:
    found = [_raised(one, ", gained") for one in change.gained]
    for old, new in change.moved:
        by = new.step - old.step
        moved = "" if not by else f", {abs(by)} step{'s' if abs(by) != 1 else ''} {'later' if by > 0 else 'earlier'}"
        found.append(_raised(new, moved + ("" if old.severity == new.severity else f", was {old.severity}")))
    found += [
        html.Div(
            [html.Span("lost", className="rlv-chip is-not-checkable"), f" {one.severity} at step {one.step:,}"], className="rules-raised"
        )
        for one in change.lost
    ]
    return found
