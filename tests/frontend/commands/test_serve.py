"""A server and the command line beside it: paths are handed over, questions are asked of the owner, stopping is clean."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

Command = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., Any]

METRICS = '{"step": 1, "reward.mean": 0.5}\n{"step": 2, "reward.mean": 0.6}\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "logs" / "a-run"
    made.mkdir(parents=True)
    (made / "metrics.jsonl").write_text(METRICS)
    return made


def test_ingest_beside_a_server_hands_the_path_over_and_reports_as_alone(
    start: Start, rlvitals: Command, folder: Path, tmp_path: Path
) -> None:
    server = start("serve", "--port", 0)
    (folder / "metrics.jsonl").write_text(METRICS + "not json\n")
    rejects = tmp_path / "rejects.jsonl"
    beside = rlvitals("ingest", folder, "--json", "--rejects", rejects)
    assert beside.returncode == 1, beside.stderr
    assert server.base in beside.stderr
    report = json.loads(beside.stdout)
    assert report["runs"][0]["steps"] == {"first": 1, "last": 2, "count": 2}
    assert [json.loads(line)["line"] for line in rejects.read_text().splitlines()] == [3]
    alone = rlvitals("ingest", folder, "--json", "--home", tmp_path / "other")
    assert set(json.loads(alone.stdout)) == set(report)
    assert json.loads(alone.stdout)["runs"] == report["runs"]
    listed = json.loads(rlvitals("runs", "--json").stdout)["runs"]
    assert [run["name"] for run in listed] == ["a-run"]
    assert set(listed[0]) >= set(json.loads(rlvitals("runs", "--json", "--home", tmp_path / "other").stdout)["runs"][0])


def test_a_path_without_a_run_is_exit_2_beside_a_server_too(start: Start, rlvitals: Command, tmp_path: Path) -> None:
    start("serve", "--port", 0)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "x.dat").write_bytes(b"\0\1" * 500)
    found = rlvitals("ingest", tmp_path / "logs")
    assert found.returncode == 2
    assert "binary" in found.stderr


def test_a_second_server_of_the_same_home_is_refused_with_the_address_of_the_first(start: Start, rlvitals: Command) -> None:
    server = start("serve", "--port", 0)
    found = rlvitals("serve", "--port", 0)
    assert found.returncode == 2
    assert server.base in found.stderr
    assert "Traceback" not in found.stderr


def test_the_home_and_what_is_in_it_are_closed_to_others(start: Start, tmp_path: Path) -> None:
    start("serve", "--port", 0)
    home = tmp_path / "home"
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert {name: stat.S_IMODE((home / name).stat().st_mode) for name in ("token", "server.json")} == {"token": 0o600, "server.json": 0o600}


def test_a_signal_stops_the_server_cleanly_and_gives_the_home_back(start: Start, rlvitals: Command, folder: Path, tmp_path: Path) -> None:
    server = start("serve", "--port", 0, "--watch", folder)
    assert server.stop() == 0
    assert not any("Traceback" in line for line in server.lines), server.lines
    assert not (tmp_path / "home" / "server.json").exists()
    assert rlvitals("ingest", folder).returncode == 0


def test_the_demo_lives_in_a_folder_that_is_gone_afterwards(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    server = start("demo", "--port", 0)
    assert server.lines[-1].startswith("RLVitals is at http://127.0.0.1:")
    assert any("rlvitals serve --watch PATH" in line for line in server.lines)
    runs = httpx.get(f"{server.base}/api/v1/runs", headers={"Authorization": f"Bearer {server.token}"}, trust_env=False, timeout=30).json()[
        "runs"
    ]
    assert "lr-spike" in {run["name"] for run in runs}
    assert len(list((tmp_path / "tmp").glob("rlvitals-demo-*"))) == 1
    assert server.stop() == 0
    assert not list((tmp_path / "tmp").glob("rlvitals-demo-*"))
    assert not (tmp_path / "home").exists()


def test_no_secret_is_printed_but_in_the_address(start: Start, tmp_path: Path) -> None:
    server = start("serve", "--port", 0)
    token = (tmp_path / "home" / "token").read_text().strip()
    assert server.token == token
    assert [line for line in server.lines if token in line] == [f"RLVitals is at {server.address}"]
    assert token not in (tmp_path / "home" / "server.json").read_text()
    assert os.environ.get("RLVITALS_TOKEN") is None
