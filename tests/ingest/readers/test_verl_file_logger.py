from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from ingest.discover import FoundFile, IgnoredFile, take


def _write(path: Path, *lines: str) -> Path:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def test_keys_and_steps_are_kept_as_logged(data: Path, read: Any) -> None:
    taken = read(data / "verl/v1-run/metrics.jsonl")
    assert [row.step for row in taken.metrics] == [0, 1, 2, 3, 4, 5]
    assert taken.series("val-core/openai/gsm8k/reward/mean@1") == [(0, 0.25), (5, 0.3)]
    assert taken.metrics[1].values["critic/score/max"] == 1.0
    assert not taken.rejects


def test_the_old_and_the_new_trainer_are_told_apart_by_their_keys(data: Path, read: Any) -> None:
    assert set(read(data / "verl/v0-file-logger/metrics.jsonl").versions) == {"v0"}
    assert set(read(data / "verl/v1-file-logger/metrics.jsonl").versions) == {"v1"}


def test_a_log_that_does_not_tell_its_trainer_claims_none(tmp_path: Path, read: Any) -> None:
    taken = read(_write(tmp_path / "m.jsonl", '{"step": 1, "data": {"actor/entropy": 0.4, "response_length/clip_ratio": 0.1}}'))
    assert taken.versions == []


def test_the_trainer_found_once_is_remembered_by_the_cursor(tmp_path: Path, read: Any) -> None:
    path = _write(tmp_path / "m.jsonl", '{"step": 1, "data": {"training/num_turns/mean": 2}}')
    cursor = read(path).cursors[-1]
    path.write_text(path.read_text() + '{"step": 2, "data": {"actor/entropy": 0.4}}\n')
    rest = read(path, cursor)
    assert (rest.versions, [row.step for row in rest.metrics]) == (["v1"], [2])


def test_the_fully_asynchronous_trainer_writes_several_lines_a_step(tmp_path: Path, read: Any) -> None:
    path = _write(
        tmp_path / "m.jsonl",
        '{"step": 3, "data": {"fully_async/rollouter/idle_ratio": 0.1}}',
        '{"step": 3, "data": {"actor/entropy": 0.4, "training/off_policy/trajectory_staleness/mean": 1}}',
    )
    taken = read(path)
    assert [row.step for row in taken.metrics] == [3, 3]
    assert set(taken.versions) == {"fully_async"}


def test_null_is_what_the_trainer_writes_for_a_value_that_is_not_finite(data: Path, read: Any) -> None:
    taken = read(data / "verl/v0-file-logger/metrics.jsonl")
    norms = dict(taken.series("actor/grad_norm"))
    assert math.isnan(norms[13])
    assert not math.isnan(norms[12])
    assert taken.transforms == {"actor/grad_norm": "null_as_nonfinite"}


def test_literal_nan_and_infinity_of_older_versions_stay_themselves(tmp_path: Path, read: Any) -> None:
    taken = read(_write(tmp_path / "m.jsonl", '{"step": 1, "data": {"a/x": NaN, "a/y": Infinity, "a/z": -Infinity}}'))
    values = taken.metrics[0].values
    assert math.isnan(values["a/x"])
    assert (values["a/y"], values["a/z"]) == (math.inf, -math.inf)
    assert taken.transforms == {}


def test_numbers_written_as_strings_are_numbers_and_texts_are_left_out(tmp_path: Path, read: Any) -> None:
    taken = read(_write(tmp_path / "m.jsonl", '{"step": "7", "data": {"a/x": "2.5", "a/note": "hello", "a/flag": true}}'))
    assert (taken.metrics[0].step, taken.metrics[0].values) == (7, {"a/x": 2.5})


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"step": null, "data": {}}', "no integer 'step'"),
        ('{"step": 1.5, "data": {}}', "no integer 'step'"),
        ('{"step": 1, "data": [1]}', "an object under 'data'"),
        ("[1, 2]", "a JSON object was expected"),
        ('{"step": 1, "step": 2, "data": {}}', "occurs twice"),
        ('{"step": 1, "data": {"x": 1e999}}', "too large"),
    ],
)
def test_a_line_of_another_schema_is_a_reject_with_its_reason(line: str, reason: str, tmp_path: Path, read: Any) -> None:
    good = '{"step": 1, "data": {"x": 1}}'
    taken = read(_write(tmp_path / "m.jsonl", good, line, good.replace("1", "2", 1)))
    assert [(r.line, r.offset) for r in taken.rejects] == [(2, len(good) + 1)]
    assert reason in taken.rejects[0].reason
    assert len(taken.metrics) == 2


def test_windows_line_ends_and_a_byte_order_mark_change_nothing(data: Path, tmp_path: Path, read: Any) -> None:
    source = data / "verl/v1-run/metrics.jsonl"
    path = tmp_path / "m.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + source.read_bytes().replace(b"\n", b"\r\n"))
    assert read(path).metrics == read(source).metrics


def test_a_first_line_longer_than_the_head_is_still_recognised(tmp_path: Path) -> None:
    data = {f"val-core/task_{n}/reward/mean@1": 0.5 for n in range(4000)}
    path = _write(tmp_path / "m.jsonl", json.dumps({"step": 0, "data": data}))
    found = take(path)
    assert isinstance(found, FoundFile)
    assert found.reader.name == "verl-file-logger"


def test_utf_16_is_refused_with_the_way_out(data: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes((data / "verl/v1-run/metrics.jsonl").read_text().encode("utf-16"))
    found = take(path)
    assert isinstance(found, IgnoredFile)
    assert found.failed
    assert "iconv" in found.reason
