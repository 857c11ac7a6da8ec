"""Slack incoming webhooks: text and blocks, the reply `ok`, one message a second."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from server.notify.base import Outcome, Outgoing, Reply, chat_wait, common_outcome
from server.notify.event import Payload, cut

HEADER_LIMIT = 150
SECTION_LIMIT = 3_000
FIELD_LIMIT = 2_000
URL_LIMIT = 3_000

_TITLES = {"incident.updated": "now ", "incident.resolved": "recovered: ", "channel.test": "test: "}
_MEANINGS = {
    "no_service": "Slack no longer knows this address: the webhook was removed. Make a new one and add it.",
    "channel_not_found": "The Slack channel behind this address does not exist any more.",
    "channel_is_archived": "The Slack channel behind this address is archived.",
    "invalid_token": "Slack does not accept this address: copy it again from the app's page.",
    "action_prohibited": "An administrator of the Slack workspace does not allow this.",
    "invalid_payload": "Slack did not understand the message.",
}


@dataclass(frozen=True)
class Slack:
    """Incidents as Slack blocks. Every text that comes from a run is escaped, so that it can page nobody."""

    name: str = "slack"
    timeout_seconds: float = 10.0

    def draw(self, payload: Payload, message_id: str, secret: str | None, at: float) -> Outgoing:
        """The message with its fallback text for phones and screen readers."""
        message = {"text": fallback(payload), "blocks": list(_blocks(payload)), "unfurl_links": False}
        return Outgoing(json.dumps(message).encode(), {"Content-Type": "application/json; charset=utf-8"})

    def outcome(self, reply: Reply) -> Outcome:
        """Delivered only with the two letters `ok`: another page may answer 200 as well."""
        known = common_outcome(reply)
        if known is not None:
            return known
        assert reply.status is not None
        word = reply.body.strip()
        if reply.status < 300:
            if word == "ok":
                return Outcome("delivered", "Slack took the message.")
            return Outcome("permanent", "The answer is not Slack's: it is not the word ok. Check that the address is a Slack webhook.")
        meaning = _MEANINGS.get(word, f"Slack refuses the message ({reply.status}).")
        off = reply.status == 410 or (reply.status == 404 and word == "no_service")
        return Outcome("off" if off else "permanent", meaning)

    def wait(self, attempts: int, age_seconds: float) -> float | None:
        """Chat gives up after two hours."""
        return chat_wait(attempts, age_seconds)


def escaped(text: str, limit: int) -> str:
    """Text with & < > escaped, at most `limit` characters, never cut inside an escape."""
    clean = cut("".join(c if c.isprintable() or c == "\n" else " " for c in text), limit)
    parts: list[str] = []
    length = 0
    for character in clean:
        part = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}.get(character, character)
        if length + len(part) > limit - 1:
            return "".join(parts) + "…" if len(parts) < len(clean) else "".join(parts)
        parts.append(part)
        length += len(part)
    return "".join(parts)


def fallback(payload: Payload) -> str:
    """One line: severity, what, where, how much."""
    data = payload["data"]
    head = f"[{data['severity']}] {_title(payload)} - run {data['run']['name']}: "
    return escaped(head + data["summary"], 1_000)


def _title(payload: Payload) -> str:
    data = payload["data"]
    step = data["onset_step"] if payload["type"] == "incident.opened" else data["detected_step"]
    prefix = _TITLES.get(payload["type"], "")
    if payload["type"] == "incident.updated":
        prefix = f"now {data['severity']}: "
    text = f"{prefix}{data['symptom'].replace('-', ' ')} {'since' if payload['type'] == 'incident.opened' else 'at'} step {step}"
    return text[:1].upper() + text[1:]


def _blocks(payload: Payload) -> Iterator[dict[str, Any]]:
    data = payload["data"]
    yield {"type": "header", "text": {"type": "plain_text", "text": escaped(_title(payload), HEADER_LIMIT), "emoji": False}}
    yield _section(escaped(data["summary"], SECTION_LIMIT))
    yield {"type": "section", "fields": [_field(name, value) for name, value in _facts(data)]}
    best = data["top_hypothesis"]
    if best is not None:
        yield _section(escaped(f"Leading hypothesis: {best['title']} ({best['id']}, {best['verdict']})", SECTION_LIMIT))
    if data["next_checks"]:
        yield _section(escaped(f"First check: {data['next_checks'][0]}", SECTION_LIMIT))
    if data["url"] and len(data["url"]) <= URL_LIMIT:
        button = {"type": "button", "text": {"type": "plain_text", "text": "Evidence", "emoji": False}, "url": data["url"]}
        yield {"type": "actions", "elements": [button]}
    links = "" if data["url"] else " | links are off: start RLVitals with --public-url"
    yield {"type": "context", "elements": [{"type": "mrkdwn", "text": f"RLVitals | a hypothesis, not a diagnosis{links}"}]}


def _facts(data: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "Run", data["run"]["name"]
    yield "Severity", data["severity"] + (" (preview rule)" if data.get("preview") else "")
    yield "Steps", f"onset {data['onset_step']}, seen at {data['detected_step']}"
    if data["slice"]:
        yield "Slice", data["slice"]
    for evidence in data["evidence"][:3]:
        yield str(evidence["metric"]), f"{_number(evidence['before'])} to {_number(evidence['after'])}"


def _number(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, int | float) and not isinstance(value, bool) else "unknown" if value is None else str(value)


def _section(text: str) -> dict[str, Any]:
    return {"type": "section", "text": {"type": "mrkdwn", "text": text}}


def _field(name: str, value: str) -> dict[str, Any]:
    return {"type": "mrkdwn", "text": f"*{escaped(name, 200)}*\n{escaped(value, FIELD_LIMIT - 210) or '-'}"}
