"""Pieces of the Overview: strip of families, incident card, chart card, event lane, list of series."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import dcc, html
from dash.development.base_component import Component

from frontend.address import address
from frontend.components.families import Cell
from frontend.components.severity import chip, preview_mark, verdict_chip
from frontend.components.svg import Shape, Svg, severity_shape
from frontend.components.text import line, mono, visible_line
from frontend.components.words import change, count, number, sentence
from ingest.schema.metrics import metric

GRAPH = {"displayModeBar": False, "responsive": True, "doubleClick": False, "showAxisDragHandles": False, "scrollZoom": False}


def strip_cells(cells: Sequence[Cell], run_id: str) -> Component:
    """The health strip; a cell opens what is known about it."""
    return html.Div([_cell(cell, run_id) for cell in cells], className="rlv-strip", role="list", **{"aria-label": "Symptom families"})


def _cell(cell: Cell, run_id: str) -> Component:
    inside = [
        html.Span([severity_shape(cell.severity, 11), html.Span(cell.family.title)], className="rlv-cell-name"),
        html.Span(cell.words, className="rlv-cell-words"),
    ]
    if cell.incident is not None:
        target: Component = dcc.Link(inside, href=address("/incidents/<id>", id=cell.incident.id), className=f"rlv-cell is-{cell.severity}")
    else:
        target = html.Button(inside, className=f"rlv-cell is-{cell.severity}", type="button")
    return dmc.HoverCard(
        [
            dmc.HoverCardTarget(html.Div(target, role="listitem")),
            dmc.HoverCardDropdown(html.Div(_about(cell, run_id), className="rlv-about")),
        ],
        width=300,
        openDelay=120,
        position="bottom-start",
        shadow="sm",
    )


def _about(cell: Cell, run_id: str) -> list[Any]:
    said: list[Any] = [html.B(cell.family.title)]
    if cell.incident is not None:
        said += [html.P([chip(cell.severity), " ", html.B(cell.incident.symptom)]), html.P(line(sentence(cell.incident.summary)))]
    elif cell.severity == "quiet":
        said.append(html.P(["Quiet. Judged: ", ", ".join(cell.family.symptoms), "."]))
    for symptom, missing, how in cell.reasons:
        said.append(html.P([html.B(symptom), " cannot be judged."]))
        if missing:
            said.append(html.P(["Missing: ", *[item for name in missing for item in (mono(name), " ")]]))
        if how:
            said.append(html.P(line(how)))
    return said


def incident_card(incident: Any, onsets: Sequence[Mapping[str, Any]], run_id: str, newest: int, main: bool = True) -> Component:
    """One open incident: what, since when, what explains it, and the way to its rollouts."""
    body = incident.body
    hypotheses = list(body.get("hypotheses") or [])
    opened = f"open, {count(max(0, newest - incident.onset_step))} steps, first seen at step {incident.detected_step}"
    text = [
        html.Div(
            [chip(incident.severity), html.B(incident.symptom), preview_mark(incident), html.Span(opened, className="rlv-sub-inline")],
            className="rlv-incident-head",
        ),
        html.P(line(sentence(incident.summary)), className="rlv-sentence"),
        *_verdicts(hypotheses),
    ]
    steps = f"{incident.onset_step}-{max(incident.last_step, incident.onset_step)}"
    actions = [
        dcc.Link(
            "See the rollouts",
            href=address("/r/<run>/rollouts", {"step": steps}, run=run_id),
            className="rlv-button is-main" if main else "rlv-button",
        ),
        dcc.Link("Open incident", href=address("/incidents/<id>", id=incident.id), className="rlv-button"),
    ]
    folded = list(body.get("absorbed") or [])
    if folded:
        actions.append(html.Span(f"{len(folded)} related findings folded in", className="rlv-sub"))
    parts = [html.Div(text, className="rlv-incident-text")]
    drawn = onset_order(onsets, incident.onset_step, newest)
    if drawn is not None:
        parts.append(drawn)
    return html.Div([*parts, html.Div(actions, className="rlv-incident-actions")], className=f"rlv-box rlv-incident is-{incident.severity}")


def _verdicts(hypotheses: Sequence[Mapping[str, Any]]) -> list[Component]:
    if not hypotheses:
        return []
    first = min(hypotheses, key=lambda h: h.get("rank") or 99)
    told: dict[str, int] = {}
    for other in hypotheses:
        if other is not first:
            told[other["verdict"]] = told.get(other["verdict"], 0) + 1
    rest = ", ".join(f"{n} {verdict.replace('_', ' ')}" for verdict, n in told.items())
    return [
        html.Div(
            [verdict_chip(first["verdict"]), html.Span(line(str(first["title"]))), html.Code(first["id"], className="rlv-sub-inline")],
            className="rlv-incident-head",
        ),
        html.Div(rest, className="rlv-sub"),
    ]


def onset_order(onsets: Sequence[Mapping[str, Any]], first: int, newest: int) -> Component | None:
    """Which metric left its band when, in order, with the size of the change. onsets: title, step, before, after, score, severity."""
    shown = sorted(onsets, key=lambda o: o["step"])[:6]
    if not shown:
        return None
    low = min(o["step"] for o in shown) - 2
    high = max(max(o["step"] for o in shown) + 6, min(newest, low + 16))
    width, left, right, row = 620.0, 150.0, 110.0, 17.0
    scale = (width - left - right) / max(1, high - low)
    shapes: list[Shape] = []
    height = row * len(shown)
    every = max(1, round((high - low) / 8))
    for step in range(low, high + 1, every):
        x = left + (step - low) * scale
        shapes.append(["line", {"x1": x, "x2": x, "y1": 0, "y2": height, "className": "onset-grid"}])
        shapes.append(["text", {"x": x, "y": height + 13, "textAnchor": "middle", "className": "onset-step"}, str(step)])
    for index, onset in enumerate(shown):
        y, x = index * row, left + (onset["step"] - low) * scale
        style = f"onset-{onset['severity']}"
        shapes.append(
            [
                "text",
                {"x": left - 8, "y": y + 12, "textAnchor": "end", "className": "onset-name" + (" is-first" if index == 0 else "")},
                onset["title"],
            ]
        )
        shapes.append(["rect", {"x": x, "y": y + 5, "width": round(width - right - x, 1), "height": 7, "className": f"onset-bar {style}"}])
        shapes.append(["rect", {"x": x, "y": y + 2, "width": 2.5, "height": 13, "className": f"onset-mark {style}"}])
        moved = change(onset["before"], onset["after"], score=onset["score"])
        shapes.append(["text", {"x": width - right + 60, "y": y + 12, "textAnchor": "end", "className": "onset-change"}, moved])
    shapes.append(["text", {"x": left - 8, "y": height + 13, "textAnchor": "end", "className": "onset-step"}, "step"])
    label = "Order of onset: " + ", ".join(f"{o['title']} at step {o['step']}" for o in shown)
    return html.Div(
        [html.Div("Order of onset and size of change", className="rlv-sub"), Svg(shapes, width, height + 18, label=label)],
        className="rlv-onsets",
    )


def chart_card(
    key: str,
    title: str,
    unit: str,
    figure: Mapping[str, Any],
    labels: Sequence[str],
    value: float | None,
    moved: tuple[str, str] | None,
    note: str = "",
    large: bool = False,
) -> Component:
    """A chart with its header. labels: legend where there is more than one line; moved: change and its severity."""
    swatches = [
        html.Span([html.I(className=f"rlv-swatch is-{i + 1}"), visible_line(label)], className="rlv-key") for i, label in enumerate(labels)
    ]
    kind = ", ".join(part for part in (unit, "log" if figure["layout"]["meta"]["log"] else "", note) if part)
    head = html.Div(
        [
            html.B(title, className="rlv-chart-title"),
            html.Span(kind, className="rlv-chart-unit"),
            *(swatches if len(labels) > 1 else ()),
            html.Span(className="rlv-spring"),
            html.Span(moved[0] if moved else "", className=f"rlv-chart-change is-{moved[1] if moved else 'quiet'}"),
            html.B(number(value), className="rlv-chart-value num", **{"data-last": number(value)}),
        ],
        className="rlv-chart-head",
    )
    said = f"{title}, {kind}. Last value {number(value)}." + (f" Change {moved[0]}." if moved else "")
    graph = dcc.Graph(id={"page": "overview", "chart": key}, figure=figure, config=GRAPH, className="rlv-graph", responsive=True)
    body = html.Div(
        [graph, html.Div(className="rlv-hair"), html.Div(className="rlv-ring")], className="rlv-plot", role="img", **{"aria-label": said}
    )
    return html.Div([head, body], className="rlv-box rlv-chart" + (" is-large" if large else ""), **{"data-chart": key})


def lane(
    marks: Sequence[tuple[int, str, str]], evaluations: Sequence[int], happened: Sequence[tuple[int, str, str]], first: int, last: int
) -> Component:
    """What happened at which step. marks: step, severity, text; happened: step, kind, text."""
    span = max(1, last - first)

    def at(step: int) -> dict[str, str]:
        return {"left": f"{100 * (step - first) / span:.2f}%"}

    rows: list[Any] = []
    if marks:
        rows.append(
            (
                "Incidents",
                [
                    html.Span(
                        [severity_shape(s, 12), html.Span(text)],
                        className="rlv-lane-mark" + (" is-left" if step - first > 0.8 * span else ""),
                        style=at(step),
                    )
                    for step, s, text in marks
                ],
            )
        )
    if evaluations:
        few = evaluations[:: max(1, len(evaluations) // 80)]
        rows.append(
            ("Evaluations", [html.Span(className="rlv-lane-eval", style=at(step), title=f"evaluation at step {step}") for step in few])
        )
    if happened:
        rows.append(
            (
                "Events",
                [
                    html.Span(
                        [html.I(), html.Span(visible_line(kind))],
                        className="rlv-lane-event",
                        style=at(step),
                        title=f"step {step}: {visible_line(text)}",
                    )
                    for step, kind, text in happened
                ],
            )
        )
    ticks = sorted({first + round(span * i / 6) for i in range(7)})
    rows.append(("Step", [html.Span(f"{step:,}", className="rlv-lane-tick", style=at(step)) for step in ticks]))
    drawn = [
        html.Div([html.Span(name, className="rlv-lane-name"), html.Div(items, className="rlv-lane-track")], className="rlv-lane-row")
        for name, items in rows
    ]
    pill = html.Div(
        [html.Span(className="rlv-lane-name"), html.Div(html.Span(className="rlv-pill"), className="rlv-lane-track")],
        className="rlv-lane-row rlv-lane-over",
    )
    return html.Div([*drawn, pill], className="rlv-box rlv-lane", **{"data-first": str(first), "data-last": str(last)})


def _meaning(row: Any) -> Any:
    known = metric(row.metric) if row.metric else None
    if known is None:
        return html.Span("unknown key, kept as it is", className="rlv-sub-inline")
    return [known.title, " ", mono(row.metric)] if row.metric != row.key else known.title


def series_table(rows: Sequence[Any], chosen: str, query: Mapping[str, Any], run_id: str, most: int = 25) -> Component:
    """The series that fit the text, each a link that draws it. rows: SeriesInfo."""
    if not rows:
        return html.P("No series fits this text. Clear the field to see all of them.", className="rlv-sub")
    heads = html.Thead(
        html.Tr(
            [
                html.Th("Logged as"),
                html.Th("Metric"),
                html.Th("Unit"),
                html.Th("Points", className="num"),
                html.Th("Newest step", className="num"),
                html.Th("Newest value", className="num"),
            ]
        )
    )
    body = [
        html.Tr(
            [
                html.Td(dcc.Link(mono(row.key), href=address("/r/<run>", {**query, "s": row.key}, run=run_id))),
                html.Td(_meaning(row)),
                html.Td(row.unit or ""),
                html.Td(f"{row.points:,}", className="num"),
                html.Td("–" if row.last_step is None else f"{row.last_step:,}", className="num"),
                html.Td(number(row.last_value), className="num"),
            ],
            className="is-chosen" if row.key == chosen else None,
        )
        for row in rows[:most]
    ]
    more = html.P(f"{len(rows) - most} more: type to narrow the list.", className="rlv-sub") if len(rows) > most else None
    return html.Div([html.Table([heads, html.Tbody(body)], className="rlv-table"), more])
