"""Sources: which files were read, how far, how live they are, and every row that was not taken."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from dash import Dash, Input, Output, State, dcc, html
from dash.development.base_component import Component
from dash.exceptions import PreventUpdate

from frontend.address import address, query_of
from frontend.components import states
from frontend.components.frame import page_frame
from frontend.components.text import line, mono
from frontend.components.words import age, count
from frontend.views import SourcesView
from server.queries.sources import RejectReason, Source, reject_reasons, rejects, sources

PATH = "/sources"
TITLE = "Sources"
ORDER = 60

_REASONS_SHOWN = 3
_LATE_SECONDS = 60.0


def layout(service: Any, **query: str) -> Component:
    """The page; ?run= keeps one run, ?source= lists the rejected rows of one file."""
    view = SourcesView.from_query(query)
    return html.Div(body(service.store, view), id="sources-body")


def register(app: Dash, service: Any) -> None:
    """New rows and new files appear without a reload."""

    @app.callback(Output("sources-body", "children"), Input("live", "data"), State("url", "search"), prevent_initial_call=True)
    async def refresh(message: dict[str, Any] | None, search: str | None) -> Any:
        if not message or not (message["rows"] or message["sources"]):
            raise PreventUpdate
        return await asyncio.to_thread(body, service.store, SourcesView.from_query(query_of(search)))


def body(store: Any, view: SourcesView, now: float | None = None) -> list[Component]:
    """Everything below the top bar."""
    found = sources(store, view.run or None)
    if not found:
        return [page_frame("Sources", "nothing read yet", [_empty(view)])]
    reasons = reject_reasons(store, [s.source_id for s in found if s.rejected])
    runs = len({s.run_id for s in found})
    rejected = sum(s.rejected for s in found)
    facts = f"{count(len(found))} files of {count(runs)} runs · {count(sum(s.rows for s in found))} rows · {count(rejected)} rejected"
    parts: list[Component] = [_table(found, reasons, time.time() if now is None else now)]
    chosen = next((s for s in found if s.source_id == view.source), None)
    if chosen is not None:
        parts.insert(0, _rejected(store, chosen))
    return [page_frame("Sources", facts, parts)]


def _empty(view: SourcesView) -> Component:
    if view.run:
        return states.note("No file of this run is known. ", dcc.Link("All sources", href=PATH), title="No sources")
    return states.note(
        "No file was read yet. Read a folder once with ", states.command("rlvitals ingest PATH"), " or follow it with ",
        states.command("rlvitals serve --watch PATH"), ".", title="No sources yet",
    )  # fmt: skip


def _table(found: list[Source], reasons: list[RejectReason], now: float) -> Component:
    heads = [("Run", ""), ("File", ""), ("Reader", ""), ("Rows", "num"), ("Rejected", "num"), ("Newest step", "num"), ("How live", "")]
    head = html.Thead(html.Tr([html.Th(text, className=kind, scope="col") for text, kind in heads]))
    by_source: dict[int, list[RejectReason]] = {}
    for reason in reasons:
        by_source.setdefault(reason.source_id, []).append(reason)
    rows: list[Component] = []
    above: str | None = None
    for source in found:
        rows += _rows(source, by_source.get(source.source_id, []), now, named=source.run_id != above)
        above = source.run_id
    return html.Div(html.Table([head, html.Tbody(rows)], className="rlv-table is-wide"), className="rlv-box is-flush")


def _rows(source: Source, reasons: list[RejectReason], now: float, named: bool) -> list[Component]:
    """The rows of one file; named: with the run, which stands at its first file only."""
    rejected: Any = count(source.rejected)
    if source.rejected:
        rejected = dcc.Link(rejected, href=address(PATH, {"source": source.source_id}), className="is-alert")
    run = dcc.Link(html.B(line(source.run)), href=address("/r/<run>", run=source.run_id))
    cells = [
        html.Td([run, html.Div(line(source.project), className="rlv-sub")] if named else None),
        html.Td([mono(source.path), html.Div(line(source.note), className="rlv-sub") if source.note else None], className="is-path"),
        html.Td(source.reader),
        html.Td(f"{source.rows:,}", className="num"),
        html.Td(rejected, className="num"),
        html.Td("–" if source.newest_step is None else f"{source.newest_step:,}", className="num"),
        html.Td(html.Span(how_live(source, now), className="is-late" if is_late(source, now) else None)),
    ]
    more = [html.Tr([html.Td(), html.Td(_reason(reason), colSpan=6, className="is-reason")]) for reason in reasons[:_REASONS_SHOWN]]
    if len(reasons) > _REASONS_SHOWN:
        left = dcc.Link(f"{len(reasons) - _REASONS_SHOWN} further reasons", href=address(PATH, {"source": source.source_id}))
        more.append(html.Tr([html.Td(), html.Td(left, colSpan=6, className="is-reason")]))
    return [html.Tr(cells, className=None if named else "is-same"), *more]


def _reason(reason: RejectReason) -> list[Any]:
    where = f", first at line {reason.first_line:,}" if reason.first_line is not None else ""
    return [
        html.B(f"{reason.count:,} × "),
        line(reason.reason),
        where,
        html.Div(mono(reason.sample), className="rlv-sub") if reason.sample else None,
    ]


def how_live(source: Source, now: float) -> str:
    """How new this file's rows are. A file written at checkpoints is never stalled, only old."""
    old = age(now - source.updated)
    if source.state == "rejected":
        return "could not be read"
    if source.state != "followed":
        return f"read once, {old} ago"
    if source.growth == "whole":
        return f"written at checkpoints, newest step {old} old" if source.newest_step is not None else f"written as a whole, {old} ago"
    return f"followed, last row {old} ago"


def is_late(source: Source, now: float) -> bool:
    """True for a file that cannot be read, or a growing one that is silent for long."""
    silent = source.state == "followed" and source.growth == "append" and now - source.updated > _LATE_SECONDS
    return source.state == "rejected" or (silent and source.rows > 0 and source.newest_step is not None)


def _rejected(store: Any, source: Source) -> Component:
    found = rejects(store, source.source_id)
    head = html.Thead(
        html.Tr([html.Th("Line", className="num"), html.Th("Byte", className="num"), html.Th("Reason"), html.Th("Begins with")])
    )
    rows = [
        html.Tr(
            [
                html.Td("–" if r.line is None else f"{r.line:,}", className="num"),
                html.Td("–" if r.byte_offset is None else f"{r.byte_offset:,}", className="num"),
                html.Td(line(r.reason)),
                html.Td(mono(r.sample), className="is-path"),
            ]
        )
        for r in found
    ]
    shown = f"{len(found):,} of {source.rejected:,} rejected rows of "
    title = html.Div([html.H2([shown, mono(source.path)]), dcc.Link("Close", href=PATH)], className="rlv-box-head")
    return html.Div([title, html.Table([head, html.Tbody(rows)], className="rlv-table")], className="rlv-box")
