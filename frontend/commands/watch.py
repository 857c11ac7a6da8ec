"""rlvitals watch: follows files and folders into the local home until stopped."""

from __future__ import annotations

import argparse
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frontend.terminal import say
from ingest.errors import NoRunFound, NotBuilt, RLVitalsError

if TYPE_CHECKING:
    from ingest.watch import Commit


def add_parser(subparsers: Any) -> None:
    """Declares the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "watch",
        help="follow files or folders until stopped",
        description="Follows files and folders into the local home until stopped (Ctrl-C).",
    )
    parser.add_argument("paths", nargs="+", metavar="PATH", type=Path, help="file or folder")
    parser.add_argument("--project", metavar="P", help="project of the runs (default: the parent folder's name)")
    parser.add_argument("--run", dest="name", metavar="NAME", help="name of the run")
    parser.add_argument("--reader", metavar="NAME", help="take every file for this format")
    parser.add_argument("--to", metavar="URL", help="send to a server on another machine (not built yet)")
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="file with the token of that server (not built yet)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Follows until a signal asks to stop.

    Raises:
        NotBuilt: --to was given.
        NoRunFound: a path is missing.
        StoreOwned: a server owns the home; it can follow the path itself.
    """
    if args.to or args.token_file:
        raise NotBuilt("`rlvitals watch --to` is not built yet. Run `rlvitals serve --watch PATH` on the machine that holds the files.")
    for path in args.paths:
        if not path.exists():
            raise NoRunFound(f"{path}: no such file or folder.")
    _refuse_beside_server(args)
    return _follow(args)


def _refuse_beside_server(args: argparse.Namespace) -> None:
    from frontend.owner import owner_of
    from server.settings import load_settings

    owner = owner_of(load_settings({"home": args.home}))
    if owner is not None:
        raise RLVitalsError(
            f"A server at {owner.address} owns the home {owner.home}. "
            "Start it with `rlvitals serve --watch PATH`, or give another home with --home."
        )


def _follow(args: argparse.Namespace) -> int:
    from ingest.store.connection import Store
    from ingest.watch import Watcher
    from server.home import prepare_home
    from server.settings import load_settings

    settings = load_settings({"home": args.home})
    prepare_home(settings.home)
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: stopped.set())
    store = Store(settings.telemetry_path)
    try:
        watcher = Watcher(store, _tell)
        for path in args.paths:
            watcher.add(path, args.project, args.name, args.reader)
            say(f"Following {path}. Ctrl-C stops.")
        watcher.start()
        stopped.wait()
        watcher.stop()
    finally:
        store.close()
    return 0


def _tell(commit: Commit) -> None:
    newest = "" if commit.newest_step is None else f", newest step {commit.newest_step}"
    say(f"{commit.path}: {commit.rows:,} rows{newest}.")
