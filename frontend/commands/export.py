"""rlvitals export: everything of a run as Parquet, CSV or JSON lines."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frontend.terminal import out_json, size, table
from ingest.errors import NoRunFound, StoreOwned

if TYPE_CHECKING:
    from ingest.store.connection import Store


def add_parser(subparsers: Any) -> None:
    """Declares the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser("export", help="write everything of a run as files")
    parser.add_argument("name", metavar="RUN", help="id or name of the run")
    parser.add_argument("--format", choices=("parquet", "csv", "jsonl"), required=True, help="format of the tables")
    parser.add_argument("--out", type=Path, metavar="DIR", required=True, help="new or empty folder to write to")
    parser.add_argument("--json", action="store_true", help="print the written files as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Writes the files and lists them.

    Raises:
        StoreOwned: a server owns the home.
        NoRunFound: no run, or several runs, of that name.
    """
    from frontend.owner import owner_of
    from ingest.store.connection import Store
    from ingest.store.export import export_run
    from server.settings import load_settings

    settings = load_settings({"home": args.home})
    owner = owner_of(settings)
    if owner is not None:
        raise StoreOwned(f"The server at {owner.address} owns the home {settings.home}. Stop it to export from the command line.")
    if not settings.telemetry_path.exists():
        raise NoRunFound(f"{settings.home} holds no runs. `rlvitals ingest PATH` reads some.")
    store = Store(settings.telemetry_path)
    try:
        files = export_run(store, run_named(store, args.name), args.format, args.out)
    finally:
        store.close()
    if args.json:
        out_json({"schema": 1, "files": [{"path": str(f.path), "rows": f.rows, "bytes": f.bytes} for f in files]})
    else:
        table(("file", "rows", "size"), [(f.path, f.rows, size(f.bytes)) for f in files], right=(1, 2))
    return 0


def run_named(store: Store, name: str) -> str:
    """The id of the run with that id or name.

    Raises:
        NoRunFound: none, or several; names what there is.
    """
    from server.queries.runs import run_summaries

    runs = run_summaries(store)
    found = [run for run in runs if run.run_id == name] or [run for run in runs if run.name == name]
    if len(found) == 1:
        return found[0].run_id
    if found:
        raise NoRunFound(f"Several runs are called {name}: {', '.join(f'{r.run_id} ({r.project})' for r in found)}. Give the id.")
    known = ", ".join(run.name for run in runs[:8])
    raise NoRunFound(f"There is no run {name}. There are: {known or 'none'}{' and more' if len(runs) > 8 else ''}.")
