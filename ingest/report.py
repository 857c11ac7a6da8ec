"""One read of some paths into the store, and what came of it in the words of `rlvitals ingest --json`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ingest.discover import FoundRun, IgnoredFile, discover
from ingest.load import CommitHook, FileResult, Progress, load_run, no_commit_hook
from ingest.schema.records import Json
from ingest.store.connection import Store
from ingest.store.figures import RejectRow, RunFigures, newest_rejects, run_figures

LISTED_REJECTS = 100
"""Rejects of one file that the report lists; the file's `rejected` counts all."""

_EMPTY = "empty file"


@dataclass(frozen=True)
class IngestReport:
    """What one read did: the runs it touched as the store holds them now, every file, and the rejects of this read."""

    runs: tuple[RunFigures, ...]
    files: tuple[FileResult, ...]
    rejected: tuple[RejectRow, ...]
    seconds: float
    bytes: int
    exit_code: int
    """0 read, 1 something rejected or only partly readable, 2 nothing could be read (contracts.md)."""

    def to_json(self) -> dict[str, Json]:
        """The report as the JSON value of contracts.md."""
        return {
            "schema": 1,
            "runs": [_run_json(run) for run in self.runs],
            "files": [_file_json(file) for file in self.files],
            "rejected": [_reject_json(row) for row in self.rejected],
            "seconds": round(self.seconds, 3),
            "bytes": self.bytes,
        }


def ingest_once(
    store: Store,
    paths: Iterable[Path],
    project: str | None = None,
    name: str | None = None,
    reader: str | None = None,
    progress: Progress | None = None,
    on_commit: CommitHook = no_commit_hook,
) -> IngestReport:
    """Reads every run under the paths once, from where earlier reads left off.

    Raises:
        NoRunFound: a path is missing.
        ReaderError: there is no reader of that name.
        StoreError: the store cannot be written, for example because the disk is full.
    """
    started = time.monotonic()
    runs, ignored = discover(paths, project=project, name=name, reader=reader)
    shown = progress or Progress()
    sizes = {file.path: _size(file.path) for run in runs for file in run.files}
    shown.planned(len(sizes), sum(sizes.values()))
    results = [result for run in runs for result in _load(store, run, shown, on_commit)]
    figures = [run_figures(store, run_id) for run_id in dict.fromkeys(r.run_id for r in results if r.run_id)]
    files = (*results, *(_ignored(file) for file in ignored))
    return IngestReport(
        tuple(f for f in figures if f is not None),
        files,
        tuple(row for result in results for row in _rejects(store, result)),
        time.monotonic() - started,
        sum(result.bytes for result in results),
        exit_code(files, ignored),
    )


def _load(store: Store, run: FoundRun, progress: Progress, on_commit: CommitHook) -> Iterator[FileResult]:
    for result in load_run(store, run, progress=progress, on_commit=on_commit):
        progress.report(result.path, result.bytes)
        yield result


def exit_code(files: Iterable[FileResult], ignored: Iterable[IgnoredFile]) -> int:
    """The exit code of contracts.md for these files."""
    read = [file for file in files if file.state in ("read", "followed", "unchanged")]
    if not read:
        return 2
    failed = any(file.failed and file.reason != _EMPTY for file in ignored)
    return int(failed or any(file.rejected or file.state == "rejected" for file in files))


def write_rejects(store: Store, report: IngestReport, target: Path) -> int:
    """Writes every reject of the read as JSON lines (path, line, offset, reason, sample); the number of lines."""
    count = 0
    with target.open("w", encoding="utf-8") as out:
        for file in report.files:
            if not file.rejected:
                continue
            for row in newest_rejects(store, file.path, file.rejected, None):
                out.write(json.dumps({**_reject_json(row), "offset": row.offset}) + "\n")
                count += 1
    return count


def _rejects(store: Store, result: FileResult) -> list[RejectRow]:
    return newest_rejects(store, result.path, result.rejected, LISTED_REJECTS) if result.rejected else []


def _ignored(file: IgnoredFile) -> FileResult:
    return FileResult(
        file.path, None, "rejected" if file.failed and file.reason != _EMPTY else "ignored", _size(file.path), reason=file.reason
    )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _run_json(run: RunFigures) -> dict[str, Json]:
    return {
        "run_id": run.run_id,
        "project": run.project,
        "name": run.name,
        "framework": run.framework,
        "readers": list(run.readers),
        "steps": {"first": run.first_step, "last": run.last_step, "count": run.steps},
        "attempts": run.attempts,
        "points": run.points,
        "series": run.series,
        "trajectories": run.trajectories,
        "trajectories_with_tokens": run.trajectories_with_tokens,
        "events": run.events,
    }


def _file_json(file: FileResult) -> dict[str, Json]:
    return {
        "path": str(file.path),
        "reader": file.reader,
        "state": file.state,
        "bytes": file.bytes,
        "rows": file.rows,
        "rejected": file.rejected,
        "reason": file.reason,
    }


def _reject_json(row: RejectRow) -> dict[str, Json]:
    return {"path": str(row.path), "line": row.line, "reason": row.reason, "sample": row.sample}
