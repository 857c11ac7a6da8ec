from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from ingest.errors import ReaderError
from ingest.readers.trl_trainer_state import TrlTrainerStateReader, newest_history, states_beside
from ingest.schema.records import Cursor


def _state(folder: Path, history: list[Any], **more: Any) -> Path:
    path = folder / "trainer_state.json"
    path.write_text(json.dumps({"best_metric": None, "global_step": 5, "max_steps": 50, **more, "log_history": history}), encoding="utf-8")
    return path


def test_training_and_evaluation_of_a_step_are_one_record(data: Path, read: Any) -> None:
    taken = read(data / "trl/offpolicy-resumed/trainer_state.json")
    twenty = next(row for row in taken.metrics if row.step == 20)
    assert {"loss", "eval_reward"} <= twenty.values.keys()
    assert [row.step for row in taken.metrics][:4] == [0, 1, 2, 3]


def test_reward_is_absent_on_steps_without_a_new_generation(data: Path, read: Any) -> None:
    taken = read(data / "trl/offpolicy-resumed/trainer_state.json")
    assert [step for step, _ in taken.series("reward")] == [1, 5, 9, 13, 17, 21, 57, 61]
    assert [step for step, _ in taken.series("loss")][:4] == [1, 2, 3, 4]


def test_an_evaluation_logged_twice_after_a_resume_counts_once_and_is_said(data: Path, read: Any) -> None:
    taken = read(data / "trl/offpolicy-resumed/trainer_state.json")
    assert [step for step, _ in taken.series("eval_reward")] == [0, 20, 60, 120]
    assert [(e.step, e.kind) for e in taken.events] == [(60, "resume")]
    assert "later one counts" in taken.notes[0]


def test_the_state_says_what_it_knows_of_the_configuration(data: Path, read: Any) -> None:
    config = read(data / "trl/offpolicy-resumed/trainer_state.json").config
    assert config["max_steps"] == 120


def test_null_is_absent_nan_stays_and_strings_are_numbers(tmp_path: Path, read: Any) -> None:
    taken = read(_state(tmp_path, [{"step": 1, "reward": None, "loss": math.nan, "kl": "0.5", "epoch": 0.1}]))
    values = taken.metrics[0].values
    assert set(values) == {"loss", "kl"}
    assert math.isnan(values["loss"])
    assert values["kl"] == 0.5


def test_a_row_without_a_step_is_rejected_by_its_place(tmp_path: Path, read: Any) -> None:
    taken = read(_state(tmp_path, [{"step": 1, "loss": 1.0}, {"loss": 2.0}, "text", {"step": 2, "loss": 3.0}]))
    assert [r.reason for r in taken.rejects] == ["log_history[1]: no integer 'step'", "log_history[2]: no integer 'step'"]
    assert taken.series("loss") == [(1, 1.0), (2, 3.0)]


def test_the_asynchronous_trainer_is_known_by_its_keys(tmp_path: Path, read: Any) -> None:
    taken = read(_state(tmp_path, [{"step": 1, "kl": 0.1, "buffer_qsize": 3}]))
    assert taken.versions == ["async"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"best_metric": null, "global_step": 5, "log_hist', "not JSON"),
        ('{"log_history": 5}', "a list under 'log_history'"),
        ("[]", "a JSON object"),
    ],
)
def test_a_half_written_or_foreign_state_is_refused_with_a_sentence(text: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "trainer_state.json"
    path.write_text(text)
    with pytest.raises(ReaderError, match=reason):
        list(TrlTrainerStateReader().read(path, Cursor()))


def test_the_history_beside_completions_is_that_of_the_newest_checkpoint(tmp_path: Path) -> None:
    for step in (20, 100):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        _state(folder, [{"step": step, "loss": 0.0}], global_step=step)
    (tmp_path / "completions").mkdir()
    assert newest_history(states_beside(tmp_path / "completions" / "completions_00001.parquet")) == [{"step": 100, "loss": 0.0}]
    (tmp_path / "checkpoint-100" / "trainer_state.json").write_text("{half")
    assert newest_history(states_beside(tmp_path / "completions" / "completions_00001.parquet")) == [{"step": 20, "loss": 0.0}]
