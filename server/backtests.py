"""Backtests in the background, one at a time, as the Rules page and the command line ask for them."""

from __future__ import annotations

import logging
import queue
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from ingest.errors import RLVitalsError
from ingest.store.connection import Store
from server.control.models import Control, new_id
from server.engine.backtest import Backtest, Stopped, run_backtest
from server.engine.subjects import of_home, what_people_said
from server.queries.runs import run_summaries
from server.rules import RULES

KEPT = 20
MOST_WAITING = 5
_log = logging.getLogger(__name__)


class TooMany(RLVitalsError):
    """More backtests wait than are taken."""


@dataclass(frozen=True)
class BacktestJob:
    """One order. rules: codes, empty: every rule that is on; runs: ids, empty: all of the home. done counts runs of total."""

    id: str
    rules: tuple[str, ...]
    proposed: Mapping[str, Mapping[str, float]]
    runs: tuple[str, ...]
    severity: str
    state: Literal["waiting", "running", "done", "failed", "cancelled"] = "waiting"
    done: int = 0
    total: int = 0
    result: Backtest | None = None
    error: str | None = None
    cancel: threading.Event = field(default_factory=threading.Event, repr=False, compare=False)

    @property
    def ended(self) -> bool:
        """Whether nothing more happens to it."""
        return self.state in ("done", "failed", "cancelled")


class Backtests:
    """One thread that replays one run after the other; the newest twenty answers can be asked for."""

    def __init__(self, store: Store, control: Control) -> None:
        self._store, self._control = store, control
        self._lock = threading.Lock()
        self._jobs: OrderedDict[str, BacktestJob] = OrderedDict()
        self._waiting: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="backtests", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stops at the next step of the run in hand."""
        self._stopping.set()
        self._waiting.put(None)
        if self._thread.ident is not None:
            self._thread.join(timeout=10)

    def submit(
        self,
        rules: Sequence[str] = (),
        proposed: Mapping[str, Mapping[str, float]] | None = None,
        runs: Sequence[str] = (),
        severity: str = "warn",
    ) -> BacktestJob:
        """Adds an order.

        Raises:
            TooMany: five wait already.
        """
        job = BacktestJob(new_id("bt"), tuple(rules), dict(proposed or {}), tuple(runs), severity)
        with self._lock:
            if sum(not other.ended for other in self._jobs.values()) > MOST_WAITING:
                raise TooMany(f"{MOST_WAITING} backtests wait already. Cancel one, or wait for them.")
            self._jobs[job.id] = job
            for old in [key for key, other in self._jobs.items() if other.ended][: max(0, len(self._jobs) - KEPT)]:
                del self._jobs[old]
        self._waiting.put(job.id)
        return job

    def job(self, job_id: str) -> BacktestJob | None:
        """A backtest as it stands."""
        with self._lock:
            return self._jobs.get(job_id)

    def newest(self, rule_code: str) -> BacktestJob | None:
        """The newest backtest of one rule alone."""
        with self._lock:
            return next((job for job in reversed(self._jobs.values()) if job.rules == (rule_code,)), None)

    def cancel(self, job_id: str) -> BacktestJob | None:
        """Cancels a backtest that has not ended; None: there is none of that id."""
        job = self.job(job_id)
        if job is not None:
            job.cancel.set()
            if job.state == "waiting":
                self._change(job_id, state="cancelled")
        return self.job(job_id)

    def _change(self, job_id: str, **changes: object) -> None:
        with self._lock:
            if job_id in self._jobs and not self._jobs[job_id].ended:
                self._jobs[job_id] = replace(self._jobs[job_id], **changes)  # type: ignore[arg-type]

    def _work(self) -> None:
        while (job_id := self._waiting.get()) is not None:
            job = self.job(job_id)
            if job is None or job.ended or self._stopping.is_set():
                continue
            try:
                self._run(job)
            except Stopped:
                self._change(job.id, state="cancelled")
            except RLVitalsError as error:
                self._change(job.id, state="failed", error=str(error))
            except Exception as error:
                _log.exception("backtest %s failed", job.id)
                self._change(job.id, state="failed", error=f"The backtest failed inside RLVitals: {error}. The server's log has more.")

    def _run(self, job: BacktestJob) -> None:
        runs = job.runs or [run.run_id for run in run_summaries(self._store)]
        self._change(job.id, state="running", total=len(runs))
        labels, changed = what_people_said(self._control, job.rules)
        failed: list[tuple[str, str]] = []
        rules = [rule for rule in RULES if not job.rules or rule.code in job.rules]
        done = run_backtest(
            of_home(self._store, runs, labels, changed, lambda name, reason: failed.append((name, reason))),
            rules,
            job.proposed,
            job.severity,
            stop=lambda: job.cancel.is_set() or self._stopping.is_set(),
            on_run=lambda so_far: self._change(job.id, done=len(so_far.before) + len(failed)),
        )
        done.failed = failed
        self._change(job.id, state="done", done=len(runs), result=done)
