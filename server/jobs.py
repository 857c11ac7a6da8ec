"""Reading paths in the background on somebody's order, one after the other."""

from __future__ import annotations

import logging
import queue
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from ingest.errors import RLVitalsError
from ingest.load import Progress
from ingest.report import ingest_once
from ingest.schema.records import Json
from ingest.store.connection import Store
from ingest.store.write import CommitHook
from server.control.models import new_id

KEPT_JOBS = 100
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    """One order to read paths. bytes counts what was read, total_bytes what the files hold; both 0 until looked at."""

    id: str
    paths: tuple[Path, ...]
    project: str | None = None
    run: str | None = None
    reader: str | None = None
    state: Literal["running", "done", "failed"] = "running"
    bytes: int = 0
    total_bytes: int = 0
    files: int = 0
    report: dict[str, Json] | None = None
    exit_code: int | None = None
    """Exit code of `rlvitals ingest` for the report; null while running."""
    error: str | None = None


class Jobs:
    """One thread that works through the orders; the last hundred can be asked for."""

    def __init__(self, store: Store, on_commit: CommitHook, on_done: Callable[[Sequence[str]], None]) -> None:
        self._store = store
        self._on_commit = on_commit
        self._on_done = on_done
        self._lock = threading.Lock()
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._waiting: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="ingest-jobs", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stops at the next row of the job in hand; a read that was cut off is taken up from its cursor the next time."""
        self._stopping.set()
        self._waiting.put(None)
        self._thread.join(timeout=10)

    def submit(self, paths: Sequence[Path], project: str | None, run: str | None, reader: str | None) -> str:
        """Adds an order; its id."""
        job = Job(new_id("job"), tuple(paths), project, run, reader)
        with self._lock:
            self._jobs[job.id] = job
            while len(self._jobs) > KEPT_JOBS:
                self._jobs.popitem(last=False)
        self._waiting.put(job.id)
        return job.id

    def job(self, job_id: str) -> Job | None:
        """A job as it stands."""
        with self._lock:
            return self._jobs.get(job_id)

    def _change(self, job_id: str, **changes: object) -> None:
        with self._lock:
            if job_id in self._jobs:
                self._jobs[job_id] = replace(self._jobs[job_id], **changes)  # type: ignore[arg-type]

    def _work(self) -> None:
        while (job_id := self._waiting.get()) is not None:
            job = self.job(job_id)
            if job is not None and not self._stopping.is_set():
                self._run(job)

    def _run(self, job: Job) -> None:
        seen = _Seen(lambda **changes: self._change(job.id, **changes), self._stopping)
        try:
            progress = Progress(report=seen.report, planned=seen.planned)
            report = ingest_once(self._store, job.paths, job.project, job.run, job.reader, progress, self._on_commit)
        except RLVitalsError as error:
            self._change(job.id, state="failed", error=str(error), exit_code=2)
        except Exception as error:
            _log.exception("reading %s failed", ", ".join(map(str, job.paths)))
            self._change(job.id, state="failed", error=f"Reading failed inside RLVitals: {error}. The server's log has more.", exit_code=2)
        else:
            self._on_done([run.run_id for run in report.runs])
            self._change(job.id, state="done", report=report.to_json(), exit_code=report.exit_code)


@dataclass
class _Seen:
    """Sums the progress of single files."""

    change: Callable[..., None]
    stopping: threading.Event
    by_file: dict[Path, int] = field(default_factory=dict)

    def planned(self, files: int, total: int) -> None:
        self.change(files=files, total_bytes=total)

    def report(self, path: Path, count: int) -> None:
        if self.stopping.is_set():
            raise RLVitalsError("The server was stopped while it read. Hand the paths over again: nothing is read twice.")
        self.by_file[path] = count
        self.change(bytes=sum(self.by_file.values()))
