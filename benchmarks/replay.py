"""CPU seconds of the engine: a whole run replayed, one new step of a long run, and one of long responses.

    python -m benchmarks.replay [--repeats 3]

The runs are healthy, seeded ones of 200 metrics, written straight into a store of their own; writing them is not measured. Only
CPU seconds are told (the whole process for a replay, with the start of Python; the engine alone for a live step), so that
neighbours on the machine matter less.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import history
from benchmarks.children import Cost, measured
from ingest.store.connection import Store

METRICS = 200
STEPS = 5000
TRAJECTORIES = 64
MOST_REPLAY_SECONDS = 20.0
MOST_LIVE_SECONDS = 0.06
MOST_TOKENS_SECONDS = 0.15
MOST_GROWTH = 1.5
"""A step of the longest run may cost so many times one of the shortest."""
_LENGTHS = (1000, 5000, 20000)
_LIVE_REPEATS = 9


def main(arguments: list[str] | None = None) -> int:
    """Prints each figure beside its aim; 1 if one misses it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args(arguments).repeats
    with tempfile.TemporaryDirectory(prefix="rlvitals-bench-") as name:
        folder = Path(name)
        whole = _made(folder / "whole.duckdb", STEPS, TRAJECTORIES)
        short = _made(folder / "short.duckdb", 200, 0)
        met = [
            _replayed(whole, repeats),
            _live(f"one new step of {TRAJECTORIES} trajectories behind {STEPS}", whole, STEPS, TRAJECTORIES, 0, MOST_LIVE_SECONDS),
            _live("one new step of 512 trajectories of 1,000 tokens, all arrays", short, 200, 512, 1000, MOST_TOKENS_SECONDS),
            _growth(folder),
        ]
    return int(not all(met))


def _made(path: Path, steps: int, trajectories: int) -> Path:
    store = Store(path)
    history.make(store, steps, metrics=METRICS, trajectories=trajectories)
    store.close()
    return path


def _replayed(path: Path, repeats: int) -> bool:
    costs: list[Cost] = []
    parts: list[dict[str, Any]] = []
    for _ in range(repeats):
        cost, part = _asked(path.parent, "replay", str(path))
        costs.append(cost)
        parts.append(part)
    seconds = [cost.cpu_seconds for cost in costs]
    told = parts[-1]
    print(f"replay of {STEPS} steps, {METRICS} metrics, {STEPS * TRAJECTORIES} trajectories, {told['rules']} rules:")
    met = _figure("  whole process", seconds, MOST_REPLAY_SECONDS)
    for name in ("reading", "facts", "judging"):
        _figure(f"  of it {name}", [part[name] for part in parts], None)
    judged = statistics.median(part["judging"] for part in parts)
    print(f"  judging a step: {judged / STEPS * 1000:.2f} ms; peak memory {max(cost.peak_megabytes for cost in costs):.0f} MB")
    print(f"  rules that could not tell: {', '.join(told['not judged']) or 'none'}; incidents: {', '.join(told['incidents']) or 'none'}")
    return met


def _live(name: str, path: Path, steps: int, trajectories: int, tokens: int, most: float) -> bool:
    copy = path.with_name("live.duckdb")
    shutil.copyfile(path, copy)
    _, found = _asked(path.parent, "live", str(copy), str(steps), str(trajectories), str(tokens), str(_LIVE_REPEATS))
    return _figure(name, found["live"], most)


def _growth(folder: Path) -> bool:
    each: list[float] = []
    for steps in _LENGTHS:
        _, found = _asked(folder, "replay", str(_made(folder / f"{steps}.duckdb", steps, 0)))
        each.append((found["reading"] + found["facts"] + found["judging"]) / steps)
        print(f"replay of {steps} steps of {METRICS} metrics without trajectories: {each[-1] * 1000:.2f} ms a step", flush=True)
    times = each[-1] / each[0]
    print(f"  a step of the longest costs {times:.2f} times one of the shortest; aim: at most {MOST_GROWTH}")
    return times <= MOST_GROWTH


def _asked(folder: Path, *arguments: str) -> tuple[Cost, dict[str, Any]]:
    answer = folder / "answer.json"
    cost = measured("-m", "benchmarks.judge", str(answer), *arguments)
    return cost, json.loads(answer.read_text())


def _figure(name: str, seconds: Sequence[float], most: float | None) -> bool:
    middle = statistics.median(seconds)
    aim = "" if most is None else f"; aim: {most:g}"
    print(f"{name}: {middle:.3f} CPU s ({min(seconds):.3f} to {max(seconds):.3f} of {len(seconds)}){aim}", flush=True)
    return most is None or middle <= most


if __name__ == "__main__":
    sys.exit(main())
