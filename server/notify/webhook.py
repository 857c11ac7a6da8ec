"""A signed webhook for programs: Standard Webhooks 1.0.0 (github.com/standard-webhooks, spec/standard-webhooks.md)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import random
import secrets
from dataclasses import dataclass

from ingest.errors import RLVitalsError
from server.notify.base import Outcome, Outgoing, Reply, common_outcome
from server.notify.event import Payload

WAITS = (5.0, 300.0, 1800.0, 7200.0, 18000.0, 36000.0, 50400.0, 72000.0, 86400.0)
"""Seconds between attempts as the specification gives them."""
LONGEST_BODY = 20_000
_SHORTENED = ("not_checkable", "next_checks", "evidence")


@dataclass(frozen=True)
class Webhook:
    """The body of contracts "Webhook body", signed with the channel's own secret."""

    name: str = "webhook"
    timeout_seconds: float = 20.0

    def draw(self, payload: Payload, message_id: str, secret: str | None, at: float) -> Outgoing:
        """Signed bytes: the id stays the same in every attempt, the timestamp is the attempt's."""
        body = _body(payload)
        seconds = str(int(at))
        headers = {"Content-Type": "application/json; charset=utf-8", "webhook-id": message_id, "webhook-timestamp": seconds}
        if secret is not None:
            headers["webhook-signature"] = signature(secret, message_id, seconds, body)
        return Outgoing(body, headers)

    def outcome(self, reply: Reply) -> Outcome:
        """Any 2xx is success; 410 says that nobody will ever listen again."""
        known = common_outcome(reply)
        if known is not None:
            return known
        assert reply.status is not None
        if reply.status < 300:
            return Outcome("delivered", "The receiver took the message.")
        if reply.status == 410:
            return Outcome("off", "The receiver says that this address is gone for good (410).")
        if reply.status in (401, 403):
            return Outcome("permanent", f"The receiver does not let us in ({reply.status}): check the signing secret on its side.")
        return Outcome("permanent", f"The receiver refuses the message ({reply.status}).")

    def wait(self, attempts: int, age_seconds: float) -> float | None:
        """The specification's schedule with a tenth of jitter."""
        return WAITS[attempts - 1] * random.uniform(1.0, 1.1) if attempts <= len(WAITS) else None


def new_secret() -> str:
    """A fresh signing secret: 32 random bytes."""
    return "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()


def secret_bytes(secret: str) -> bytes:
    """The key inside `whsec_...`.

    Raises:
        RLVitalsError: it is not base64 of 24 to 64 bytes.
    """
    try:
        key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not 24 <= len(key) <= 64:
        raise RLVitalsError("A signing secret is whsec_ and the base64 of 24 to 64 bytes. Leave it empty and RLVitals makes one.")
    return key


def signature(secret: str, message_id: str, seconds: str, body: bytes) -> str:
    """`v1,` and the base64 of HMAC-SHA256 over id, timestamp and body joined by dots."""
    signed = f"{message_id}.{seconds}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(secret_bytes(secret), signed, hashlib.sha256)).decode()


def _body(payload: Payload) -> bytes:
    """Compact JSON below the specification's 20 kB: lists are emptied from the least important one on."""
    body = _json(payload)
    for name in _SHORTENED:
        if len(body) <= LONGEST_BODY:
            break
        payload = {**payload, "data": {**payload["data"], name: []}}
        body = _json(payload)
    return body


def _json(payload: Payload) -> bytes:
    return json.dumps(payload, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
