"""The bundled demo: recorded runs in a throw-away home, one of them written step by step as if it trained now."""

from __future__ import annotations

import gzip
import json
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingest.errors import RLVitalsError

DATA = Path(__file__).parent / "demo_data"
PROJECT = "demo"
LIVE_RUN = "entropy-collapse"
FIRST_LIVE_STEP = 36
"""The recorded fault begins at step 42: the last steps before it are seen to be sound."""

STEPS_A_SECOND = 2.0
_FIRST = "lr-spike"


def recorded_runs() -> list[Path]:
    """Folders of the runs that are read at the start, one with a plain fault first, so that there is something to see early."""
    found = sorted(
        (path for path in DATA.iterdir() if path.is_dir() and path.name != LIVE_RUN), key=lambda path: (path.name != _FIRST, path.name)
    )
    if not found:
        raise RLVitalsError(f"{DATA} holds no recorded runs: the installation is incomplete. Install RLVitals again.")
    return found


@contextmanager
def throw_away_folder() -> Iterator[Path]:
    """A folder that is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="rlvitals-demo-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class _Step:
    number: int
    metrics: dict[str, Any]
    rollouts: bytes


class Player:
    """Writes a recorded run into a folder as its trainer would: what was before the first step at once, then step by step.

    seconds is the time between two steps. Time stamps are those of now, so the run counts as running.
    """

    def __init__(
        self, target: Path, source: Path = DATA / LIVE_RUN, *, first_step: int = FIRST_LIVE_STEP, seconds: float = 1 / STEPS_A_SECOND
    ):
        self._target = target
        self._steps = _recorded_steps(source)
        self._seconds = seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._play, name="demo-player", daemon=True)
        target.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / "config.json", target / "config.json")
        past = [step for step in self._steps if step.number < first_step]
        self._coming = [step for step in self._steps if step.number >= first_step]
        now = time.time()
        self._write((step, now - seconds * (len(past) - n)) for n, step in enumerate(past))

    def start(self) -> None:
        """Begins to write the coming steps."""
        self._thread.start()

    def stop(self) -> None:
        """Stops after the step in hand."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def _play(self) -> None:
        for step in self._coming:
            if self._stopped.wait(self._seconds):
                return
            self._write([(step, time.time())])

    def _write(self, steps: Any) -> None:
        # Rollouts first: a step counts as complete once its metrics are there.
        with (self._target / "rollouts.jsonl").open("ab") as rollouts, (self._target / "metrics.jsonl").open("ab") as metrics:
            for step, wall_time in steps:
                rollouts.write(step.rollouts)
                metrics.write(json.dumps({**step.metrics, "wall_time": round(wall_time, 3)}).encode() + b"\n")
            rollouts.flush()


def _recorded_steps(source: Path) -> list[_Step]:
    rollouts: dict[int, bytearray] = {}
    for line in _lines(source / "rollouts.jsonl.gz"):
        rollouts.setdefault(int(json.loads(line)["step"]), bytearray()).extend(line)
    records = [json.loads(line) for line in _lines(source / "metrics.jsonl.gz")]
    return [_Step(int(record["step"]), record, bytes(rollouts.get(int(record["step"]), b""))) for record in records]


def _lines(path: Path) -> Iterator[bytes]:
    with gzip.open(path, "rb") as stream:
        yield from stream
