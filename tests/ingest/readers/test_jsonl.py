from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from ingest.discover import FoundFile, IgnoredFile, take
from ingest.readers.base import MAX_LINE


def _write(path: Path, *rows: Any) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "key", ["step", "global_step", "trainer/global_step", "train/global_step", "training_step", "batch_index", "episode"]
)
def test_the_step_column_is_found_by_name(key: str, tmp_path: Path, read: Any) -> None:
    taken = read(_write(tmp_path / "log.jsonl", {key: 3, "loss": 0.5}, {key: 4, "loss": 0.4}))
    assert taken.series("loss") == [(3, 0.5), (4, 0.4)]


def test_wandbs_own_counter_is_used_only_where_nothing_better_is_there(tmp_path: Path, read: Any) -> None:
    rows = [{"_step": 10, "train/global_step": 1, "train/loss": 0.5}, {"_step": 20, "train/global_step": 2, "train/loss": 0.4}]
    assert read(_write(tmp_path / "a.jsonl", *rows)).series("train/loss") == [(1, 0.5), (2, 0.4)]
    bare = [{"_step": 10, "train/loss": 0.5}]
    assert read(_write(tmp_path / "b.jsonl", *bare)).series("train/loss") == [(10, 0.5)]


def test_rows_with_only_wandbs_counter_stand_after_the_step_logged_last(tmp_path: Path, read: Any) -> None:
    rows = [
        {"_step": 1, "train/global_step": 5, "train/loss": 0.5},
        {"_step": 2, "profiling/Time taken: GRPOTrainer.compute_loss": 0.1},
        {"_step": 3, "train/global_step": 6, "train/loss": 0.4},
    ]
    taken = read(_write(tmp_path / "a.jsonl", *rows))
    assert [row.step for row in taken.metrics] == [5, 5, 6]
    assert "1 rows without 'train/global_step' were placed at the step before them" in taken.notes[0]


def test_a_step_written_as_a_fraction_of_all_is_read(tmp_path: Path, read: Any) -> None:
    taken = read(_write(tmp_path / "a.jsonl", {"loss": 0.5, "reward": 1.0, "global_step/max_steps": "2/4389"}))
    assert taken.series("reward") == [(2, 1.0)]


def test_metrics_without_a_step_are_counted_and_that_is_said(tmp_path: Path, read: Any) -> None:
    taken = read(_write(tmp_path / "a.jsonl", {"loss": 0.5, "reward": 1.0}, {"loss": 0.4, "reward": 2.0}))
    assert taken.series("reward") == [(1, 1.0), (2, 2.0)]
    assert taken.notes == ["no step column: rows were counted from 1"]


def test_numbers_as_strings_nan_and_nested_numbers_are_numbers_and_the_rest_is_not(tmp_path: Path, read: Any) -> None:
    line = '{"step": "1", "loss": "2.5e-1", "kl": NaN, "train": {"lr": 1e-6}, "done": true, "who": "x", "deep": {"a": 1, "b": "text"}}'
    values = read(_write(tmp_path / "a.jsonl", line)).metrics[0].values
    assert math.isnan(values["kl"])
    assert {k: v for k, v in values.items() if k != "kl"} == {"loss": 0.25, "train/lr": 1e-6}


def test_rows_that_name_themselves_an_evaluation_are_kept_apart(tmp_path: Path, read: Any) -> None:
    taken = read(_write(tmp_path / "a.jsonl", {"step": 1, "log_type": "train", "solved": 1}, {"step": 1, "log_type": "eval", "solved": 0}))
    assert [row.values for row in taken.metrics] == [{"solved": 1.0}, {"eval/solved": 0.0}]


def test_two_schemas_in_one_file_are_both_read(tmp_path: Path, read: Any) -> None:
    taken = read(
        _write(tmp_path / "a.jsonl", {"step": 1, "loss": 1}, {"step": 1, "prompt": "p", "response": "r", "reward": 1}, {"step": 2, "kl": 1})
    )
    assert [row.step for row in taken.metrics] == [1, 2]
    assert [(row.step, row.line, row.fields["response"]) for row in taken.trajectories] == [(1, 2, "r")]


def test_a_step_that_goes_back_is_handed_on_as_it_stands(tmp_path: Path, read: Any) -> None:
    taken = read(_write(tmp_path / "a.jsonl", *({"step": n, "loss": 1.0} for n in (1, 2, 3, 2, 3))))
    assert [row.step for row in taken.metrics] == [1, 2, 3, 2, 3]


def test_turns_of_episodes_are_not_taken_for_resumes(tmp_path: Path, read: Any) -> None:
    rows = [{"step": turn, "prompt": "p", "completion": "r"} for _ in range(10) for turn in (1, 2, 3)]
    taken = read(_write(tmp_path / "a.jsonl", *rows))
    assert {row.attempt for row in taken.trajectories} == {1}
    assert "goes up and down" in taken.notes[0]
    resumed = [{"step": n, "prompt": "p", "completion": "r"} for n in (1, 2, 3, 4, 2, 3, 4, 5)]
    assert {row.attempt for row in read(_write(tmp_path / "b.jsonl", *resumed)).trajectories} == {None}


def test_a_step_that_is_no_integer_is_a_reject_with_its_line(tmp_path: Path, read: Any) -> None:
    taken = read(_write(tmp_path / "a.jsonl", {"step": 1, "loss": 1}, {"step": 1.5, "loss": 1}, {"step": "x", "loss": 1}, {"loss": 1}))
    assert [r.line for r in taken.rejects] == [2, 3, 4]
    assert "no integer 'step'" in taken.rejects[0].reason
    assert "is empty" in taken.rejects[2].reason


@pytest.mark.parametrize(
    ("prompt", "response", "reward"),
    [("prompt", "completion", "score"), ("input", "output", "reward"), ("question", "text", "total_reward")],
)
def test_text_and_reward_columns_are_found_by_name(prompt: str, response: str, reward: str, tmp_path: Path, read: Any) -> None:
    taken = read(_write(tmp_path / "a.jsonl", {"step": 4, prompt: "p", response: "r", reward: "0.5", "task_id": 7, "fp": 1, "kept": True}))
    row = taken.trajectories[0]
    expected = {"prompt": "p", "response": "r", "reward": 0.5, "task": "7", "kept": True, "extra": {"fp": 1}}
    assert row.step == 4
    assert {k: row.fields[k] for k in expected} == expected


def test_a_value_that_its_field_cannot_hold_stays_among_the_extras(tmp_path: Path, read: Any) -> None:
    row = read(_write(tmp_path / "a.jsonl", {"step": 1, "prompt": "p", "response": "r", "kept": "yes", "advantage": [1]})).trajectories[0]
    assert row.fields["extra"] == {"kept": "yes", "advantage": [1]}


def test_a_prompt_of_messages_stays_messages(tmp_path: Path, read: Any) -> None:
    messages = [{"role": "user", "content": "hello"}]
    assert (
        read(_write(tmp_path / "a.jsonl", {"step": 1, "prompt": messages, "completion": "r"})).trajectories[0].fields["prompt"] == messages
    )


def test_a_conversation_is_prompt_response_and_turns(tmp_path: Path, read: Any) -> None:
    talk = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "v"},
    ]
    fields = read(_write(tmp_path / "a.jsonl", {"task": "t", "conversation": talk})).trajectories[0].fields
    assert fields["prompt"] == talk[:2]
    assert fields["response"] == "assistant\na\nuser\nv"
    assert len(fields["turns"]) == 4


def test_calls_of_a_conversation_are_kept_with_their_turn(tmp_path: Path, read: Any) -> None:
    one = {"type": "function", "function": {"name": "look", "arguments": '{"x": 1}'}}
    two = [{"name": "look", "arguments": {"x": 2}}, {"function": "wait", "arguments": {}}]
    talk = [
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": None, "tool_calls": [one]},
        {"role": "tool", "content": "a wall", "name": "look"},
        {"role": "assistant", "content": "both", "tool_calls": two},
        {"role": "tool", "content": "a door"},
    ]
    turns = read(_write(tmp_path / "a.jsonl", {"task": "t", "conversation": talk})).trajectories[0].fields["turns"]
    assert [(turn.get("tool_name"), turn.get("tool_args")) for turn in turns] == [
        (None, None), ("look", '{"x": 1}'), ("look", None), ("look+wait", [{"x": 2}, None]), (None, None),
    ]  # fmt: skip


def test_groups_nested_in_one_row_become_their_members(tmp_path: Path, read: Any) -> None:
    row = {"qid": 7, "question": "q", "rollouts": [{"text": "a", "reward": 1}, {"text": "b", "reward": 0}]}
    taken = read(_write(tmp_path / "a.jsonl", row))
    assert [(t.fields["group_id"], t.fields["sample_index"], t.fields["response"], t.fields["reward"]) for t in taken.trajectories] == [
        ("7", 0, "a", 1.0),
        ("7", 1, "b", 0.0),
    ]


def test_rollouts_without_a_step_take_it_from_the_name_or_stand_at_zero(tmp_path: Path, read: Any) -> None:
    folder = tmp_path / "step-100"
    folder.mkdir()
    row = {"prompt": "p", "response": "r"}
    assert read(_write(folder / "raw.jsonl", row)).trajectories[0].step == 100
    assert read(_write(tmp_path / "250.jsonl", row)).trajectories[0].step == 250
    other = read(_write(tmp_path / "samples.jsonl", row))
    assert other.trajectories[0].step == 0
    assert other.notes == ["no step column: all rows at step 0"]


def test_a_known_trainers_names_are_told_to_the_store(tmp_path: Path, read: Any) -> None:
    trl = read(_write(tmp_path / "a.jsonl", {"step": 1, "reward": 1, "completions/mean_length": 3}))
    verl = read(_write(tmp_path / "b.jsonl", {"step": 1, "critic/score/mean": 1, "perf/mfu/actor_infer": 0.0}))
    assert (trl.versions, verl.versions) == (["trl"], ["verl v0"])


def test_a_line_of_fifty_megabytes_is_read(tmp_path: Path, read: Any) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"step": 1, "prompt": "p", "response": "' + b"x" * (50 << 20) + b'"}\n{"step": 2, "prompt": "p", "response": "r"}\n')
    taken = read(path)
    assert [(row.step, len(row.fields["response"])) for row in taken.trajectories] == [(1, 50 << 20), (2, 1)]


def test_a_line_beyond_the_limit_is_one_reject(tmp_path: Path, read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_LINE == 64 << 20
    monkeypatch.setattr("ingest.readers.base.MAX_LINE", 3000)
    monkeypatch.setattr("ingest.readers.base._CHUNK", 1000)
    monkeypatch.setattr("ingest.readers.jsonl._CHUNK", 1000)
    path = tmp_path / "a.jsonl"
    path.write_text('{"step": 1, "loss": 1}\n{"step": 2, "x": "' + "y" * 9000 + '"}\n{"step": 3, "loss": 1}\n')
    taken = read(path)
    assert [(r.line, r.reason) for r in taken.rejects] == [(2, "the line is longer than 64 MiB")]
    assert [row.step for row in taken.metrics] == [1, 3]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("empty.jsonl", b""),
        ("binary.jsonl", bytes(range(256)) * 40),
        ("latin.jsonl", b'{"step": 1, "loss": 1, "who": "M\xfcller"}\n' * 3),
        ("utf16.jsonl", '{"step": 1, "loss": 1}\n'.encode("utf-16")),
        ("prose.jsonl", b"step 1 loss 0.5\nstep 2 loss 0.4\n"),
        ("unknown.jsonl", b'{"colour": "red"}\n'),
    ],
)
def test_what_is_no_json_lines_is_ignored_with_a_true_reason(name: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    found = take(path)
    assert isinstance(found, IgnoredFile)
    word = {"empty": "empty", "binary": "binary", "latin": "not UTF-8", "utf16": "UTF-16", "prose": "no known format", "unknown": "colour"}
    assert word[name.split(".")[0]] in found.reason
    assert found.failed == (name != "unknown.jsonl")


def test_one_object_in_a_json_file_is_no_log(tmp_path: Path) -> None:
    assert isinstance(take(_write(tmp_path / "summary.json", {"step": 3, "loss": 0.5})), IgnoredFile)
    assert isinstance(take(_write(tmp_path / "log.json", {"step": 3, "loss": 0.5}, {"step": 4, "loss": 0.5})), FoundFile)


def test_a_first_line_longer_than_the_head_is_known_by_its_outer_keys(tmp_path: Path) -> None:
    long = {"steps": [{"prompt": "p", "response": "r", "text": "x" * 1000}] * 100}
    assert isinstance(take(_write(tmp_path / "a.jsonl", long)), IgnoredFile)
    assert isinstance(take(_write(tmp_path / "b.jsonl", {"prompt": "p" * 1000, "response": "r" * 100_000})), FoundFile)
