"""Slices of a run: one measure by length, policy lag or task and by step, and what changed inside each bucket."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dash import Dash, dcc, html
from dash.development.base_component import Component

from frontend import theme
from frontend.address import NoSuchPage, address
from frontend.components.controls import address_state, choice, register_controls
from frontend.components.flat import flat
from frontend.components.frame import run_frame
from frontend.components.heat_map import heat_map, legend, plain
from frontend.components.how import no_rollouts
from frontend.components.svg import severity_shape
from frontend.components.text import visible_line
from frontend.components.words import number, signed
from frontend.figures import slices as figures
from frontend.ranges import format_range
from frontend.views import SlicesView
from server.queries.rollouts import RolloutFacts, RolloutFilter, rollout_facts
from server.queries.runs import RunSummary, run_summary
from server.queries.slices import DIMENSIONS, MEASURES, Bucket, Measure, SliceChange, SliceGrid, slice_change, slice_grid

PATH = "/r/<run>/slices"
TITLE = "Slices"
ORDER = 110

ROLLOUTS = "/r/<run>/rollouts"
_DEFAULTS = SlicesView()
_BINS = ("1", "2", "5", "10", "20", "50", "100")
_LEAST_COMPARED = 20
_SEVERITIES = ("critical", "warn", "watch", "info")


@dataclass(frozen=True)
class Windows:
    """Steps compared, both inclusive; onset: step of the line, None where no incident is behind them."""

    before: tuple[int, int]
    after: tuple[int, int]
    onset: int | None
    incident_id: str | None = None
    symptom: str = ""
    severity: str = ""


def layout(service: Any, run: str = "", **query: str) -> Component:
    """The page for an address. Raises NoSuchPage for an unknown run."""
    store = service.store
    found = run_summary(store, run)
    if found is None:
        raise NoSuchPage(f"There is no run {run}. The runs are listed under Runs.")
    facts = rollout_facts(store, run)
    if facts.count == 0:
        return run_frame(found, "slices", [no_rollouts(found.framework)])
    view = _known(SlicesView.from_query(query))
    chosen = RolloutFilter(split=_split(view), task=view.task or None)
    grid = slice_grid(store, run, view.m, view.by, chosen, bin_steps=view.bin or None)
    windows = windows_of(service, found, view, facts)
    children: list[Any] = [address_state("slices", view.to_query(), _DEFAULT_QUERY), _controls(view, facts, grid)]
    if not grid.buckets or not grid.measured:
        children.append(_missing(grid))
        return run_frame(found, "slices", children)
    changes = slice_change(store, run, view.m, view.by, windows.before, windows.after, chosen, grid.buckets)
    children += [_map(found, view, grid, changes, windows), _lines(grid, windows), _reading(found, grid, changes, windows)]
    chip = [_chip(windows)] if windows.incident_id else []
    return run_frame(found, "slices", children, chip)


_DEFAULT_QUERY = {"m": "reward", "by": "length", "bin": "0", "task": "", "split": "train", "incident": ""}


def _known(view: SlicesView) -> SlicesView:
    """A wrong measure or dimension counts as the default."""
    return SlicesView(
        m=view.m if view.m in MEASURES else _DEFAULTS.m,
        by=view.by if view.by in DIMENSIONS else _DEFAULTS.by,
        bin=max(0, view.bin),
        task=view.task,
        split=view.split if view.split in ("train", "eval", "all") else _DEFAULTS.split,
        incident=view.incident,
    )


def _split(view: SlicesView) -> Any:
    return None if view.split == "all" else view.split


def windows_of(service: Any, run: RunSummary, view: SlicesView, facts: RolloutFacts) -> Windows:
    """What is compared: the windows of an incident, else the first against the last quarter of the run."""
    incident = _incident(service, run.run_id, view.incident)
    first, last = facts.first_step or 0, facts.last_step or 0
    if incident is None:
        quarter = max(1, (last - first + 1) // 4)
        return Windows((first, first + quarter - 1), (last - quarter + 1, last), None)
    onset = int(incident.onset_step)
    stated = [e["baseline_steps"] for e in incident.body.get("evidence", []) if e.get("baseline_steps")]
    before = (int(stated[0][0]), int(stated[0][1])) if stated else (max(first, onset - 50), max(first, onset - 1))
    end = last if incident.status == "open" else int(incident.last_step)
    start = min(max(onset, end - (before[1] - before[0])), end)
    return Windows(before, (start, end), onset, incident.id, incident.symptom, incident.severity)


def _incident(service: Any, run_id: str, wanted: str) -> Any:
    from server.control.incidents import incident, open_incidents

    with service.control.session(write=False) as session:
        if wanted:
            named = incident(session, wanted)
            if named is not None and named.run_id == run_id:
                return named
        found = open_incidents(session, run_id)
    order = {name: place for place, name in enumerate(_SEVERITIES)}
    return min(found, key=lambda i: (order.get(i.severity, 9), i.onset_step), default=None)


def shown(measure: Measure) -> Callable[[float], str]:
    """How values of a measure are written."""
    if measure.unit == "share":
        return lambda value: "–" if not math.isfinite(value) else f"{100 * value:.1f} %"
    return lambda value: "–" if not math.isfinite(value) else number(value)


def _controls(view: SlicesView, facts: RolloutFacts, grid: SliceGrid) -> Component:
    fields = [
        choice("slices", "m", "Metric", view.m, [(key, m.title) for key, m in MEASURES.items()], width=196),
        choice("slices", "by", "by", view.by, [(key, d.title) for key, d in DIMENSIONS.items()], width=160),
        choice("slices", "bin", "Step bin", str(view.bin), [("0", f"auto, {_width(grid)}"), *((b, b) for b in _BINS)], width=138),
    ]
    if len(facts.tasks) > 1 or view.task:
        every = f"all {len(facts.tasks)}"
        fields.append(choice("slices", "task", "Task", view.task, [(t, t) for t in facts.tasks], anything=every, width=140))
    if len(facts.splits) > 1 or view.split != "train":
        words = [("train", "train"), ("eval", "eval"), ("all", "train and eval")]
        fields.append(choice("slices", "split", "Split", view.split, words, width=140))
    counted = f" rollouts, {facts.steps:,} steps"
    counted += f", {grid.without_bucket:,} in no bucket" if grid.without_bucket else ", all counted"
    note = html.Span([html.B(f"{grid.count:,}", className="num"), counted], className="rlv-facts rlv-push")
    return html.Div([*fields, note], className="rlv-controls")


def _width(grid: SliceGrid) -> int:
    return grid.bins[0][1] - grid.bins[0][0] + 1 if grid.bins else 1


def _missing(grid: SliceGrid) -> Component:
    if not grid.count:
        return html.Div([html.P("No rollouts with this task and split. Choose another in the row above.")], className="rlv-note")
    what = grid.dimension if not grid.buckets else grid.measure
    title = what.title
    return html.Div(
        [html.P(f"{title} is not in these rollouts. It needs {what.needs}: a key of rollouts.jsonl, or another choice in the row above.")],
        className="rlv-note",
    )


def cell_link(run: RunSummary, view: SlicesView, grid: SliceGrid) -> Callable[[Bucket, tuple[int, int]], str]:
    """The address of the rollouts behind a cell, filtered as the cell is."""

    def link(bucket: Bucket, steps: tuple[int, int]) -> str:
        key = {"length": "len", "lag": "lag", "task": "task", "difficulty": "difficulty", "finish": "finish"}[grid.dimension.field]
        query: dict[str, object] = {"step": format_range(*steps), "task": view.task, "split": "" if view.split == "all" else view.split}
        if grid.measure.tokens:
            query["tok"] = "yes"
        query[key] = bucket.value if bucket.value is not None else format_range(bucket.low, bucket.high)
        return address(ROLLOUTS, query, run=run.run_id)

    return link


def _map(run: RunSummary, view: SlicesView, grid: SliceGrid, changes: Sequence[SliceChange], windows: Windows) -> Component:
    show = shown(grid.measure)
    before = [show(c.value_before) if windows.onset is not None and c.n_before else "" for c in changes]
    width = _width(grid)
    unit = "tokens a response, " if view.by == "length" else ""
    facts = f"{unit}each cell the mean of {width} step{'s' if width > 1 else ''}, number: rollouts it is of"
    title = f"{grid.measure.title} by {plain(grid.dimension.title)} and step"
    head = html.Div([html.B(title), html.Span(facts, className="rlv-facts"), legend(grid, show)], className="rlv-card-head")
    cells = heat_map(grid, show=show, link=cell_link(run, view, grid), onset=windows.onset, before=before)
    return flat(html.Section([head, html.Div([cells, _table(grid, changes, windows)], className="heat-pair")], className="rlv-box"))


def change_words(change: SliceChange, measure: Measure) -> str:
    """How the value of a bucket moved, or why that cannot be said."""
    if measure.key == "share":
        return f"{signed(100 * (change.share_after - change.share_before))} pts"
    if min(change.n_before, change.n_after) < _LEAST_COMPARED:
        return f"n under {_LEAST_COMPARED}"
    difference = change.value_after - change.value_before
    return f"{signed(100 * difference)} pts" if measure.unit == "share" else signed(difference)


def _table(grid: SliceGrid, changes: Sequence[SliceChange], windows: Windows) -> Component:
    most = max((max(c.share_before, c.share_after) for c in changes if math.isfinite(c.share_before + c.share_after)), default=0.0)
    head = html.Div(
        [
            html.Span(f"{windows.before[0]}–{windows.before[1]}"), html.Span("share"),
            html.Span(f"{windows.after[0]}–{windows.after[1]}"), html.Span(plain(grid.measure.title)),
        ],
        className="heat-change-head",
    )  # fmt: skip
    rows = []
    for change in reversed(changes):
        bars = [
            html.Span(className=name, style={"width": f"{100 * share / most if most and math.isfinite(share) else 0:.1f}%"})
            for name, share in (("bar-before", change.share_before), ("bar-after", change.share_after))
        ]
        words = change_words(change, grid.measure)
        faint = "" if words[0] in "+−0" else " is-faint"
        rows.append(
            html.Div(
                [
                    html.Span(_percent(change.share_before), className="num"), html.Span(bars, className="heat-bars"),
                    html.B(_percent(change.share_after), className="num"), html.B(words, className=f"num{faint}"),
                    html.Span(visible_line(change.bucket.label), className="heat-change-name"),
                ],
                className="heat-change",
                title=f"n {change.n_before:,} before, {change.n_after:,} after",
            )
        )  # fmt: skip
    return html.Div([head, *rows], className="heat-changes", **{"aria-label": "Buckets before and after"})


def _percent(share: float) -> str:
    return "–" if not math.isfinite(share) else f"{100 * share:.1f} %"


def _lines(grid: SliceGrid, windows: Windows) -> Component:
    scheme = theme.chosen()
    rows = figures.lines_of(grid)
    legend_ = [
        html.Span([html.Span(className=f"rlv-swatch is-{place + 1}"), visible_line(figures.name_of(grid, row))])
        for place, row in enumerate(rows)
    ]
    panels = []
    charts = [("value", grid.measure.title, f"{_unit(grid.measure)}gap where n is under {figures.LEAST_N}")]
    charts += [] if grid.measure.key == "share" else [("share", "Share of rollouts", _per_bin(grid))]
    for key, title, facts in charts:
        named = [html.B(title), html.Span(facts, className="rlv-facts"), html.Span(legend_, className="rlv-legend")]
        head = html.Div(named, className="rlv-card-head")
        figure = figures.bucket_lines(grid, key, rows, windows.onset, scheme)
        graph = dcc.Graph(
            id=f"slices-{key}", figure=figure, config={"displayModeBar": False, "responsive": True}, style={"height": "250px"}
        )
        label = f"{title} by {plain(grid.dimension.title)}"
        panels.append(html.Section([flat(head), graph], className="rlv-box", **{"aria-label": label}))
    return html.Div(panels, className="rlv-pair")


def _unit(measure: Measure) -> str:
    return f"{'%' if measure.unit == 'share' else measure.unit}, " if measure.unit else ""


def _per_bin(grid: SliceGrid) -> str:
    low, high = int(grid.total.min()), int(grid.total.max())
    return f"%, {low:,} rollouts a bin" if low == high else f"%, {low:,} to {high:,} rollouts a bin"


def reading(grid: SliceGrid, changes: Sequence[SliceChange]) -> tuple[str, str]:
    """Two sentences: where the mix moved, and whether the measure moved inside the buckets."""
    known = [c for c in changes if math.isfinite(c.share_before) and math.isfinite(c.share_after)]
    if not known:
        return "One of the two windows holds no rollouts, so nothing can be compared.", ""
    words = plain(grid.dimension.title)
    moved = max(known, key=lambda c: (round(abs(c.share_after - c.share_before), 9), c.share_after))
    first = (
        f"{grid.dimension.title} {visible_line(moved.bucket.label)} went from {100 * moved.share_before:.0f} % "
        f"to {100 * moved.share_after:.0f} % of rollouts."
    )
    comparable = [c for c in known if min(c.n_before, c.n_after) >= _LEAST_COMPARED]
    if grid.measure.key == "share":
        return first, ""
    if not comparable:
        return first, f"No bucket has n {_LEAST_COMPARED} on both sides, so the change inside one cannot be told."
    inside = sorted(comparable, key=lambda c: c.value_after - c.value_before)
    low_c, high_c = inside[0], inside[-1]
    show = change_words
    if len(inside) == 1:
        return first, f"Only {words} {visible_line(low_c.bucket.label)} can be compared: {show(low_c, grid.measure)}."
    second = (
        f"{grid.measure.title} moved by {show(low_c, grid.measure)} at {words} {visible_line(low_c.bucket.label)} "
        f"and by {show(high_c, grid.measure)} at {visible_line(high_c.bucket.label)}"
    )
    same = (low_c.value_after - low_c.value_before) * (high_c.value_after - high_c.value_before) > 0
    return first, second + (": every bucket moved the same way." if same else ": buckets moved apart, the mean alone hides that.")


def _reading(run: RunSummary, grid: SliceGrid, changes: Sequence[SliceChange], windows: Windows) -> Component:
    first, second = reading(grid, changes)
    window = f"steps {windows.before[0]} to {windows.before[1]} against {windows.after[0]} to {windows.after[1]}"
    link = [dcc.Link("Open incident", href=f"/incidents/{windows.incident_id}")] if windows.incident_id else []
    parts = [html.B("Reading"), html.Span(first), html.Span([second, f" {window.capitalize()}."], className="rlv-facts"), *link]
    return flat(html.Section(parts, className="rlv-box slices-reading"))


def _chip(windows: Windows) -> Component:
    return dcc.Link(
        [severity_shape(windows.severity), f"{windows.symptom} from {windows.onset}"],
        href=f"/incidents/{windows.incident_id}",
        className=f"rlv-chip is-{windows.severity}",
    )


def register(app: Dash, service: Any) -> None:
    """The selects write the address; the page is drawn from that."""
    register_controls(app, "slices")
