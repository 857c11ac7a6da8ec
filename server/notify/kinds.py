"""Every kind of channel."""

from __future__ import annotations

from server.notify.base import Kind
from server.notify.slack import Slack
from server.notify.webhook import Webhook

KINDS: dict[str, Kind] = {kind.name: kind for kind in (Slack(), Webhook())}
