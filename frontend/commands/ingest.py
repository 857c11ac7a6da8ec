"""rlvitals ingest: reads files or folders once, itself or through the server that owns the home."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frontend.terminal import Bar, out, out_json, plural, say, size, table
from ingest.errors import NoRunFound, RLVitalsError

if TYPE_CHECKING:
    from frontend.owner import Owner
    from ingest.store.write import Commit
    from server.settings import Settings

_LISTED_FILES = 40
_LISTED_REJECTS = 20
_READ = ("read", "followed", "unchanged")


def add_parser(subparsers: Any) -> None:
    """Declares the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "ingest", help="read files or folders once", description="Reads every run under the paths once, from where earlier reads left off."
    )
    parser.add_argument("paths", nargs="+", metavar="PATH", type=Path, help="file or folder; a folder yields the runs in its tree")
    parser.add_argument("--project", metavar="P", help="project of the runs (default: the parent folder's name)")
    parser.add_argument(
        "--run", dest="name", metavar="NAME", help="name of the run (default: the folder's, or the file's without its ending)"
    )
    parser.add_argument("--reader", metavar="NAME", help="take every file for this format (`rlvitals readers` lists them)")
    parser.add_argument("--rejects", metavar="FILE", type=Path, help="write every rejected row to FILE as JSON lines")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Reads the paths and prints what came of it."""
    from frontend.owner import owner_of
    from server.settings import load_settings

    settings = load_settings({"home": args.home})
    for path in args.paths:
        if not path.exists():
            raise NoRunFound(f"{path}: no such file or folder.")
    owner = owner_of(settings)
    report, code = _through(owner, args) if owner else _here(settings, args)
    if args.json:
        out_json(report)
    else:
        _print(report)
    if code == 2:
        say(f"rlvitals: {nothing_read(report, args.paths)}")
    return code


def _here(settings: Settings, args: argparse.Namespace) -> tuple[dict[str, Any], int]:
    from ingest.load import Progress
    from ingest.report import ingest_once, write_rejects
    from ingest.store.connection import Store
    from server.home import prepare_home

    prepare_home(settings.home)
    store = Store(settings.telemetry_path)
    progress = _Progress()
    try:
        report = ingest_once(
            store,
            args.paths,
            args.project,
            args.name,
            args.reader,
            Progress(report=progress.report, planned=progress.planned),
            progress.committed,
        )
        if args.rejects:
            _write(args.rejects, lambda target: write_rejects(store, report, target))
    finally:
        progress.close()
        store.close()
    return dict(report.to_json()), report.exit_code


def _through(owner: Owner, args: argparse.Namespace) -> tuple[dict[str, Any], int]:
    say(f"A server owns the home; {owner.address} reads the paths.")
    body = {"paths": [str(path.resolve()) for path in args.paths], "project": args.project, "run": args.name, "reader": args.reader}
    bar = Bar()
    try:
        job = owner.job(owner.post("/api/v1/paths", body)["job"], lambda state: _show_job(bar, state))
    finally:
        bar.close()
    report: dict[str, Any] = job["report"]
    if args.rejects:
        _write(
            args.rejects, lambda target: target.write_text("".join(json.dumps(row) + "\n" for row in report["rejected"]), encoding="utf-8")
        )
        if sum(file["rejected"] for file in report["files"]) > len(report["rejected"]):
            say(f"{args.rejects} holds the first 100 rejects of each file; the Sources page of the server has all of them.")
    return report, exit_code(report)


def _show_job(bar: Bar, state: dict[str, Any]) -> None:
    bar.show(int(state.get("bytes") or 0), int(state.get("total_bytes") or 0), plural(int(state.get("files") or 0), "file"))


def _write(target: Path, write: Any) -> None:
    try:
        write(target)
    except OSError as error:
        raise RLVitalsError(
            f"{target} cannot be written: {error.strerror}. The paths were read; only the list of rejects is missing."
        ) from None


class _Progress:
    """Adds up the bytes of all files for one bar, and the rows that were committed."""

    def __init__(self) -> None:
        self._bar = Bar()
        self._total = 0
        self._done: dict[Path, int] = {}
        self._rows = 0

    def planned(self, _files: int, total: int) -> None:
        self._total = total

    def report(self, path: Path, done: int) -> None:
        self._done[path] = done
        self._bar.show(sum(self._done.values()), self._total, f"{self._rows:,} rows  {path.name}")

    def committed(self, commit: Commit) -> None:
        self._rows += commit.rows

    def close(self) -> None:
        self._bar.close()


def exit_code(report: dict[str, Any]) -> int:
    """The exit code of contracts.md for a report: 0 read, 1 something rejected, 2 nothing read."""
    if not any(file["state"] in _READ for file in report["files"]):
        return 2
    return int(any(file["rejected"] or file["state"] == "rejected" for file in report["files"]))


def nothing_read(report: dict[str, Any], paths: list[Path]) -> str:
    """One sentence why no run was found."""
    files = report["files"]
    where = ", ".join(str(path) for path in paths)
    if len(files) == 1 and files[0]["reason"]:
        reason = str(files[0]["reason"])
        return reason if files[0]["path"] in reason else f"{files[0]['path']}: {reason.rstrip('.')}. Nothing was read."
    if not files:
        return f"{where}: no run found, the folder holds no files."
    return f"{where}: no run found in {plural(len(files), 'file')}; `rlvitals readers` lists the formats that are known."


def _print(report: dict[str, Any]) -> None:
    if report["runs"]:
        headers = ("run", "project", "name", "framework", "steps", "points", "series", "trajectories", "with tokens", "events")
        table(headers, [_run_row(run) for run in report["runs"]], right=(5, 6, 7, 8, 9))
        out()
    files = report["files"]
    if len(files) <= _LISTED_FILES:
        rows = [(f["path"], f["reader"], f["state"], size(f["bytes"]), f["rows"], f["rejected"], f["reason"]) for f in files]
        table(("file", "reader", "state", "size", "rows", "rejected", "reason"), rows, right=(3, 4, 5))
    else:
        kinds = Counter((f["reader"] or "-", f["state"]) for f in files)
        table(("reader", "state", "files"), [(*kind, count) for kind, count in sorted(kinds.items())], right=(2,))
    _print_rejects(report)
    out(f"\n{plural(len(files), 'file')}, {size(report['bytes'])} in {report['seconds']:.1f} s.")


def _run_row(run: dict[str, Any]) -> tuple[object, ...]:
    steps = run["steps"]
    span = "-" if steps["first"] is None else f"{steps['first']} to {steps['last']}"
    counts = (run["points"], run["series"], run["trajectories"], run["trajectories_with_tokens"], run["events"])
    return (run["run_id"], run["project"], run["name"], run["framework"], span, *counts)


def _print_rejects(report: dict[str, Any]) -> None:
    rejected = report["rejected"]
    if not rejected:
        return
    out("\nRejected:")
    for row in rejected[:_LISTED_REJECTS]:
        line = "" if row["line"] is None else f" line {row['line']}"
        say_out = f"  {row['path']}{line}: {row['reason']}"
        out(_one_line(say_out if not row["sample"] else f"{say_out} [{row['sample'][:80]}]"))
    if len(rejected) > _LISTED_REJECTS:
        out(f"  and {len(rejected) - _LISTED_REJECTS:,} more; --json or --rejects FILE lists them.")


def _one_line(text: str) -> str:
    from ingest.text import visible_line

    return visible_line(text)
