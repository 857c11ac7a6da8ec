"""rlvitals demo: the dashboard with bundled recorded runs in a throw-away home, one of them playing live."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from frontend.terminal import Bar, out_now, plural, say
from ingest.errors import RLVitalsError

if TYPE_CHECKING:
    from server.service import Service

_POLL_SECONDS = 0.1


def add_parser(subparsers: Any) -> None:
    """Declares the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "demo",
        help="try it with bundled runs, one of them live",
        description="Serves bundled recorded runs from a throw-away home until it is stopped.",
    )
    parser.add_argument("--port", type=int, default=8420, metavar="PORT", help="port to listen on (default 8420; 0 takes a free one)")
    parser.add_argument("--speed", type=float, default=None, help=argparse.SUPPRESS)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serves the demo until stopped; its folder is removed at the end."""
    from frontend.demo import LIVE_RUN, PROJECT, STEPS_A_SECOND, Player, throw_away_folder
    from frontend.serving import serve
    from server.settings import load_settings

    with throw_away_folder() as folder:
        live = folder / PROJECT / LIVE_RUN
        player = Player(live, seconds=1 / (args.speed or STEPS_A_SECOND))
        settings = load_settings({"home": folder / "home", "port": args.port, "watch": (live,), "demo": True, **_FIXED})
        return serve(settings, _announce, lambda service: _begin(service, player))


_FIXED: dict[str, object] = {"host": "127.0.0.1", "allow_host": (), "no_token": False, "public_url": ""}
"""The demo is never opened to others, whatever the environment says."""


def _begin(service: Service, player: Any) -> Callable[[], None]:
    from frontend.demo import PROJECT, recorded_runs

    runs = recorded_runs()
    say(f"Reading {plural(len(runs), 'recorded run')} into a throw-away home.")
    # One order a run: the pages open once the first is there, the others follow while somebody looks around.
    jobs = [service.ingest([path], PROJECT) for path in runs]
    _wait(service, jobs[0])
    player.start()
    return lambda: player.stop()


def _wait(service: Service, job_id: str) -> None:
    bar = Bar()
    try:
        while (job := service.job(job_id)) is not None and job.state == "running":
            bar.show(job.bytes, job.total_bytes)
            time.sleep(_POLL_SECONDS)
    finally:
        bar.close()
    if job is None or job.state == "failed":
        raise RLVitalsError(f"The recorded runs could not be read: {job.error if job else 'the order was lost'}")


def _announce(service: Service) -> None:
    say("This is the demo. Your own run: rlvitals serve --watch PATH")
    out_now(f"RLVitals is at {service.open_address}")
