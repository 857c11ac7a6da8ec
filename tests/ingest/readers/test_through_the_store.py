"""What a recorded run becomes in the store: meaning of keys, splits, attempts, the richer of two sources."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ingest.discover import discover
from ingest.load import FileResult, load_run
from ingest.store.connection import Store


@pytest.fixture
def store() -> Iterator[Store]:
    opened = Store(None)
    yield opened
    opened.close()


def _ingest(store: Store, path: Path) -> list[FileResult]:
    runs, _ = discover([path])
    return [result for run in runs for result in load_run(store, run)]


def _meaning(store: Store, key: str) -> tuple[str | None, str]:
    found = store.rows("SELECT metric, transform FROM series WHERE source_key = ?", [key])
    return found[0][0], found[0][1]


@pytest.mark.parametrize(
    ("case", "version", "metric"),
    [
        ("v0-file-logger", "v0", "length.response.truncated_frac"),
        ("v1-file-logger", "v1", "length.response.at_batch_max_frac"),
    ],
)
def test_the_clip_ratio_of_lengths_means_what_its_trainer_means(case: str, version: str, metric: str, data: Path, store: Store) -> None:
    _ingest(store, data / "verl" / case)
    assert store.rows("SELECT framework, framework_version FROM run") == [("verl", version)]
    assert _meaning(store, "response_length/clip_ratio")[0] == metric


def test_keys_get_their_meaning_when_the_trainer_shows_itself_later(tmp_path: Path, store: Store) -> None:
    path = tmp_path / "run" / "m.jsonl"
    path.parent.mkdir()
    path.write_text('{"step": 1, "data": {"response_length/clip_ratio": 0.1}}\n')
    _ingest(store, path.parent)
    assert _meaning(store, "response_length/clip_ratio")[0] is None
    with path.open("a") as stream:
        stream.write('{"step": 2, "data": {"response_length/clip_ratio": 0.1, "training/num_turns/mean": 1}}\n')
    _ingest(store, path.parent)
    assert _meaning(store, "response_length/clip_ratio")[0] == "length.response.at_batch_max_frac"


def test_a_null_of_the_trainer_is_stored_as_nan_and_says_so(data: Path, store: Store) -> None:
    _ingest(store, data / "verl" / "v0-file-logger")
    values = dict(store.rows("SELECT step, value FROM point JOIN series USING (series_id) WHERE source_key = 'actor/grad_norm'"))
    assert math.isnan(values[13])
    assert sum(math.isnan(value) for value in values.values()) == 1
    assert _meaning(store, "actor/grad_norm") == ("grad.norm", "null_as_nonfinite")
    assert _meaning(store, "actor/lr") == ("lr", "identity")


def test_a_verl_run_is_one_run_with_training_and_evaluation_rows(data: Path, store: Store) -> None:
    results = _ingest(store, data / "verl" / "v1-run")
    assert {result.rejected for result in results} == {0}
    assert store.rows("SELECT split, count(*), count(DISTINCT group_id) FROM trajectory GROUP BY split ORDER BY split") == [
        ("eval", 6, 6),
        ("train", 48, 12),
    ]
    assert {result.state for result in _ingest(store, data / "verl" / "v1-run")} == {"unchanged"}


def test_a_restarted_trainer_overwrites_its_log_and_dumps_and_begins_a_new_attempt(data: Path, tmp_path: Path, store: Store) -> None:
    folder = tmp_path / "run"
    shutil.copytree(data / "verl" / "v0-run", folder)
    _ingest(store, folder)
    log, dump = folder / "metrics.jsonl", folder / "rollouts" / "3.jsonl"
    later = [json.loads(line) for line in log.read_text().splitlines()][2:]
    for record in later:
        record["data"]["actor/entropy"] = 0.9
    log.write_text("".join(json.dumps(record) + "\n" for record in later))
    dump.write_text(dump.read_text().replace("####", "answer"))
    _ingest(store, folder)
    steps = """SELECT attempt, min(step), max(step) FROM point JOIN series USING (series_id)
               WHERE source_key = 'actor/entropy' GROUP BY 1 ORDER BY 1"""
    assert store.rows(steps) == [(1, 1, 5), (2, 3, 5)]
    assert store.rows("SELECT attempt, count(*) FROM trajectory WHERE step = 3 GROUP BY 1 ORDER BY 1") == [(1, 16), (2, 16)]
    assert store.rows("SELECT attempt, count(*) FROM trajectory WHERE step = 2 GROUP BY 1") == [(1, 16)]


def test_the_trainer_state_wins_over_a_callbacks_log_of_the_same_run(data: Path, store: Store) -> None:
    _ingest(store, data / "trl" / "offpolicy-resumed")
    counted = store.rows("SELECT reader, count(*) FROM point p JOIN source USING (source_id) WHERE step <= 24 GROUP BY 1")
    assert [reader for reader, _ in counted] == ["trl-trainer-state"]
    notes = dict(store.rows("SELECT reader, note FROM source WHERE reader IN ('jsonl')"))
    assert notes["jsonl"] == "also recorded by trainer_state.json"
    doubled = "SELECT count(*) FROM (SELECT series_id, attempt, step FROM point GROUP BY ALL HAVING count(*) > 1)"
    assert store.rows(doubled) == [(0,)]
    assert store.rows("SELECT framework, framework_version FROM run") == [("trl", None)]
    assert _meaning(store, "reward_std")[0] is None


def test_a_completions_file_seen_before_and_after_its_evaluation_keeps_both(data: Path, tmp_path: Path, store: Store) -> None:
    folder = tmp_path / "run"
    shutil.copytree(data / "trl" / "offpolicy-resumed", folder)
    file = folder / "completions" / "completions_00020.parquet"
    evaluation, state = file.read_bytes(), (folder / "trainer_state.json").read_text()
    # As it was in the moment between the training's and the evaluation's log call: no state knows of the step yet.
    shutil.copy(folder / "completions" / "completions_00021.parquet", file)
    history = json.loads(state)
    history["log_history"] = [row for row in history["log_history"] if row["step"] < 20]
    (folder / "trainer_state.json").write_text(json.dumps(history))
    (folder / "completions" / "completions_00021.parquet").unlink()
    _ingest(store, folder)
    query = f"SELECT split, attempt, count(*) FROM trajectory JOIN source USING (source_id) WHERE path = '{file}' GROUP BY 1, 2 ORDER BY 1"
    assert store.rows(query) == [("train", 1, 128)]
    file.write_bytes(evaluation)
    (folder / "trainer_state.json").write_text(state)
    _ingest(store, folder)
    assert store.rows(query) == [("eval", 1, 128), ("train", 1, 128)]
    assert store.rows("SELECT count(*) FROM event WHERE text LIKE '%rewritten%'") == [(0,)]


def test_a_chart_with_two_runs_becomes_two_runs(data: Path, store: Store) -> None:
    _ingest(store, data / "wandb" / "chart-two-runs" / "chart.csv")
    counted = """SELECT name, count(*) FROM run JOIN series USING (run_id) JOIN point USING (series_id)
                 WHERE metric = 'reward.mean' GROUP BY 1 ORDER BY 1"""
    assert store.rows(counted) == [("lively-sun-3", 10), ("sweep - lr 1e-6", 7)]
    assert _meaning(store, "train/reward__MAX")[0] is None
    assert {r.state for r in _ingest(store, data / "wandb" / "chart-two-runs" / "chart.csv")} == {"unchanged"}


def test_a_row_that_the_store_cannot_hold_is_rejected_with_its_line(tmp_path: Path, store: Store) -> None:
    path = tmp_path / "1.jsonl"
    good = {"input": "a", "output": "b", "score": 1.0, "step": 1}
    path.write_text("\n".join([json.dumps(good), "{broken", json.dumps({**good, "step": "x"}), json.dumps(good)]) + "\n")
    results = _ingest(store, path)
    assert [(result.rows, result.rejected) for result in results] == [(2, 2)]
    assert [line for (line,) in store.rows("SELECT line FROM reject ORDER BY line")] == [2, 3]
