"""One incident: what was seen, what may explain it, what speaks for and against, and the way to the rollouts behind it."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dash import ClientsideFunction, Dash, Input, Output, State, dcc, html
from dash.development.base_component import Component
from dash.exceptions import PreventUpdate

from frontend import theme
from frontend.address import NoSuchPage, address
from frontend.components import incident as parts
from frontend.components import markdown
from frontend.components.explanations import explanations, register_explanations
from frontend.components.feedback import feedback_buttons, register_feedback
from frontend.components.flat import flat
from frontend.components.frame import page_frame
from frontend.components.heat_map import plain
from frontend.components.severity import chip, preview_mark
from frontend.components.text import line, mono
from frontend.components.words import age, change, number, sentence
from frontend.figures import incident as figures
from frontend.ranges import format_range
from frontend.views import IncidentView
from ingest.errors import SettingsError
from ingest.schema.metrics import metric as metric_of
from server.control.incidents import Incident, acknowledge
from server.control.incidents import incident as read_incident
from server.engine.adjust import rule_named
from server.queries.curves import Curve, curves
from server.queries.incidents import Ranked, Worst, derived_curve, named_rollouts, worst_rollouts
from server.queries.rollouts import RolloutFacts, RolloutFilter, count_rollouts, rollout_facts
from server.queries.runs import RunSummary, run_summary
from server.queries.slices import DIMENSIONS, MEASURES, SliceChange, slice_change
from server.rules.document import rule_markdown

PATH = "/incidents/<incident>"
TITLE = "Incident"
ORDER = 140

ROLLOUTS = "/r/<run>/rollouts"
_SMOOTHING = 0.8
_BESIDE = ("lag.policy.mean", "reward.mean")
_MOST_SLICES = 6
_LEAST_SLICE = 20
_SCORES = frozenset({"reward.mean", "reward.generated.mean", "value.explained_var"})

_WORST: dict[str, Worst] = {
    "staleness-harm": "difference", "engine-mismatch": "difference", "clip-while-on-policy": "difference", "spike": "difference",
    "length-growth": "length", "truncation": "length", "repetition": "length", "entropy-explosion": "length",
    "verifier-fault": "verifier", "advantage-or-mask-fault": "advantage",
}  # fmt: skip
_CHOSEN_BY: dict[str, tuple[str, str]] = {
    "difference": ("Max |Δ|", "largest |Δ logprob| of one token"),
    "length": ("Tokens", "longest"),
    "verifier": ("Verifier s", "slowest verifier"),
    "advantage": ("Advantage", "largest |advantage|"),
    "reward": ("", "lowest reward"),
}
# Which measure by which dimension shows a symptom's cause most directly.
_DRAWN: dict[str, tuple[str, str]] = {
    "staleness-harm": ("mismatch", "lag"), "engine-mismatch": ("mismatch", "lag"), "length-growth": ("reward", "length"),
    "truncation": ("truncated", "task"), "verifier-fault": ("fault", "task"), "zero-variance-groups": ("zero", "task"),
    "reward-drop": ("reward", "task"), "joint-collapse": ("reward", "task"), "eval-not-following-reward": ("reward", "length"),
    "entropy-collapse": ("reward", "task"), "advantage-or-mask-fault": ("advantage", "length"),
}  # fmt: skip


@dataclass(frozen=True)
class Spans:
    """Steps before (the baseline of the evidence) and after (since the onset), both inclusive."""

    before: tuple[int, int]
    after: tuple[int, int]

    @property
    def words(self) -> str:
        """For a heading."""
        return f"steps {self.before[0]} to {self.before[1]} against {self.after[0]} to {self.after[1]}"


def layout(service: Any, incident: str = "", **query: str) -> Component:
    """The page for an address. Raises NoSuchPage for an unknown incident."""
    with service.control.session(write=False) as session:
        found = read_incident(session, incident)
    if found is None:
        raise NoSuchPage(f"There is no incident {incident}. Open ones are listed under Incidents.")
    run = run_summary(service.store, found.run_id)
    if run is None:
        raise NoSuchPage(f"The run {found.run_id} of this incident is not in the store any more.")
    facts = rollout_facts(service.store, run.run_id)
    spans = spans_of(found, run)
    drawn = _curves(service.store, found)
    left = [_observation(found, run, drawn, spans)]
    if facts.count:
        left.append(_tables(service.store, found, run, facts, spans))
        check = _check_drawn(service.store, found, run, spans)
        left += [flat(check)] if check is not None else []
    else:
        why = "No rollouts were read for this run, so slices and single answers cannot be shown. The tab Rollouts says how to log them."
        left.append(html.Div(html.P(why), className="rlv-box"))
    right = _right(service, found, run, drawn, IncidentView.from_query(query))
    body = html.Div([html.Div(left, className="incident-left"), html.Div(right, className="incident-right")], className="incident")
    summary = html.P(line(sentence(found.summary)), className="incident-sentence")
    news = html.Span(id="incident-news", className="rlv-newer", role="status")
    crumbs = [(address("/r/<run>", run=run.run_id), run.name)]
    read = count_rollouts(service.store, run.run_id, RolloutFilter(step=(found.onset_step, found.last_step), tokens=True))
    return page_frame(found.symptom, _state(found), [news, summary, body], _actions(found, run, with_tokens=read > 0), crumbs)


def spans_of(incident: Incident, run: RunSummary) -> Spans:
    """The windows compared: the baseline the rule used, and everything since the onset (a recovered one ends where it ended)."""
    stated = [row["baseline_steps"] for row in incident.body.get("evidence") or () if row.get("baseline_steps")]
    onset = incident.onset_step
    before = (int(stated[0][0]), int(stated[0][1])) if stated else (max(0, onset - 30), max(0, onset - 1))
    newest = run.newest_step if run.newest_step is not None else incident.last_step
    last = max(onset, newest if incident.status == "open" else incident.last_step)
    return Spans(before, (onset, last))


def _state(incident: Incident) -> list[Any]:
    words = [html.Span(parts.state_words(incident), className="incident-state")]
    if incident.slice:
        words.append(html.Span(["slice ", html.B(line(incident.slice))]))
    if incident.attempt > 1:
        words.append(html.Span(f"attempt {incident.attempt}"))
    return [chip(incident.severity), preview_mark(incident), *words]


def _actions(incident: Incident, run: RunSummary, *, with_tokens: bool) -> list[Any]:
    steps = format_range(incident.onset_step, incident.last_step)
    links = [
        html.Span("Copy link", className="rlv-button is-subtle", role="button", tabIndex=0, **{"data-copy": "link", "data-key": "y"}),
        _go("Rollouts", address(ROLLOUTS, {"step": steps}, run=run.run_id)),
        _go("Slices", address("/r/<run>/slices", {"incident": incident.id}, run=run.run_id)),
    ]
    if with_tokens:
        links.insert(2, _go("With tokens", address(ROLLOUTS, {"step": steps, "tok": "yes"}, run=run.run_id)))
    buttons = flat(html.Div(links, className="rlv-buttons"))
    judged = html.Span(feedback_buttons(incident), id="incident-feedback", className="rlv-segments")
    return [
        buttons,
        judged,
        html.Span(acknowledgement(incident), id="incident-acknowledged"),
        dcc.Store(id="incident-id", data=incident.id),
    ]


def _go(text: str, href: str) -> Component:
    return html.A(text, href=href, className="rlv-button rlv-go")


def acknowledgement(incident: Incident, now: float | None = None) -> Any:
    """The button, or since when somebody has seen it."""
    if incident.acknowledged_at is None:
        return html.Button("Acknowledge", id="incident-acknowledge", className="rlv-button is-main", n_clicks=0, **{"data-key": "a"})
    ago = age(max(0.0, (time.time() if now is None else now) - incident.acknowledged_at))
    return html.Span(f"Acknowledged {ago} ago", className="incident-state", id="incident-acknowledge")


def _curves(store: Any, incident: Incident) -> dict[str, Curve]:
    """Curves of the incident's metric, its evidence and what is drawn beside it."""
    wanted = list(dict.fromkeys([*([incident.metric] if incident.metric else []), *_evidence_metrics(incident), *_BESIDE]))
    found = curves(store, incident.run_id, wanted, weight=_SMOOTHING)
    if incident.metric and incident.metric not in found:
        derived = derived_curve(store, incident.run_id, incident.metric, (incident.attempt, incident.onset_step), weight=_SMOOTHING)
        if derived is not None:
            found[incident.metric] = derived
    return found


def _evidence_metrics(incident: Incident) -> list[str]:
    return [str(row["metric"]) for row in incident.body.get("evidence") or ()]


def title_of(metric: str) -> str:
    """A metric's name; a fact or unknown key in words made from its id."""
    known = metric_of(metric)
    if known is not None:
        return known.title
    text = metric.removeprefix("fact.").replace(".", " ").replace("_", " ").strip()
    return text[:1].upper() + text[1:]


def _observation(incident: Incident, run: RunSummary, drawn: Mapping[str, Curve], spans: Spans) -> Component:
    main = incident.metric if incident.metric in drawn else next((m for m in _evidence_metrics(incident) if m in drawn), None)
    head: list[Any] = [html.H2("Observation")]
    if main is None:
        what = incident.metric or "The metric of this incident"
        why = f"{what} has no curve of its own: the rule derived it from the rollouts. The evidence at the right has its values."
        return html.Section([html.Div(head, className="rlv-card-head"), html.P(why, className="rlv-facts")], className="rlv-box")
    shown = drawn[main]
    window = figures.window_of(incident, spans.before, spans.after)
    steps = figures.step_range(drawn.values(), run.newest_step)
    made = figures.observation(shown, title_of(main), window, steps, incident.steps_by_severity, theme.chosen())
    log = ", log scale" if made["layout"]["meta"]["log"] else ""
    head += [html.B(title_of(main)), mono(main), html.Span(f"{shown.steps.size:,} steps{log}", className="rlv-facts")]
    read = html.P(_reading(shown, spans), className="incident-reading")
    blocks: list[Any] = [flat(html.Div([html.Div(head, className="rlv-card-head"), read]))]
    blocks.append(_graph("incident-main", made, 212))
    beside = [m for m in (*_BESIDE, *_evidence_metrics(incident)) if m in drawn and m != main]
    for place, metric in enumerate(list(dict.fromkeys(beside))[:2]):
        small = figures.observation(drawn[metric], title_of(metric), window, steps, {}, theme.chosen(), small=True)
        blocks.append(html.Div([title_of(metric), " ", mono(metric)], className="incident-small-title"))
        blocks.append(_graph(f"incident-small-{place}", small, 76))
    return html.Section(blocks, className="rlv-box")


def _graph(name: str, figure: Mapping[str, Any], height: int) -> Component:
    return dcc.Graph(id=name, figure=figure, config={"displayModeBar": False, "responsive": True}, style={"height": f"{height}px"})


def _reading(curve: Curve, spans: Spans) -> str:
    """Medians of both windows in words."""
    before, after = (figures.median_of(curve, *span) for span in (spans.before, spans.after))
    first = f"Baseline, steps {spans.before[0]} to {spans.before[1]}, median {number(before)}."
    score = (curve.metric or "") in _SCORES or (curve.metric or "").startswith("eval.")
    moved = change(before, after, score=score)
    second = f"Steps {spans.after[0]} to {spans.after[1]}, median {number(after)}, {moved}."
    return f"{first} {second}"


def _tables(store: Any, incident: Incident, run: RunSummary, facts: RolloutFacts, spans: Spans) -> Component:
    return html.Div([flat(_slices(store, incident, run, facts, spans)), flat(_worst(store, incident, run, spans))], className="rlv-pair")


def slice_changes(store: Any, run_id: str, facts: RolloutFacts, spans: Spans) -> list[tuple[str, SliceChange]]:
    """Reward of every bucket of four dimensions, both windows filled, largest change first."""
    found: list[tuple[str, SliceChange]] = []
    present = {"task": len(facts.tasks) > 1, "difficulty": len(facts.difficulties) > 1, "length": facts.length is not None}
    for name in (name for name, several in present.items() if several):
        changes = slice_change(store, run_id, "reward", name, spans.before, spans.after, RolloutFilter(split="train"))
        found += [(name, c) for c in changes if min(c.n_before, c.n_after) >= _LEAST_SLICE]
    known = [item for item in found if math.isfinite(item[1].value_after - item[1].value_before)]
    return sorted(known, key=lambda item: -abs(item[1].value_after - item[1].value_before))


def _slices(store: Any, incident: Incident, run: RunSummary, facts: RolloutFacts, spans: Spans) -> Component:
    all_slices = address("/r/<run>/slices", {"incident": incident.id}, run=run.run_id)
    changes = slice_changes(store, run.run_id, facts, spans)[:_MOST_SLICES] if facts.reward is not None else []
    if not changes:
        why = "No bucket has 20 rollouts with a reward in both windows." if facts.reward is not None else "These rollouts hold no reward."
        return html.Section(
            [
                html.Div([html.H2("Slices"), html.A("All slices", href=all_slices, className="rlv-go rlv-end")], className="rlv-card-head"),
                html.P(why, className="rlv-facts"),
            ],
            className="rlv-box",
        )
    rows = [(name, c, _slice_link(run, name, c, spans)) for name, c in changes]
    return parts.slice_table(rows, "reward", "before and after", all_slices)


def _slice_link(run: RunSummary, name: str, change_: SliceChange, spans: Spans) -> str:
    key = {"length": "len", "lag": "lag"}.get(name, name)
    bucket = change_.bucket
    value = bucket.value if bucket.value is not None else format_range(bucket.low, bucket.high)
    return address(ROLLOUTS, {"step": format_range(*spans.after), key: value, "split": "train"}, run=run.run_id)


def _worst(store: Any, incident: Incident, run: RunSummary, spans: Spans) -> Component:
    by: Worst = _WORST.get(incident.symptom, "reward")
    named = list(incident.body.get("trajectories") or ())
    rows: Sequence[Ranked] = named_rollouts(store, run.run_id, named[:8], by)
    title, chosen = _CHOSEN_BY[by]
    if rows:
        chosen = "named by the rule"
        title = title if any(row.value is not None for row in rows) else ""
    else:
        rows = worst_rollouts(store, run.run_id, spans.after, by)
        if not rows:
            rows, (title, chosen) = worst_rollouts(store, run.run_id, spans.after, "reward"), _CHOSEN_BY["reward"]
    total = count_rollouts(store, run.run_id, RolloutFilter(step=spans.after))
    link = address(ROLLOUTS, {"step": format_range(*spans.after)}, run=run.run_id)

    def place(row: Ranked) -> str:
        return address("/r/<run>/t/<place>", run=run.run_id, place=f"{row.rollout.step}.{row.rollout.n}")

    return parts.rollout_table(rows, title, chosen, link, f"All {total:,}", place)


def _check_drawn(store: Any, incident: Incident, run: RunSummary, spans: Spans) -> Component | None:
    """The measure behind the symptom by the dimension that separates its causes, over baseline and window together."""
    pair = _DRAWN.get(incident.symptom)
    if pair is None:
        return None
    measure, by = MEASURES[pair[0]], DIMENSIONS[pair[1]]
    whole = (min(spans.before[0], spans.after[0]), spans.after[1])
    changes = slice_change(store, run.run_id, measure.key, by.key, spans.before, spans.after, RolloutFilter(split="train"))
    rows = []
    for c in changes:
        n = c.n_before + c.n_after
        if not n:
            continue
        known = [(v, k) for v, k in ((c.value_before, c.n_before), (c.value_after, c.n_after)) if k and math.isfinite(v)]
        rows.append((c.bucket.label, sum(v * k for v, k in known) / n, n))
    if len(rows) < 2:
        return None
    share = measure.unit == "share"
    total = sum(n for _, _, n in rows)
    head = html.Div(
        [
            html.H2(f"{measure.title} by {plain(by.title)}"),
            html.Span(f"{total:,} rollouts, steps {whole[0]} to {whole[1]}", className="rlv-facts"),
        ],
        className="rlv-card-head",
    )
    unit = f"{plain(by.title)}: mean {plain(measure.title)}{', %' if share else f', {measure.unit}' if measure.unit else ''}"
    return html.Section([head, parts.bars(rows, unit, (lambda v: f"{100 * v:.1f} %") if share else number)], className="rlv-box")


def _right(service: Any, incident: Incident, run: RunSummary, drawn: Mapping[str, Curve], view: IncidentView) -> list[Component]:
    body = incident.body
    rows = list(body.get("evidence") or ())
    scores = _SCORES | {m for m in _evidence_metrics(incident) if m.startswith(("eval.", "reward."))}
    above = [flat(parts.absorbed(body["absorbed"]))] if body.get("absorbed") else []
    made: list[Component] = []
    titles = {metric: title_of(metric) for metric in _evidence_metrics(incident)}
    if rows:
        made.append(parts.evidence(rows, drawn, titles, frozenset(scores), incident.onset_step))
    if body.get("next_checks"):
        made.append(parts.next_checks(body["next_checks"]))
    notes = [html.P(line(sentence(str(note)))) for note in body.get("notes") or ()]
    reached = ", ".join(f"{name} at step {step}" for name, step in sorted(incident.steps_by_severity.items(), key=lambda item: item[1]))
    raised = f"Rule {incident.rule_code}, version {incident.rule_version}. Severity: {reached or incident.severity}."
    changed = (incident.body.get("rule") or {}).get("changed") or {}
    if changed:
        raised += f" Found with changed parameters: {', '.join(f'{name} {value:g}' for name, value in changed.items())}."
    origin = html.P(raised, className="rlv-facts")
    made.append(html.Section([html.Div(html.H2("How it was raised"), className="rlv-card-head"), *notes, origin], className="rlv-box"))
    return [*above, explanations(service, incident, run, view.baseline), *(flat(part) for part in made), *_rule(incident)]


def _rule(incident: Incident) -> list[Component]:
    """How the rule works, folded: the same text as on its page."""
    try:
        rule = rule_named(incident.rule_code)
    except SettingsError:
        return []  # found by a rule that this program does not have any more
    page = html.A("Parameters and backtest", href=address("/rules/<name>", name=rule.name), className="rlv-go rlv-end")
    text = html.Div([page, *markdown.blocks(markdown.without_title(rule_markdown(rule)))], className="rules-text")
    return [html.Details([html.Summary("How this rule works"), flat(text)], className="rlv-box rules-fold")]


def register(app: Dash, service: Any) -> None:
    """Acknowledge: stored, and told to every open page. News of the incident is announced, not drawn under the reader."""
    register_feedback(app, service)
    register_explanations(app, service)
    app.clientside_callback(
        ClientsideFunction("rlv_pages", "changed"),
        Output("incident-news", "children"),
        Input("live", "data"),
        State("incident-id", "data"),
    )

    @app.callback(
        Output("incident-acknowledged", "children"),
        Input("incident-acknowledge", "n_clicks"),
        State("incident-id", "data"),
        prevent_initial_call=True,
    )
    async def press(clicks: int | None, incident_id: str) -> Any:
        if not clicks:
            raise PreventUpdate
        return await asyncio.to_thread(acknowledged, service, incident_id)


def acknowledged(service: Any, incident_id: str) -> Any:
    """Notes that a person has seen the incident; what stands in place of the button."""
    with service.control.session() as session:
        found = acknowledge(session, incident_id)
    if found is None:
        return html.Span("This incident is not there any more. Reload the page.", role="alert")
    message = {"type": "incident", "run_id": found.run_id, "incident_id": found.id, "kind": "incident.acknowledged"}
    service.hub.publish(message)
    return acknowledgement(found)
