"""One hub for live messages: published from any thread, received on the event loop by every open page."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeAlias

Message: TypeAlias = dict[str, str | int | None]
"""{"type": "rows", "run_id", "newest_step"}, {"type": "incident", "run_id", "incident_id", "kind"} or
{"type": "source", "run_id"}. Messages say what changed, never carry the rows: a page asks for those itself."""

QUEUE_LENGTH = 256


@dataclass(frozen=True, eq=False)
class _Subscriber:
    loop: asyncio.AbstractEventLoop
    queue: asyncio.Queue[Message]


class Hub:
    """Fans messages out to subscribers. A subscriber that does not read loses its oldest messages, never the newest."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._subscribers: set[_Subscriber] = set()

    def publish(self, message: Message) -> None:
        """Hands a message to every subscriber; callable from any thread, never waits."""
        with self._lock:
            subscribers = list(self._subscribers)
        for subscriber in subscribers:
            try:
                subscriber.loop.call_soon_threadsafe(_put, subscriber.queue, message)
            except RuntimeError:
                # The loop of that page was closed before it could say goodbye.
                self._remove(subscriber)

    @asynccontextmanager
    async def subscribe(self) -> AsyncIterator[asyncio.Queue[Message]]:
        """A queue of the messages published while the context is open."""
        subscriber = _Subscriber(asyncio.get_running_loop(), asyncio.Queue(QUEUE_LENGTH))
        with self._lock:
            self._subscribers.add(subscriber)
        try:
            yield subscriber.queue
        finally:
            self._remove(subscriber)

    def _remove(self, subscriber: _Subscriber) -> None:
        with self._lock:
            self._subscribers.discard(subscriber)

    @property
    def subscribers(self) -> int:
        """How many queues are open."""
        with self._lock:
            return len(self._subscribers)


def _put(queue: asyncio.Queue[Message], message: Message) -> None:
    if queue.full():
        queue.get_nowait()
    queue.put_nowait(message)
