"""The Channels page: what it shows and what its buttons do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from plotly.utils import PlotlyJSONEncoder

from frontend.pages import channels as page
from ingest.errors import RLVitalsError
from server.control.models import Control
from server.notify.channels import channels, deliveries
from server.notify.trial import Trial

URL = "http://10.0.0.1:9/hooks/sEcReTpArT1234"


@pytest.fixture
def service() -> Iterator[Any]:
    """As much of a service as the page asks for."""
    control = Control("sqlite://")
    control.migrate()
    yield SimpleNamespace(control=control, settings=SimpleNamespace(public_url=None, webhook_allow=()))
    control.close()


def drawn(component: Any) -> str:
    return json.dumps(component, cls=PlotlyJSONEncoder)


def listed(service: Any) -> list[Any]:
    with service.control.session(write=False) as session:
        return channels(session)


def test_an_empty_page_says_what_to_do_next(service: Any) -> None:
    said = drawn(page.layout(service))
    assert "An incident is told to nobody yet" in said and "No message yet" in said and "--public-url" in said


def test_with_a_public_address_nothing_is_said_about_links(service: Any) -> None:
    service.settings.public_url = "https://rlvitals.example"
    assert "--public-url" not in drawn(page.layout(service))


def test_a_channel_is_shown_by_its_hint_alone(service: Any) -> None:
    channel, signing = page._add(service, "webhook", "bot", URL, "warn", None)
    assert signing is not None and signing in drawn(page._added(channel, signing))
    said = drawn(page.layout(service))
    assert "10.0.0.1" in said and "1234" in said and "sEcReT" not in said and signing not in said


def test_a_refused_address_is_a_sentence_without_the_address(service: Any) -> None:
    with pytest.raises(RLVitalsError) as refused:
        page._add(service, "slack", "x", "ftp://h/sEcReT", "warn", None)
    assert "sEcReT" not in str(refused.value) and listed(service) == []


def test_the_test_button_shows_the_meaning_and_leaves_a_line_in_the_log(service: Any) -> None:
    channel, _ = page._add(service, "slack", "on call", URL, "warn", None)
    assert "--webhook-allow 10.0.0.1" in drawn(page._act(service, "channels-test", channel.id))
    with service.control.session(write=False) as session:
        log = deliveries(session)
    said = drawn(page.delivery_log(log))
    assert "failed" in said and "test" in said and "sEcReT" not in said


def test_switching_and_deleting_do_what_they_say(service: Any) -> None:
    channel, _ = page._add(service, "slack", "on call", URL, "warn", None)
    assert "on call is off." in drawn(page._act(service, "channels-switch", channel.id)) and not listed(service)[0].enabled
    assert "on call is on." in drawn(page._act(service, "channels-switch", channel.id)) and listed(service)[0].enabled
    assert (
        "on call also hears of preview rules." in drawn(page._act(service, "channels-preview", channel.id)) and listed(service)[0].preview
    )
    assert "stable rules alone" in drawn(page._act(service, "channels-preview", channel.id)) and not listed(service)[0].preview
    page._act(service, "channels-delete", channel.id)
    assert listed(service) == []
    assert "not there any more" in drawn(page._act(service, "channels-switch", channel.id))


def test_a_reply_is_shown_as_text_with_its_hidden_characters(service: Any) -> None:
    trial = Trial("msg_1", "permanent", 400, "<img src=x>\u202e", 0.2, "Slack refuses the message (400).")
    said = drawn(page.trial_result(trial))
    assert "<img src=x>" in said and "\\u202e" not in said and "DangerouslySetInnerHTML" not in said


def test_what_the_page_has_seen_changes_with_every_delivery(service: Any) -> None:
    channel, _ = page._add(service, "slack", "on call", URL, "warn", None)
    before = page._seen(*page._read(service))
    assert page._seen(*page._read(service)) == before
    page._act(service, "channels-test", channel.id)
    assert page._seen(*page._read(service)) != before
