"""Everything that runs behind the pages: the one store, the control store, following, rules, messages, live news."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from ingest.errors import StoreOwned
from ingest.store.connection import Store
from server import home
from server.backtests import Backtests
from server.control.models import Control
from server.hub import Hub
from server.jobs import Job, Jobs
from server.judging import Judge
from server.notify.worker import OutboxWorker
from server.settings import Settings

_log = logging.getLogger(__name__)


class _Problems:
    """Puts each trouble of a followed path into the log once, not at every look."""

    def __init__(self) -> None:
        self._told: dict[Path, str] = {}

    def tell(self, path: Path, sentence: str) -> None:
        if self._told.get(path) != sentence:
            self._told[path] = sentence
            _log.warning("%s", sentence)


class Service:
    """Owns one home from start() to stop(). The store is opened here and nowhere else.

    Between the two, `store`, `control`, `hub`, `token` and `address` may be used from any thread.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.hub = Hub()
        self.token: str | None = None
        self.address = home.local_address(settings, settings.port)
        self._store: Store | None = None
        self._control: Control | None = None
        self._jobs: Jobs | None = None
        self._judge: Judge | None = None
        self._backtests: Backtests | None = None
        self._closing = ExitStack()

    @property
    def store(self) -> Store:
        """The telemetry store."""
        assert self._store is not None, "the service is not started"
        return self._store

    @property
    def control(self) -> Control:
        """The control store."""
        assert self._control is not None, "the service is not started"
        return self._control

    @property
    def backtests(self) -> Backtests:
        """Backtests in the background."""
        assert self._backtests is not None, "the service is not started"
        return self._backtests

    def start(self, port: int | None = None) -> None:
        """Takes the home and starts every thread; port is the one really listened on, where settings.port is 0.

        Raises:
            RLVitalsError: the home cannot be written, belongs to another process or to a newer program.
        """
        if port is not None:
            self.address = home.local_address(self.settings, port)
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> None:
        home.prepare_home(self.settings.home)
        self._store = self._open_store()
        self._closing.callback(self._store.close)
        self._control = Control(self.settings.control_url)
        self._closing.callback(self._control.close)
        self._control.migrate()
        for path in self.settings.home.glob("control.sqlite*"):
            path.chmod(0o600)
        self.token = None if self.settings.no_token else home.ensure_token(self.settings)
        worker = OutboxWorker(self._control, self.settings)
        self._judge = Judge(self._store, self._control, self.hub, self.settings, on_message=worker.wake)
        self._jobs = Jobs(self._store, on_commit=self._judge.committed, on_done=self._judge.wake)
        self._backtests = Backtests(self._store, self._control)
        for part in (worker, self._judge, self._jobs, self._backtests):
            part.start()
            self._closing.callback(part.stop)
        self._follow()
        home.write_server_json(self.settings, self.address)
        self._closing.callback(home.remove_server_json, self.settings)

    def _open_store(self) -> Store:
        try:
            return Store(self.settings.telemetry_path)
        except StoreOwned:
            other = home.running_server(self.settings.home)
            where = f"the RLVitals at {other.address} (process {other.pid})" if other else "another process"
            raise StoreOwned(
                f"The home {self.settings.home} belongs to {where}. Open that one, stop it, or give another folder with --home."
            ) from None

    def _follow(self) -> None:
        if not self.settings.watch:
            return
        from ingest.watch import Watcher

        assert self._judge is not None
        watcher = Watcher(self.store, self._judge.committed, on_problem=_Problems().tell)
        for path in self.settings.watch:
            watcher.add(path)
        watcher.start()
        self._closing.callback(watcher.stop)

    def stop(self) -> None:
        """Stops the threads, gives the home back; may be called twice."""
        self._closing.close()

    def ingest(self, paths: Sequence[Path], project: str | None = None, run: str | None = None, reader: str | None = None) -> str:
        """Reads the paths once in the background; the job's id."""
        assert self._jobs is not None, "the service is not started"
        return self._jobs.submit(paths, project, run, reader)

    def job(self, job_id: str) -> Job | None:
        """A job as it stands, or None if there is none of that id."""
        return self._jobs.job(job_id) if self._jobs is not None else None

    def ready(self) -> bool:
        """Whether both stores answer and the threads live."""
        if self._store is None or self._control is None or self._judge is None or not self._judge.alive:
            return False
        try:
            with self._control.session(write=False) as session:
                session.connection()
            self._store.cursor().execute("")
        except Exception:
            _log.exception("not ready")
            return False
        return True

    @property
    def open_address(self) -> str:
        """The address to open first: with the token, where one is needed."""
        base = self.settings.public_url or self.address
        return base if self.token is None else f"{base}/?token={self.token}"
