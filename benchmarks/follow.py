"""From a flushed line to the row in the store, while a file is followed.

    python -m benchmarks.follow [--lines 60]

Once with the system's notices of changes and once by polling alone, as on network file systems.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from ingest.store.connection import Store
from ingest.watch import POLL_SECONDS, Commit, Watcher

_PAUSE = 0.13
"""Seconds between two lines; no multiple of the polling interval."""

MOST_SECONDS = 2.0


def main(arguments: list[str] | None = None) -> int:
    """Prints median and 95th percentile; 1 if a line takes longer than MOST_SECONDS at the 95th."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=60)
    options = parser.parse_args(arguments)
    slow = False
    for name, notices in (("with notices", True), (f"polling every {POLL_SECONDS} s", False)):
        waits = sorted(_waits(options.lines, notices=notices))
        high = waits[int(len(waits) * 0.95)]
        print(f"line to row, {name}: median {statistics.median(waits) * 1000:.0f} ms, 95th percentile {high * 1000:.0f} ms")
        slow = slow or high > MOST_SECONDS
    return int(slow)


def _waits(lines: int, *, notices: bool) -> list[float]:
    """Seconds from each flushed line until a query sees its row."""
    with tempfile.TemporaryDirectory(prefix="rlvitals-bench-") as folder:
        run = Path(folder) / "project" / "run"
        run.mkdir(parents=True)
        store = Store(Path(folder) / "telemetry.duckdb")
        commits: list[Commit] = []
        watcher = Watcher(store, commits.append, notices=notices)
        watcher.add(run)
        watcher.start()
        found = []
        with (run / "metrics.jsonl").open("w") as log:
            for step in range(lines + 1):
                log.write(json.dumps({"step": step, "reward.mean": step / 7, "kl.ref": 0.1}) + "\n")
                log.flush()
                began = time.perf_counter()
                while not store.rows("SELECT 1 FROM point WHERE step = ? LIMIT 1", [step]):
                    time.sleep(0.002)
                found.append(time.perf_counter() - began)
                time.sleep(_PAUSE)
        watcher.stop()
        store.close()
    # The first line also waits for the readers to be asked and the run to be made.
    return found[1:]


if __name__ == "__main__":
    sys.exit(main())
