from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ingest.discover import FoundRun, IgnoredFile, discover, run_id_of
from ingest.errors import NoRunFound, ReaderError

DATA = Path(__file__).resolve().parents[1] / "data"


def _jsonl(path: Path, *rows: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def _state(folder: Path, step: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    history = [{"step": n, "loss": 0.1} for n in range(1, step + 1)]
    (folder / "trainer_state.json").write_text(json.dumps({"best_metric": None, "global_step": step, "log_history": history}, indent=2))


def _found(path: Path, **options: Any) -> dict[str, list[str]]:
    """Run name -> its files (relative) in the order in which they are read."""
    runs, _ = discover([path], **options)
    return {run.name: [str(file.path.relative_to(path)) for file in run.files] for run in runs}


def _reasons(path: Path) -> dict[str, str]:
    _, ignored = discover([path])
    return {str(file.path.relative_to(path)): file.reason for file in ignored}


def _run(path: Path) -> FoundRun:
    runs, _ = discover([path])
    assert len(runs) == 1
    return runs[0]


def test_a_folder_is_a_run_named_after_it_in_the_project_of_its_parent(tmp_path: Path) -> None:
    folder = tmp_path / "maths" / "run-1"
    _jsonl(folder / "metrics.jsonl", {"step": 1, "reward.mean": 0.5})
    _jsonl(folder / "rollouts.jsonl", {"step": 1, "trajectory_id": "a", "group_id": "g"})
    (folder / "config.json").write_text('{"group": 8}')
    (folder / "label.json").write_text("{}")
    (folder / "notes.md").write_text("# notes")
    run = _run(folder)
    assert (run.project, run.name, run.framework) == ("maths", "run-1", "native")
    assert run.run_id == run_id_of("maths", "run-1", "native")
    assert [file.path.name for file in run.files] == ["config.json", "metrics.jsonl", "rollouts.jsonl"]
    assert _reasons(folder) == {"label.json": "not a log of a run", "notes.md": "not a log of a run"}


def test_project_and_name_can_be_said(tmp_path: Path) -> None:
    path = _jsonl(tmp_path / "log.jsonl", {"step": 1, "loss": 1})
    runs, _ = discover([path], project="p", name="n")
    assert [(run.project, run.name) for run in runs] == [("p", "n")]
    assert _run(path).name == "log"


def test_a_tree_yields_a_run_for_each_folder_with_metrics(tmp_path: Path) -> None:
    for name in ("a", "b"):
        _jsonl(tmp_path / name / "log.jsonl", {"step": 1, "loss": 1})
    _jsonl(tmp_path / "a" / "samples" / "7.jsonl", {"step": 7, "prompt": "p", "response": "r"})
    assert _found(tmp_path) == {"a": ["a/log.jsonl", "a/samples/7.jsonl"], "b": ["b/log.jsonl"]}


def test_the_recorded_verl_runs_are_one_run_each_with_their_dumps(tmp_path: Path) -> None:
    shutil.copytree(DATA / "verl", tmp_path / "verl")
    runs, ignored = discover([tmp_path / "verl"])
    found = {run.name: {file.reader.name for file in run.files} for run in runs}
    dumps = {"verl-file-logger", "verl-rollouts", "verl-validation"}
    assert found == {
        "v0-file-logger": {"verl-file-logger"},
        "v0-run": dumps,
        "v1-file-logger": {"verl-file-logger"},
        "v1-run": dumps,
    }
    assert {run.framework for run in runs} == {"verl"}
    assert {file.path.name for file in ignored} == {"SOURCE.md", "make_fixtures.py"}


def test_dumps_in_another_branch_join_the_only_log_of_the_tree(tmp_path: Path) -> None:
    shutil.copytree(DATA / "verl/v1-run/rollouts", tmp_path / "out" / "rollouts")
    (tmp_path / "logs" / "maths").mkdir(parents=True)
    shutil.copy(DATA / "verl/v1-run/metrics.jsonl", tmp_path / "logs" / "maths" / "exp.jsonl")
    assert _found(tmp_path) == {"maths": ["logs/maths/exp.jsonl", *(f"out/rollouts/{n}.jsonl" for n in (1, 2, 3))]}


def test_several_experiments_in_one_folder_are_runs_of_their_own_and_dumps_join_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "maths"
    folder.mkdir()
    for name in ("exp-a", "exp-b"):
        shutil.copy(DATA / "verl/v1-run/metrics.jsonl", folder / f"{name}.jsonl")
    shutil.copytree(DATA / "verl/v1-run/rollouts", folder / "exp-b")
    runs, _ = discover([folder])
    assert {run.name: len(run.files) for run in runs} == {"exp-a": 1, "exp-b": 4}
    assert {run.project for run in runs} == {"maths"}


def test_logs_with_other_keys_in_one_folder_are_one_run(tmp_path: Path) -> None:
    _jsonl(tmp_path / "train.jsonl", {"step": 1, "loss": 1.0})
    _jsonl(tmp_path / "eval.jsonl", {"step": 1, "eval_score": 1.0})
    assert list(_found(tmp_path)) == [tmp_path.name]


def test_a_log_in_pieces_is_one_run(tmp_path: Path) -> None:
    _jsonl(tmp_path / "log-1.jsonl", {"step": 1, "loss": 1.0}, {"step": 2, "loss": 1.0})
    _jsonl(tmp_path / "log-2.jsonl", {"step": 3, "loss": 1.0})
    assert list(_found(tmp_path)) == [tmp_path.name]


def test_the_newest_checkpoint_holds_the_history_and_completions_belong_to_the_run(tmp_path: Path) -> None:
    for step in (20, 100):
        _state(tmp_path / f"checkpoint-{step}", step)
        (tmp_path / f"checkpoint-{step}" / "config.json").write_text('{"hidden_size": 8}')
    shutil.copytree(DATA / "trl/offpolicy-resumed/completions", tmp_path / "completions")
    run = _run(tmp_path)
    assert (run.root, run.framework) == (tmp_path, "trl")
    states = [file.path.parent.name for file in run.files if file.reader.name == "trl-trainer-state"]
    assert (states, len(run.files)) == (["checkpoint-100"], 11)
    reasons = _reasons(tmp_path)
    assert reasons["checkpoint-20/trainer_state.json"] == "an older state of the same run: checkpoint-100 holds the whole history"
    assert "model's configuration" in reasons["checkpoint-100/config.json"]


def test_a_state_above_the_checkpoints_counts_where_it_is_newer(tmp_path: Path) -> None:
    _state(tmp_path / "checkpoint-20", 20)
    _state(tmp_path, 25)
    run = _run(tmp_path)
    assert [file.path for file in run.files] == [tmp_path / "trainer_state.json"]


def test_the_richest_source_of_a_run_is_read_first() -> None:
    run = _run(DATA / "trl" / "offpolicy-resumed")
    readers = list(dict.fromkeys(file.reader.name for file in run.files))
    assert readers == ["native", "trl-completions", "trl-trainer-state", "jsonl"]
    assert run.framework == "trl"


def test_a_charts_export_yields_its_runs() -> None:
    runs, _ = discover([DATA / "wandb" / "chart-two-runs" / "chart.csv"])
    assert [(run.project, run.name) for run in runs] == [("chart-two-runs", "lively-sun-3"), ("chart-two-runs", "sweep - lr 1e-6")]
    keys = [file.key for run in runs for file in run.files]
    assert len(set(keys)) == 2
    assert str(keys[0]).endswith("chart.csv#lively-sun-3")


def test_charts_of_one_run_are_joined(tmp_path: Path) -> None:
    for metric in ("loss", "reward"):
        (tmp_path / f"{metric}.csv").write_text(f'"Step","r - {metric}","r - {metric}__MIN","r - {metric}__MAX"\n"1","1","1","1"\n')
    run = _run(tmp_path)
    assert len(run.files) == 2
    assert run.name == tmp_path.name


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("events.out.tfevents.1.host", "TensorBoard"),
        ("run-abc.wandb", "wandb"),
        ("log.eval", "Inspect"),
        ("tq_batch.pt", "pickle"),
        ("output.log", "console"),
        ("wandb-summary.json", "summary"),
    ],
)
def test_what_no_reader_takes_yet_is_ignored_with_the_true_reason(name: str, word: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b'{"_step": 3, "loss": 1}' if name.endswith(".json") else b"\x82\x00 not lines of JSON")
    runs, ignored = discover([tmp_path])
    assert runs == []
    assert [(file.path.name, file.failed) for file in ignored] == [(name, False)]
    assert word in ignored[0].reason


def test_a_configuration_alone_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"a": 1}')
    runs, ignored = discover([tmp_path])
    assert runs == []
    assert "without metrics or rollouts" in ignored[0].reason


def test_links_are_not_followed_out_of_the_folder_nor_read_twice(tmp_path: Path) -> None:
    outside = _jsonl(tmp_path / "secret.jsonl", {"step": 1, "loss": 1})
    folder = tmp_path / "run"
    _jsonl(folder / "log.jsonl", {"step": 1, "loss": 1})
    (folder / "latest.jsonl").symlink_to(folder / "log.jsonl")
    (folder / "out.jsonl").symlink_to(outside)
    (folder / "outer").symlink_to(tmp_path, target_is_directory=True)
    assert _found(folder) == {"run": ["log.jsonl"]}
    reasons = _reasons(folder)
    assert "read under its own name" in reasons["latest.jsonl"]
    assert "out of the folder" in reasons["out.jsonl"]


def test_a_file_under_two_paths_is_taken_once(tmp_path: Path) -> None:
    path = _jsonl(tmp_path / "log.jsonl", {"step": 1, "loss": 1})
    runs, _ = discover([path, tmp_path])
    assert [file.path for run in runs for file in run.files] == [path]


def test_broken_files_that_promise_a_format_have_failed(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "cut.jsonl.gz").write_bytes(b"\x1f\x8b\x08\x00half")
    (tmp_path / "binary.csv").write_bytes(bytes(range(256)) * 20)
    (tmp_path / "empty.bin").touch()
    _, ignored = discover([tmp_path])
    assert {file.path.name: file.failed for file in ignored} == {
        "binary.csv": True,
        "cut.jsonl.gz": True,
        "empty.bin": False,
        "empty.jsonl": True,
    }
    assert all(isinstance(file, IgnoredFile) and file.reason for file in ignored)


def test_a_data_set_beside_a_run_is_ignored_and_a_table_of_the_run_is_not(tmp_path: Path) -> None:
    pq.write_table(pa.table({"data_source": ["x"], "prompt": ["p"], "ability": ["math"]}), tmp_path / "train.parquet")
    pq.write_table(pa.table({"step": [1], "loss": [0.5]}), tmp_path / "history.parquet")
    (tmp_path / "half.parquet").write_bytes((tmp_path / "history.parquet").read_bytes()[:200])
    assert _found(tmp_path) == {tmp_path.name: ["history.parquet"]}
    _, ignored = discover([tmp_path])
    assert {file.path.name: file.failed for file in ignored} == {"half.parquet": True, "train.parquet": False}


def test_hidden_files_are_not_looked_at(tmp_path: Path) -> None:
    _jsonl(tmp_path / ".cache" / "log.jsonl", {"step": 1, "loss": 1})
    _jsonl(tmp_path / ".log.jsonl", {"step": 1, "loss": 1})
    assert discover([tmp_path]) == ([], [])


def test_a_missing_path_and_an_unknown_reader_are_sentences(tmp_path: Path) -> None:
    with pytest.raises(NoRunFound, match="no such file or folder"):
        discover([tmp_path / "none"])
    with pytest.raises(ReaderError, match="There is no reader 'nobody'"):
        discover([tmp_path], reader="nobody")
