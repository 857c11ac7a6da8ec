"""What every kind of channel must say: how a message looks, what an answer means, how long to wait."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Literal, Protocol, TypeAlias

from server.notify.event import Payload

OutcomeKind: TypeAlias = Literal["delivered", "retry", "permanent", "off"]
"""retry: try again later; permanent: this message will never arrive; off: no message ever will."""

LONGEST_RETRY_AFTER = 900.0
RETRY_STATUSES = frozenset({408, 425, 429})


@dataclass(frozen=True)
class Outgoing:
    """A request body with its headers."""

    body: bytes
    headers: Mapping[str, str]


@dataclass(frozen=True)
class Reply:
    """What came back. status is null where no answer came, and error then says why in words without the address."""

    status: int | None
    body: str
    headers: Mapping[str, str]
    """Names in lower case."""
    seconds: float
    error: str | None = None
    refused: bool = False
    """The network guard did not let the request out."""


@dataclass(frozen=True)
class Outcome:
    """What an answer means, with a sentence for people."""

    kind: OutcomeKind
    meaning: str


class Kind(Protocol):
    """One kind of channel; one file each."""

    @property
    def name(self) -> str:
        """The word stored with a channel."""
        ...

    @property
    def timeout_seconds(self) -> float:
        """How long one attempt may take."""
        ...

    def draw(self, payload: Payload, message_id: str, secret: str | None, at: float) -> Outgoing:
        """The request for a message; `at` is Unix seconds of this attempt."""
        ...

    def outcome(self, reply: Reply) -> Outcome:
        """What the answer means."""
        ...

    def wait(self, attempts: int, age_seconds: float) -> float | None:
        """Seconds until the next attempt after so many failed ones; None gives up."""
        ...


def common_outcome(reply: Reply) -> Outcome | None:
    """What an answer means for every kind alike; None where the kind itself must look (2xx, and 4xx that end a channel)."""
    if reply.refused:
        return Outcome("permanent", reply.error or "The address is not allowed.")
    if reply.status is None:
        return Outcome("retry", f"No answer: {reply.error}. It is tried again.")
    if reply.status == 429:
        return Outcome("retry", "The receiver asks for fewer messages (429). It is tried again when the receiver allows.")
    if reply.status in RETRY_STATUSES or reply.status >= 500:
        return Outcome("retry", f"The receiver has a problem of its own ({reply.status}). It is tried again.")
    if reply.status < 200 or 300 <= reply.status < 400:
        return Outcome("permanent", f"The receiver points elsewhere ({reply.status}). No redirect is followed: enter the final address.")
    return None


def retry_after(reply: Reply, now: float | None = None) -> float | None:
    """Seconds that the receiver asks us to wait, at most 15 minutes; None where it does not say."""
    text = reply.headers.get("retry-after", "").strip()
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(text).timestamp() - (time.time() if now is None else now)
        except (ValueError, TypeError):
            return None
    return min(max(seconds, 0.0), LONGEST_RETRY_AFTER) if seconds == seconds else None


def chat_wait(attempts: int, age_seconds: float) -> float | None:
    """Full jitter on 2 s doubled, at most 10 min; after 2 h a message about a spike is noise and is given up."""
    if age_seconds > 7200:
        return None
    return random.uniform(0.0, min(600.0, 2.0 * 2.0 ** min(attempts, 12)))
