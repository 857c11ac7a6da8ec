"""rlvitals readers: the formats that are recognised."""

from __future__ import annotations

import argparse
from typing import Any

from frontend.terminal import out_json, table

_GROWTH = {"append": "followed as it grows", "whole": "read again when it changed"}


def add_parser(subparsers: Any) -> None:
    """Declares the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser("readers", help="list the formats that are recognised")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints every reader: name for --reader, framework, how its files grow, and what it reads."""
    from ingest.readers import READERS

    rows = [(reader.name, reader.framework, _GROWTH[reader.growth], _summary(reader)) for reader in READERS]
    if args.json:
        keys = ("name", "framework", "growth", "precedence", "summary")
        out_json(
            {
                "schema": 1,
                "readers": [dict(zip(keys, (r.name, r.framework, r.growth, r.precedence, _summary(r)), strict=True)) for r in READERS],
            }
        )
    else:
        table(("reader", "trainer", "files are", "reads"), rows)
    return 0


def _summary(reader: object) -> str:
    return (type(reader).__doc__ or "").strip().split("\n")[0]
