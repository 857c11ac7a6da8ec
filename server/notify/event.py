"""The message itself, independent of where it goes: the body of contracts "Webhook body", from an incident's change."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol, TypeAlias

from server.control.incidents import Incident

Payload: TypeAlias = dict[str, Any]
"""{"type", "timestamp", "data": {...}}: JSON values only, below 20 kB, no prompt or response text."""

SEVERITIES = ("info", "watch", "warn", "critical")
LONGEST_SUMMARY = 1_000
LONGEST_LIST = 10
EVIDENCE_KEYS = ("metric", "before", "after", "baseline_steps", "n")
"""What leaves the machine of each piece of evidence: numbers and names. Notes may quote a rollout and stay."""


class RunLike(Protocol):
    """What a message needs of a run."""

    @property
    def run_id(self) -> str: ...  # noqa: D102
    @property
    def name(self) -> str: ...  # noqa: D102


def reaches(severity: str, least: str) -> bool:
    """Whether a severity is at or above the least one that a channel wants."""
    return SEVERITIES.index(severity) >= SEVERITIES.index(least)


def payload_of(kind: str, incident: Incident, run: RunLike, public_url: str | None, at: float, *, preview: bool = False) -> Payload:
    """The body of a message about an incident; `at` is Unix seconds of the change; preview: the rule is one.

    `url` is null without a public address: a link to a name that the reader cannot reach helps nobody.
    """
    hypotheses: Sequence[Mapping[str, Any]] = incident.body.get("hypotheses") or ()
    best = next((h for h in hypotheses if h.get("verdict") in ("supported", "inconclusive")), None)
    return {
        "type": kind,
        "timestamp": timestamp(at),
        "data": {
            "schema": 1,
            "incident_id": incident.id,
            "url": f"{public_url}/incidents/{incident.id}" if public_url else None,
            "run": {"run_id": run.run_id, "name": cut(run.name, 200)},
            "symptom": incident.symptom,
            "metric": incident.metric,
            "severity": incident.severity,
            "status": incident.status,
            "onset_step": incident.onset_step,
            "detected_step": incident.detected_step,
            "slice": None if incident.slice is None else cut(incident.slice, 200),
            "summary": cut(incident.summary, LONGEST_SUMMARY),
            "evidence": [_evidence(e) for e in (incident.body.get("evidence") or ())[:LONGEST_LIST]],
            "top_hypothesis": None if best is None else {key: best.get(key) for key in ("id", "title", "verdict")},
            "not_checkable": [_missing(h) for h in hypotheses if h.get("verdict") == "not_checkable"][:LONGEST_LIST],
            "next_checks": [cut(str(check), 300) for check in (incident.body.get("next_checks") or ())[:LONGEST_LIST]],
            "suppressed": 0,
            "preview": preview,
        },
    }


def sample_payload(public_url: str | None, at: float) -> Payload:
    """A realistic message that says that it is a test."""
    return {
        "type": "channel.test",
        "timestamp": timestamp(at),
        "data": {
            "schema": 1,
            "incident_id": "in_000000000000",
            "url": f"{public_url}/channels" if public_url else None,
            "run": {"run_id": "000000000000", "name": "example-run"},
            "symptom": "length-growth",
            "metric": "length.response.mean",
            "severity": "warn",
            "status": "open",
            "onset_step": 120,
            "detected_step": 131,
            "slice": None,
            "summary": "This is a test from RLVitals. A real message would say: mean response length 81.2 to 190.4 tokens since step 120.",
            "evidence": [{"metric": "length.response.mean", "before": 81.2, "after": 190.4, "baseline_steps": [60, 110], "n": 50}],
            "top_hypothesis": {"id": "H4d", "title": "lost termination", "verdict": "supported"},
            "not_checkable": [],
            "next_checks": ["Read the longest responses of steps 120 to 131."],
            "suppressed": 0,
            "preview": False,
        },
    }


def timestamp(at: float) -> str:
    """Unix seconds as ISO 8601 in UTC, whole seconds."""
    return datetime.fromtimestamp(int(at), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def cut(text: str, limit: int) -> str:
    """Text that any JSON reader takes (no lone surrogates), shortened at a word where it is too long."""
    clean = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if len(clean) <= limit:
        return clean
    head = clean[: limit - 1]
    word = head.rfind(" ", limit * 3 // 4)
    return (head[:word] if word > 0 else head).rstrip() + "…"


def _evidence(item: Mapping[str, Any]) -> Payload:
    return {key: _json_number(item.get(key)) for key in EVIDENCE_KEYS}


def _json_number(value: Any) -> Any:
    # JSON has no NaN and no infinities; as words they stay true and readable.
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _missing(hypothesis: Mapping[str, Any]) -> Payload:
    checks: Sequence[Mapping[str, Any]] = hypothesis.get("checks") or ()
    missing = sorted({str(name) for check in checks for name in (check.get("missing") or ())})
    return {"id": hypothesis.get("id"), "title": hypothesis.get("title"), "missing": missing[:LONGEST_LIST]}
