"""What the charts of a run's Overview are made of, for the first drawing and for live rows alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from frontend.components.severity import urgency
from frontend.components.words import change, number
from frontend.figures import curve as curves_figure
from frontend.figures.curve import Window, band_of
from frontend.figures.panels import Chosen, Line, Panel, choose
from frontend.theme import Scheme
from frontend.views import OverviewView
from ingest.schema.metrics import primary_eval
from server.queries.curves import Curve, curves, events, metrics_of, smoothed
from server.queries.runs import RunSummary, run_summary

SINGLE = "series"
"""Key of the chart of one chosen series."""


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
    panels: str
    """Charts and their numbers of lines; a page whose own differ draws itself anew."""

    @property
    def shown_steps(self) -> tuple[int, int]:
        """The steps of every chart."""
        return (self.view.from_ if self.view.from_ >= 0 else self.span[0], self.view.to if self.view.to >= 0 else self.span[1])


def read(service: Any, run: RunSummary, view: OverviewView, only: Sequence[str] | None = None) -> Drawn:
    """Curves and incidents of a run; only: keys of the charts that are asked for."""
    store = service.store
    logged = metrics_of(store, run.run_id)
    evaluation = primary_eval(logged)
    chosen, missing = choose(logged, evaluation)
    panels = ",".join(f"{c.panel.key}:{len(c.metrics)}" for c in chosen)
    if only is not None:
        chosen = [c for c in chosen if c.panel.key in only]
    names = [metric for c in chosen for _, metric in c.metrics]
    if view.s and (only is None or SINGLE in only):
        names.append(view.s)
    if evaluation and only is None:
        names.append(evaluation)
    found = _smoothed(curves(store, run.run_id, list(dict.fromkeys(names))), chosen, view.smooth)
    chosen = [c for c in chosen if any(metric in found for _, metric in c.metrics)]
    incidents = _incidents(service, run.run_id)
    window = _window(incidents, run.newest_step)
    first = min((int(c.steps[0]) for c in found.values()), default=0)
    newest = run.newest_step if run.newest_step is not None else max((int(c.steps[-1]) for c in found.values()), default=0)
    happened = _happened(service, run.run_id) if only is None else ()
    seams = tuple(sorted({int(old.steps[0]) for c in found.values() for old in c.superseded}))
    return Drawn(run, view, chosen, missing, found, incidents, window, seams, (first, max(newest, first + 1)), evaluation, happened, panels)


def _smoothed(found: Mapping[str, Curve], chosen: Sequence[Chosen], points: int) -> dict[str, Curve]:
    """The curves with their smoothed values; on a chart with a log axis of the logarithm."""
    if points <= 1:
        return dict(found)
    logged: set[str] = set()
    for item in chosen:
        names = [metric for _, metric in item.metrics if metric in found]
        if curves_figure.wants_log([found[name] for name in names]):
            logged.update(names)
    alone = found.keys() - {metric for item in chosen for _, metric in item.metrics}
    logged.update(name for name in alone if curves_figure.wants_log([found[name]]))
    weight = 1 - 1 / points
    return {name: replace(curve, smooth=smoothed(curve.mean, weight, name in logged)) for name, curve in found.items()}


def _incidents(service: Any, run_id: str) -> list[Any]:
    from server.control.incidents import open_incidents

    with service.control.session(write=False) as session:
        return sorted(open_incidents(session, run_id), key=urgency)


def _happened(service: Any, run_id: str) -> tuple[tuple[int, str, str], ...]:
    """Events that the trainer logged, and changes of the rules, each at the first step it counts for."""
    from server.control.incidents import rule_changes

    with service.control.session(write=False) as session:
        changed = [(int(note["step"]), "rule", str(note["text"])) for note in rule_changes(session, run_id)]
    logged = [(event.step, event.kind, event.text) for event in events(service.store, run_id)]
    return tuple(sorted([*logged, *changed]))


def _window(incidents: Sequence[Any], newest: int | None) -> Window | None:
    """The steps of the gravest incident, and the baseline of its evidence."""
    if not incidents:
        return None
    worst = incidents[0]
    rows = [row["baseline_steps"] for row in worst.body.get("evidence") or () if row.get("baseline_steps")]
    baseline = (int(rows[0][0]), int(rows[0][1])) if rows else None
    return Window(worst.onset_step, max(worst.last_step, worst.onset_step, newest or 0), baseline)


def onsets(drawn: Drawn) -> list[dict[str, Any]]:
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
            found.append(
                {
                    "title": title,
                    "step": step,
                    "before": band.median,
                    "after": band.after,
                    "score": chosen.panel.score,
                    "severity": worst.severity if step <= worst.onset_step else "warn",
                }
            )
    return found


def _left_band(curve: Curve, median: float, spread: float, window: Window) -> int | None:
    """The first of three values in a row outside the band, from shortly before the onset on."""
    from_step = window.baseline[1] + 1 if window.baseline else window.onset
    late = curve.since(min(from_step, window.onset))
    outside = np.abs(late.mean - median) > spread
    run = outside[:-2] & outside[1:-1] & outside[2:] if outside.size >= 3 else np.zeros(0, bool)
    hits = np.flatnonzero(run)
    return int(late.steps[hits[0]]) if hits.size else None


Parts = tuple[dict[str, Any], list[tuple[Line, Curve]], "float | None", "tuple[str, str] | None", str]


def chart_parts(drawn: Drawn, chosen: Chosen, scheme: Scheme, *, first: bool = False) -> Parts:
    """Figure, lines, newest value, change with its severity, and a note for the header. first: writes the onset's step."""
    lines = [(line, drawn.curves[metric]) for line, metric in chosen.metrics if metric in drawn.curves]
    lead = lines[0][1]
    band = band_of(lead, drawn.window)
    made = curves_figure.figure(
        lines, steps=drawn.shown_steps, window=drawn.window, band=band, seams=drawn.seams, scheme=scheme,
        label=first, key=chosen.panel.key,
    )  # fmt: skip
    moved = None
    if band is not None and band.outside and drawn.incidents:
        moved = (change(band.median, band.after, score=chosen.panel.score), drawn.incidents[0].severity)
    hidden = curves_figure.hidden_by_log([c for _, c in lines]) if made["layout"]["meta"]["log"] else 0
    bad = int(sum(c.nonfinite_steps.size for _, c in lines))
    note = ", ".join(text for text in (f"{hidden} at or below 0" if hidden else "", f"{bad} not finite" if bad else "") if text)
    return made, lines, lead.last, moved, note


def tails(service: Any, run_id: str, view: OverviewView, keys: Sequence[str], since: int, scheme: Scheme) -> dict[str, Any] | None:
    """For each chart the points from a step on, its shapes and header; `bin` tells a page whether its own bins still fit.

    None: there is no such run.
    """
    run = run_summary(service.store, run_id)
    if run is None:
        return None
    drawn = read(service, run, view, only=keys)
    answer: dict[str, Any] = {}
    for chosen in drawn.chosen:
        made, _, value, moved, _ = chart_parts(drawn, chosen, scheme)
        answer[chosen.panel.key] = _tail(made, since, value, moved)
    curve = drawn.curves.get(view.s) if view.s else None
    if curve is not None and SINGLE in keys:
        line = Line((view.s,), "main" if view.smooth > 1 else "plain", view.s)
        made = curves_figure.figure(
            [(line, curve)],
            steps=drawn.span,
            window=drawn.window,
            band=band_of(curve, drawn.window),
            seams=drawn.seams,
            scheme=scheme,
            key=SINGLE,
        )
        answer[SINGLE] = _tail(made, since, curve.last, None)
    return {"steps": list(drawn.span), "panels": drawn.panels, "charts": answer}


def _tail(made: Mapping[str, Any], since: int, value: float | None, moved: tuple[str, str] | None) -> dict[str, Any]:
    width = made["layout"]["meta"]["bin"]
    start = since // width * width
    shapes = [{k: v for k, v in shape.items() if k != "label"} for shape in made["layout"]["shapes"]]
    return {
        "from": start,
        "bin": width,
        "traces": curves_figure.tail(made, start),
        "shapes": shapes,
        "value": number(value),
        "moved": list(moved) if moved else None,
    }
