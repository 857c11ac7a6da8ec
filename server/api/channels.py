"""Channels: add, test, list, switch, delete, and the delivery log. Addresses go in and never come out."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException, Query
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from server.api.deps import Failure, Model, TheService
from server.notify.channels import add_channel, ask_for_previews, channels, delete_channel, deliveries, switch_channel
from server.notify.trial import send_sample

router = APIRouter(prefix="/api/v1/channels", tags=["channels"], responses={404: {"model": Failure}})


class NewChannel(BaseModel):
    """A channel to be added.

    secret: signing secret of a webhook (whsec_...); left away, one is made. preview: it hears of preview rules too.
    """

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    kind: Literal["slack", "webhook"]
    name: str = Field(min_length=1, max_length=100)
    url: SecretStr
    min_severity: Literal["info", "watch", "warn", "critical"] = "warn"
    secret: SecretStr | None = None
    preview: bool = False


class ChannelItem(Model):
    """A channel. address_hint: host and last four characters of the address, which is never shown again."""

    id: str
    kind: str
    name: str
    address_hint: str
    min_severity: str
    enabled: bool
    created_at: float
    off_reason: str | None
    failures_in_row: int
    preview: bool


class ChannelList(Model):
    """Every channel."""

    channels: list[ChannelItem]


class AddedChannel(Model):
    """The new channel with its signing secret, shown this once; null for chat."""

    channel: ChannelItem
    secret: str | None


class Switch(BaseModel):
    """On or off, and whether it hears of preview rules too; null: as it is."""

    model_config = ConfigDict(extra="forbid")

    enabled: bool | None = None
    preview: bool | None = None


class TrialAnswer(Model):
    """What the sample met. status: of the HTTP answer, null where none came; meaning: a sentence for people."""

    message_id: str
    outcome: str
    status: int | None
    reply: str
    seconds: float
    meaning: str


class DeliveryItem(Model):
    """One message. attempt: attempts so far; next_at: Unix seconds of the next one while it waits."""

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
    payload: dict[str, Any]


class DeliveryList(Model):
    """Messages, newest first."""

    deliveries: list[DeliveryItem]


@router.get("")
def list_channels(service: TheService) -> ChannelList:
    """Every channel, without its address."""
    with service.control.session(write=False) as session:
        return ChannelList(channels=[ChannelItem.model_validate(item) for item in channels(session)])


@router.post("", status_code=201)
def create_channel(service: TheService, new: NewChannel) -> AddedChannel:
    """Adds a channel; nothing is sent yet."""
    secret = new.secret.get_secret_value() if new.secret else None
    with service.control.session() as session:
        channel, signing = add_channel(
            session, new.kind, new.name, new.url.get_secret_value(), new.min_severity, secret, preview=new.preview
        )
    return AddedChannel(channel=ChannelItem.model_validate(channel), secret=signing)


@router.patch("/{channel_id}")
def change_channel(service: TheService, channel_id: str, change: Switch) -> ChannelItem:
    """Switches a channel on or off, or lets it hear of preview rules."""
    with service.control.session() as session:
        channel = next((one for one in channels(session) if one.id == channel_id), None)
        if channel is not None and change.enabled is not None:
            channel = switch_channel(session, channel_id, change.enabled)
        if channel is not None and change.preview is not None:
            channel = ask_for_previews(session, channel_id, change.preview)
    if channel is None:
        raise _unknown(channel_id)
    return ChannelItem.model_validate(channel)


@router.delete("/{channel_id}", status_code=204)
def remove_channel(service: TheService, channel_id: str) -> None:
    """Removes a channel with its delivery log."""
    with service.control.session() as session:
        if not delete_channel(session, channel_id):
            raise _unknown(channel_id)


@router.post("/{channel_id}/test")
def test_channel(service: TheService, channel_id: str) -> TrialAnswer:
    """Sends one marked sample and answers with everything that came back."""
    trial = send_sample(service.control, channel_id, service.settings.public_url, service.settings.webhook_allow)
    if trial is None:
        raise _unknown(channel_id)
    return TrialAnswer.model_validate(trial)


@router.get("/deliveries")
def list_deliveries(service: TheService, channel_id: str | None = None, limit: Annotated[int, Query(ge=1, le=1000)] = 50) -> DeliveryList:
    """The newest messages of one channel or of all."""
    with service.control.session(write=False) as session:
        return DeliveryList(deliveries=[DeliveryItem.model_validate(item) for item in deliveries(session, channel_id, limit)])


def _unknown(channel_id: str) -> HTTPException:
    return HTTPException(404, f"There is no channel {channel_id}.")
