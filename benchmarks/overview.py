"""The Overview's queries on a run of 10,000 steps and 200 metrics.

python -m benchmarks.overview [--steps 10000] [--metrics 200]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from ingest.schema.metrics import METRICS
from ingest.store.connection import Store
from server.queries.curves import curves, events, series_list
from server.queries.runs import run_summaries, run_summary
from server.queries.sources import sources

_RUN = "0123456789ab"
_SHOWN = 12
_REPEATS = 15
MOST_SECONDS = 0.5
"""For all curves of the page together, warm."""


def main(arguments: list[str] | None = None) -> int:
    """Prints the median and the slowest of each query; 1 if the curves of the page take too long."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--metrics", type=int, default=200)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="rlvitals-bench-") as folder:
        store = Store(Path(folder) / "telemetry.duckdb")
        names = _fill(store, options.steps, options.metrics)
        size = (Path(folder) / "telemetry.duckdb").stat().st_size / 1e6
        print(f"store: {options.steps} steps x {options.metrics} metrics, {size:.0f} MB")
        page = _report(f"curves of {_SHOWN} metrics", lambda: curves(store, _RUN, names[:_SHOWN], weight=0.6))
        _report("one curve", lambda: curves(store, _RUN, names[:1]))
        _report("list of all series", lambda: series_list(store, _RUN))
        _report("events", lambda: events(store, _RUN))
        _report("sources", lambda: sources(store, _RUN))
        _report("summary of the run", lambda: run_summary(store, _RUN))
        _report("summaries of all runs", lambda: run_summaries(store))
        store.close()
    return int(page > MOST_SECONDS)


def _fill(store: Store, steps: int, count: int) -> list[str]:
    known = list(METRICS)[:count]
    names = known + [f"extra/metric_{number}" for number in range(count - len(known))]
    draw = np.random.default_rng(7)
    with store.transaction() as connection:
        connection.execute("INSERT INTO run VALUES (?, 'bench', 'wide', 'native', NULL, '/bench', NULL, 0, 0, ?)", [_RUN, time.time()])
        connection.execute(
            """INSERT INTO source (source_id, run_id, path, reader, growth, cursor_offset, cursor_line, cursor_state, state, bytes,
                   rows, rejected, newest_step, updated)
               VALUES (1, ?, '/bench/metrics.jsonl', 'native', 'append', 0, 0, '{}', 'read', 1, ?, 0, ?, ?)""",
            [_RUN, steps, steps - 1, time.time()],
        )
        for number, name in enumerate(names):
            metric = name if name in METRICS else None
            connection.execute("INSERT INTO series VALUES (?, ?, ?, ?, 'identity', NULL, NULL, NULL)", [number, _RUN, name, metric])
        # In order of arrival, as a log is written: step by step.
        for start in range(0, steps, 1000):
            here = np.arange(start, min(start + 1000, steps), dtype=np.int64)
            new = pa.table(
                {
                    "series_id": np.tile(np.arange(count, dtype=np.int32), len(here)),
                    "source_id": np.ones(len(here) * count, np.int32),
                    "attempt": np.ones(len(here) * count, np.int32),
                    "step": np.repeat(here, count),
                    "value": draw.normal(size=len(here) * count),
                    "wall_time": np.repeat(here, count).astype(np.float64),
                }
            )
            connection.register("new_points", new)
            connection.execute("INSERT INTO point SELECT * FROM new_points")
            connection.unregister("new_points")
    return names


def _report(name: str, query: Callable[[], object]) -> float:
    query()
    seconds = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        query()
        seconds.append(time.perf_counter() - began)
    middle = statistics.median(seconds)
    print(f"{name}: median {middle * 1000:.1f} ms, slowest {max(seconds) * 1000:.1f} ms")
    return middle


if __name__ == "__main__":
    sys.exit(main())
