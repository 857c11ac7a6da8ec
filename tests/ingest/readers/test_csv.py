from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from ingest.discover import IgnoredFile, take
from ingest.errors import ReaderError
from ingest.readers import reader_named


def _write(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.write_bytes(text.encode(encoding))
    return path


def test_an_unnamed_index_column_is_no_metric(tmp_path: Path, read: Any) -> None:
    taken = read(_write(tmp_path / "a.csv", ",_step,loss,kl\n0,1,0.5,\n1,2,0.4,nan\n"))
    assert taken.series("loss") == [(1, 0.5), (2, 0.4)]
    assert set(taken.metrics[0].values) == {"loss"}
    assert math.isnan(taken.metrics[1].values["kl"])


def test_quoted_cells_hold_commas_quotes_and_line_ends(tmp_path: Path, read: Any) -> None:
    taken = read(_write(tmp_path / "a.csv", 'step,prompt,response,reward\n1,"a, ""b""\nc","line\none","1"\n2,p,r,0\n'))
    assert [(t.step, t.line, t.fields["prompt"], t.fields["response"]) for t in taken.trajectories] == [
        (1, 2, 'a, "b"\nc', "line\none"),
        (2, 5, "p", "r"),
    ]


def test_windows_line_ends_and_a_byte_order_mark_change_nothing(tmp_path: Path, read: Any) -> None:
    plain = read(_write(tmp_path / "a.csv", "step,loss\n1,0.5\n2,0.4\n"))
    windows = read(_write(tmp_path / "b.csv", "step,loss\r\n1,0.5\r\n2,0.4\r\n", "utf-8-sig"))
    assert windows.metrics == plain.metrics


def test_a_record_with_too_many_or_too_few_cells_is_rejected_with_its_line(tmp_path: Path, read: Any) -> None:
    taken = read(_write(tmp_path / "a.csv", "step,loss\n1,0.5\n2\n3,0.4,9\n4,0.3\n"))
    assert [(r.line, r.offset, r.reason) for r in taken.rejects] == [
        (3, 16, "1 cells, the header has 2"),
        (4, 18, "3 cells, the header has 2"),
    ]
    assert [row.step for row in taken.metrics] == [1, 4]


def test_tabs_separate_the_cells_of_a_tsv(tmp_path: Path, read: Any) -> None:
    assert read(_write(tmp_path / "a.tsv", "step\tloss\n1\t0.5\n")).series("loss") == [(1, 0.5)]


def test_the_names_of_a_known_trainer_are_told(tmp_path: Path, read: Any) -> None:
    assert read(_write(tmp_path / "a.csv", "step,reward,entropy,frac_reward_zero_std\n1,0,1,0\n")).versions == ["trl"]


@pytest.mark.parametrize("text", ["99,0.68,0.007,0.61\n199,0.69,0.03,0.62\n", "colour,size\nred,3\n", "one\n1\n"])
def test_a_table_without_a_header_that_means_something_is_ignored(text: str, tmp_path: Path) -> None:
    found = take(_write(tmp_path / "a.csv", text))
    assert isinstance(found, IgnoredFile)
    assert "without a header row" in found.reason


def test_utf_16_is_refused_with_the_way_out(tmp_path: Path, read: Any) -> None:
    path = _write(tmp_path / "a.csv", "step,loss\n1,0.5\n", "utf-16")
    with pytest.raises(ReaderError, match="iconv"):
        read(path, reader=reader_named("csv"))


def test_a_quote_that_never_closes_is_an_error_and_not_a_full_memory(tmp_path: Path, read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingest.readers.csv._CHUNK", 1000)
    monkeypatch.setattr("ingest.readers.base._CHUNK", 1000)
    path = _write(tmp_path / "a.csv", 'step,loss\n1,"0.5\n' + "2,0.4\n" * 3000)
    with pytest.raises(ReaderError, match="line 2"):
        read(path)
