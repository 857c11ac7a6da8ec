"""The thread that applies the rules: soon after new rows, and now and then for sources that have fallen silent."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable

from ingest.store.connection import Store
from ingest.store.write import Commit
from server.control.incidents import IncidentChange
from server.control.models import Control
from server.engine.advance import Engine, JudgedElsewhere
from server.hub import Hub
from server.queries.runs import run_summaries
from server.settings import Settings

GATHER_SECONDS = 0.2
"""Rows that arrive within this time are judged together."""
MOST_STEPS = 50
"""Steps of one run that are judged in one go: a long run keeps no other's alarm waiting, and a stop waits for seconds only."""
SILENCE_CHECK_SECONDS = 5.0
LIVE_SECONDS = 12 * 3600.0
"""A run without a commit for this long is no longer asked about silence: every source of it has long been silent."""

_log = logging.getLogger(__name__)


class Judge:
    """Runs the engine over the runs that changed and publishes the news.

    on_message is called after incidents changed, when there may be messages to send.
    """

    def __init__(self, store: Store, control: Control, hub: Hub, settings: Settings, on_message: Callable[[], None]) -> None:
        self._store = store
        self._hub = hub
        self._on_message = on_message
        self._engine = Engine(store, control, public_url=settings.public_url)
        self._news = threading.Event()
        self._lock = threading.Lock()
        self._changed: set[str] = set()
        self._last_commit: dict[str, float] = {}
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name="judge", daemon=True)

    def start(self) -> None:
        """Starts the thread; every known run is looked at once, since a stop may have left steps unjudged."""
        self.wake([run.run_id for run in run_summaries(self._store)])
        self._thread.start()

    def stop(self) -> None:
        """Stops after the run in hand."""
        self._stopping = True
        self._news.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=30)

    @property
    def alive(self) -> bool:
        """Whether the thread lives."""
        return self._thread.is_alive()

    def committed(self, commit: Commit) -> None:
        """Rows of a run were committed; called from the thread that wrote them."""
        self._hub.publish({"type": "rows", "run_id": commit.run_id, "newest_step": commit.newest_step})
        self._hub.publish({"type": "source", "run_id": commit.run_id})
        self.wake([commit.run_id])

    def wake(self, run_ids: Iterable[str]) -> None:
        """Asks for these runs to be judged."""
        with self._lock:
            for run_id in run_ids:
                self._changed.add(run_id)
                self._last_commit[run_id] = time.monotonic()
        self._news.set()

    def _work(self) -> None:
        next_silence = time.monotonic() + SILENCE_CHECK_SECONDS
        while not self._stopping:
            if self._news.wait(timeout=max(0.0, next_silence - time.monotonic())) and not self._stopping:
                time.sleep(GATHER_SECONDS)
            self._news.clear()
            due = self._take()
            if time.monotonic() >= next_silence:
                due |= self._live()
                next_silence = time.monotonic() + SILENCE_CHECK_SECONDS
            for run_id in sorted(due):
                if self._stopping:
                    return
                self._judge(run_id)

    def _take(self) -> set[str]:
        with self._lock:
            taken, self._changed = self._changed, set()
        return taken

    def _live(self) -> set[str]:
        oldest = time.monotonic() - LIVE_SECONDS
        with self._lock:
            self._last_commit = {run_id: at for run_id, at in self._last_commit.items() if at >= oldest}
            return set(self._last_commit)

    def _judge(self, run_id: str) -> None:
        try:
            changes = self._engine.advance(run_id, MOST_STEPS)
        except JudgedElsewhere as error:
            _log.info("%s", error)
            self.wake([run_id])
            return
        except Exception:
            # One run that cannot be judged must not silence the alarms of all others.
            _log.exception("judging run %s failed", run_id)
            return
        for change in changes:
            self._publish(change)
        if changes:
            self._on_message()
        if self._engine.behind(run_id):
            self._again(run_id)

    def _again(self, run_id: str) -> None:
        """Puts a run behind the others that wait."""
        with self._lock:
            self._changed.add(run_id)
        self._news.set()

    def _publish(self, change: IncidentChange) -> None:
        incident = change.incident
        self._hub.publish({"type": "incident", "run_id": incident.run_id, "incident_id": incident.id, "kind": change.kind})
