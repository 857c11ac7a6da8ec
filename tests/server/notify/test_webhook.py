"""The signed webhook, against the published library as an independent judge."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
import standardwebhooks
from hypothesis import given
from hypothesis import strategies as st

from ingest.errors import RLVitalsError
from server.control.incidents import IncidentChange
from server.notify.base import Reply
from server.notify.event import payload_of
from server.notify.webhook import LONGEST_BODY, WAITS, Webhook, new_secret, secret_bytes, signature

SECRET = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
BODY = b'{"type":"alert.firing","timestamp":"2026-11-29T02:14:07Z","data":{"alert_id":"al_0001"}}'


class Run:
    run_id = "0123456789ab"
    name = "grpo-math-7b"


def test_the_published_test_vector_is_reproduced() -> None:
    assert signature(SECRET, "msg_0001", "1795918447", BODY) == "v1,M+RVb033O7NLy37i3bhC5U61fLGs1cP1h3IwkO7yAak="


@given(st.binary(min_size=24, max_size=64), st.text(max_size=60), st.integers(1_700_000_000, 2_000_000_000))
def test_the_library_signs_the_same(key: bytes, text: str, seconds: int) -> None:
    secret = "whsec_" + base64.b64encode(key).decode()
    body = json.dumps({"data": text})
    expected = standardwebhooks.Webhook(secret).sign("msg_1", datetime.fromtimestamp(seconds, UTC), body)
    assert signature(secret, "msg_1", str(seconds), body.encode()) == expected


def test_a_drawn_message_is_verified_by_the_library(make_change: Callable[..., IncidentChange]) -> None:
    secret = new_secret()
    now = datetime.now(UTC).timestamp()
    payload = payload_of("incident.opened", make_change().incident, Run(), "https://rlvitals.example", now)
    outgoing = Webhook().draw(payload, "msg_1", secret, now)
    assert standardwebhooks.Webhook(secret).verify(outgoing.body.decode(), dict(outgoing.headers)) == payload


def test_the_body_has_the_keys_of_the_contract(make_change: Callable[..., IncidentChange]) -> None:
    payload = payload_of("incident.opened", make_change().incident, Run(), "https://rlvitals.example", 1795918447.9)
    assert (payload["type"], payload["timestamp"]) == ("incident.opened", "2026-11-29T02:14:07Z")
    data = payload["data"]
    assert list(data) == [
        "schema", "incident_id", "url", "run", "symptom", "metric", "severity", "status", "onset_step", "detected_step", "slice",
        "summary", "evidence", "top_hypothesis", "not_checkable", "next_checks", "suppressed", "preview",
    ]  # fmt: skip
    assert data["url"] == "https://rlvitals.example/incidents/in_0123456789ab"
    assert data["top_hypothesis"] == {"id": "H4d", "title": "lost termination", "verdict": "supported"}
    assert data["not_checkable"] == [{"id": "H4a", "title": "reward for length", "missing": ["reward.parts"]}]


def test_without_a_public_address_there_is_no_link(make_change: Callable[..., IncidentChange]) -> None:
    assert payload_of("incident.opened", make_change().incident, Run(), None, 0.0)["data"]["url"] is None


def test_notes_and_trajectories_which_may_quote_a_rollout_stay_at_home(make_change: Callable[..., IncidentChange]) -> None:
    body = {"evidence": [{"metric": "m", "note": "SECRET ANSWER"}], "trajectories": ["SECRET ANSWER"], "prompt": "SECRET ANSWER"}
    payload = payload_of("incident.opened", make_change(body=body).incident, Run(), None, 0.0)
    assert "SECRET ANSWER" not in json.dumps(payload)


def test_numbers_that_json_does_not_know_are_sent_as_words(make_change: Callable[..., IncidentChange]) -> None:
    body = {"evidence": [{"metric": "loss", "before": 1.5, "after": float("nan")}]}
    payload = payload_of("incident.opened", make_change(body=body).incident, Run(), None, 0.0)
    sent = json.loads(Webhook().draw(payload, "m", SECRET, 0.0).body, parse_constant=lambda word: pytest.fail(word))
    assert sent["data"]["evidence"][0]["after"] == "nan"


def test_a_long_message_stays_below_the_limit_and_keeps_what_matters(make_change: Callable[..., IncidentChange]) -> None:
    many = [{"id": f"H{i}", "title": "界" * 2000, "verdict": "not_checkable", "checks": []} for i in range(10)]
    change = make_change(summary="界" * 30_000, body={"hypotheses": many, "next_checks": ["界" * 5000] * 40})
    payload = payload_of("incident.opened", change.incident, Run(), None, 0.0)
    body = Webhook().draw(payload, "m", SECRET, 0.0).body
    assert len(body) <= LONGEST_BODY
    assert json.loads(body)["data"]["incident_id"] == "in_0123456789ab"


def test_a_lone_surrogate_does_not_stop_a_message(make_change: Callable[..., IncidentChange]) -> None:
    payload = payload_of("incident.opened", make_change(summary="broken \ud800 text").incident, Run(), None, 0.0)
    assert json.loads(Webhook().draw(payload, "m", SECRET, 0.0).body)["data"]["summary"] == "broken \ufffd text"


def test_the_waits_are_those_of_the_specification_and_end() -> None:
    waits = [Webhook().wait(attempts, 0.0) for attempts in range(1, len(WAITS) + 2)]
    assert all(wait is not None and least <= wait <= least * 1.1 for wait, least in zip(waits, WAITS, strict=False))
    assert waits[-1] is None


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_!!!", "whsec_" + base64.b64encode(b"x" * 23).decode(), "plain"])
def test_a_secret_that_is_none_is_refused_without_being_repeated(secret: str) -> None:
    with pytest.raises(RLVitalsError) as refused:
        secret_bytes(secret)
    assert not secret or secret not in str(refused.value) or secret == "whsec_"


@pytest.mark.parametrize(("status", "kind"), [
    (200, "delivered"), (204, "delivered"), (302, "permanent"), (400, "permanent"), (401, "permanent"), (404, "permanent"), (408, "retry"),
    (410, "off"), (425, "retry"), (429, "retry"), (500, "retry"), (502, "retry"), (504, "retry"),
])  # fmt: skip
def test_what_each_status_means(status: int, kind: str) -> None:
    assert Webhook().outcome(Reply(status, "", {}, 0.1)).kind == kind
