"""The test button: one marked sample, sent at once, and everything that came back."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from server.control.models import ChannelRow, Control, OutboxRow, new_id
from server.notify.base import OutcomeKind
from server.notify.event import sample_payload
from server.notify.kinds import KINDS
from server.notify.outbox import message
from server.notify.post import post
from server.notify.worker import settle_channel


@dataclass(frozen=True)
class Trial:
    """What a test message met. status is null where no answer came; reply holds no address."""

    message_id: str
    outcome: OutcomeKind
    status: int | None
    reply: str
    seconds: float
    meaning: str


def send_sample(control: Control, channel_id: str, public_url: str | None, allowed: Sequence[str]) -> Trial | None:
    """Sends the sample once, without a retry, and keeps it in the delivery log; None if there is no such channel.

    A delivered sample switches a channel on again that RLVitals had switched off.
    """
    with control.session(write=False) as session:
        channel = session.get(ChannelRow, channel_id)
        if channel is None:
            return None
        kind, url, secret = KINDS[channel.kind], channel.url_secret, channel.secret
    now = time.time()
    row = message(channel_id, None, sample_payload(public_url, now), now)
    row.id = new_id("msg")
    reply = post(url, kind.draw(row.payload, row.id, secret, now), kind.timeout_seconds, allowed)
    outcome = kind.outcome(reply)
    trial = Trial(row.id, outcome.kind, reply.status, reply.body if reply.status is not None else "", reply.seconds, outcome.meaning)
    with control.session() as session:
        channel = session.get(ChannelRow, channel_id)
        if channel is not None:
            _keep(row, trial)
            session.add(row)
            settle_channel(session, channel, outcome)
            if outcome.kind == "delivered" and channel.off_reason is not None:
                channel.enabled, channel.off_reason = True, None
    return trial


def _keep(row: OutboxRow, trial: Trial) -> None:
    row.attempt, row.updated_at = 1, time.time()
    row.state = "delivered" if trial.outcome == "delivered" else "failed"
    row.last_status, row.last_reply = trial.status, trial.reply or trial.meaning
