from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from ingest.discover import FoundFile, take
from ingest.errors import ReaderError
from ingest.readers import reader_named
from ingest.readers.native import NativeReader, read_config
from ingest.schema.records import Cursor


def _write(path: Path, *rows: Any) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), encoding="utf-8")
    return path


def test_a_metrics_record_holds_numbers_under_any_key(tmp_path: Path, read: Any) -> None:
    line = '{"step": 3, "wall_time": 12.5, "attempt": 2, "reward.mean": "0.5", "kl.old": NaN, "own key": 1, "note": "x", "flag": true}'
    row = read(_write(tmp_path / "metrics.jsonl", line)).metrics[0]
    assert (row.step, row.wall_time, row.attempt) == (3, 12.5, 2)
    assert set(row.values) == {"reward.mean", "kl.old", "own key"}
    assert math.isnan(row.values["kl.old"])


def test_rollouts_are_handed_to_the_store_in_whole_lines(tmp_path: Path, read: Any) -> None:
    rows = [{"step": 1, "trajectory_id": str(n), "group_id": "g"} for n in range(3)]
    taken = read(_write(tmp_path / "rollouts.jsonl", *rows, '{"step": 1, "trajectory_id": "half'))
    assert [(s.first_line, s.data.count(b"\n")) for s in taken.slices] == [(1, 4)]


def test_events_and_configuration_are_read(tmp_path: Path, read: Any) -> None:
    events = read(_write(tmp_path / "events.jsonl", {"step": 100, "kind": "curriculum", "text": "harder"}, {"step": 5, "text": "a note"}))
    assert [(e.step, e.kind, e.text) for e in events.events] == [(100, "curriculum", "harder"), (5, "note", "a note")]
    config = read(_write(tmp_path / "run_params.json", {"lr": 0.1}))
    assert config.config == {"lr": 0.1}


def test_a_configuration_that_is_no_object_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReaderError, match="One JSON object was expected"):
        read_config(_write(tmp_path / "config.json", "[1, 2]"))


def test_metrics_under_another_trainers_names_are_not_native(tmp_path: Path) -> None:
    for record, reader in (
        ({"step": 1, "reward.mean": 1}, "native"),
        ({"step": 1, "reward/mean": 1}, "jsonl"),
        ({"step": 1, "data": {"a": 1}}, "verl-file-logger"),
    ):
        found = take(_write(tmp_path / "metrics.jsonl", record))
        assert isinstance(found, FoundFile)
        assert found.reader.name == reader


def test_a_file_of_another_name_is_read_as_metrics_when_native_is_asked_for(tmp_path: Path, read: Any) -> None:
    taken = read(_write(tmp_path / "other.jsonl", {"step": 1, "anything": 2}), reader=reader_named("native"))
    assert taken.series("anything") == [(1, 2.0)]


def test_a_line_without_a_step_is_a_reject(tmp_path: Path) -> None:
    path = _write(tmp_path / "metrics.jsonl", {"step": 1, "lr": 1}, {"lr": 1})
    rejects = [item for item in NativeReader().read(path, Cursor()) if type(item).__name__ == "Reject"]
    assert [(r.line, r.reason) for r in rejects] == [(2, "no integer 'step': got null")]  # type: ignore[union-attr]
