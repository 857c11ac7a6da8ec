"""One file a command: `add_parser(subparsers)` declares it, `run(args)` does it and returns the exit code.

A command module imports nothing heavy at its top, so that `rlvitals --help` is quick: what opens a store, a page or a
server is imported inside `run`.
"""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

NAMES = (
    "serve", "demo", "ingest", "watch", "diagnose", "backtest", "audit", "budget",
    "runs", "readers", "metrics", "rules", "settings", "export",
)  # fmt: skip


def commands() -> list[ModuleType]:
    """The command modules in the order of `rlvitals --help`."""
    modules = (f"frontend.commands.{name}" for name in NAMES)
    return [importlib.import_module(module) for module in modules if importlib.util.find_spec(module)]
