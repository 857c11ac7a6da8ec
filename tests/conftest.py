"""Fixtures that more than one package's tests need: the installed command, a running server, data outside the project."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import pytest

ROOT = Path(__file__).parents[1]
RLVITALS = Path(sys.executable).parent / "rlvitals"
START_SECONDS = 60.0

Command: TypeAlias = Callable[..., subprocess.CompletedProcess[str]]


def clean_environment(**more: str) -> dict[str, str]:
    """The environment without settings of whoever runs the tests, and without a proxy."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RLVITALS_") and "proxy" not in name.lower()}
    return {**kept, **more}


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Recorded runs beside the project; tests that need them are skipped where they are absent."""
    folder = Path(os.environ.get("RLVITALS_TEST_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"the recorded runs are not at {folder}")
    return folder


@pytest.fixture
def rlvitals(tmp_path: Path) -> Command:
    """Runs the command with a home of its own: `rlvitals("ingest", path)`; keyword arguments go to subprocess.run."""

    def run(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
        environment = clean_environment(RLVITALS_HOME=str(tmp_path / "home"))
        words = [str(RLVITALS), *map(str, arguments)]
        return subprocess.run(words, capture_output=True, text=True, timeout=120, env=environment, **options)  # type: ignore[call-overload,no-any-return]

    return run


@dataclass
class Running:
    """A started server: the address with its token, and everything it has said."""

    process: subprocess.Popen[str]
    address: str
    reader: threading.Thread
    lines: list[str] = field(default_factory=list)

    @property
    def base(self) -> str:
        """The address without the token."""
        return self.address.split("/?", 1)[0]

    @property
    def token(self) -> str:
        """The access token."""
        return self.address.rpartition("token=")[2]

    def stop(self) -> int:
        """Asks to stop and waits; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            self.reader.join(timeout=5)


Start: TypeAlias = Callable[..., Running]


def _start(words: list[str], environment: dict[str, str]) -> Running:
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    lines: list[str] = []
    found: list[str] = []
    answered = threading.Event()

    def read() -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                lines.append(line.rstrip("\n"))
                match = re.search(r"RLVitals is at (\S+)", line)
                if match:
                    found.append(match.group(1))
                    answered.set()
        answered.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    if not answered.wait(START_SECONDS) or not found:
        process.kill()
        process.wait()
        reader.join(timeout=5)
        pytest.fail("the server did not start:\n" + "\n".join(lines[-30:]))
    return Running(process, found[0], reader, lines)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts servers as a person would (`start("serve", "--port", 0)`) and stops them at the end."""
    running: list[Running] = []

    def begin(*arguments: object, home: Path | None = None) -> Running:
        environment = clean_environment(RLVITALS_HOME=str(home or tmp_path / "home"))
        running.append(_start([str(RLVITALS), *map(str, arguments)], environment))
        return running[-1]

    yield begin
    for one in running:
        one.stop()


@pytest.fixture(scope="session")
def demo() -> Iterator[Running]:
    """One running demo for all tests that only look at it; its live run is played ten times as fast."""
    running = _start([str(RLVITALS), "demo", "--port", "0", "--speed", "20"], clean_environment())
    yield running
    running.stop()
