"""rlvitals serve: the dashboard, the API, the rules and the alerts of one home."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frontend.terminal import out_now, say

if TYPE_CHECKING:
    from server.service import Service


def add_parser(subparsers: Any) -> None:
    """Declares the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "serve", help="serve the dashboard, the API, the rules and the alerts", description="Serves one home until it is stopped (Ctrl-C)."
    )
    parser.add_argument(
        "--host", metavar="ADDRESS", help="address to listen on (default 127.0.0.1); beyond loopback --allow-host is needed"
    )
    parser.add_argument("--port", type=int, metavar="PORT", help="port to listen on (default 8420; 0 takes a free one)")
    parser.add_argument(
        "--allow-host", action="extend", nargs="+", metavar="NAME", help="host name under which browsers may reach the server"
    )
    parser.add_argument("--no-token", action="store_true", default=None, help="ask for no access token; on loopback only")
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="file that holds the access token (default: made in the home)")
    parser.add_argument("--public-url", metavar="URL", help="address that links in chat messages begin with")
    parser.add_argument("--webhook-allow", action="extend", nargs="+", metavar="CIDR", help="private network that channels may send to")
    parser.add_argument("--watch", action="extend", nargs="+", type=Path, metavar="PATH", help="file or folder to follow")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serves until stopped."""
    from frontend.serving import serve
    from server.settings import load_settings

    names = ("home", "host", "port", "allow_host", "no_token", "token_file", "public_url", "webhook_allow", "watch")
    given = {name: getattr(args, name) for name in names}
    settings = load_settings({name: tuple(value) if isinstance(value, list) else value for name, value in given.items()})
    return serve(settings, lambda service: _announce(service, settings.watch))


def _announce(service: Service, watched: tuple[Path, ...]) -> None:
    for path in watched:
        say(f"Following {path}.")
    out_now(f"RLVitals is at {service.open_address}")
