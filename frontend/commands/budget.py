"""rlvitals budget: announced in the contracts, not built yet."""

from __future__ import annotations

import argparse
from typing import Any

from ingest.errors import NotBuilt


def add_parser(subparsers: Any) -> None:
    """Declares the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser("budget", help="say what became of the tokens and the time (not built yet)")
    parser.add_argument("target", nargs="?", metavar="RUN_OR_PATH", help="run of the home, or its files")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(_args: argparse.Namespace) -> int:
    """Says that it is not there.

    Raises:
        NotBuilt: always.
    """
    raise NotBuilt("`rlvitals budget` is not built yet.")
