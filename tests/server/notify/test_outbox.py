"""Which changes become messages, and to whom."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import select

from server.control.models import Control, OutboxRow
from server.notify.channels import Channel, ask_for_previews, switch_channel


def types(control: Control) -> list[str]:
    with control.session(write=False) as session:
        return list(session.scalars(select(OutboxRow.type).order_by(OutboxRow.created_at)))


def test_each_enabled_channel_gets_one_message(control: Control, add: Callable[..., Channel], tell: Callable[..., int]) -> None:
    add("slack")
    add("webhook")
    off = add("slack")
    with control.session() as session:
        switch_channel(session, off.id, False)
    assert tell() == 2


def test_a_channel_hears_nothing_below_its_severity(add: Callable[..., Channel], tell: Callable[..., int]) -> None:
    add(min_severity="critical")
    assert tell(severity="warn") == 0


def test_an_incident_that_grows_to_the_channels_severity_is_told_as_opened(
    control: Control, add: Callable[..., Channel], tell: Callable[..., int]
) -> None:
    add(min_severity="warn")
    assert tell(severity="watch") == 0
    assert tell("incident.updated", severity="warn") == 1
    assert types(control) == ["incident.opened"]


def test_only_a_change_of_severity_is_told_again(control: Control, add: Callable[..., Channel], tell: Callable[..., int]) -> None:
    add()
    assert [tell(), tell("incident.updated"), tell("incident.updated", severity="critical")] == [1, 0, 1]
    assert types(control) == ["incident.opened", "incident.updated"]


def test_the_end_is_told_once_and_only_to_those_who_heard_the_beginning(add: Callable[..., Channel], tell: Callable[..., int]) -> None:
    add(min_severity="warn")
    add(min_severity="critical")
    tell(severity="warn")
    assert [tell("incident.resolved", severity="warn", status="recovered") for _ in range(2)] == [1, 0]


def test_a_preview_rule_is_told_to_channels_that_asked_for_it(
    control: Control, add: Callable[..., Channel], tell: Callable[..., int]
) -> None:
    add()
    eager = add()
    with control.session() as session:
        asked = ask_for_previews(session, eager.id, True)
        assert asked is not None and asked.preview and ask_for_previews(session, "ch_none", True) is None
    assert tell(preview=True) == 1
    assert tell("incident.updated", severity="critical") == 2
    # Once a channel has heard of the beginning, it hears of the rest whatever became of the rule.
    assert tell("incident.resolved", severity="critical", status="recovered", preview=True) == 2


def test_messages_vanish_with_the_transaction_that_would_have_told_them(
    control: Control, add: Callable[..., Channel], make_change: Callable[..., object]
) -> None:
    from server.notify.outbox import message

    channel = add()
    with pytest.raises(RuntimeError), control.session() as session:
        session.add(message(channel.id, None, {"type": "channel.test"}, 0.0))
        session.flush()
        raise RuntimeError
    assert types(control) == []
