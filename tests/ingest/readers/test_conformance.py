"""What every reader owes: one file, one reader; reading twice is reading once; a cursor continues exactly."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ingest.readers import READERS
from ingest.readers.base import read_head
from ingest.schema.records import Cursor

DATA = Path(__file__).resolve().parents[2] / "data"
METRICS = [{"step": n, "reward_mean": n / 10, "grad_norm": 1.0, "note": "text"} for n in range(1, 40)]


def _write(folder: Path, name: str) -> Path:
    """One sample of each format that has no recorded sample."""
    path = folder / name
    lines = [json.dumps(row) for row in METRICS]
    if name == "metrics.jsonl.gz":
        native = [json.dumps({"step": n, "reward.mean": n / 10, "own.key": 3}) for n in range(1, 40)]
        path.write_bytes(gzip.compress(("\n".join(native) + "\n").encode()))
    elif name == "log.jsonl":
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    elif name == "table.csv":
        with path.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, list(METRICS[0]))
            writer.writeheader()
            writer.writerows(METRICS)
    elif name == "table.parquet":
        pq.write_table(pa.Table.from_pylist(METRICS), path, row_group_size=10)
    return path


SAMPLES: dict[str, str | Path] = {
    "native": "metrics.jsonl.gz",
    "verl-file-logger": DATA / "verl/v1-run/metrics.jsonl",
    "verl-rollouts": DATA / "verl/v1-run/rollouts/2.jsonl",
    "verl-validation": DATA / "verl/v0-run/validation/5.jsonl",
    "trl-trainer-state": DATA / "trl/offpolicy-resumed/trainer_state.json",
    "trl-completions": DATA / "trl/offpolicy-resumed/completions/completions_00001.parquet",
    "wandb-chart-csv": DATA / "wandb/chart-two-runs/chart.csv",
    "jsonl": "log.jsonl",
    "csv": "table.csv",
    "parquet": "table.parquet",
}


def _sample(name: str, folder: Path) -> Path:
    place = SAMPLES[name]
    return place if isinstance(place, Path) else _write(folder, place)


def test_every_reader_has_a_sample() -> None:
    assert set(SAMPLES) == {reader.name for reader in READERS}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_file_is_claimed_by_its_own_reader_and_by_no_other(name: str, tmp_path: Path) -> None:
    head = read_head(_sample(name, tmp_path))
    claims = {reader.name: reader.sniff(head) for reader in READERS}
    plain = {"jsonl", "csv", "parquet"}
    assert claims[name] >= (0.3 if name in plain else 0.8)
    assert all(claim == 0 for other, claim in claims.items() if other not in (name, *plain)), claims
    assert all(claims[other] <= 0.3 for other in plain), claims


@pytest.mark.parametrize("name", SAMPLES)
def test_reading_twice_yields_the_same(name: str, tmp_path: Path, read: Any) -> None:
    path = _sample(name, tmp_path)
    first, second = read(path), read(path)
    assert first.metrics == second.metrics
    assert first.trajectories == second.trajectories
    assert first.cursors == second.cursors
    assert first.metrics or first.trajectories


@pytest.mark.parametrize("name", SAMPLES)
def test_resuming_from_any_cursor_equals_reading_at_once(name: str, tmp_path: Path, read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _sample(name, tmp_path)
    whole = read(path)
    for module in ("csv", "jsonl"):
        monkeypatch.setattr(f"ingest.readers.{module}._CHUNK", 200)
    monkeypatch.setattr("ingest.readers.parquet._ROWS", 7)
    monkeypatch.setattr("ingest.readers.base._CHUNK", 200)
    pieces = read(path)
    assert pieces.metrics == whole.metrics
    assert pieces.trajectories == whole.trajectories
    done_metrics = done_trajectories = 0
    for cursor in pieces.cursors:
        rest = read(path, Cursor(cursor.offset, cursor.line, json.loads(json.dumps(dict(cursor.state)))))
        done_metrics = len(whole.metrics) - len(rest.metrics)
        done_trajectories = len(whole.trajectories) - len(rest.trajectories)
        assert rest.metrics == whole.metrics[done_metrics:]
        assert rest.trajectories == whole.trajectories[done_trajectories:]
    assert done_metrics == len(whole.metrics)
    assert done_trajectories == len(whole.trajectories)


@pytest.mark.parametrize("name", [n for n in SAMPLES if n not in ("parquet", "trl-completions", "trl-trainer-state")])
def test_a_bad_line_is_rejected_with_its_number_and_the_others_are_read(name: str, tmp_path: Path, read: Any) -> None:
    source = _sample(name, tmp_path)
    raw = gzip.decompress(source.read_bytes()) if source.suffix == ".gz" else source.read_bytes()
    lines = raw.splitlines(keepends=True)
    bad = b"\xff\xfe not a row \xff\n"
    folder = tmp_path / source.parent.name
    folder.mkdir(exist_ok=True)
    path = folder / source.name.removesuffix(".gz")
    path.write_bytes(b"".join([*lines[:2], bad, *lines[2:]]))
    reader = next(r for r in READERS if r.name == name)
    before, after = read(source, reader=reader), read(path, reader=reader)
    assert [(r.line, r.offset) for r in after.rejects] == [(3, len(b"".join(lines[:2])))]
    assert "UTF-8" in after.rejects[0].reason
    assert after.metrics == before.metrics
    assert len(after.trajectories) == len(before.trajectories)


@pytest.mark.parametrize("name", [n for n in SAMPLES if n not in ("parquet", "trl-completions", "trl-trainer-state")])
def test_a_half_written_last_line_stays_for_later(name: str, tmp_path: Path, read: Any) -> None:
    source = _sample(name, tmp_path)
    raw = gzip.decompress(source.read_bytes()) if source.suffix == ".gz" else source.read_bytes()
    folder = tmp_path / source.parent.name
    folder.mkdir(exist_ok=True)
    path = folder / source.name.removesuffix(".gz")
    reader = next(r for r in READERS if r.name == name)
    whole = read(source, reader=reader)
    # Within the last line that holds a row of the run (padding rows end some samples).
    cut = raw.rstrip(b"\n").rfind(b"\n") + 8
    path.write_bytes(raw[:cut])
    first = read(path, reader=reader)
    assert not first.rejects
    path.write_bytes(raw)
    rest = read(path, first.cursors[-1], reader=reader)
    assert [*first.metrics, *rest.metrics] == whole.metrics
    assert [*first.trajectories, *rest.trajectories] == whole.trajectories
