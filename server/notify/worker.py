"""Sends what the outbox holds: one queue a channel, leased rows, waits that survive a restart."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import or_, select, update
from sqlalchemy.orm import Session
from sqlalchemy.sql.elements import ColumnElement

from server.control.models import ChannelRow, Control, OutboxRow
from server.notify.base import Outcome, Reply, retry_after
from server.notify.event import Payload
from server.notify.kinds import KINDS
from server.notify.post import post
from server.settings import Settings

LEASE_SECONDS = 60.0
"""Longer than any attempt may take; after a kill the row is free again then, and the message may arrive twice."""
LONGEST_WAIT = 100_000.0
"""No wait is longer; a later due time means that the clock was set back, and the row is due."""
POLL_SECONDS = 1.0
FAILURES_TO_OFF = 5
_log = logging.getLogger(__name__)


@dataclass
class Bucket:
    """One message a second, three at once."""

    rate: float = 1.0
    burst: float = 3.0
    tokens: float = 3.0
    since: float = 0.0

    def take(self, now: float) -> float:
        """Takes a token; the seconds to wait before using it."""
        self.tokens = min(self.burst, self.tokens + (now - self.since) * self.rate)
        self.since = now
        self.tokens -= 1.0
        return max(0.0, -self.tokens / self.rate)


@dataclass(frozen=True)
class Claimed:
    """A leased message with what is needed to send it."""

    id: str
    channel_id: str
    kind: str
    url: str
    secret: str | None
    payload: Payload
    attempt: int
    created_at: float
    lease_until: float


class OutboxWorker:
    """One dispatching thread and one thread for each channel that has something due.

    A slow channel holds up no other. `clock` is Unix seconds; `lease_seconds` is how long a row stays with a worker
    that died.
    """

    def __init__(
        self, control: Control, settings: Settings, clock: Callable[[], float] = time.time, lease_seconds: float = LEASE_SECONDS
    ) -> None:
        self._control = control
        self._allowed = settings.webhook_allow
        self._clock = clock
        self._lease_seconds = lease_seconds
        self._buckets: dict[str, Bucket] = {}
        self._busy: dict[str, threading.Thread] = {}
        self._lock = threading.Lock()
        self._news = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._dispatch, name="outbox", daemon=True)

    def start(self) -> None:
        """Starts sending."""
        self._thread.start()

    def stop(self) -> None:
        """Starts no further attempt; one under way gets a few seconds, and is made again after the lease if it needs more."""
        self._stopping.set()
        self._news.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=10)
        with self._lock:
            threads = list(self._busy.values())
        for thread in threads:
            thread.join(timeout=3)

    def wake(self) -> None:
        """There may be something due."""
        self._news.set()

    def _dispatch(self) -> None:
        while not self._stopping.is_set():
            self._news.clear()
            try:
                self._start_due()
            except Exception:
                _log.exception("the outbox cannot be read; it is tried again")
            self._news.wait(POLL_SECONDS)

    def _start_due(self) -> None:
        with self._control.session(write=False) as session:
            due = set(session.scalars(select(OutboxRow.channel_id).join(ChannelRow).where(self._due(), ChannelRow.enabled).distinct()))
        with self._lock:
            for channel_id in due - self._busy.keys():
                thread = threading.Thread(target=self._drain, args=(channel_id,), name=f"outbox-{channel_id}", daemon=True)
                self._busy[channel_id] = thread
                thread.start()

    def _due(self) -> ColumnElement[bool]:
        now = self._clock()
        waiting = (OutboxRow.state == "waiting") & or_(OutboxRow.next_at <= now, OutboxRow.next_at > now + LONGEST_WAIT)
        left = (OutboxRow.state == "sending") & or_(OutboxRow.lease_until <= now, OutboxRow.lease_until > now + self._lease_seconds)
        return waiting | left

    def _drain(self, channel_id: str) -> None:
        try:
            while not self._stopping.is_set():
                bucket = self._buckets.setdefault(channel_id, Bucket(since=time.monotonic()))
                claimed = self._claim(channel_id)
                if claimed is None:
                    return
                self._stopping.wait(bucket.take(time.monotonic()))
                if self._stopping.is_set():
                    self._give_back(claimed)
                    return
                self._attempt(claimed)
        except Exception:
            _log.exception("sending to channel %s failed; it is tried again", channel_id)
        finally:
            with self._lock:
                self._busy.pop(channel_id, None)

    def _claim(self, channel_id: str) -> Claimed | None:
        """Leases the oldest due message of a channel; the attempt counts from now on, so that a crash in it counts too."""
        with self._control.session() as session:
            channel = session.get(ChannelRow, channel_id)
            if channel is None or not channel.enabled:
                return None
            query = select(OutboxRow).where(OutboxRow.channel_id == channel_id, self._due())
            row = session.scalars(query.order_by(OutboxRow.created_at, OutboxRow.id).limit(1)).first()
            if row is None:
                return None
            lease = self._clock() + self._lease_seconds
            row.state, row.lease_until, row.attempt, row.updated_at = "sending", lease, row.attempt + 1, self._clock()
            return Claimed(
                row.id, channel_id, channel.kind, channel.url_secret, channel.secret, row.payload, row.attempt, row.created_at, lease
            )

    def _give_back(self, claimed: Claimed) -> None:
        with self._control.session() as session:
            row = _held(session, claimed)
            if row is not None:
                row.state, row.lease_until, row.attempt = "waiting", None, row.attempt - 1

    def _attempt(self, claimed: Claimed) -> None:
        kind = KINDS[claimed.kind]
        outgoing = kind.draw(claimed.payload, claimed.id, claimed.secret, self._clock())
        reply = post(claimed.url, outgoing, kind.timeout_seconds, self._allowed)
        self._settle(claimed, reply, kind.outcome(reply))

    def _settle(self, claimed: Claimed, reply: Reply, outcome: Outcome) -> None:
        now = self._clock()
        with self._control.session() as session:
            row = _held(session, claimed)
            channel = session.get(ChannelRow, claimed.channel_id)
            if row is None or channel is None:
                return
            row.lease_until, row.updated_at = None, now
            row.last_status = reply.status
            row.last_reply = reply.body if reply.status is not None else outcome.meaning
            if outcome.kind == "retry":
                self._again(session, row, reply, now)
            else:
                row.state = "delivered" if outcome.kind == "delivered" else "failed"
                settle_channel(session, channel, outcome)
        # The reply may quote anything; only our own words go to the log.
        _log.info("message %s to channel %s, attempt %d: %s", claimed.id, claimed.channel_id, claimed.attempt, outcome.kind)

    def _again(self, session: Session, row: OutboxRow, reply: Reply, now: float) -> None:
        channel = session.get_one(ChannelRow, row.channel_id)
        wait = KINDS[channel.kind].wait(row.attempt, now - row.created_at)
        if wait is None:
            row.state = "failed"
            row.last_reply = f"Given up after {row.attempt} attempts. {row.last_reply or ''}".strip()
            return
        asked = retry_after(reply, now)
        row.state, row.next_at = "waiting", now + (wait if asked is None else max(asked, 1.0))
        if asked is not None and reply.status == 429:
            # The limit is the channel's, not the message's, and must hold after a restart as well.
            others = update(OutboxRow).where(
                OutboxRow.channel_id == row.channel_id, OutboxRow.state == "waiting", OutboxRow.next_at < row.next_at
            )
            session.execute(others.values(next_at=row.next_at))


def settle_channel(session: Session, channel: ChannelRow, outcome: Outcome) -> None:
    """Counts failures; a channel that ended, or failed five times in a row, is switched off with everything it waits for."""
    if outcome.kind == "delivered":
        channel.failures_in_row = 0
        return
    if outcome.kind == "retry":
        return
    channel.failures_in_row += 1
    if outcome.kind == "permanent" and channel.failures_in_row < FAILURES_TO_OFF:
        return
    channel.enabled = False
    channel.off_reason = (
        outcome.meaning if outcome.kind == "off" else f"{channel.failures_in_row} messages in a row failed. {outcome.meaning}"
    )
    waiting = update(OutboxRow).where(OutboxRow.channel_id == channel.id, OutboxRow.state == "waiting")
    session.execute(waiting.values(state="failed", last_reply=f"Not sent: the channel was switched off. {outcome.meaning}"))


def _held(session: Session, claimed: Claimed) -> OutboxRow | None:
    """The row if it is still ours: a lease that ran out may have given it to another worker."""
    row = session.get(OutboxRow, claimed.id)
    return row if row is not None and row.state == "sending" and row.attempt == claimed.attempt else None
