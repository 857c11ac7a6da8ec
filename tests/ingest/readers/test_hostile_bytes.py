"""Whatever stands in a file: a reader yields rows and rejects, or says in a sentence why it cannot, and never anything else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ingest.discover import FoundFile, IgnoredFile, take
from ingest.errors import ReaderError
from ingest.readers import READERS
from ingest.schema.records import Batch, Cursor, JsonSlice, Reject

QUICK = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

LINES = st.sampled_from(
    [
        b'{"step": 1, "loss": 0.5}',
        b'{"step": 1e400, "loss": 0.5}',
        b'{"step": 99999999999999999999999, "loss": 1}',
        b'{"step": "nan", "loss": 1}',
        b'{"step": 1, "data": {"a": null, "b": Infinity}}',
        b'{"step": 1, "data": null}',
        b'{"input": 5, "output": null, "score": [], "step": {}}',
        b'{"input": "a", "output": "b", "score": "x", "step": "2", "uid": 5}',
        b'{"step": -1, "prompt": null, "response": "r", "reward": true}',
        b'{"prompt": [1, null, {}], "completion": "", "rollouts": [null, 3]}',
        b'{"messages": [{"role": 1}], "step": 0}',
        b'{"question": "q", "rollouts": [null, 1, {"text": 5}, []]}',
        b"[" * 5000,
        b'{"a":' * 5000,
        b'"unclosed',
        b'1,2,"three',
        b"step,loss\r",
        b"\x00\x00\x00",
        b"\xff\xfe",
        b"\xef\xbb\xbf{}",
        '{"step": 1, "\u202eloss": 1}'.encode(),
        b"",
    ]
)


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
@given(lines=st.lists(LINES, max_size=6), end=st.sampled_from([b"\n", b"\r\n", b""]), noise=st.binary(max_size=40))
@QUICK
def test_any_bytes_become_rows_rejects_or_a_sentence(reader: object, lines: list[bytes], end: bytes, noise: bytes, tmp_path: Path) -> None:
    path = tmp_path / "1.jsonl"
    path.write_bytes(b"\n".join([*lines, noise]) + end)
    assert isinstance(take(path), (FoundFile, IgnoredFile))
    try:
        items = list(reader.read(path, Cursor()))  # type: ignore[attr-defined]
    except ReaderError as error:
        assert str(path) in str(error)
        return
    for item in items:
        assert isinstance(item, (Batch, JsonSlice, Reject))
        if item.cursor is not None:
            json.dumps(dict(item.cursor.state))
        if isinstance(item, Reject):
            assert item.reason
            assert len(item.sample) <= 200
        if isinstance(item, Batch):
            steps = [row.step for row in item.metrics] + [row.step for row in item.trajectories]
            assert all(abs(step) <= 2**53 for step in steps)


@given(names=st.lists(st.text(max_size=8), min_size=1, max_size=4), rows=st.lists(st.lists(st.text(max_size=8), max_size=4), max_size=5))
@QUICK
def test_any_table_is_read_or_ignored(names: list[str], rows: list[list[str]], tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    text = "\n".join(",".join(cell.replace("\n", " ") for cell in row) for row in [["step", *names], *rows]) + "\n"
    path.write_text(text, encoding="utf-8", errors="replace")
    found = take(path)
    if isinstance(found, FoundFile):
        assert all(isinstance(item, (Batch, Reject)) for item in found.reader.read(path, Cursor()))
