"""rlvitals runs: which runs the home holds and how each stands."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

from frontend.terminal import out, out_json, table

if TYPE_CHECKING:
    from server.settings import Settings


def add_parser(subparsers: Any) -> None:
    """Declares the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser("runs", help="list the runs of the home")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints one line a run, asked of the server where one owns the home."""
    from server.settings import load_settings

    settings = load_settings({"home": args.home})
    runs = listed_runs(settings)
    if args.json:
        out_json({"schema": 1, "runs": runs})
    elif not runs:
        out(f"{settings.home} holds no runs. `rlvitals ingest PATH` reads some.")
    else:
        headers = ("run", "project", "name", "framework", "state", "last step", "seen", "points", "trajectories", "open incidents")
        table(headers, [_row(found) for found in runs], right=(5, 6, 7, 8, 9))
    return 0


def listed_runs(settings: Settings) -> list[dict[str, Any]]:
    """The runs of the home in the words of `GET /api/v1/runs`, asked of the server where one owns it."""
    from frontend.owner import owner_of

    owner = owner_of(settings)
    runs: list[dict[str, Any]] = owner.get("/api/v1/runs")["runs"] if owner else stored_runs(settings)
    return runs


def stored_runs(settings: Settings) -> list[dict[str, Any]]:
    """The runs of a home that no server owns, in the words of `GET /api/v1/runs`."""
    if not settings.telemetry_path.exists():
        return []
    from ingest.store.connection import Store
    from server.queries.runs import run_counts, run_summaries

    open_incidents = _open_incidents(settings)
    store = Store(settings.telemetry_path)
    try:
        found = [(summary, run_counts(store, summary.run_id)) for summary in run_summaries(store)]
    finally:
        store.close()
    return [
        {
            "run_id": summary.run_id,
            "project": summary.project,
            "name": summary.name,
            "framework": summary.framework,
            "state": summary.state,
            "last_step": summary.newest_step,
            "last_seen": summary.last_seen,
            "points": counts.points,
            "trajectories": counts.trajectories,
            "open_incidents": open_incidents.get(summary.run_id, 0),
        }
        for summary, counts in found
    ]


def _open_incidents(settings: Settings) -> dict[str, int]:
    if not (settings.home / "control.sqlite").exists():
        return {}
    from server.control.incidents import count_open_by_run
    from server.control.models import Control

    control = Control(settings.control_url)
    try:
        control.migrate()
        with control.session(write=False) as session:
            return dict(count_open_by_run(session))
    finally:
        control.close()


def _row(found: dict[str, Any]) -> tuple[object, ...]:
    keys = ("run_id", "project", "name", "framework", "state", "last_step")
    counts = (found["points"], found["trajectories"], found["open_incidents"])
    return (*(found[key] for key in keys), _ago(found["last_seen"]), *counts)


def _ago(moment: float) -> str:
    seconds = max(0.0, time.time() - moment)
    for length, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"
