from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any


def test_padding_rows_of_the_new_trainer_are_left_out_with_a_note(data: Path, read: Any) -> None:
    taken = read(data / "verl/v1-run/rollouts/1.jsonl")
    assert len(taken.trajectories) == 16
    assert taken.notes == ["2 padding rows of the trainer were left out"]
    assert not taken.rejects


def test_the_new_trainers_uid_is_group_session_and_turn(data: Path, read: Any) -> None:
    row = read(data / "verl/v1-run/rollouts/1.jsonl").trajectories[1]
    assert row.fields["trajectory_id"] == "00010000-aaaa-4bbb-8ccc-0123456789ab_1_0"
    assert row.fields["group_id"] == "00010000-aaaa-4bbb-8ccc-0123456789ab"
    assert row.fields["sample_index"] == 1
    assert row.fields["extra"] == {"turn_index": 0, "gts": "9"}


def test_the_old_trainers_groups_are_the_rows_with_the_same_prompt(data: Path, read: Any) -> None:
    taken = read(data / "verl/v0-run/rollouts/2.jsonl")
    groups = Counter(row.fields["group_id"] for row in taken.trajectories)
    assert len(taken.trajectories) == 16
    assert sum(groups.values()) == 16
    assert len(groups) == len({row.fields["prompt"] for row in taken.trajectories})
    assert all("group_id" in row.fields["extra"]["derived"] for row in taken.trajectories)


def test_score_is_the_reward_and_other_numbers_are_its_parts(data: Path, read: Any) -> None:
    row = read(data / "verl/v0-run/rollouts/1.jsonl").trajectories[0]
    assert row.fields["reward"] == 0.0
    assert row.fields["reward_parts"] == {"format": 1.0}
    assert {"acc": False, "pred": "11", "gts": "10"}.items() <= row.fields["extra"].items()
    assert row.fields["split"] == "train"
    assert "finish_reason" not in row.fields


def test_a_row_without_texts_or_step_is_rejected_with_its_line(tmp_path: Path, read: Any) -> None:
    good = {"input": "a", "output": "b", "score": 1.0, "step": 3}
    rows = [good, {**good, "step": None}, {**good, "output": 5}, good]
    path = tmp_path / "3.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    taken = read(path)
    assert [(r.line, r.reason.split(":")[0]) for r in taken.rejects] == [
        (2, "no integer 'step'"),
        (3, "texts under 'input' and 'output' were expected"),
    ]
    assert [row.line for row in taken.trajectories] == [1, 4]


def test_a_score_that_is_no_number_leaves_the_reward_empty(tmp_path: Path, read: Any) -> None:
    path = tmp_path / "3.jsonl"
    path.write_text('{"input": "a", "output": "b", "gts": null, "score": null, "step": 3}\n')
    row = read(path).trajectories[0]
    assert row.fields["reward"] is None
    assert "reward_parts" not in row.fields
