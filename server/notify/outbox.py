"""The outbox: messages are written in the transaction of what they tell, and sent from there until they arrive."""

from __future__ import annotations

import time

from sqlalchemy import select
from sqlalchemy.orm import Session

from server.control.incidents import IncidentChange
from server.control.models import ChannelRow, OutboxRow, new_id
from server.notify.event import RunLike, payload_of, reaches


def enqueue(
    session: Session, change: IncidentChange, run: RunLike, public_url: str | None = None, *, preview: bool = False
) -> list[OutboxRow]:
    """Adds one waiting message for each channel that wants this change; the caller's transaction commits it.

    A channel hears of an incident first as opened, whatever its severity was before it reached the channel's own
    threshold; then only when the severity changes; and of the end only if it heard of the beginning. What a preview rule
    found begins only on channels that asked for it.
    """
    now = time.time()
    rows = []
    for channel in session.scalars(select(ChannelRow).where(ChannelRow.enabled).order_by(ChannelRow.created_at)):
        told = session.scalars(
            select(OutboxRow)
            .where(OutboxRow.channel_id == channel.id, OutboxRow.incident_id == change.incident.id)
            .order_by(OutboxRow.created_at.desc(), OutboxRow.id)
        ).first()
        kind = _kind(change, channel, told)
        if kind is not None and (channel.preview or told is not None or not preview):
            payload = payload_of(kind, change.incident, run, public_url, now, preview=preview)
            rows.append(message(channel.id, change.incident.id, payload, now))
    session.add_all(rows)
    return rows


def message(channel_id: str, incident_id: str | None, payload: dict[str, object], now: float) -> OutboxRow:
    """A waiting message, due at once."""
    return OutboxRow(
        id=new_id("msg"),
        channel_id=channel_id,
        incident_id=incident_id,
        type=str(payload["type"]),
        payload=payload,
        attempt=0,
        next_at=now,
        state="waiting",
        created_at=now,
        updated_at=now,
    )


def _kind(change: IncidentChange, channel: ChannelRow, told: OutboxRow | None) -> str | None:
    if change.kind == "incident.resolved":
        return None if told is None or told.type == change.kind else change.kind
    if not reaches(change.incident.severity, channel.min_severity):
        return None
    if told is None or told.type == "incident.resolved":
        return "incident.opened"
    return change.kind if told.payload["data"]["severity"] != change.incident.severity else None
