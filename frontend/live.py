"""Live messages: the service's hub -> one Store in the frame of every page. Rows are fetched by the page itself."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from dash import Dash, ctx, set_props
from dash.exceptions import PreventUpdate

STORE_ID = "live"
GATHER_SECONDS = 0.5
BEAT_SECONDS = 5.0


def register(app: Dash, service: Any) -> None:
    """Attaches the one persistent callback that feeds the Store of each open page."""

    @app.callback(websocket=True, persistent=True)
    async def push() -> None:
        socket = ctx.websocket
        if socket is None:
            raise PreventUpdate
        number = 0
        async with service.hub.subscribe() as queue:
            while not socket.is_shutdown:
                number += 1
                set_props(STORE_ID, {"data": await gathered(queue, number)})


async def gathered(queue: asyncio.Queue[Any], number: int) -> dict[str, Any]:
    """What happened since the last message, as one message; after BEAT_SECONDS of silence an empty one.

    rows: run id to newest step; incidents: the hub's messages; sources: run ids. at: Unix seconds of the server.
    """
    message: dict[str, Any] = {"seq": number, "at": time.time(), "rows": {}, "incidents": [], "sources": []}
    try:
        add(message, await asyncio.wait_for(queue.get(), BEAT_SECONDS))
    except TimeoutError:
        return message
    # One redraw a second is all a page can take: what comes within the moment after the first goes with it.
    await asyncio.sleep(GATHER_SECONDS)
    while not queue.empty():
        add(message, queue.get_nowait())
    return message


def add(message: dict[str, Any], item: dict[str, Any]) -> None:
    """Adds one message of the hub to what is gathered."""
    run_id = item.get("run_id")
    if item["type"] == "rows":
        newest = item.get("newest_step")
        known = message["rows"].get(run_id)
        message["rows"][run_id] = newest if known is None else max(known, newest if newest is not None else known)
    elif item["type"] == "incident":
        message["incidents"].append(item)
    elif run_id not in message["sources"]:
        message["sources"].append(run_id)
