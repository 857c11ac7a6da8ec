from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ingest.errors import ReaderError
from ingest.readers import reader_named


def test_a_history_with_dotted_and_nested_columns_is_read(tmp_path: Path, read: Any) -> None:
    path = tmp_path / "history.parquet"
    rows = [{"_step": 10 * n, "train/global_step": n, "train/loss": 0.5, "eval": {"score": 0.25}, "_timestamp": 1.5} for n in range(3)]
    pq.write_table(pa.Table.from_pylist(rows), path)
    taken = read(path)
    assert taken.series("train/loss") == [(0, 0.5), (1, 0.5), (2, 0.5)]
    assert taken.series("eval/score") == [(0, 0.25), (1, 0.25), (2, 0.25)]
    assert taken.metrics[0].wall_time == 1.5


def test_empty_cells_are_absent(tmp_path: Path, read: Any) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"step": [1, 2], "loss": [0.5, None], "kl": [None, 1.0]}), path)
    assert [row.values for row in read(path).metrics] == [{"loss": 0.5}, {"kl": 1.0}]


def test_rollouts_are_found_by_their_text_columns(tmp_path: Path, read: Any) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"global_step": [3, 3], "prompt": ["p", "q"], "response": ["r", "s"], "score": [1.0, 0.0]}), path)
    assert [(t.step, t.line, t.fields["reward"]) for t in read(path).trajectories] == [(3, 1, 1.0), (3, 2, 0.0)]


def test_a_row_without_a_step_is_a_reject_with_its_row(tmp_path: Path, read: Any) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"step": [1, None, 3], "loss": [0.5, 0.5, 0.5]}), path)
    taken = read(path)
    assert [(r.line, r.reason) for r in taken.rejects] == [(2, "no step: the column 'step' is empty")]
    assert len(taken.metrics) == 2


def test_large_tables_are_read_in_slices(tmp_path: Path, read: Any) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"step": range(5000), "loss": [0.5] * 5000}), path, row_group_size=3000)
    taken = read(path)
    assert len(taken.metrics) == 5000
    assert [cursor.line for cursor in taken.cursors][-1] == 5000
    assert len(taken.cursors) >= 5


def test_a_table_that_says_nothing_of_a_run_is_refused_with_its_columns(tmp_path: Path, read: Any) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"colour": ["red"], "size": [3]}), path)
    with pytest.raises(ReaderError, match="colour, size"):
        read(path, reader=reader_named("parquet"))


def test_a_half_written_table_is_refused(tmp_path: Path, read: Any) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"step": range(100), "loss": [0.5] * 100}), path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ReaderError, match="not a whole Parquet file"):
        read(path, reader=reader_named("parquet"))
