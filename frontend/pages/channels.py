"""Channels: where messages about incidents go, a test with the answer shown, and the log of what was sent."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import ALL, Dash, Input, Output, State, ctx, dcc, html, no_update
from dash.development.base_component import Component
from dash.exceptions import PreventUpdate

from frontend.address import address
from frontend.components import states
from frontend.components.frame import page_frame
from frontend.components.severity import chip
from frontend.components.text import line, mono
from frontend.components.words import age, seconds
from ingest.errors import RLVitalsError
from server.notify.channels import Channel, Delivery, add_channel, ask_for_previews, channels, delete_channel, deliveries, switch_channel
from server.notify.trial import Trial, send_sample

PATH = "/channels"
TITLE = "Channels"
ORDER = 50

_KINDS = (("slack", "Slack"), ("webhook", "Signed webhook"))
_KIND_WORDS = dict(_KINDS)
_SEVERITIES = ("info", "watch", "warn", "critical")
_EVENT_WORDS = {"incident.opened": "opened", "incident.updated": "changed", "incident.resolved": "recovered", "channel.test": "test"}
_LOG_LENGTH = 50


def layout(service: Any, **_query: str) -> Component:
    """The page; it has no state in its address."""
    listed, log = _read(service)
    parts = [
        _about_links(service),
        html.Div(id="channels-message", role="status"),
        html.Div(table(listed), id="channels-table"),
        _form(),
        html.Div(delivery_log(log), id="channels-log"),
        dcc.Store(id="channels-seen", data=_seen(listed, log)),
    ]
    return page_frame("Channels", "who is told about incidents", [part for part in parts if part is not None])


def register(app: Dash, service: Any) -> None:
    """Adding, testing, switching and deleting; deliveries appear without a reload."""
    _register_add(app, service)
    _register_actions(app, service)

    @app.callback(
        Output("channels-table", "children"),
        Output("channels-log", "children"),
        Output("channels-seen", "data"),
        Input("live", "data"),
        State("channels-seen", "data"),
        prevent_initial_call=True,
    )
    async def refresh(_message: Any, seen: str | None) -> tuple[Any, ...]:
        listed, log = await asyncio.to_thread(_read, service)
        if seen is None or _seen(listed, log) == seen:
            raise PreventUpdate
        return table(listed), delivery_log(log), _seen(listed, log)


def _register_add(app: Dash, service: Any) -> None:
    fields = [State(f"channels-{name}", "value") for name in ("kind", "name", "url", "severity", "secret")]

    @app.callback(
        Output("channels-message", "children"),
        Output("channels-table", "children", allow_duplicate=True),
        *(Output(f"channels-{name}", "value") for name in ("name", "url", "secret")),
        Input("channels-add", "n_clicks"),
        *fields,
        prevent_initial_call=True,
    )
    async def add(clicks: int | None, kind: str, name: str, url: str, severity: str, secret: str) -> tuple[Any, ...]:
        if not clicks:
            raise PreventUpdate
        try:
            channel, signing = await asyncio.to_thread(_add, service, kind, name or "", url or "", severity, secret or None)
        except RLVitalsError as error:
            return _notice(str(error), "is-critical"), no_update, no_update, no_update, no_update
        return _added(channel, signing), table((await asyncio.to_thread(_read, service))[0]), "", "", ""


def _register_actions(app: Dash, service: Any) -> None:
    @app.callback(
        Output("channels-message", "children", allow_duplicate=True),
        Output("channels-table", "children", allow_duplicate=True),
        Output("channels-log", "children", allow_duplicate=True),
        Output("channels-seen", "data", allow_duplicate=True),
        Input({"type": "channels-test", "id": ALL}, "n_clicks"),
        Input({"type": "channels-switch", "id": ALL}, "n_clicks"),
        Input({"type": "channels-preview", "id": ALL}, "n_clicks"),
        Input({"type": "channels-delete", "id": ALL}, "submit_n_clicks"),
        State("channels-seen", "data"),
        running=[(Output("channels-busy", "children"), "Waiting for the answer…", "")],
        prevent_initial_call=True,
    )
    async def act(
        _tests: list[int | None], _switches: list[int | None], _previews: list[int | None], _deletes: list[int | None], _before: str
    ) -> tuple[Any, ...]:
        chosen = ctx.triggered_id
        # A redrawn table brings new buttons, which report themselves unpressed.
        if not isinstance(chosen, dict) or not any(entry["value"] for entry in ctx.triggered):
            raise PreventUpdate
        words = await asyncio.to_thread(_act, service, str(chosen["type"]), str(chosen["id"]))
        listed, log = await asyncio.to_thread(_read, service)
        return words, table(listed), delivery_log(log), _seen(listed, log)


def _act(service: Any, action: str, channel_id: str) -> Component:
    gone = _notice("This channel is not there any more.", "is-warn")
    if action == "channels-test":
        trial = send_sample(service.control, channel_id, service.settings.public_url, service.settings.webhook_allow)
        return gone if trial is None else trial_result(trial)
    with service.control.session() as session:
        if action == "channels-delete":
            return _notice("The channel and its log are deleted.", "is-quiet") if delete_channel(session, channel_id) else gone
        known = next((channel for channel in channels(session) if channel.id == channel_id), None)
        if action == "channels-preview":
            asked = None if known is None else ask_for_previews(session, channel_id, not known.preview)
            return gone if asked is None else _notice(f"{asked.name} {_preview_words(asked)}.", "is-quiet")
        switched = None if known is None else switch_channel(session, channel_id, not known.enabled)
    return gone if switched is None else _notice(f"{switched.name} is {'on' if switched.enabled else 'off'}.", "is-quiet")


def _preview_words(channel: Channel) -> str:
    return "also hears of preview rules" if channel.preview else "hears of stable rules alone"


def _add(service: Any, kind: str, name: str, url: str, severity: str, secret: str | None) -> tuple[Channel, str | None]:
    with service.control.session() as session:
        return add_channel(session, kind, name, url, severity, secret)


def _read(service: Any) -> tuple[list[Channel], list[Delivery]]:
    with service.control.session(write=False) as session:
        return channels(session), deliveries(session, limit=_LOG_LENGTH)


def _seen(listed: Sequence[Channel], log: Sequence[Delivery]) -> str:
    """Changes whenever something on the page would."""
    return json.dumps([[(c.id, c.enabled, c.failures_in_row, c.preview) for c in listed], [(d.id, d.state, d.attempt) for d in log]])


def table(listed: Sequence[Channel]) -> Component:
    """One row a channel, with what can be done with it."""
    if not listed:
        words = "An incident is told to nobody yet. Add a Slack or webhook address below, then test it."
        return states.note(words, title="No channels yet")
    heads = ("Name", "Kind", "Address", "From severity", "State", "")
    head = html.Thead(html.Tr([html.Th(text, scope="col") for text in heads]))
    body = html.Tbody([_row(channel) for channel in listed])
    return html.Div(html.Table([head, body], className="rlv-table is-wide"), className="rlv-box is-flush")


def _row(channel: Channel) -> Component:
    state: list[Any] = [html.Span("on" if channel.enabled else "off", className=None if channel.enabled else "is-late")]
    if channel.off_reason:
        state.append(html.Div(["Switched off by RLVitals: ", line(channel.off_reason)], className="rlv-sub"))
    elif channel.failures_in_row:
        state.append(html.Div(f"failed messages in a row: {channel.failures_in_row}", className="rlv-sub"))
    return html.Tr(
        [
            html.Td(html.B(line(channel.name))),
            html.Td(_KIND_WORDS.get(channel.kind, channel.kind)),
            html.Td(mono(channel.address_hint)),
            html.Td([chip(channel.min_severity), html.Div(_preview_words(channel), className="rlv-sub")]),
            html.Td(state),
            html.Td(html.Div(_buttons(channel), className="rlv-controls")),
        ]
    )


def _buttons(channel: Channel) -> list[Component]:
    switch = "Switch off" if channel.enabled else "Switch on"
    previews = "Stable rules alone" if channel.preview else "Also preview rules"
    delete = html.Button("Delete", className="rlv-button", **{"aria-label": f"Delete {channel.name}"})
    return [
        html.Button("Send a test", id={"type": "channels-test", "id": channel.id}, className="rlv-button"),
        html.Button(switch, id={"type": "channels-switch", "id": channel.id}, className="rlv-button"),
        html.Button(previews, id={"type": "channels-preview", "id": channel.id}, className="rlv-button"),
        dcc.ConfirmDialogProvider(
            delete, id={"type": "channels-delete", "id": channel.id}, message=f"Delete the channel {channel.name} and its delivery log?"
        ),
    ]


def _form() -> Component:
    wide = {"size": "xs", "className": "rlv-control"}
    fields = [
        dmc.Select(
            id="channels-kind", data=[{"value": value, "label": text} for value, text in _KINDS], value="slack", allowDeselect=False, w=150,
            **wide, **{"aria-label": "Kind"},
        ),
        dmc.TextInput(id="channels-name", placeholder="Name, for example on call", w=200, **wide, **{"aria-label": "Name"}),
        dmc.PasswordInput(
            id="channels-url", placeholder="Address, https://…", w=320, autoComplete="off", **wide, **{"aria-label": "Address"}
        ),
        dmc.Select(
            id="channels-severity", data=[{"value": value, "label": f"from {value}"} for value in _SEVERITIES], value="warn",
            allowDeselect=False, w=130, **wide, **{"aria-label": "Least severity"},
        ),
        dmc.PasswordInput(
            id="channels-secret", placeholder="Signing secret; empty: made here", w=240, autoComplete="off", **wide,
            **{"aria-label": "Signing secret of a webhook"},
        ),
        html.Button("Add", id="channels-add", className="rlv-button is-main"),
        html.Span(id="channels-busy", className="rlv-sub", role="status"),
    ]  # fmt: skip
    about = html.P(
        "The address is the key to the channel: it is kept in the home and never shown again, here or in the API. "
        "A signed webhook follows Standard Webhooks; its signing secret is shown once.",
        className="rlv-sub",
    )
    return html.Section([html.H2("Add a channel"), html.Div(fields, className="rlv-controls"), about], className="rlv-box rlv-stack")


def delivery_log(log: Sequence[Delivery], now: float | None = None) -> Component:
    """What was sent, newest first, with the answer to the last attempt."""
    moment = time.time() if now is None else now
    title = html.H2("Delivery log")
    if not log:
        return html.Section([title, html.P("No message yet.", className="rlv-sub")], className="rlv-box rlv-stack")
    heads = (("When", ""), ("Channel", ""), ("Message", ""), ("State", ""), ("Attempts", "num"), ("Status", "num"), ("Answer", ""))
    head = html.Thead(html.Tr([html.Th(text, className=kind, scope="col") for text, kind in heads]))
    body = html.Tbody([_log_row(delivery, moment) for delivery in log])
    return html.Section([html.Div(title, className="rlv-box-head"), html.Table([head, body], className="rlv-table")], className="rlv-box")


def _log_row(delivery: Delivery, now: float) -> Component:
    about = delivery.payload["data"]
    words: list[Any] = [_EVENT_WORDS.get(delivery.type, delivery.type)]
    if delivery.incident_id is not None:
        link = dcc.Link(about["symptom"], href=address("/incidents/<id>", id=delivery.incident_id))
        words = [link, f" {words[0]}, {about['severity']}, ", line(about["run"]["name"])]
    waiting = delivery.state == "waiting" and delivery.next_at > now
    state = f"waiting, next try in {age(delivery.next_at - now)}" if waiting else delivery.state
    late = "is-late" if delivery.state == "failed" else None
    return html.Tr(
        [
            html.Td(f"{age(now - delivery.created_at)} ago", style={"whiteSpace": "nowrap"}),
            html.Td(line(delivery.channel_name)),
            html.Td(words),
            html.Td(html.Span(state, className=late)),
            html.Td(str(delivery.attempt), className="num"),
            html.Td("–" if delivery.last_status is None else str(delivery.last_status), className="num"),
            html.Td(mono(delivery.last_reply) if delivery.last_reply else "–", className="is-path"),
        ]
    )


def trial_result(trial: Trial) -> Component:
    """What the test met: its meaning first, then the bare facts."""
    status = "no answer" if trial.status is None else f"status {trial.status}"
    facts = [f"{status} after {seconds(trial.seconds)}", *([", answer ", mono(trial.reply)] if trial.reply else [])]
    kind = {"delivered": "is-quiet", "retry": "is-warn"}.get(trial.outcome, "is-critical")
    return _notice([html.B("Test: "), trial.meaning, html.Div(facts, className="rlv-sub")], kind)


def _added(channel: Channel, signing: str | None) -> Component:
    words: list[Any] = [line(channel.name), " is added. Send a test to see whether it arrives."]
    if signing is not None:
        shown = html.Code(signing, id="channels-shown-secret", className="rlv-command")
        words.append(html.Div(["Signing secret, shown this once: ", shown]))
    return _notice(words, "is-quiet")


def _notice(words: Any, kind: str) -> Component:
    return html.Div(words, className=f"rlv-box rlv-notice {kind}")


def _about_links(service: Any) -> Component | None:
    if service.settings.public_url:
        return None
    how = states.command("--public-url ADDRESS")
    return html.Div(["Messages carry no links: start the server with ", how, " and one click leads to the incident."], className="rlv-sub")
