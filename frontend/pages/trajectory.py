"""One trajectory: its text, its tokens with every value, its group, and what surrounds it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from dash import ClientsideFunction, Dash, Input, Output, dcc, html
from dash.development.base_component import Component

from frontend.address import NoSuchPage, address
from frontend.components.flat import flat
from frontend.components.frame import page_frame
from frontend.components.how import tokens_sentence
from frontend.components.severity import chip
from frontend.components.spark import spark
from frontend.components.text import block, line, visible_line
from frontend.components.token_row import token_row
from frontend.components.words import number, signed
from frontend.ranges import parse_range
from frontend.views import TrajectoryView
from ingest.schema.records import Json
from server.queries.runs import RunSummary, run_summary
from server.queries.tokens import (
    Member,
    Neighbours,
    Occurrence,
    TokenArrays,
    Trajectory,
    Turn,
    first_at,
    group_members,
    neighbour_steps,
    same_prompt,
    summary,
    token_steps_near,
    trajectory,
    turns,
)

PATH = "/r/<run>/t/<place>"
TITLE = "Trajectory"
ORDER = 130

ROLLOUTS = "/r/<run>/rollouts"
_LONG = 1200


def layout(service: Any, run: str = "", place: str = "", **query: str) -> Component:
    """The page for an address. Raises NoSuchPage for an unknown run, step or number."""
    store = service.store
    found = run_summary(store, run)
    if found is None:
        raise NoSuchPage(f"There is no run {run}. The runs are listed under Runs.")
    step, n = _place(place)
    shown = trajectory(store, run, step, n)
    if shown is None:
        raise NoSuchPage(f"Run {found.name} has no trajectory {n} at step {step}. Its rollouts are under the tab Rollouts.")
    view = TrajectoryView.from_query(query)
    members = group_members(store, shown)
    tokens = next((member.tokens for member in members if member.n == n), None)
    spoken = turns(store, run, step, n)
    left: list[Any] = _token_part(found, shown, tokens, view, token_steps_near(store, run, step))
    left.append(flat(_texts(shown, spoken, view)))
    again = _same_prompt(shown, same_prompt(store, shown))
    around = (_group(shown, members), *_incidents(service, shown, tokens), _facts(shown, tokens), again)
    right = [flat(part) for part in around if part is not None]
    body = html.Div([html.Div(left, className="trajectory-left"), html.Div(right, className="trajectory-right")], className="trajectory")
    crumbs = [
        (address("/r/<run>", run=run), found.name),
        (address(ROLLOUTS, {"step": step}, run=run), f"step {step}"),
    ]
    if shown.group_id is not None:
        crumbs.append((address(ROLLOUTS, {"step": step, "group": shown.group_id}, run=run), shown.group_id))
    actions = [flat(html.Div(_actions(store, shown, members, neighbour_steps(store, shown)), className="rlv-buttons"))]
    return page_frame(visible_line(shown.trajectory_id or place), _headline(shown), [body], actions, crumbs)


def _place(place: str) -> tuple[int, int]:
    left, _, right = place.partition(".")
    try:
        return int(left), int(right or 0)
    except ValueError:
        raise NoSuchPage(f"{place} names no trajectory: an address ends in STEP.NUMBER, for example 95.0.") from None


def _headline(shown: Trajectory) -> str:
    parts = []
    if shown.reward is not None:
        parts.append(f"Reward {number(shown.reward)}")
    if shown.advantage is not None:
        parts.append(f"advantage {signed(shown.advantage)}")
    if shown.response_tokens is not None:
        parts.append(f"{shown.response_tokens:,} response tokens")
    if shown.policy_lag is not None:
        parts.append("fresh policy" if shown.policy_lag == 0 else f"{shown.policy_lag} version{'s' if shown.policy_lag != 1 else ''} old")
    if shown.truncated:
        parts.append("cut off by the length cap")
    return " · ".join(parts) or "No reward, advantage or length was written."


def _actions(store: Any, shown: Trajectory, members: Sequence[Member], near: Neighbours) -> list[Component]:
    copy = {"data-copy": "link", "data-key": "y"}
    made: list[Component] = [html.Span("Copy link", className="rlv-button is-subtle", role="button", tabIndex=0, **copy)]
    places = [member.n for member in members]
    position = places.index(shown.n) if shown.n in places else 0
    for key, neighbour in (("h", position - 1), ("l", position + 1)):
        if 0 <= neighbour < len(places):
            made.append(_button(key, f"Member {neighbour + 1}", _to(shown, shown.step, places[neighbour])))
    for key, step in (("[", near.before), ("]", near.after)):
        if step is not None:
            target = first_at(store, shown.run_id, step, tokens=shown.has_tokens, task=shown.task)
            if target is not None:
                made.append(_button(key, f"Step {step}", _to(shown, step, target)))
    return made


def _to(shown: Trajectory, step: int, n: int) -> str:
    return address(PATH, run=shown.run_id, place=f"{step}.{n}")


def _button(key: str, words: str, href: str) -> Component:
    return html.A([html.Code(key, className="rlv-kbd"), words], href=href, className="rlv-button rlv-go", **{"data-key": key})


def _token_part(run: RunSummary, shown: Trajectory, tokens: TokenArrays | None, view: TrajectoryView, near: Neighbours) -> list[Any]:
    if tokens is None or not tokens.count:
        sentence = tokens_sentence(run.framework, near.before, near.after)
        links = [
            html.A(f"Step {step} with tokens", href=address(ROLLOUTS, {"step": step, "tok": "yes"}, run=run.run_id), className="rlv-go")
            for step in (near.before, near.after)
            if step is not None
        ]
        return [flat(html.Section([html.P(sentence, className="tokens-missing"), *links], className="rlv-box tokens-none"))]
    return [
        dcc.Store(id="trajectory-question", data=question(shown, tokens, view)),
        html.Section(
            html.Div(html.Div(className="tok-waiting", **{"aria-hidden": "true"}), id="trajectory-map"), className="rlv-box tokens-panel"
        ),
    ]


def question(shown: Trajectory, tokens: TokenArrays, view: TrajectoryView) -> dict[str, Any]:
    """What the token map needs beside the arrays it fetches. tok: first and last marked index, or null."""
    low, high = parse_range(view.tok) or (None, None)
    last = tokens.count - 1
    marked = None if low is None and high is None else [int(max(0, low or 0)), int(min(last, last if high is None else high))]
    version = None if shown.policy_version_first is None else _versions(shown)
    return {
        "url": f"/api/v1/runs/{shown.run_id}/trajectories/{shown.step}/{shown.n}/tokens",
        "tok": marked if marked and marked[0] <= marked[1] else None,
        "color": view.color or None,
        "show": view.show if view.show in ("cells", "text", "raw") else None,
        "advantage": shown.advantage if shown.advantage is not None and math.isfinite(shown.advantage) else None,
        "finish": shown.finish_reason,
        "version": version,
    }


def _versions(shown: Trajectory) -> str:
    first, last = shown.policy_version_first, shown.policy_version_last
    span = str(first) if first == last else f"{first} to {last}"
    return f"{span}, lag {shown.policy_lag}" if shown.policy_lag is not None else span


def _texts(shown: Trajectory, spoken: Sequence[Turn], view: TrajectoryView) -> Component:
    parts: list[Any] = [html.H2("Prompt"), _text(shown.prompt)]
    if spoken:
        parts += [html.H2(["Turns ", html.Span(_turn_facts(spoken), className="rlv-facts")]), *(_turn(turn, view.turn) for turn in spoken)]
    else:
        parts += [html.H2("Response"), _text(shown.response)]
    return html.Section(parts, className="rlv-box trajectory-texts")


def _text(text: str | None) -> Component:
    if text is None:
        return html.P("Not written.", className="rlv-facts")
    return html.P("Empty.", className="rlv-facts") if text == "" else block(text)


def _turn_facts(spoken: Sequence[Turn]) -> str:
    calls = sum(1 for turn in spoken if turn.role == "tool" or (turn.tool_name and turn.role != "assistant"))
    errors = sum(1 for turn in spoken if turn.is_error)
    return f"{len(spoken)} turns, {calls} tool answers, {errors} errors"


def _turn(turn: Turn, marked: int) -> Component:
    facts = []
    if turn.tool_name:
        facts.append(html.Span([html.Code(visible_line(turn.tool_name)), " called" if turn.role == "assistant" else " answered"]))
    if turn.own_tokens is not None:
        facts.append(html.Span(f"{turn.own_tokens} tokens"))
    if turn.given_tokens is not None:
        facts.append(html.Span(f"{turn.given_tokens} given"))
    if turn.policy_version is not None:
        facts.append(html.Span(f"policy {turn.policy_version}"))
    if turn.seconds is not None:
        facts.append(html.Span(f"{number(turn.seconds)} s"))
    head = [html.B(line(turn.role or "no role")), html.Span(f"turn {turn.turn}", className="rlv-facts"), *facts]
    if turn.is_error:
        head.append(html.Span("error", className="rlv-chip is-warn"))
    content: list[Any] = [html.Div(head, className="turn-head")]
    if turn.content:
        content.append(block(turn.content))
    if turn.tool_args not in (None, {}, [], ""):
        arguments = block(json.dumps(turn.tool_args, ensure_ascii=False, indent=1))
        content.append(html.Div([html.Span("Arguments", className="rlv-facts"), arguments]))
    names = f"turn is-{turn.role if turn.role in ('assistant', 'tool', 'user', 'system') else 'other'}"
    return html.Div(content, className=names + (" is-marked" if turn.turn == marked else ""), id=f"turn-{turn.turn}")


def _group(shown: Trajectory, members: Sequence[Member]) -> Component:
    if shown.group_id is None:
        return html.Section([html.H2("Group"), html.P("This trajectory belongs to no group.", className="rlv-facts")], className="rlv-box")
    rewards = [m.reward for m in members if m.reward is not None and math.isfinite(m.reward)]
    facts = ""
    if rewards:
        mean = sum(rewards) / len(rewards)
        deviation = math.sqrt(sum((r - mean) ** 2 for r in rewards) / (len(rewards) - 1)) if len(rewards) > 1 else 0.0
        facts = f"mean {number(mean)} std {number(deviation)}"
    most = max((abs(m.advantage) for m in members if m.advantage is not None and math.isfinite(m.advantage)), default=0.0)
    coloured = any(member.tokens is not None for member in members)
    size = html.Span(f"{len(members)} members, same prompt", className="rlv-facts")
    named = [html.H2(["Group ", line(shown.group_id)]), size, html.Span(facts, className="rlv-facts rlv-push")]
    head = html.Div(named, className="rlv-card-head")
    words = ("#", "Response, coloured by Δ logprob" if coloured else "Response", "Rew.", "Advantage", "")
    titles = html.Div([html.Span(word) for word in words], className="member-row is-head")
    rows = [_member(index, member, shown, most) for index, member in enumerate(members, 1)]
    note = html.P(_group_note(shown, members), className="rlv-facts member-note")
    return html.Section([head, titles, *rows, note], className="rlv-box group-box")


def _group_note(shown: Trajectory, members: Sequence[Member]) -> str:
    different = len({member.response for member in members})
    own = next((index for index, member in enumerate(members, 1) if member.n == shown.n), 0)
    words = f"{different} of {len(members)} are different."
    if any(member.diverges_at is not None for member in members):
        return f"Line: first token that differs from member {own}. {words}"
    return words


def _member(index: int, member: Member, shown: Trajectory, most: float) -> Component:
    here = member.n == shown.n
    if member.tokens is not None:
        text: Any = token_row(member.tokens, member.diverges_at, member.finish_reason)
    else:
        text = html.Span(line(_shortened(member.response or "")), className="member-text")
    share = 0.0 if member.advantage is None or not most or not math.isfinite(member.advantage) else member.advantage / most
    place = {"left": f"{50 + min(0.0, share) * 50:.1f}%", "width": f"{max(2.0, abs(share) * 50):.1f}%"}
    bar = html.Span(html.Span(style=place, className="advantage-fill"), className="advantage-bar")
    reward = "–" if member.reward is None else number(member.reward)
    return html.A(
        [
            html.Span(str(index), className="member-number"), text, html.B(reward, className="num"), bar,
            html.Span("–" if member.advantage is None else signed(member.advantage), className="num"),
        ],
        href=_to(shown, member.step, member.n), className="member-row rlv-go" + (" is-here" if here else ""),
        **({"aria-current": "true"} if here else {}),
    )  # fmt: skip


def _shortened(text: str) -> str:
    """The start and the end: the answer stands at the end."""
    return text if len(text) <= 56 else f"{text[:28]} … {text[-24:]}"


def _incidents(service: Any, shown: Trajectory, tokens: TokenArrays | None) -> list[Component]:
    """The incidents of this run in whose steps the trajectory lies."""
    from server.control.incidents import incidents

    with service.control.session(write=False) as session:
        found = [
            i for i in incidents(session, shown.run_id) if i.onset_step <= shown.step and (i.status == "open" or shown.step <= i.last_step)
        ]
    if not found:
        return []
    order = {"critical": 0, "warn": 1, "watch": 2, "info": 3}
    rows: list[Any] = [html.Div(html.H2("Part of"), className="rlv-card-head")]
    for incident in sorted(found, key=lambda i: (order.get(i.severity, 9), i.onset_step))[:4]:
        link = dcc.Link("Open incident", href=f"/incidents/{incident.id}")
        named = f"{shown.step}.{shown.n}" in incident.body.get("trajectories", [])
        words = f"since step {incident.onset_step}" + (", one of its worst" if named else "")
        told = html.Span(words, className="rlv-facts")
        rows.append(html.Div([chip(incident.severity, incident.symptom), told, link], className="part-of"))
    sentence = _worst_sentence(tokens)
    return [html.Section([*rows, *([html.P(sentence)] if sentence else [])], className="rlv-box")]


def _worst_sentence(tokens: TokenArrays | None) -> str:
    """What the strongest difference means, in chances."""
    if tokens is None:
        return ""
    worst = summary(tokens).worst
    difference = tokens.differences()[worst[0]] if worst else None
    if difference is None or abs(difference) < 1:
        return ""
    times = math.exp(min(abs(difference), 40.0))
    if difference < 0:
        return f"At position {worst[0]} the trainer gives the token 1 in {number(times)} of the probability it was sampled with."
    return f"At position {worst[0]} the trainer gives the token {number(times)} times the probability it was sampled with."


def _facts(shown: Trajectory, tokens: TokenArrays | None) -> Component:
    rows: list[tuple[str, Any]] = []
    add = rows.append
    if shown.task or shown.difficulty:
        add(("Task, difficulty", ", ".join(part for part in (shown.task, shown.difficulty) if part)))
    if shown.split or shown.origin:
        add(("Split, origin", ", ".join(part for part in (shown.split, shown.origin) if part)))
    if shown.policy_version_first is not None:
        add(("Policy version", _versions(shown)))
    cap = (shown.sampling or {}).get("max_tokens")
    # With tools the cap counts for each turn, not for the whole answer.
    whole = isinstance(cap, int) and (shown.response_tokens or 0) <= cap
    if shown.finish_reason or shown.response_tokens is not None:
        length = "" if shown.response_tokens is None else f"{shown.response_tokens:,} tokens{f' of {cap}' if whole else ''}"
        add(("Finish reason", ", ".join(part for part in (shown.finish_reason, length) if part)))
    if shown.verifier_status or shown.verifier_seconds is not None:
        seconds = None if shown.verifier_seconds is None else f"{number(shown.verifier_seconds)} s"
        add(("Verifier", ", ".join(part for part in (shown.verifier_name, shown.verifier_version, shown.verifier_status, seconds) if part)))
    for name, value in (shown.reward_parts or {}).items():
        add((f"Reward, {name}", _plain(value)))
    if shown.failure_type:
        add(("Failure", shown.failure_type))
    if shown.kept is not None:
        add(("Kept for training", "yes" if shown.kept else f"no{f', {shown.drop_reason}' if shown.drop_reason else ''}"))
    if tokens is not None:
        told = summary(tokens)
        if told.mean_difference is not None:
            add(("Mean |Δ logprob|", f"{number(told.mean_difference)} over {told.compared} tokens"))
            add(("Tokens below ratio 0.5", f"{told.below_half} of {told.compared}"))
    for title, values in (("Sampling", shown.sampling), ("Seconds", shown.seconds), ("Also written", shown.extra)):
        if values:
            add((title, ", ".join(f"{key} {_plain(value)}" for key, value in values.items())))
    add(("Address", f"{shown.step}.{shown.n}, attempt {shown.attempt}"))
    body = [html.Div([html.Span(line(name)), html.B(line(value))], className="fact-row") for name, value in rows]
    return html.Section([html.Div(html.H2("Facts"), className="rlv-card-head"), *body], className="rlv-box")


def _plain(value: Json) -> str:
    if isinstance(value, float | int) and not isinstance(value, bool):
        return number(float(value))
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONG else f"{text[:_LONG]} … {len(text):,} characters"


def _same_prompt(shown: Trajectory, seen: Sequence[Occurrence]) -> Component | None:
    if not seen:
        return None
    head = html.Div(html.H2("Same prompt in this run"), className="rlv-card-head")
    if len(seen) == 1:
        return html.Section([head, html.P(f"Seen once, at step {seen[0].step}, {seen[0].n} rollouts.")], className="rlv-box")
    known = [(o.step, o.reward) for o in seen if o.reward is not None and math.isfinite(o.reward)]
    words = f"Seen at {len(seen)} steps, {seen[0].step} to {seen[-1].step}, {sum(o.n for o in seen)} rollouts."
    text = shown.prompt if len(shown.prompt or "") < 200 else ""
    places = [(o.step, address(ROLLOUTS, {"step": o.step, "q": text}, run=shown.run_id)) for o in seen[-6:]]
    links = [html.A(str(step), href=href, className="rlv-go") for step, href in places]
    body: list[Any] = [html.P(words)]
    if len(known) > 1:
        steps, rewards = [step for step, _ in known], [reward for _, reward in known]
        body.append(spark(steps, rewards, width=380, height=36, label="Mean reward of this prompt by step"))
        body.append(html.P(f"Mean reward {number(known[0][1])} at step {known[0][0]}, {number(known[-1][1])} at step {known[-1][0]}."))
    body.append(html.P([html.Span("Rollouts at step "), *[part for link in links for part in (link, html.Span(" "))]]))
    return html.Section([head, *body], className="rlv-box")


def register(app: Dash, service: Any) -> None:
    """The token map is mounted when its question is on the page."""
    app.clientside_callback(
        ClientsideFunction("rlv_pages", "tokens"), Output("trajectory-question", "storage_type"), Input("trajectory-question", "data")
    )
