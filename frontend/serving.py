"""Starting and stopping the one process that owns a home: stores, rules, messages, API and pages."""

from __future__ import annotations

import logging
import signal
import socket
import sys
from collections.abc import Callable
from types import FrameType
from typing import TypeAlias

import uvicorn

from frontend.app import create_app
from server.home import bind
from server.service import Service
from server.settings import Settings

_GOODBYE_SECONDS = 3

Started: TypeAlias = Callable[[Service], Callable[[], None]]
"""Called with the running service before the first request; what it returns is called before the service stops."""


class _Server(uvicorn.Server):
    """Says when it answers."""

    def __init__(self, config: uvicorn.Config, announce: Callable[[], None]) -> None:
        super().__init__(config)
        self._announce = announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts listening, then announces."""
        await super().startup(sockets)
        if self.started:
            self._announce()


def serve(settings: Settings, announce: Callable[[Service], None], started: Started | None = None) -> int:
    """Serves until a signal asks to stop; `announce` is called once the port answers.

    Raises:
        RLVitalsError: the port is in use, the home belongs to another process, or a store cannot be opened.
    """
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s")
    # The web server gives a signal on once it has stopped; without a handler SIGTERM would then end us before the stores are closed.
    signal.signal(signal.SIGTERM, _interrupt)
    listener = bind(settings)
    service = Service(settings)
    stop: Callable[[], None] | None = None
    try:
        service.start(listener.getsockname()[1])
        stop = started(service) if started else None
        config = uvicorn.Config(
            create_app(service), log_config=None, access_log=False, server_header=False, timeout_graceful_shutdown=_GOODBYE_SECONDS
        )
        _Server(config, lambda: announce(service)).run(sockets=[listener])
    except KeyboardInterrupt:
        pass
    finally:
        if stop is not None:
            stop()
        service.stop()
        listener.close()
    return 0


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
