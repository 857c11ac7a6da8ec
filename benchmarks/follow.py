"""From a flushed line to the row in the API of a running server that follows the folder.

    python -m benchmarks.follow [--lines 60]

Metrics and rollouts over HTTP, each asked for until it is there; then, in this process and to the store only, the same
by polling alone, as on network file systems, which no server can be told to do.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.served import answer, served
from ingest.store.connection import Store
from ingest.watch import POLL_SECONDS, Watcher

_PAUSE = 0.13
"""Seconds between two lines; no multiple of the polling interval."""

_BETWEEN_QUESTIONS = 0.005

MOST_SECONDS = 2.0

_GIVE_UP_SECONDS = 60.0


def main(arguments: list[str] | None = None) -> int:
    """Prints median and 95th percentile; 1 if a line takes longer than MOST_SECONDS at the 95th."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=60)
    options = parser.parse_args(arguments)
    parts: dict[str, Callable[[], list[float]]] = {
        "metric line to row in the API": lambda: _through_the_api("metrics.jsonl", _metrics, _newest_point, options.lines),
        "rollout line to row in the API": lambda: _through_the_api("rollouts.jsonl", _rollout, _newest_rollout, options.lines),
        f"metric line to the store, polling every {POLL_SECONDS} s": lambda: _by_polling(options.lines),
    }
    slow = False
    for name, part in parts.items():
        # The first line also waits for the readers to be asked and the run to be made.
        waits = sorted(part()[1:])
        high = waits[int(len(waits) * 0.95)]
        print(f"{name}: median {statistics.median(waits) * 1000:.0f} ms, 95th percentile {high * 1000:.0f} ms")
        slow = slow or high > MOST_SECONDS
    return int(slow)


def _metrics(step: int) -> dict[str, Any]:
    return {"step": step, "reward.mean": step / 7, "kl.ref": 0.1}


def _rollout(step: int) -> dict[str, Any]:
    return {"step": step, "trajectory_id": f"t{step}", "prompt": "2 + 2", "response": "4", "reward": 1.0}


def _newest_point(address: str, run: str) -> int:
    return max(answer(address, f"/runs/{run}/curve?key=reward.mean")["steps"], default=-1)


def _newest_rollout(address: str, run: str) -> int:
    return max((row["step"] for row in answer(address, f"/runs/{run}/trajectories?limit=1")["trajectories"]), default=-1)


def _through_the_api(name: str, row: Callable[[int], dict[str, Any]], newest: Callable[[str, str], int], lines: int) -> list[float]:
    """Seconds from each flushed line until the API of a server that follows the folder shows its row."""
    with tempfile.TemporaryDirectory(prefix="rlvitals-bench-") as folder:
        run = Path(folder) / "project" / "run"
        run.mkdir(parents=True)
        log = run / name
        log.touch()
        with served("serve", "--home", f"{folder}/home", "--watch", str(run.parent)) as address, log.open("w") as file:
            ids: list[str] = []

            def seen(step: int) -> bool:
                if not ids:
                    ids.extend(item["run_id"] for item in answer(address, "/runs")["runs"])
                return bool(ids) and newest(address, ids[0]) >= step

            return _waits(file, row, seen, lines)


def _by_polling(lines: int) -> list[float]:
    """Seconds from each flushed line until a query of this process sees its row, without notices of changes."""
    with tempfile.TemporaryDirectory(prefix="rlvitals-bench-") as folder:
        run = Path(folder) / "project" / "run"
        run.mkdir(parents=True)
        store = Store(Path(folder) / "telemetry.duckdb")
        watcher = Watcher(store, lambda _: None, notices=False)
        watcher.add(run)
        watcher.start()
        with (run / "metrics.jsonl").open("w") as file:
            waits = _waits(file, _metrics, lambda step: bool(store.rows("SELECT 1 FROM point WHERE step = ? LIMIT 1", [step])), lines)
        watcher.stop()
        store.close()
    return waits


def _waits(file: Any, row: Callable[[int], dict[str, Any]], seen: Callable[[int], bool], lines: int) -> list[float]:
    found = []
    for step in range(lines + 1):
        file.write(json.dumps(row(step)) + "\n")
        file.flush()
        began = time.perf_counter()
        while not seen(step):
            if time.perf_counter() - began > _GIVE_UP_SECONDS:
                raise SystemExit(f"The line of step {step} was not seen within {_GIVE_UP_SECONDS:.0f} s.")
            time.sleep(_BETWEEN_QUESTIONS)
        found.append(time.perf_counter() - began)
        time.sleep(_PAUSE)
    return found


if __name__ == "__main__":
    sys.exit(main())
