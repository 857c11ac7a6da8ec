"""Rollouts with token arrays into the store, against DuckDB's own typed reader writing the same two tables.

    python -m benchmarks.ingest [--megabytes 200] [--repeats 5]

Both run in processes of their own, in turn; CPU seconds count the whole process, start and checkpoint included. The
file for the program holds broken and tempting lines besides; a value that was changed in silence ends with exit code 1.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.baseline import compare
from benchmarks.children import Cost, measured
from benchmarks.rollouts import Made, make_files

LEAST_RATIO = 0.4
MOST_MEGABYTES = 1024


def main(arguments: list[str] | None = None) -> int:
    """Runs the measurement; 0 if it meets its aims and no value was changed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="rlvitals-bench-") as folder:
        return _run(Path(folder), options.megabytes, options.repeats)


def _run(folder: Path, megabytes: int, repeats: int) -> int:
    made = make_files(folder, megabytes)
    print(f"file: {made.spoiled.stat().st_size / 1e6:.0f} MB, {made.lines} sound lines, {len(made.cases)} others")
    ours: list[Cost] = []
    base: list[Cost] = []
    for _ in range(repeats):
        base.append(_one(folder / "base.duckdb", "benchmarks.baseline", made.sound))
        ours.append(_one(folder / "ours.duckdb", "benchmarks.program", made.spoiled))
    ratio = statistics.median(c.cpu_seconds for c in base) / statistics.median(c.cpu_seconds for c in ours)
    _show("DuckDB read_json", base, made.sound)
    _show("rlvitals", ours, made.spoiled)
    ratios = [b.cpu_seconds / o.cpu_seconds for b, o in zip(base, ours, strict=True)]
    print(f"ratio: {ratio:.2f} (single repeats {min(ratios):.2f} to {max(ratios):.2f}; at least {LEAST_RATIO})")
    peak = max(c.peak_megabytes for c in ours)
    faults = _faults(folder, made)
    for fault in faults:
        print(f"FAULT: {fault}")
    if not faults:
        print(f"values: all {made.lines} sound rows equal the baseline's; every other line was rejected or kept as it should")
    return int(bool(faults) or ratio < LEAST_RATIO or peak > MOST_MEGABYTES)


def _one(store: Path, module: str, source: Path) -> Cost:
    for file in (store, store.with_name(store.name + ".wal")):
        file.unlink(missing_ok=True)
    return measured("-m", module, str(store), str(source))


def _show(name: str, costs: list[Cost], source: Path) -> None:
    cpu = sorted(c.cpu_seconds for c in costs)
    middle = statistics.median(cpu)
    print(
        f"{name}: {middle:.2f} CPU seconds (spread {cpu[0]:.2f} to {cpu[-1]:.2f}), "
        f"{source.stat().st_size / 1e6 / middle:.0f} MB a CPU second, wall {statistics.median(c.wall_seconds for c in costs):.2f} s, "
        f"peak {max(c.peak_megabytes for c in costs):.0f} MB"
    )


def _faults(folder: Path, made: Made) -> list[str]:
    return compare(folder / "ours.duckdb", folder / "base.duckdb", made)


if __name__ == "__main__":
    sys.exit(main())
