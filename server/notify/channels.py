"""Channels and their delivery log. What comes out of here never holds an address or a signing secret."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from ingest.errors import RLVitalsError
from server.control.models import ChannelRow, OutboxRow, new_id
from server.notify.event import SEVERITIES
from server.notify.guard import Target, hint
from server.notify.kinds import KINDS
from server.notify.webhook import new_secret, secret_bytes

LONGEST_NAME = 100


@dataclass(frozen=True)
class Channel:
    """A channel as it may be shown."""

    id: str
    kind: str
    name: str
    address_hint: str
    """Host and last four characters."""
    min_severity: str
    enabled: bool
    created_at: float
    off_reason: str | None
    """Why RLVitals switched it off; null: it did not."""
    failures_in_row: int
    preview: bool
    """Whether it also hears of preview rules."""


@dataclass(frozen=True)
class Delivery:
    """One line of the delivery log, newest attempt."""

    id: str
    channel_id: str
    channel_name: str
    incident_id: str | None
    type: str
    state: str
    attempt: int
    last_status: int | None
    last_reply: str | None
    next_at: float
    created_at: float
    updated_at: float
    payload: Mapping[str, Any]


def add_channel(
    session: Session,
    kind: str,
    name: str,
    url: str,
    min_severity: str = "warn",
    secret: str | None = None,
    *,
    preview: bool = False,
) -> tuple[Channel, str | None]:
    """Adds a channel; the channel and, for a webhook, its signing secret, shown this once.

    Raises:
        RLVitalsError: an unknown kind or severity, an empty name, an address that cannot be posted to.
    """
    name, url = name.strip(), url.strip()
    if kind not in KINDS:
        raise RLVitalsError(f"There is no kind of channel {kind!r}; there are {', '.join(KINDS)}.")
    if min_severity not in SEVERITIES:
        raise RLVitalsError(f"There is no severity {min_severity!r}; there are {', '.join(SEVERITIES)}.")
    if not 1 <= len(name) <= LONGEST_NAME:
        raise RLVitalsError(f"A channel needs a name of 1 to {LONGEST_NAME} characters.")
    Target.of(url)
    signing = (secret or "").strip() or new_secret() if kind == "webhook" else None
    if signing is not None:
        secret_bytes(signing)
    row = ChannelRow(
        id=new_id("ch"),
        kind=kind,
        name=name,
        url_secret=url,
        url_hint=hint(url),
        secret=signing,
        min_severity=min_severity,
        enabled=True,
        created_at=time.time(),
        off_reason=None,
        failures_in_row=0,
        preview=preview,
    )
    session.add(row)
    return shown(row), signing


def channels(session: Session) -> list[Channel]:
    """Every channel, oldest first."""
    return [shown(row) for row in session.scalars(select(ChannelRow).order_by(ChannelRow.created_at, ChannelRow.id))]


def delete_channel(session: Session, channel_id: str) -> bool:
    """Removes a channel with its log; False if there is none of that id."""
    row = session.get(ChannelRow, channel_id)
    if row is not None:
        session.delete(row)
    return row is not None


def switch_channel(session: Session, channel_id: str, enabled: bool) -> Channel | None:
    """Switches a channel on or off by hand; on also forgets why it was off. None if there is none of that id."""
    row = session.get(ChannelRow, channel_id)
    if row is None:
        return None
    row.enabled = enabled
    row.off_reason, row.failures_in_row = None, 0
    return shown(row)


def ask_for_previews(session: Session, channel_id: str, wanted: bool) -> Channel | None:
    """Whether a channel also hears of preview rules, from the next incident on. None if there is none of that id."""
    row = session.get(ChannelRow, channel_id)
    if row is None:
        return None
    row.preview = wanted
    return shown(row)


def deliveries(session: Session, channel_id: str | None = None, limit: int = 50) -> list[Delivery]:
    """The newest messages of one channel or of all, newest first."""
    query = select(OutboxRow, ChannelRow.name).join(ChannelRow, ChannelRow.id == OutboxRow.channel_id)
    if channel_id is not None:
        query = query.where(OutboxRow.channel_id == channel_id)
    rows = session.execute(query.order_by(OutboxRow.created_at.desc(), OutboxRow.id).limit(limit))
    return [
        Delivery(
            row.id, row.channel_id, name, row.incident_id, row.type, row.state, row.attempt, row.last_status, row.last_reply,
            row.next_at, row.created_at, row.updated_at, row.payload,
        )
        for row, name in rows
    ]  # fmt: skip


def shown(row: ChannelRow) -> Channel:
    """The part of a channel that may be shown."""
    return Channel(
        row.id, row.kind, row.name, row.url_hint, row.min_severity, row.enabled, row.created_at, row.off_reason, row.failures_in_row,
        row.preview,
    )  # fmt: skip
