"""Running a measured piece of work in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """What a process and the processes it waited for took."""

    cpu_seconds: float
    wall_seconds: float
    peak_megabytes: float


def measured(*arguments: str) -> Cost:
    """Runs `python ARGUMENTS` to its end.

    Raises:
        RuntimeError: it failed; its messages are on standard error.
    """
    started = time.monotonic()
    process = subprocess.Popen([sys.executable, *arguments])
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"python {' '.join(arguments)} ended with {process.returncode}")
    return Cost(usage.ru_utime + usage.ru_stime, time.monotonic() - started, usage.ru_maxrss / 1024)
