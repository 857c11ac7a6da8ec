"""rlvitals settings: every setting, its value and where that came from."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from frontend.terminal import out_json, table


def add_parser(subparsers: Any) -> None:
    """Declares the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser("settings", help="list the settings, their values and where these came from")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the table of settings. Secrets are files, so no value here is one."""
    from server.settings import load_settings, settings_table

    given = {"home": args.home}
    rows = settings_table(load_settings(given), given)
    if args.json:
        out_json({"schema": 1, "settings": [asdict(row) for row in rows]})
    else:
        table(("setting", "value", "from", "what it is"), [(row.name, row.value, row.origin, row.help) for row in rows])
    return 0
