from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ingest.errors import ReaderError
from ingest.readers.trl_completions import TrlCompletionsReader
from ingest.schema.records import Cursor

RUN = "trl/offpolicy-resumed"


def _file(folder: Path, step: int, groups: int, size: int, text: str = "answer", **columns: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {"step": step, "prompt": f"question {g}", "completion": f"{text} {m}", "accuracy": float(m == 0), "advantage": 0.5, **columns}
        for g in range(groups)
        for m in range(size)
    ]
    path = folder / f"completions_{step:05d}.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def _history(folder: Path, rows: list[dict[str, Any]]) -> None:
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": rows[-1]["step"], "log_history": rows}))


def test_groups_are_rebuilt_from_neighbours_with_the_same_prompt(data: Path, read: Any) -> None:
    taken = read(data / RUN / "completions/completions_00001.parquet")
    groups = Counter(row.fields["group_id"] for row in taken.trajectories)
    assert len(taken.trajectories) == 128
    assert set(groups.values()) == {8}
    assert {row.fields["sample_index"] for row in taken.trajectories} == set(range(8))
    assert "group_id" in taken.trajectories[0].fields["extra"]["derived"]


def test_two_groups_of_one_prompt_side_by_side_stay_two(tmp_path: Path, read: Any) -> None:
    rows = [{"step": 1, "prompt": p, "completion": "x", "accuracy": 0.0, "advantage": 0.0} for p in "aabbccccdd"]
    path = tmp_path / "completions_00001.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    assert [row.fields["group_id"] for row in read(path).trajectories] == [f"train-1-{g}" for g in (0, 0, 1, 1, 2, 2, 3, 3, 4, 4)]


def test_rows_of_an_evaluation_that_overwrote_the_step_are_of_the_evaluation(data: Path, read: Any) -> None:
    for step in (0, 20, 60):
        taken = read(data / RUN / f"completions/completions_{step:05d}.parquet")
        assert {(row.step, row.fields["split"]) for row in taken.trajectories} == {(step, "eval")}
        assert "rows of an evaluation" in taken.notes[0]
    training = read(data / RUN / "completions/completions_00019.parquet", reader=TrlCompletionsReader())
    assert {row.fields["split"] for row in training.trajectories} == {"train"}


def test_an_evaluation_newer_than_the_checkpoint_is_known_by_its_prompts(data: Path, tmp_path: Path, read: Any) -> None:
    folder = tmp_path / "completions"
    folder.mkdir()
    for step in (0, 19, 20, 21):
        shutil.copy(data / RUN / f"completions/completions_{step:05d}.parquet", folder)
    taken = {step: read(folder / f"completions_{step:05d}.parquet") for step in (19, 20, 21)}
    assert {step: t.trajectories[0].fields["split"] for step, t in taken.items()} == {19: "train", 20: "eval", 21: "train"}
    assert "the same prompts as the evaluation in completions_00000.parquet" in taken[20].notes[0]


def test_an_evaluation_newer_than_the_checkpoint_is_known_by_its_group_size(tmp_path: Path, read: Any) -> None:
    folder = tmp_path / "completions"
    _file(folder, 0, 8, 2)
    _file(folder, 9, 4, 4, "train")
    path = _file(folder, 10, 6, 2, "other")
    assert read(path).trajectories[0].fields["split"] == "eval"
    assert "groups of 2" in read(path).notes[0]
    assert read(folder / "completions_00009.parquet").trajectories[0].fields["split"] == "train"


def test_the_same_generation_under_several_steps_is_stored_once(data: Path, read: Any) -> None:
    folder = data / RUN / "completions"
    assert len(read(folder / "completions_00001.parquet").trajectories) == 128
    for step in (2, 3, 4):
        taken = read(folder / f"completions_{step:05d}.parquet")
        assert taken.trajectories == []
        assert "the same generation as completions_00001.parquet" in taken.notes[0]
    assert len(read(folder / "completions_00005.parquet").trajectories) == 128


def test_a_generation_that_goes_on_behind_an_evaluation_is_still_the_same(tmp_path: Path, read: Any) -> None:
    folder = tmp_path / "completions"
    _file(folder, 3, 4, 4, "same")
    _file(folder, 4, 4, 2, "evaluation")
    path = _file(folder, 5, 4, 4, "same")
    _history(tmp_path, [{"step": 4, "eval_reward": 0.5}, {"step": 5, "loss": 0.1}])
    assert "the same generation as completions_00003.parquet" in read(path).notes[0]


def test_the_reward_is_the_sum_of_the_parts_with_weights_found_in_the_history(data: Path, read: Any) -> None:
    rows = read(data / RUN / "completions/completions_00001.parquet").trajectories
    fields = rows[0].fields
    assert set(fields["reward_parts"]) == {"exact_match", "has_format"}
    assert fields["reward"] == pytest.approx(fields["reward_parts"]["exact_match"] + 0.1 * fields["reward_parts"]["has_format"])
    assert "reward" in fields["extra"]["derived"]
    mean = sum(row.fields["reward"] for row in rows) / len(rows)
    state = json.loads((data / RUN / "trainer_state.json").read_text())
    logged = next(row["reward"] for row in state["log_history"] if row["step"] == 1)
    assert mean == pytest.approx(logged, abs=1e-4)


def test_without_a_history_the_reward_stays_empty(tmp_path: Path, read: Any) -> None:
    fields = read(_file(tmp_path, 1, 2, 2)).trajectories[0].fields
    assert fields["reward_parts"] == {"accuracy": 1.0}
    assert "reward" not in fields


def test_a_history_that_the_parts_do_not_explain_gives_no_reward(tmp_path: Path, read: Any) -> None:
    path = _file(tmp_path / "completions", 2, 2, 2)
    _history(tmp_path, [{"step": n, "reward": n**2, "rewards/accuracy/mean": n} for n in (1, 2, 3)])
    assert "reward" not in read(path).trajectories[0].fields


def test_columns_of_log_extra_are_kept_and_labels_are_slices(data: Path, read: Any) -> None:
    fields = read(data / RUN / "completions/completions_00001.parquet").trajectories[0].fields
    assert fields["task"] in {"copy", "reverse", "sort", "summod"}
    assert fields["difficulty"].isdigit()
    assert "answer" in fields["extra"]
    assert "token_ids" not in fields


def test_a_half_written_file_is_refused_with_a_sentence(data: Path, tmp_path: Path) -> None:
    path = tmp_path / "completions_00001.parquet"
    path.write_bytes((data / RUN / "completions/completions_00001.parquet").read_bytes()[:3000])
    with pytest.raises(ReaderError, match="not a whole Parquet file"):
        list(TrlCompletionsReader().read(path, Cursor()))


def test_a_table_without_the_trainers_columns_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "completions_00001.parquet"
    pq.write_table(pa.table({"step": [1], "text": ["x"]}), path)
    with pytest.raises(ReaderError, match="columns step, prompt and completion were expected"):
        list(TrlCompletionsReader().read(path, Cursor()))
