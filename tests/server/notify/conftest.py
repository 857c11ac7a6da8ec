"""A receiver on loopback that answers as it is told, and a control store with one channel."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from sqlalchemy import update

from server.control.incidents import Incident, IncidentChange, Kind
from server.control.models import Control, OutboxRow
from server.notify.channels import Channel, add_channel
from server.notify.outbox import enqueue
from server.settings import Settings

LOOPBACK = ("127.0.0.0/8",)


@dataclass(frozen=True)
class Answer:
    """One answer. hold: it comes only when this is set; cut: the connection is closed instead."""

    status: int = 200
    body: str = "ok"
    headers: tuple[tuple[str, str], ...] = ()
    hold: threading.Event | None = None
    cut: bool = False


@dataclass
class Receiver:
    """Answers in order, the last one for ever; keeps every request."""

    port: int = 0
    answers: list[Answer] = field(default_factory=list)
    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)

    def will(
        self, status: int = 200, body: str = "ok", *, retry_after: str | None = None, location: str | None = None, cut: bool = False
    ) -> Receiver:
        """Adds an answer."""
        named = (("Retry-After", retry_after), ("Location", location))
        self.answers.append(Answer(status, body, tuple((name, value) for name, value in named if value is not None), cut=cut))
        return self

    def will_hold(self) -> threading.Event:
        """Adds an answer that comes when the event is set."""
        event = threading.Event()
        self.answers.append(Answer(hold=event))
        return event

    def next_answer(self) -> Answer:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0] if self.answers else Answer()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/services/T000/B000/sEcReTpArT9876"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    told = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            told.requests.append((self.path, {name.lower(): value for name, value in self.headers.items()}, body))
            answer = told.next_answer()
            if answer.hold is not None:
                answer.hold.wait(5)
            if answer.cut:
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            data = answer.body.encode()
            self.send_response(answer.status)
            for name, value in answer.headers:
                self.send_header(name, value)
            if answer.status != 204:
                self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if answer.status != 204:
                self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            pass

    server = Quiet(("127.0.0.1", 0), Handler)
    told.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield told
    server.shutdown()
    server.server_close()


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Control]:
    store = Control(f"sqlite:///{tmp_path / 'control.sqlite'}")
    store.migrate()
    yield store
    store.close()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path, webhook_allow=LOOPBACK)


@pytest.fixture
def add(control: Control, receiver: Receiver) -> Callable[..., Channel]:
    """Adds a channel to the receiver."""

    def adding(kind: str = "slack", min_severity: str = "warn", url: str | None = None, secret: str | None = None) -> Channel:
        with control.session() as session:
            return add_channel(session, kind, f"team {kind}", url or receiver.url, min_severity, secret)[0]

    return adding


def _incident(**changes: object) -> Incident:
    values: dict[str, object] = {
        "id": "in_0123456789ab",
        "run_id": "0123456789ab",
        "attempt": 1,
        "symptom": "length-growth",
        "rule_code": "RS041",
        "rule_version": "1",
        "slice": None,
        "metric": "length.response.mean",
        "severity": "warn",
        "status": "open",
        "onset_step": 120,
        "detected_step": 131,
        "last_step": 140,
        "steps_by_severity": {"warn": 131},
        "summary": "Mean response length is up from 81.2 to 190.4 tokens, steps 120 to 140 against 60 to 110.",
        "body": {
            "evidence": [
                {"metric": "length.response.mean", "before": 81.2, "after": 190.4, "baseline_steps": [60, 110], "n": 50, "note": "x"}
            ],
            "hypotheses": [
                {"id": "H4d", "title": "lost termination", "rank": 1, "verdict": "supported", "checks": []},
                {
                    "id": "H4a",
                    "title": "reward for length",
                    "rank": 2,
                    "verdict": "not_checkable",
                    "checks": [{"missing": ["reward.parts"]}],
                },
            ],
            "next_checks": ["Read the longest responses of steps 120 to 131."],
            "trajectories": ["t1"],
            "absorbed": [],
        },
        "opened_at": 1795918447.0,
        "updated_at": 1795918447.0,
    }
    return Incident(**{**values, **changes})  # type: ignore[arg-type]


@pytest.fixture
def make_change() -> Callable[..., IncidentChange]:
    """A change of an incident of length growth; a test states what matters."""

    def making(kind: Kind = "incident.opened", **changes: object) -> IncidentChange:
        return IncidentChange(kind, _incident(**changes))

    return making


@dataclass(frozen=True)
class Run:
    """A run as messages name it."""

    run_id: str = "0123456789ab"
    name: str = "grpo-math-7b"


@pytest.fixture
def tell(control: Control, make_change: Callable[..., IncidentChange]) -> Callable[..., int]:
    """Writes the messages of one change; how many."""

    def telling(
        kind: Kind = "incident.opened",
        run_name: str = "grpo-math-7b",
        public_url: str | None = None,
        *,
        preview: bool = False,
        **changes: object,
    ) -> int:
        with control.session() as session:
            return len(enqueue(session, make_change(kind, **changes), Run(name=run_name), public_url, preview=preview))

    return telling


@pytest.fixture
def due_now(control: Control) -> Callable[[], None]:
    """Lets every waiting message be due, as if its wait had passed."""

    def passing() -> None:
        with control.session() as session:
            session.execute(update(OutboxRow).where(OutboxRow.state == "waiting").values(next_at=0.0))

    return passing


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], None]:
    """Waits, at most ten seconds, until something holds."""

    def waiting(holds: Callable[[], bool]) -> None:
        end = time.monotonic() + 10
        while not holds():
            assert time.monotonic() < end, "it did not come to hold"
            time.sleep(0.01)

    return waiting
