"""Parts of an incident's page: hypotheses with their verdicts, evidence, next checks, tables of slices and rollouts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dash import html
from dash.development.base_component import Component

from frontend.components.severity import VERDICTS, chip, preview_mark, verdict_chip
from frontend.components.spark import spark
from frontend.components.text import line, mono
from frontend.components.words import change, number, sentence, signed
from server.checks.base import SECOND_RUN
from server.queries.curves import Curve
from server.queries.incidents import Ranked
from server.queries.slices import SliceChange

_SAID = {"supported": "For", "refuted": "Against"}


def hypotheses_head() -> Component:
    """The heading above the hypotheses."""
    words = html.Span("ranked by verdict and weight of the checks", className="rlv-facts")
    return html.Div([html.H2("Hypotheses"), words], className="rlv-card-head")


def hypotheses(
    found: Sequence[Mapping[str, Any]], how: Callable[[Sequence[str]], str], before: Mapping[str, str] | None = None
) -> Component:
    """Every hypothesis in order of rank. how: the sentence that says how to log what a check misses.

    before: verdicts by id without the second run that these were tested with; None: they were tested with none.
    """
    ranked = sorted(found, key=lambda h: h.get("rank") or 99)
    rows = [_hypothesis(hypothesis, how, (before or {}).get(str(hypothesis["id"]))) for hypothesis in ranked]
    supported = next((i for i, h in enumerate(ranked) if h["verdict"] == "supported"), None)
    if supported is not None:
        rows[supported] = html.Div(rows[supported].children, className="hypothesis is-first-supported")
    return html.Div(rows or html.P("The rule of this symptom lists no hypotheses.", className="rlv-facts"))


def _hypothesis(hypothesis: Mapping[str, Any], how: Callable[[Sequence[str]], str], before: str | None) -> Component:
    verdict = str(hypothesis["verdict"])
    checks = list(hypothesis.get("checks") or [])
    title = html.Div([html.B(line(str(hypothesis["title"]))), html.Code(str(hypothesis["id"]))], className="hypothesis-title")
    lines = [_check(check, verdict) for check in checks if check.get("note") or check.get("observed")]
    missing = list(dict.fromkeys(name for check in checks for name in check.get("missing") or ()))
    logged = [name for name in missing if name != SECOND_RUN]
    if logged != missing:
        lines.append(html.P("Needs a second run: choose one above.", className="hypothesis-missing"))
    if logged:
        lines.append(html.P(f"Needs {how(logged)}", className="hypothesis-missing"))
    if not lines:
        lines.append(html.P(line(str(hypothesis.get("action") or "No check of it could be computed.")), className="hypothesis-missing"))
    was = html.Div(f"was {VERDICTS[before].lower()}", className="rlv-sub") if before not in (None, verdict) else None
    return html.Div(
        [
            html.Span(str(hypothesis.get("rank") or "–"), className="hypothesis-rank num"),
            html.Div([verdict_chip(verdict), was], className="hypothesis-verdict"),
            html.Div([title, *lines], className="hypothesis-text"),
        ],
        className="hypothesis",
    )


def _check(check: Mapping[str, Any], verdict: str) -> Component:
    """What a check saw; one that speaks against the verdict says so."""
    lead = f"{_SAID[check['verdict']]}: " if check["verdict"] in _SAID and check["verdict"] != verdict else ""
    values = observed(check.get("observed") or {})
    note = str(check.get("note") or "")
    text = sentence(f"{lead}{note}") if note else sentence(f"{lead}{values}")
    return html.P([html.Span(line(text)), html.Span([" ", line(values)], className="hypothesis-values") if note and values else None])


def observed(values: Mapping[str, Any]) -> str:
    """The figures of a check: names and values, without those that the run does not have."""
    known = {name.replace("_", " "): value for name, value in values.items() if value is not None}
    return ", ".join(f"{name} {number(value) if isinstance(value, float | int) else value}" for name, value in known.items())


def evidence(
    rows: Sequence[Mapping[str, Any]], curves: Mapping[str, Curve], titles: Mapping[str, str], scores: frozenset[str], onset: int
) -> Component:
    """One row a metric: before, after, change, number of points, its curve. scores: metrics whose change is a difference."""
    windows = {tuple(row["baseline_steps"]) for row in rows if row.get("baseline_steps")}
    facts = "" if len(windows) != 1 else f"steps {min(windows)[0]} to {min(windows)[1]} against those since {onset}"
    head = html.Div([html.H2("Evidence"), html.Span(facts, className="rlv-facts")], className="rlv-card-head")
    body = [_evidence_row(row, curves.get(str(row["metric"])), titles, scores, onset) for row in rows]
    names = ("Metric", "Before", "After", "Change", "n", "")
    header = html.Thead(html.Tr([html.Th(name, className="num" if 0 < place < 5 else "") for place, name in enumerate(names)]))
    return html.Section([head, html.Table([header, html.Tbody(body)], className="rlv-table")], className="rlv-box")


def _evidence_row(row: Mapping[str, Any], curve: Curve | None, titles: Mapping[str, str], scores: frozenset[str], onset: int) -> Component:
    metric = str(row["metric"])
    before, after = row.get("before"), row.get("after")
    name: list[Any] = [html.B(titles.get(metric, metric)), html.Div(mono(metric), className="rlv-sub")]
    if row.get("note"):
        name.append(html.Div(line(str(row["note"])), className="rlv-sub"))
    drawn = None if curve is None else spark(curve.steps.tolist(), curve.mean.tolist(), since=onset, width=84)
    steps = row.get("baseline_steps")
    against = f"baseline steps {steps[0]} to {steps[1]}" if steps else ""
    return html.Tr(
        [
            html.Td(name), html.Td(number(before), className="num"), html.Td(number(after), className="num"),
            html.Td(html.B(change(before, after, score=metric in scores)), className="num"),
            html.Td("–" if row.get("n") is None else str(row["n"]), className="num", title=against),
            html.Td(drawn),
        ]
    )  # fmt: skip


def next_checks(checks: Sequence[str]) -> Component:
    """What a person can do next."""
    items = html.Ol([html.Li(line(str(check))) for check in checks], className="next-checks")
    return html.Section([html.Div(html.H2("Next checks"), className="rlv-card-head"), items], className="rlv-box")


def absorbed(parts: Sequence[Mapping[str, Any]]) -> Component:
    """The symptoms of a joint collapse in order of onset."""
    rows = []
    for place, part in enumerate(sorted(parts, key=lambda p: p["onset_step"]), 1):
        steps = [html.Td(str(part[key]), className="num") for key in ("onset_step", "detected_step")]
        rows.append(html.Tr([html.Td(str(place)), html.Td(html.B(str(part["symptom"]))), *steps]))
    names = (("", ""), ("Symptom", ""), ("Onset", "num"), ("Detected", "num"))
    header = html.Thead(html.Tr([html.Th(name, className=kind) for name, kind in names]))
    head = html.Div([html.H2("Order of onset"), html.Span("what this incident joins", className="rlv-facts")], className="rlv-card-head")
    return html.Section([head, html.Table([header, html.Tbody(rows)], className="rlv-table")], className="rlv-box")


def slice_table(changes: Sequence[tuple[str, SliceChange, str]], measure: str, windows: str, link: str) -> Component:
    """Buckets before and after, largest change first. changes: dimension, the change, the address of its rollouts."""
    most = max((abs(c.value_after - c.value_before) for _, c, _ in changes), default=0.0)
    rows = []
    for dimension, change_, href in changes:
        difference = change_.value_after - change_.value_before
        bar = html.Span(html.Span(style={"width": f"{100 * abs(difference) / most if most else 0:.0f}%"}), className="slice-bar")
        rows.append(
            html.Tr(
                [
                    html.Td(html.A([f"{dimension} ", html.B(line(change_.bucket.label))], href=href, className="rlv-go")),
                    html.Td(f"{change_.n_before:,} / {change_.n_after:,}", className="num"),
                    html.Td(number(change_.value_before), className="num"), html.Td(number(change_.value_after), className="num"),
                    html.Td(html.B(signed(difference)), className="num"), html.Td(bar),
                ]
            )
        )  # fmt: skip
    names = (("Slice", ""), ("n", "num"), ("Before", "num"), ("After", "num"), ("Change", "num"), ("", ""))
    header = html.Thead(html.Tr([html.Th(name, className=kind) for name, kind in names]))
    head = html.Div(
        [
            html.H2(f"Slices, {measure}"), html.Span(windows, className="rlv-facts"),
            html.A("All slices", href=link, className="rlv-go rlv-end"),
        ],
        className="rlv-card-head",
    )  # fmt: skip
    return html.Section([head, html.Table([header, html.Tbody(rows)], className="rlv-table")], className="rlv-box")


def rollout_table(
    rows: Sequence[Ranked], value_title: str, chosen_by: str, link: str, all_words: str, place: Callable[[Ranked], str]
) -> Component:
    """The worst rollouts of the window, each a link to its tokens. value_title: empty for no column of its own."""
    body = [_rollout_row(row, bool(value_title), place(row)) for row in rows]
    names = [("Step", ""), ("Prompt", ""), ("Response", ""), ("Reward", "num"), ("Lag", "num")]
    names += [(value_title, "num")] if value_title else []
    header = html.Thead(html.Tr([html.Th(name, className=kind) for name, kind in names]))
    head = html.Div(
        [
            html.H2("Worst rollouts"), html.Span(chosen_by, className="rlv-facts"),
            html.A(all_words, href=link, className="rlv-go rlv-end"),
        ],
        className="rlv-card-head",
    )  # fmt: skip
    return html.Section([head, html.Table([header, html.Tbody(body)], className="rlv-table worst-table")], className="rlv-box")


def _rollout_row(row: Ranked, valued: bool, href: str) -> Component:
    found = row.rollout
    cells = [
        html.Td(html.A(f"{found.step}.{found.n}", href=href, className="rlv-go")),
        html.Td(line(_short(found.prompt)), className="is-text"),
        html.Td(line(_short(found.response)), className="is-text"),
        html.Td(number(found.reward), className="num"),
        html.Td("–" if found.policy_lag is None else str(found.policy_lag), className="num"),
    ]
    if valued:
        cells.append(html.Td(html.B(number(row.value)), className="num"))
    return html.Tr(cells)


def _short(text: str | None, most: int = 48) -> str:
    """The start and the end: the answer stands at the end."""
    if text is None:
        return "–"
    return text if len(text) <= most else f"{text[: most // 2]} … {text[-most // 2 + 3 :]}"


def bars(changes: Sequence[tuple[str, float, int]], unit: str, show: Callable[[float], str]) -> Component:
    """Horizontal bars: words, value, n."""
    most = max((abs(v) for _, v, _ in changes if math.isfinite(v)), default=0.0)
    rows = []
    for words, value, n in changes:
        share = abs(value) / most if most and math.isfinite(value) else 0.0
        bar = html.Span(style={"width": f"{max(0.5, 72 * share):.1f}%"}, className="bar-fill")
        track = html.Span([bar, html.B(show(value), className="num")], className="bar-track")
        counted = html.Span(f"n {n:,}", className="rlv-sub num")
        rows.append(html.Div([html.Span(line(words), className="bar-name"), track, counted], className="bar-row"))
    return html.Div([*rows, html.Div(unit, className="rlv-sub bar-unit")], className="bar-chart")


def state_words(incident: Any) -> str:
    """Open or recovered, and over which steps."""
    steps = f"step {incident.onset_step} to {incident.last_step}"
    return f"Open, {steps}" if incident.status == "open" else f"Recovered, {steps}"


def incident_row(incident: Any, run_name: str, href: str, run_href: str, when: str) -> Component:
    """One line of the list of incidents."""
    summary = html.Div(line(incident.summary), className="rlv-sub")
    first = min(incident.body.get("hypotheses") or [], key=lambda h: h.get("rank") or 99, default=None)
    told: list[Any] = []
    if first is not None:
        told = [verdict_chip(first["verdict"]), html.Span([" ", line(str(first["title"]))], className="rlv-sub-inline")]
    seen = " · acknowledged" if incident.acknowledged_at is not None else ""
    return html.Tr(
        [
            html.Td(chip(incident.severity)),
            html.Td([html.A(html.B(incident.symptom), href=href, className="rlv-go"), preview_mark(incident), summary]),
            html.Td(html.A(line(run_name), href=run_href, className="rlv-go")),
            html.Td(f"{incident.onset_step} to {incident.last_step}", className="num"),
            html.Td(told),
            html.Td(f"{incident.status}{seen}"),
            html.Td(when, className="num"),
        ]
    )
