"""A process that is killed while it reads: after a restart the rows equal a clean read, none lost, none doubled."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ingest.report import ingest_once
from ingest.store.connection import Store

POINTS = ("begin", "points", "trajectories", "cursor", "before-commit", "after-commit")
MOMENTS = 20
SEED = 20

_CHILD = """
import os, signal, sys, threading, time
from pathlib import Path
from ingest.report import ingest_once
from ingest.store import write
from ingest.store.connection import Store

home, data, point, count, delay = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), float(sys.argv[5])
write.COMMIT_BYTES, write.COMMIT_ROWS = 20_000, 20
seen = 0

def on_point(name):
    global seen
    if name == "after-commit":
        print("commit", flush=True)
    if name == point:
        seen += 1
        if seen == count:
            os.kill(os.getpid(), signal.SIGKILL)

store = Store(Path(home), on_point=on_point)
write.SourceWriter.add = (lambda add: lambda self, item: (time.sleep(delay), add(self, item))[1])(write.SourceWriter.add)
from ingest.readers import base
base.whole_lines.__defaults__ = (8_000, *base.whole_lines.__defaults__[1:])
base._CHUNK = 4_000
ingest_once(store, [Path(data)])
store.close()
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with an appended metrics log, rollouts with tokens and rejects, events, and files written whole."""
    root = tmp_path_factory.mktemp("data") / "project"
    run = root / "run"
    run.mkdir(parents=True)
    draw = random.Random(3)
    with (run / "metrics.jsonl").open("w") as out:
        for step in [*range(150), *range(120, 200)]:
            out.write(json.dumps({"step": step, "reward.mean": draw.random(), "kl.ref": draw.random()}) + "\n")
    with (run / "rollouts.jsonl").open("w") as out:
        for number in range(400):
            row = {"step": number // 8, "trajectory_id": f"t{number}", "group_id": f"g{number // 4}", "response": "x" * draw.randrange(60)}
            row["token_ids"] = [draw.randrange(1000) for _ in range(draw.randrange(1, 30))]
            out.write(json.dumps(row) + "\n")
            if number % 50 == 7:
                out.write('{"step": 1, "reward": true}\n')
    (run / "events.jsonl").write_text("".join(json.dumps({"step": s, "kind": "checkpoint", "text": f"s{s}"}) + "\n" for s in range(30)))
    trl = root / "trl"
    trl.mkdir()
    history = [{"step": s, "loss": draw.random(), "reward": draw.random(), "epoch": s / 100} for s in range(1, 301)]
    (trl / "trainer_state.json").write_text(json.dumps({"global_step": 300, "log_history": history, "epoch": 3.0}))
    dumps = root / "verl" / "rollouts"
    dumps.mkdir(parents=True)
    for step in range(1, 6):
        rows = [{"input": "q", "output": f"a{i}", "score": draw.random(), "step": step, "gts": "x"} for i in range(40)]
        (dumps / f"{step}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return root


_TABLES = {
    "point": """SELECT r.name, s.source_key, p.attempt, p.step, p.value FROM point p JOIN series s USING (series_id)
                JOIN run r USING (run_id) ORDER BY ALL""",
    "trajectory": "SELECT r.name, t.* EXCLUDE (source_id) FROM trajectory t JOIN run r USING (run_id) ORDER BY r.name, t.step, t.n",
    "token": "SELECT r.name, t.* EXCLUDE (source_id) FROM token t JOIN run r USING (run_id) ORDER BY r.name, t.step, t.n",
    "event": "SELECT r.name, e.* EXCLUDE (source_id) FROM event e JOIN run r USING (run_id) ORDER BY ALL",
    "reject": "SELECT o.path, t.* EXCLUDE (source_id) FROM reject t JOIN source o USING (source_id) ORDER BY ALL",
    "source": "SELECT path, rows, rejected, newest_step FROM source ORDER BY path",
}


def contents(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    store = Store(path)
    try:
        return {name: store.rows(query) for name, query in _TABLES.items()}
    finally:
        store.close()


@pytest.fixture(scope="module")
def clean(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[Any, ...]]]:
    """What one undisturbed read stores."""
    path = tmp_path_factory.mktemp("clean") / "telemetry.duckdb"
    store = Store(path)
    report = ingest_once(store, [data])
    store.close()
    assert report.exit_code == 1
    found = contents(path)
    assert all(found.values())
    return found


def start(home: Path, data: Path, point: str = "-", count: int = 0, delay: float = 0.0) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", _CHILD, str(home), str(data), point, str(count), str(delay)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def finish(home: Path, data: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Reads again after the kill, and then once more."""
    store = Store(home)
    ingest_once(store, [data])
    again = ingest_once(store, [data])
    store.close()
    assert {file.state for file in again.files} == {"unchanged"}
    return contents(home)


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_at_each_point_of_the_transaction_loses_and_doubles_nothing(
    point: str, data: Path, clean: dict[str, list[tuple[Any, ...]]], tmp_path: Path
) -> None:
    for count in (2, 4 if point == "points" else 9):
        home = tmp_path / f"{count}.duckdb"
        process = start(home, data, point, count)
        process.communicate(timeout=120)
        assert process.returncode == -signal.SIGKILL
        assert finish(home, data) == clean


def test_kills_at_random_moments_lose_and_double_nothing(data: Path, clean: dict[str, list[tuple[Any, ...]]], tmp_path: Path) -> None:
    home = tmp_path / "timed.duckdb"
    process = start(home, data, delay=0.01)
    began = time.monotonic()
    commits = process.communicate(timeout=120)[0].count("commit")
    between = (time.monotonic() - began) / commits
    draw = random.Random(SEED)
    print(f"seed {SEED}, {commits} commits, one each {between:.3f} s")
    killed = 0
    for moment in range(MOMENTS):
        home = tmp_path / f"{moment}.duckdb"
        process = start(home, data, delay=0.01)
        assert process.stdout is not None
        # Counted in commits and not in seconds: the next process may be much faster than the one that was timed.
        for _ in range(draw.randint(1, commits - 2)):
            process.stdout.readline()
        time.sleep(draw.random() * between)
        process.kill()
        process.communicate(timeout=120)
        killed += process.returncode == -signal.SIGKILL
        assert finish(home, data) == clean, f"moment {moment}, seed {SEED}"
        home.unlink()
    assert killed > MOMENTS // 2


def test_a_run_killed_again_and_again_still_ends_like_a_clean_read(
    data: Path, clean: dict[str, list[tuple[Any, ...]]], tmp_path: Path
) -> None:
    home = tmp_path / "often.duckdb"
    for count in (2, 3, 5):
        process = start(home, data, "before-commit", count)
        process.communicate(timeout=120)
        assert process.returncode == -signal.SIGKILL
    assert finish(home, data) == clean


def test_a_kill_while_an_overwritten_file_is_read_makes_one_attempt(tmp_path: Path) -> None:
    run = tmp_path / "project" / "run"
    run.mkdir(parents=True)
    home = tmp_path / "telemetry.duckdb"
    log = run / "metrics.jsonl"

    def write(add: float) -> None:
        log.write_text("".join(json.dumps({"step": s, "reward.mean": s + add}) + "\n" for s in range(600)))

    write(0)
    store = Store(home)
    ingest_once(store, [run])
    store.close()
    write(7)
    shutil.copy(home, tmp_path / "whole.duckdb")
    process = start(home, run, "after-commit", 3)
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL
    assert finish(home, run)["point"] == finish(tmp_path / "whole.duckdb", run)["point"]
