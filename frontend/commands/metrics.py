"""rlvitals metrics: the vocabulary, and the page that is written from it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from frontend.terminal import out_json, table

_PAGE = Path("docs/metrics.md")


def add_parser(subparsers: Any) -> None:
    """Declares the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser("metrics", help="list the metrics that have a meaning here")
    parser.add_argument("words", nargs="*", metavar="WORD", help="only metrics whose id, title or definition holds every word")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--docs", action="store_true", help=f"write {_PAGE} of a source folder")
    parser.add_argument("--check", action="store_true", help=f"with --docs: only say whether {_PAGE} is current (exit code 1: it is not)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints every metric: id, unit, range, definition."""
    from ingest.schema.metrics import METRICS

    if args.docs or args.check:
        from ingest.schema.document import main

        return main([str(_PAGE), *(["--check"] if args.check else [])])
    found = [m for m in METRICS.values() if all(word.lower() in f"{m.id} {m.title} {m.definition}".lower() for word in args.words)]
    if args.json:
        out_json({"schema": 1, "metrics": [m._asdict() for m in found]})
    else:
        table(("metric", "unit", "definition"), [(m.id, m.unit, m.definition) for m in found])
    return 0
