"""Following paths while they change."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ingest.store.connection import Store
from ingest.store.sources import find_source
from ingest.watch import GONE, Commit, Watcher


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
    return "".join(json.dumps({"step": s, "reward.mean": s + add}) + "\n" for s in steps)


def steps(store: Store) -> list[tuple[int, int]]:
    return store.rows("SELECT attempt, step FROM point ORDER BY ALL")


@pytest.fixture
def watcher(store: Store) -> Iterator[Watcher]:
    commits: list[Commit] = []
    made = Watcher(store, commits.append, poll_seconds=0.05)
    yield made
    made.stop()


def eventually(true: Callable[[], bool], seconds: float = 20.0) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, "it did not come about"
        time.sleep(0.02)


def test_lines_are_read_as_they_are_appended_and_each_commit_is_told(store: Store, folder: Path) -> None:
    commits: list[Commit] = []
    watcher = Watcher(store, commits.append)
    watcher.add(folder)
    file = folder / "metrics.jsonl"
    file.write_text(metrics(range(3)))
    watcher.look()
    with file.open("a") as out:
        out.write(metrics(range(3, 5)) + '{"step": 5, "re')
    watcher.look()
    watcher.look()
    assert steps(store) == [(1, s) for s in range(5)]
    (run_id,) = {commit.run_id for commit in commits}
    assert commits == [Commit(run_id, file, 3, 0, 2), Commit(run_id, file, 2, 3, 4)]
    watcher.stop()


def test_a_file_written_whole_is_taken_once_two_looks_agree(store: Store, folder: Path, watcher: Watcher) -> None:
    watcher.add(folder)
    state = folder / "trainer_state.json"

    def write(last: int) -> None:
        history = [{"step": s, "loss": 1.0, "epoch": 0.1} for s in range(1, last)]
        state.write_text(json.dumps({"global_step": last, "log_history": history}))

    write(5)
    watcher.look()
    assert not store.rows("SELECT 1 FROM point LIMIT 1")
    watcher.look()
    first = store.rows("SELECT max(step) FROM point")
    write(9)
    watcher.look()
    assert store.rows("SELECT max(step) FROM point") == first == [(4,)]
    watcher.look()
    assert store.rows("SELECT max(step) FROM point") == [(8,)]


def test_a_folder_that_gains_files_joins_them_to_its_run(store: Store, folder: Path, watcher: Watcher) -> None:
    watcher.add(folder.parent)
    (folder / "metrics.jsonl").write_text(metrics(range(3)))
    watcher.look()
    (folder / "rollouts.jsonl").write_text('{"step": 1, "trajectory_id": "t", "group_id": "g"}\n')
    other = folder.parent / "second"
    other.mkdir()
    (other / "metrics.jsonl").write_text(metrics(range(2)))
    watcher.look()
    assert store.rows("SELECT name, count(*) FROM source JOIN run USING (run_id) GROUP BY name ORDER BY name") == [
        ("run", 2),
        ("second", 1),
    ]


def test_an_empty_file_is_read_once_it_has_lines(store: Store, folder: Path, watcher: Watcher) -> None:
    watcher.add(folder)
    (folder / "metrics.jsonl").touch()
    watcher.look()
    (folder / "metrics.jsonl").write_text(metrics(range(2)))
    watcher.look()
    assert steps(store) == [(1, 0), (1, 1)]


def test_a_path_that_does_not_exist_yet_is_waited_for(store: Store, folder: Path, watcher: Watcher) -> None:
    watcher.add(folder / "later" / "metrics.jsonl", project="p", run="named")
    watcher.look()
    (folder / "later").mkdir()
    (folder / "later" / "metrics.jsonl").write_text(metrics(range(2)))
    watcher.look()
    assert store.rows("SELECT project, name FROM run") == [("p", "named")]


def test_a_file_that_vanishes_is_kept_and_noted_and_may_come_back(store: Store, folder: Path, watcher: Watcher) -> None:
    watcher.add(folder)
    file = folder / "metrics.jsonl"
    file.write_text(metrics(range(3)))
    watcher.look()
    file.rename(folder.parent / "aside")
    watcher.look()
    source = find_source(store, file)
    assert source is not None
    assert source.note == GONE
    assert steps(store) == [(1, s) for s in range(3)]
    (folder.parent / "aside").rename(file)
    with file.open("a") as out:
        out.write(metrics(range(3, 4)))
    watcher.look()
    source = find_source(store, file)
    assert source is not None
    assert source.note is None
    assert steps(store) == [(1, s) for s in range(4)]


def test_a_log_that_is_overwritten_while_followed_is_a_new_attempt(store: Store, folder: Path, watcher: Watcher) -> None:
    watcher.add(folder)
    file = folder / "metrics.jsonl"
    file.write_text(metrics(range(5)))
    watcher.look()
    file.write_text(metrics(range(3, 5), 9))
    watcher.look()
    assert steps(store) == [(1, s) for s in range(5)] + [(2, 3), (2, 4)]


def test_a_rotated_log_goes_on_as_a_new_file(store: Store, folder: Path, watcher: Watcher) -> None:
    watcher.add(folder)
    file = folder / "metrics.jsonl"
    file.write_text(metrics(range(5)))
    watcher.look()
    os.replace(file, folder.parent / "metrics.jsonl.1")
    file.write_text(metrics(range(5, 8)))
    watcher.look()
    assert {step for _, step in steps(store)} == set(range(8))


def test_quiet_files_cost_no_query(store: Store, folder: Path, watcher: Watcher, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(200):
        run = folder / f"{number:03}"
        run.mkdir()
        (run / "metrics.jsonl").write_text(metrics(range(1)))
    watcher.add(folder)
    watcher.look()
    assert len(steps(store)) == 200

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a quiet file was looked into")

    monkeypatch.setattr("ingest.watch.load_file", refuse)
    monkeypatch.setattr("ingest.watch.take", refuse)
    monkeypatch.setattr(store, "rows", refuse)
    began = time.process_time()
    for _ in range(5):
        watcher.look()
    assert (time.process_time() - began) / 5 < 0.1


def test_the_thread_reads_within_moments_and_ends_when_stopped(store: Store, folder: Path, watcher: Watcher) -> None:
    watcher.add(folder)
    watcher.start()
    file = folder / "metrics.jsonl"
    for step in range(5):
        with file.open("a") as out:
            out.write(metrics(range(step, step + 1)))
        eventually(lambda step=step: (1, step) in steps(store))  # type: ignore[misc]
    watcher.stop()
    assert not any(thread.name in ("watcher", "file-notices") for thread in threading.enumerate())


def test_the_thread_goes_on_after_a_failure_and_tells_of_it(store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    watcher = Watcher(store, lambda _: None, on_problem=lambda _, sentence: told.append(sentence), poll_seconds=0.05)
    monkeypatch.setattr("ingest.watch._RETRY_SECONDS", 0.05)
    (folder / "metrics.jsonl").write_text(metrics(range(2)))
    with monkeypatch.context() as patched:

        def fail(*_: object, **__: object) -> None:
            raise OSError("the disk is away")

        patched.setattr("ingest.watch.load_file", fail)
        watcher.add(folder)
        watcher.start()
        eventually(lambda: any("the disk is away" in sentence for sentence in told))
    eventually(lambda: len(steps(store)) == 2)
    watcher.stop()
