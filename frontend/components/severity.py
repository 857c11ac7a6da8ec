"""Severity as shape and word; colour comes third."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dash import html
from dash.development.base_component import Component

from frontend.components.svg import severity_shape, verdict_shape

ORDER = ("info", "watch", "warn", "critical")
"""From mild to grave."""

VERDICTS = {"supported": "Supported", "refuted": "Refuted", "inconclusive": "Inconclusive", "not_checkable": "Not checkable"}


def rank(severity: str | None) -> int:
    """Larger is graver; -1 for none or an unknown word."""
    return ORDER.index(severity) if severity in ORDER else -1


def urgency(incident: Any) -> tuple[int, bool, int]:
    """Sorts the incidents of a run: gravest first, of equals the one with a supported explanation, then the one that began first."""
    explained = any(h.get("verdict") == "supported" for h in incident.body.get("hypotheses") or ())
    return -rank(incident.severity), not explained, incident.onset_step


def gravest(severities: Iterable[str]) -> str | None:
    """The gravest of some severities, None of none."""
    return max(severities, key=rank, default=None)


def chip(severity: str, text: Any = None) -> Component:
    """A chip on its soft ground: shape and word (or another text)."""
    return html.Span(
        [severity_shape(severity), html.Span(severity.capitalize() if text is None else text)], className=f"rlv-chip is-{severity}"
    )


def mark(severity: str, text: Any, after: Any = None) -> Component:
    """Shape and text without ground, for table cells. The word is read aloud and shown on hover."""
    return html.Span(
        [
            severity_shape(severity),
            html.Span(severity + ": ", className="rlv-only-read"),
            html.B(text),
            html.Span(after, className="rlv-sub-inline"),
        ],
        className=f"rlv-mark is-{severity}",
        title=severity,
    )


def verdict_chip(verdict: str) -> Component:
    """A hypothesis's verdict."""
    return html.Span([verdict_shape(verdict), html.Span(VERDICTS[verdict])], className=f"rlv-chip is-{verdict.replace('_', '-')}")


def status_chip(status: str) -> Component:
    """Preview or stable."""
    return html.Span(status, className="rlv-chip is-watch" if status == "preview" else "rlv-chip is-quiet")


def preview_mark(incident: Any) -> Component | None:
    """A small word where the rule that found the incident is a preview; None for a stable one."""
    if (incident.body.get("rule") or {}).get("status") != "preview":
        return None
    about = "Found by a preview rule: it has yet to show that it stays quiet, so chat hears of it only where a channel asks."
    return html.Span("preview", className="rlv-preview", title=about)
