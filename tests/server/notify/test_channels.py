"""Channels as people see them, and the test button."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import update

from ingest.errors import RLVitalsError
from server.control.models import ChannelRow, Control
from server.notify.channels import Channel, add_channel, channels, delete_channel, deliveries, switch_channel
from server.notify.trial import send_sample

if TYPE_CHECKING:
    from tests.server.notify.conftest import Receiver

LOOPBACK = ("127.0.0.0/8",)
URL = "https://hooks.slack.com/services/T000/B000/sEcReTpArT9876"


def test_the_address_goes_in_and_never_comes_out(control: Control) -> None:
    with control.session() as session:
        added, secret = add_channel(session, "slack", "on call", URL)
    with control.session(write=False) as session:
        listed = channels(session)
    assert secret is None and listed == [added]
    assert added.address_hint == "hooks.slack.com …9876" and "sEcReT" not in str(asdict(added))


def test_a_webhook_gets_a_secret_that_is_shown_once(control: Control) -> None:
    with control.session() as session:
        added, secret = add_channel(session, "webhook", "pager", "https://example.com/hook")
    assert secret is not None and secret.startswith("whsec_") and secret not in str(asdict(added))


@pytest.mark.parametrize(("kind", "name", "url", "severity"), [
    ("pigeon", "x", URL, "warn"), ("slack", "", URL, "warn"), ("slack", "x" * 101, URL, "warn"), ("slack", "x", "ftp://h/sEcReT", "warn"),
    ("slack", "x", URL, "loud"),
])  # fmt: skip
def test_what_cannot_be_a_channel_is_refused_with_a_sentence(control: Control, kind: str, name: str, url: str, severity: str) -> None:
    with pytest.raises(RLVitalsError) as refused, control.session() as session:
        add_channel(session, kind, name, url, severity)
    assert str(refused.value).endswith(".") and "sEcReT" not in str(refused.value)


def test_deleting_a_channel_takes_its_log_along(control: Control, add: Callable[..., Channel], tell: Callable[..., int]) -> None:
    channel = add()
    tell()
    with control.session() as session:
        assert len(deliveries(session)) == 1
        assert delete_channel(session, channel.id)
    with control.session() as session:
        assert deliveries(session) == [] and not delete_channel(session, channel.id)


def test_the_test_button_shows_what_came_back(control: Control, receiver: Receiver, add: Callable[..., Channel]) -> None:
    receiver.will(403, "invalid_token")
    channel = add("slack")
    trial = send_sample(control, channel.id, None, LOOPBACK)
    assert trial is not None and (trial.outcome, trial.status, trial.reply) == ("permanent", 403, "invalid_token")
    assert trial.meaning == "Slack does not accept this address: copy it again from the app's page." and trial.seconds > 0
    assert b"This is a test from RLVitals" in receiver.requests[0][2]
    with control.session(write=False) as session:
        logged = deliveries(session, channel.id)
    assert [(one.type, one.state, one.last_status) for one in logged] == [("channel.test", "failed", 403)]


def test_a_refused_address_is_explained_by_the_test_button(control: Control, add: Callable[..., Channel]) -> None:
    trial = send_sample(control, add("webhook").id, None, ())
    assert trial is not None and trial.status is None and "--webhook-allow 127.0.0.1" in trial.meaning


def test_a_delivered_test_switches_a_channel_on_that_failures_had_switched_off(
    control: Control, receiver: Receiver, add: Callable[..., Channel]
) -> None:
    channel = add("slack")
    with control.session() as session:
        session.execute(update(ChannelRow).values(enabled=False, off_reason="gone", failures_in_row=5))
    trial = send_sample(control, channel.id, None, LOOPBACK)
    assert trial is not None and trial.outcome == "delivered"
    with control.session(write=False) as session:
        assert [(one.enabled, one.off_reason, one.failures_in_row) for one in channels(session)] == [(True, None, 0)]


def test_a_delivered_test_leaves_a_channel_off_that_a_person_switched_off(
    control: Control, receiver: Receiver, add: Callable[..., Channel]
) -> None:
    channel = add("slack")
    with control.session() as session:
        switch_channel(session, channel.id, False)
    send_sample(control, channel.id, None, LOOPBACK)
    with control.session(write=False) as session:
        assert [one.enabled for one in channels(session)] == [False]


def test_an_unknown_channel_has_no_test(control: Control) -> None:
    assert send_sample(control, "ch_000000000000", None, ()) is None
