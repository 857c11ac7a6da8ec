"""Slack messages: limits, escapes, and the meaning of answers."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.control.incidents import IncidentChange
from server.notify.base import Reply
from server.notify.event import payload_of, sample_payload
from server.notify.slack import Slack, escaped


class Run:
    run_id = "0123456789ab"

    def __init__(self, name: str = "grpo-math-7b") -> None:
        self.name = name


def drawn(payload: dict[str, Any]) -> Any:
    return json.loads(Slack().draw(payload, "msg_1", None, 0.0).body)


def texts(message: Any) -> Iterator[str]:
    if isinstance(message, dict):
        for value in message.values():
            yield from texts(value)
    elif isinstance(message, list):
        for value in message:
            yield from texts(value)
    elif isinstance(message, str):
        yield message


def test_a_message_says_what_where_how_much_and_where_to_look(make_change: Callable[..., IncidentChange]) -> None:
    message = drawn(payload_of("incident.opened", make_change().incident, Run(), "https://rlvitals.example", 0.0))
    assert message["text"].startswith("[warn] Length growth since step 120 - run grpo-math-7b: Mean response length is up")
    assert message["blocks"][0]["text"]["text"] == "Length growth since step 120"
    button = next(block for block in message["blocks"] if block["type"] == "actions")["elements"][0]
    assert button["url"] == "https://rlvitals.example/incidents/in_0123456789ab"
    said = " ".join(texts(message))
    assert "81.2 to 190" in said and "H4d" in said and "Read the longest responses" in said


def test_without_a_public_address_the_message_says_that_links_are_off(make_change: Callable[..., IncidentChange]) -> None:
    message = drawn(payload_of("incident.opened", make_change().incident, Run(), None, 0.0))
    assert not [block for block in message["blocks"] if block["type"] == "actions"]
    assert "links are off" in message["blocks"][-1]["elements"][0]["text"]


def test_updates_and_ends_are_told_apart(make_change: Callable[..., IncidentChange]) -> None:
    updated = drawn(payload_of("incident.updated", make_change(severity="critical").incident, Run(), None, 0.0))
    resolved = drawn(payload_of("incident.resolved", make_change(status="recovered").incident, Run(), None, 0.0))
    assert "Now critical: length growth at step 131" in updated["text"]
    assert "Recovered: length growth" in resolved["text"]


def test_the_sample_says_that_it_is_a_test() -> None:
    message = drawn(sample_payload(None, 0.0))
    assert "Test: " in message["text"] and "This is a test from RLVitals" in message["text"]


def test_a_run_named_like_a_mention_pages_nobody(make_change: Callable[..., IncidentChange]) -> None:
    change = make_change(summary="<!channel> <@U123> & <https://evil.example|click>", slice="<!here>")
    message = drawn(payload_of("incident.opened", change.incident, Run("<!everyone>"), None, 0.0))
    assert not [text for text in texts(message) if "<" in text or ">" in text]
    assert any("&lt;!channel&gt;" in text for text in texts(message))


def test_every_limit_of_slack_is_kept_with_endless_text(make_change: Callable[..., IncidentChange]) -> None:
    long = "<&界\ud800 " * 10_000
    evidence = [{"metric": long, "before": 1.0, "after": 2.0, "baseline_steps": [0, 1], "n": 1}] * 50
    body = {"evidence": evidence, "hypotheses": [{"id": "H1", "title": long, "verdict": "supported"}], "next_checks": [long]}
    change = make_change(summary=long, slice=long, metric=long, symptom="length-growth", body=body)
    message = drawn(payload_of("incident.opened", change.incident, Run(long), "https://rlvitals.example", 0.0))
    assert len(message["blocks"]) <= 50 and message["text"]
    for block in message["blocks"]:
        if block["type"] == "header":
            assert len(block["text"]["text"]) <= 150
        for field in block.get("fields", []):
            assert len(field["text"]) <= 2000
        assert len(block.get("fields", [])) <= 10
        if block["type"] == "section" and "text" in block:
            assert len(block["text"]["text"]) <= 3000


@given(st.text(alphabet=st.sampled_from("a&<> \ud800\u202e界\n"), max_size=80), st.integers(10, 60))
def test_escaping_keeps_to_the_limit_and_breaks_no_escape(text: str, limit: int) -> None:
    shown = escaped(text, limit)
    assert len(shown) <= limit
    assert "<" not in shown and ">" not in shown
    assert "&" not in html.unescape(shown).replace("&", "") and escaped(html.unescape(shown), 1000) == shown


@pytest.mark.parametrize(("status", "body", "kind"), [
    (200, "ok", "delivered"), (200, "<html>log in</html>", "permanent"), (204, "", "permanent"), (302, "", "permanent"),
    (400, "invalid_payload", "permanent"), (403, "invalid_token", "permanent"), (404, "channel_not_found", "permanent"),
    (404, "no_service", "off"), (410, "channel_is_archived", "off"), (429, "rate_limited", "retry"), (500, "rollup_error", "retry"),
])  # fmt: skip
def test_what_each_answer_means(status: int, body: str, kind: str) -> None:
    outcome = Slack().outcome(Reply(status, body, {}, 0.1))
    assert outcome.kind == kind and outcome.meaning.endswith(".")


def test_chat_gives_up_after_two_hours_and_waits_at_most_ten_minutes() -> None:
    assert Slack().wait(1, 7201.0) is None
    waits = [Slack().wait(attempts, 0.0) for attempts in range(1, 40)]
    assert all(wait is not None and 0 <= wait <= 600 for wait in waits)
