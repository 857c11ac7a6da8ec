"""Reading files once, again, and after they have grown, been cut back or been written over."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ingest.discover import FoundRun, discover
from ingest.errors import NoRunFound
from ingest.load import load_run
from ingest.report import ingest_once, write_rejects
from ingest.store import sources
from ingest.store.connection import Store


@pytest.fixture
def store() -> Iterator[Store]:
    opened = Store(None)
    yield opened
    opened.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "project" / "run"
    found.mkdir(parents=True)
    return found


def metrics(steps: range, add: float = 0.0) -> str:
    return "".join(json.dumps({"step": s, "reward.mean": s + add, "optimizer.lr": 0.5}) + "\n" for s in steps)


def rollouts(steps: range, word: str = "a") -> str:
    return "".join(
        json.dumps({"step": s, "trajectory_id": f"{s}-{i}", "group_id": "g", "response": word, "token_ids": [s, i]}) + "\n"
        for s in steps
        for i in range(3)
    )


def points(store: Store, key: str = "reward.mean") -> list[tuple[int, int, float]]:
    return store.rows(
        "SELECT attempt, step, value FROM point JOIN series USING (series_id) WHERE source_key = ? ORDER BY attempt, step", [key]
    )


def trajectories(store: Store) -> list[tuple[Any, ...]]:
    return store.rows("SELECT attempt, step, trajectory_id, response FROM trajectory ORDER BY attempt, step, n")


def states(store: Store, *paths: Path) -> set[str]:
    return {file.state for file in ingest_once(store, paths).files}


def test_a_second_run_adds_nothing(store: Store, folder: Path) -> None:
    (folder / "metrics.jsonl").write_text(metrics(range(5)))
    (folder / "rollouts.jsonl").write_text(rollouts(range(5)))
    (folder / "config.json").write_text('{"lr": 0.5}')
    first = ingest_once(store, [folder])
    before = points(store), trajectories(store)
    again = ingest_once(store, [folder])
    assert {file.state for file in again.files} == {"unchanged"}
    assert {file.rows for file in again.files} == {0}
    assert (points(store), trajectories(store)) == before
    assert again.runs == first.runs
    assert again.exit_code == 0


def test_a_quiet_file_is_not_opened_again(store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    file = folder / "metrics.jsonl"
    file.write_text(metrics(range(5)))
    os.utime(file, (1_700_000_000, 1_700_000_000))
    ingest_once(store, [folder])
    (run,), _ = discover([folder])

    def refuse(*_: object) -> str:
        raise AssertionError("the file was hashed")

    monkeypatch.setattr("ingest.load.fingerprint", refuse)
    assert [result.state for result in load_run(store, run)] == ["unchanged"]


def test_what_is_appended_is_read_from_where_it_was_left(store: Store, folder: Path) -> None:
    file = folder / "metrics.jsonl"
    file.write_text(metrics(range(5)))
    ingest_once(store, [folder])
    with file.open("a") as out:
        out.write(metrics(range(5, 8)) + '{"step": 8, "rew')
    (result,) = ingest_once(store, [folder]).files
    assert (result.state, result.rows, result.rejected) == ("read", 3, 0)
    with file.open("a") as out:
        out.write('ard.mean": 8.0}\n')
    (result,) = ingest_once(store, [folder]).files
    assert result.rows == 1
    assert points(store) == [(1, s, float(s)) for s in range(9)]


def test_an_overwritten_log_is_a_new_attempt_and_the_old_one_stays(store: Store, folder: Path) -> None:
    file = folder / "metrics.jsonl"
    file.write_text(metrics(range(5)))
    ingest_once(store, [folder])
    file.write_text(metrics(range(3, 6), 100))
    (result,) = ingest_once(store, [folder]).files
    assert "overwritten" in (result.reason or "")
    assert points(store) == [(1, s, float(s)) for s in range(5)] + [(2, s, s + 100.0) for s in range(3, 6)]
    assert store.rows("SELECT attempt, step, kind FROM event") == [(2, 3, "resume")]
    assert states(store, folder) == {"unchanged"}


def test_a_log_cut_back_to_a_checkpoint_begins_its_new_attempt_where_it_differs(store: Store, folder: Path) -> None:
    file = folder / "metrics.jsonl"
    kept = metrics(range(200))
    file.write_text(kept + metrics(range(200, 220)))
    ingest_once(store, [folder])
    file.write_text(kept)
    ingest_once(store, [folder])
    with file.open("a") as out:
        out.write(metrics(range(200, 205), 7))
    ingest_once(store, [folder])
    assert points(store) == [(1, s, float(s)) for s in range(220)] + [(2, s, s + 7.0) for s in range(200, 205)]
    assert points(store, "optimizer.lr")[-5:] == [(2, s, 0.5) for s in range(200, 205)]


def test_steps_that_go_back_inside_a_log_are_a_new_attempt(store: Store, folder: Path) -> None:
    (folder / "metrics.jsonl").write_text(metrics(range(5)) + metrics(range(3, 6), 100))
    ingest_once(store, [folder])
    assert points(store) == [(1, s, float(s)) for s in range(5)] + [(2, s, s + 100.0) for s in range(3, 6)]


def trainer_state(steps: range, add: float = 0.0, before: range = range(0)) -> str:
    history = [{"step": s, "loss": float(s), "reward": 0.5, "learning_rate": 0.1, "epoch": s / 100} for s in before]
    history += [{"step": s, "loss": s + add, "reward": 0.5, "learning_rate": 0.1, "epoch": s / 100} for s in steps]
    return json.dumps({"global_step": steps[-1], "log_history": history, "best_metric": None, "epoch": 1.0})


def test_a_trainer_state_written_again_adds_only_what_is_new(store: Store, folder: Path) -> None:
    file = folder / "trainer_state.json"
    file.write_text(trainer_state(range(1, 11)))
    ingest_once(store, [folder])
    file.write_text(trainer_state(range(1, 21)))
    ingest_once(store, [folder])
    assert points(store, "loss") == [(1, s, float(s)) for s in range(1, 21)]


def test_a_trainer_state_after_a_resume_is_a_new_attempt_from_the_first_step_that_differs(store: Store, folder: Path) -> None:
    file = folder / "trainer_state.json"
    file.write_text(trainer_state(range(1, 41)))
    ingest_once(store, [folder])
    for last in (31, 51):
        file.write_text(trainer_state(range(21, last), 7, before=range(1, 21)))
        ingest_once(store, [folder])
    assert points(store, "loss") == [(1, s, float(s)) for s in range(1, 41)] + [(2, s, s + 7.0) for s in range(21, 51)]
    # A value that is the same in both attempts belongs to both.
    assert points(store, "learning_rate")[40:] == [(2, s, 0.1) for s in range(21, 51)]


def test_an_overwritten_rollout_dump_is_a_new_attempt_of_its_step(store: Store, folder: Path) -> None:
    dumps = folder / "rollouts"
    dumps.mkdir()

    def dump(step: int, word: str, rows: int) -> None:
        lines = [{"input": "q", "output": f"{word}{i}", "score": 1.0, "step": step, "gts": "x"} for i in range(rows)]
        (dumps / f"{step}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    dump(1, "a", 4)
    dump(2, "a", 2)
    ingest_once(store, [folder], reader=None)
    dump(2, "a", 4)
    ingest_once(store, [folder])
    assert [row[:2] for row in trajectories(store)] == [(1, 1)] * 4 + [(1, 2)] * 4
    dump(2, "b", 4)
    ingest_once(store, [folder])
    assert [row[:2] for row in trajectories(store)] == [(1, 1)] * 4 + [(1, 2)] * 4 + [(2, 2)] * 4
    assert states(store, folder) == {"unchanged"}


def test_two_folders_that_would_collide_are_two_runs_and_keep_their_ids(store: Store, tmp_path: Path) -> None:
    for place, add in (("x", 0), ("y", 1), ("z", 1)):
        run = tmp_path / place / "project" / "run"
        run.mkdir(parents=True)
        (run / "metrics.jsonl").write_text(metrics(range(3), add))
    report = ingest_once(store, [tmp_path / place for place in "xyz"])
    assert len({run.run_id for run in report.runs}) == 3
    assert {(run.project, run.name) for run in report.runs} == {("project", "run")}
    assert ingest_once(store, [tmp_path / place for place in "zyx"]).runs[::-1] == report.runs


def test_a_run_keeps_its_id_when_its_file_changes(store: Store, folder: Path) -> None:
    file = folder / "metrics.jsonl"
    file.write_text(metrics(range(3)))
    (before,) = ingest_once(store, [folder]).runs
    file.write_text(metrics(range(3), 5))
    (after,) = ingest_once(store, [folder]).runs
    assert after.run_id == before.run_id
    assert after.attempts == 2


def test_of_two_sources_with_the_same_points_one_counts(store: Store, folder: Path) -> None:
    (folder / "metrics.jsonl").write_text(metrics(range(3)))
    ingest_once(store, [folder])
    (folder / "metrics.jsonl.gz").write_bytes(b"")
    (found,), _ = discover([folder])
    other = folder / "copy" / "metrics.jsonl"
    other.parent.mkdir()
    other.write_text(metrics(range(4)))
    reader = found.files[0].reader
    from ingest.discover import FoundFile

    list(load_run(store, FoundRun(found.root, found.project, found.name, found.framework, [*found.files, FoundFile(other, reader)])))
    assert points(store) == [(1, s, float(s)) for s in range(4)]
    source = sources.find_source(store, other)
    assert source is not None
    assert source.note == "also recorded by metrics.jsonl"


def test_the_report_counts_and_lists_as_the_contract_says(store: Store, folder: Path, tmp_path: Path) -> None:
    bad = "".join('{"step": 1, "reward": true}\n' for _ in range(150))
    (folder / "metrics.jsonl").write_text(metrics(range(3)))
    (folder / "rollouts.jsonl").write_text(rollouts(range(2)) + bad)
    (folder / "events.jsonl").write_text('{"step": 1, "kind": "checkpoint", "text": "saved"}\n')
    (folder / "notes.md").write_text("# notes")
    report = ingest_once(store, [folder])
    said: Any = report.to_json()
    assert json.loads(json.dumps(said)) == said
    (run,) = said["runs"]
    assert run == {
        "run_id": report.runs[0].run_id, "project": "project", "name": "run", "framework": "native", "readers": ["native"],
        "steps": {"first": 0, "last": 2, "count": 3}, "attempts": 1, "points": 6, "series": 2, "trajectories": 6,
        "trajectories_with_tokens": 6, "events": 1,
    }  # fmt: skip
    by_name = {Path(str(file["path"])).name: file for file in said["files"]}
    assert by_name["rollouts.jsonl"]["rows"] == 6
    assert by_name["rollouts.jsonl"]["rejected"] == 150
    assert by_name["notes.md"]["state"] == "ignored"
    assert len(said["rejected"]) == 100
    assert said["rejected"][0] == {
        "path": str(folder / "rollouts.jsonl"), "line": 7, "reason": "reward: a number was expected, got true",
        "sample": '{"step": 1, "reward": true}',
    }  # fmt: skip
    assert report.exit_code == 1
    assert write_rejects(store, report, tmp_path / "rejects.jsonl") == 150
    assert len((tmp_path / "rejects.jsonl").read_text().splitlines()) == 150


def test_a_missing_path_and_a_folder_without_a_run_are_told_apart(store: Store, tmp_path: Path) -> None:
    with pytest.raises(NoRunFound, match="no such file or folder"):
        ingest_once(store, [tmp_path / "nowhere"])
    (tmp_path / "notes.md").write_text("# nothing")
    report = ingest_once(store, [tmp_path])
    assert report.exit_code == 2
    assert not report.runs


def test_a_line_of_50_megabytes_is_read(store: Store, folder: Path) -> None:
    long = json.dumps({"step": 1, "trajectory_id": "long", "group_id": "g", "response": "x" * 50_000_000})
    (folder / "rollouts.jsonl").write_text(rollouts(range(1)) + long + "\n" + rollouts(range(2, 3)))
    report = ingest_once(store, [folder])
    assert report.exit_code == 0
    assert store.rows("SELECT max(length(response)), count(*) FROM trajectory") == [(50_000_000, 7)]


def test_two_threads_that_read_one_file_at_once_store_it_once(folder: Path, tmp_path: Path) -> None:
    (folder / "metrics.jsonl").write_text(metrics(range(3000)))
    (folder / "rollouts.jsonl").write_text(rollouts(range(500)))
    store = Store(tmp_path / "telemetry.duckdb")
    with ThreadPoolExecutor(4) as pool:
        reports = list(pool.map(lambda _: ingest_once(store, [folder]), range(4)))
    assert sum(file.rows for report in reports for file in report.files) == 3000 + 1500
    assert points(store) == [(1, s, float(s)) for s in range(3000)]
    assert len(trajectories(store)) == 1500
    store.close()
