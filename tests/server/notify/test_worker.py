"""Delivery: every answer a receiver may give, limits, restarts, kills."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import standardwebhooks
from sqlalchemy import select, update

from server.control.models import ChannelRow, Control, OutboxRow
from server.notify import worker as worker_module
from server.notify.channels import Channel
from server.notify.worker import FAILURES_TO_OFF, Bucket, OutboxWorker
from server.settings import Settings

if TYPE_CHECKING:
    from tests.server.notify.conftest import Receiver

Until = Callable[[Callable[[], bool]], None]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "POLL_SECONDS", 0.02)


@pytest.fixture
def start(control: Control, settings: Settings) -> Iterator[Callable[..., OutboxWorker]]:
    workers: list[OutboxWorker] = []

    def starting(clock: Callable[[], float] = time.time, lease_seconds: float = 60.0) -> OutboxWorker:
        workers.append(OutboxWorker(control, settings, clock, lease_seconds))
        workers[-1].start()
        return workers[-1]

    yield starting
    for one in workers:
        one.stop()


def row(control: Control) -> OutboxRow:
    with control.session(write=False) as session:
        return session.scalars(select(OutboxRow)).one()


def channel_of(control: Control) -> ChannelRow:
    with control.session(write=False) as session:
        return session.scalars(select(ChannelRow)).one()


@pytest.mark.parametrize(("kind", "status", "body", "state"), [
    ("slack", 200, "ok", "delivered"), ("webhook", 200, "thanks", "delivered"), ("webhook", 204, "", "delivered"),
    ("slack", 200, "<html>", "failed"), ("slack", 400, "invalid_payload", "failed"), ("webhook", 404, "", "failed"),
    ("webhook", 302, "", "failed"),
])  # fmt: skip
def test_a_final_answer_settles_the_message(
    control: Control, receiver: Receiver, add: Callable[..., Channel], tell: Callable[..., int], start: Callable[..., OutboxWorker],
    until: Until, kind: str, status: int, body: str, state: str,
) -> None:  # fmt: skip
    receiver.will(status, body)
    add(kind)
    tell()
    start()
    until(lambda: row(control).state == state)
    assert (row(control).attempt, row(control).last_status, row(control).last_reply) == (1, status, body)
    assert len(receiver.requests) == 1 and channel_of(control).enabled


@pytest.mark.parametrize(
    ("kind", "status", "body"), [("slack", 404, "no_service"), ("slack", 410, "channel_is_archived"), ("webhook", 410, "")]
)
def test_an_address_that_is_gone_switches_the_channel_off(
    control: Control, receiver: Receiver, add: Callable[..., Channel], tell: Callable[..., int], start: Callable[..., OutboxWorker],
    until: Until, kind: str, status: int, body: str,
) -> None:  # fmt: skip
    receiver.will(status, body)
    add(kind)
    tell()
    start()
    until(lambda: not channel_of(control).enabled)
    assert channel_of(control).off_reason and row(control).state == "failed"


def test_five_permanent_failures_in_a_row_switch_the_channel_off_with_what_waits(
    control: Control,
    receiver: Receiver,
    add: Callable[..., Channel],
    tell: Callable[..., int],
    start: Callable[..., OutboxWorker],
    until: Until,
) -> None:
    receiver.will(400, "no")
    add("webhook")
    for number in range(FAILURES_TO_OFF + 2):
        tell(id=f"in_{number:012x}")
    start()
    until(lambda: not channel_of(control).enabled)
    assert len(receiver.requests) == FAILURES_TO_OFF
    with control.session(write=False) as session:
        assert set(session.scalars(select(OutboxRow.state))) == {"failed"}


def test_a_success_between_failures_starts_the_count_anew(
    control: Control,
    receiver: Receiver,
    add: Callable[..., Channel],
    tell: Callable[..., int],
    start: Callable[..., OutboxWorker],
    until: Until,
) -> None:
    receiver.will(400).will(200).will(400)
    add("webhook")
    for number in range(3):
        tell(id=f"in_{number:012x}")
    start()
    until(lambda: len(receiver.requests) == 3)
    until(lambda: channel_of(control).failures_in_row == 1)
    assert channel_of(control).enabled


@pytest.mark.parametrize("first", ["500", "cut", "429"])
def test_a_passing_failure_is_tried_again_with_the_same_id(
    control: Control, receiver: Receiver, add: Callable[..., Channel], tell: Callable[..., int], start: Callable[..., OutboxWorker],
    until: Until, due_now: Callable[[], None], first: str,
) -> None:  # fmt: skip
    receiver.will(cut=first == "cut", status=200 if first == "cut" else int(first))
    receiver.will(200)
    add("webhook")
    tell()
    start()
    until(lambda: (held := row(control)).state == "waiting" and held.attempt == 1)
    waiting = row(control)
    assert waiting.next_at > time.time() and waiting.last_status == (None if first == "cut" else int(first))
    due_now()
    until(lambda: row(control).state == "delivered")
    ids = [headers["webhook-id"] for _, headers, _ in receiver.requests]
    assert len(ids) == 2 and set(ids) == {waiting.id}
    with control.session(write=False) as session:
        secret = session.scalars(select(ChannelRow.secret)).one()
    assert secret is not None
    _, headers, body = receiver.requests[1]
    assert standardwebhooks.Webhook(secret).verify(body, headers)["data"]["incident_id"] == "in_0123456789ab"


@pytest.mark.parametrize(("asked", "least", "most"), [("120", 115.0, 121.0), ("9999", 895.0, 901.0), (None, 0.0, 4.1)])
def test_429_waits_as_long_as_asked(
    control: Control, receiver: Receiver, add: Callable[..., Channel], tell: Callable[..., int], start: Callable[..., OutboxWorker],
    until: Until, asked: str | None, least: float, most: float,
) -> None:  # fmt: skip
    receiver.will(429, "rate_limited", retry_after=asked)
    add("slack")
    tell()
    before = time.time()
    one = start()
    # Asked in one read: a message waits before its first attempt as well.
    until(lambda: (held := row(control)).state == "waiting" and held.attempt >= 1)
    one.stop()
    held = row(control)
    assert held.attempt > 1 or least <= held.next_at - before <= most + (held.updated_at - before)


def test_429_with_a_date_waits_until_then_and_holds_the_whole_channel(
    control: Control,
    receiver: Receiver,
    add: Callable[..., Channel],
    tell: Callable[..., int],
    start: Callable[..., OutboxWorker],
    until: Until,
) -> None:
    from email.utils import formatdate

    receiver.will(429, "", retry_after=formatdate(time.time() + 300, usegmt=True))
    add("webhook")
    tell()
    tell(id="in_ffffffffffff")
    start()
    until(lambda: len(receiver.requests) == 1)

    def all_wait() -> bool:
        with control.session(write=False) as session:
            return all(due > time.time() + 250 for due in session.scalars(select(OutboxRow.next_at)))

    until(all_wait)
    time.sleep(0.1)
    assert len(receiver.requests) == 1


def test_chat_is_given_up_after_two_hours_and_says_so(
    control: Control,
    receiver: Receiver,
    add: Callable[..., Channel],
    tell: Callable[..., int],
    start: Callable[..., OutboxWorker],
    until: Until,
) -> None:
    receiver.will(500, "down")
    add("slack")
    tell()
    with control.session() as session:
        session.execute(update(OutboxRow).values(created_at=time.time() - 7300))
    start()
    until(lambda: row(control).state == "failed")
    assert row(control).last_reply == "Given up after 1 attempts. down"


def test_a_refused_address_fails_without_a_request(
    control: Control, tmp_path: Path, receiver: Receiver, add: Callable[..., Channel], tell: Callable[..., int], until: Until
) -> None:
    add("webhook")
    tell()
    one = OutboxWorker(control, Settings(home=tmp_path))
    one.start()
    until(lambda: row(control).state == "failed")
    one.stop()
    assert not receiver.requests and "--webhook-allow 127.0.0.1" in str(row(control).last_reply)


def test_a_slow_channel_holds_up_no_other(
    control: Control,
    receiver: Receiver,
    add: Callable[..., Channel],
    tell: Callable[..., int],
    start: Callable[..., OutboxWorker],
    until: Until,
) -> None:
    held = receiver.will_hold()
    receiver.will(200)
    add("webhook")
    tell()
    start()
    until(lambda: len(receiver.requests) == 1)
    second = add("webhook")
    tell(id="in_ffffffffffff")

    def delivered() -> bool:
        with control.session(write=False) as session:
            return "delivered" in session.scalars(select(OutboxRow.state).where(OutboxRow.channel_id == second.id)).all()

    until(delivered)
    held.set()


def test_a_bucket_gives_three_at_once_and_then_one_a_second() -> None:
    bucket = Bucket(since=0.0)
    assert [bucket.take(0.0) for _ in range(5)] == [0.0, 0.0, 0.0, 1.0, 2.0]
    assert bucket.take(10.0) == 0.0


def test_two_workers_on_one_outbox_send_each_message_once(
    control: Control,
    receiver: Receiver,
    add: Callable[..., Channel],
    tell: Callable[..., int],
    start: Callable[..., OutboxWorker],
    until: Until,
) -> None:
    for _ in range(4):
        add("webhook")
    tell()
    start()
    start()

    def all_delivered() -> bool:
        with control.session(write=False) as session:
            return set(session.scalars(select(OutboxRow.state))) == {"delivered"}

    until(all_delivered)
    ids = [headers["webhook-id"] for _, headers, _ in receiver.requests]
    assert len(ids) == len(set(ids)) == 4


def test_a_message_in_mid_retry_survives_a_restart(
    control: Control, receiver: Receiver, add: Callable[..., Channel], tell: Callable[..., int], start: Callable[..., OutboxWorker],
    until: Until, due_now: Callable[[], None],
) -> None:  # fmt: skip
    receiver.will(500).will(200)
    add("webhook")
    tell()
    first = start()
    until(lambda: (held := row(control)).state == "waiting" and held.attempt == 1)
    first.stop()
    due_now()
    start()
    until(lambda: row(control).state == "delivered")
    assert row(control).attempt == 2


def test_a_killed_worker_leaves_its_message_to_the_next_one_with_the_same_id(
    tmp_path: Path, control: Control, receiver: Receiver, add: Callable[..., Channel], tell: Callable[..., int],
    start: Callable[..., OutboxWorker], until: Until,
) -> None:  # fmt: skip
    held = receiver.will_hold()
    receiver.will(200)
    add("webhook")
    tell()
    script = """
import sys, time
from pathlib import Path
from server.control.models import Control
from server.notify.worker import OutboxWorker
from server.settings import Settings
home = Path(sys.argv[1])
OutboxWorker(Control(f"sqlite:///{home}/control.sqlite"), Settings(home=home, webhook_allow=("127.0.0.0/8",))).start()
time.sleep(60)
"""
    root = Path(worker_module.__file__).parents[2]
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], cwd=root, env={**os.environ, "PYTHONPATH": str(root)})
    try:
        until(lambda: len(receiver.requests) == 1)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        held.set()
    assert row(control).state == "sending"
    # The lease of the dead worker has to run out; moving the clock past it is the same.
    start(clock=lambda: time.time() + 120)
    until(lambda: row(control).state == "delivered")
    assert {headers["webhook-id"] for _, headers, _ in receiver.requests} == {row(control).id} and len(receiver.requests) == 2


def test_a_clock_set_back_does_not_keep_messages_waiting(
    control: Control,
    receiver: Receiver,
    add: Callable[..., Channel],
    tell: Callable[..., int],
    start: Callable[..., OutboxWorker],
    until: Until,
) -> None:
    add("webhook")
    tell()
    start(clock=lambda: time.time() - 30 * 86_400)
    until(lambda: row(control).state == "delivered")


def test_no_address_reaches_the_log_or_the_store_s_words(
    control: Control, receiver: Receiver, add: Callable[..., Channel], tell: Callable[..., int], start: Callable[..., OutboxWorker],
    until: Until, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    caplog.set_level(logging.DEBUG)
    receiver.will(400, "bad sEcReTpArT9876")
    add("webhook")
    tell()
    start()
    until(lambda: row(control).state == "failed")
    said = caplog.text + repr(channel_of(control)) + str(row(control).last_reply) + json.dumps(row(control).payload)
    assert "sEcReT" not in said and "whsec_" not in said
