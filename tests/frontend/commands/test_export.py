"""Everything of a run leaves as files, and comes out as it went in."""

from __future__ import annotations

import csv
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as parquet
import pytest

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def ingested(tmp_path: Path, rlvitals: Command) -> str:
    """The name of a run with a formula, a NaN and token arrays in its logs."""
    folder = tmp_path / "logs" / "a-run"
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text('{"step": 1, "reward.mean": 0.5, "loss.policy": NaN}\n{"step": 2, "reward.mean": -0.25}\n')
    row = {
        "step": 1, "trajectory_id": "t0", "prompt": "=cmd()", "response": "-1", "reward": 1.0, "token_ids": [1, 2], "response_mask": [0, 1],
        "old_logprobs": [None, -0.5],
    }  # fmt: skip
    (folder / "rollouts.jsonl").write_text(json.dumps(row) + "\n")
    assert rlvitals("ingest", folder).returncode == 0
    return "a-run"


def test_parquet_holds_every_value_and_keeps_types(ingested: str, rlvitals: Command, tmp_path: Path) -> None:
    found = rlvitals("export", ingested, "--format", "parquet", "--out", tmp_path / "out", "--json")
    assert found.returncode == 0, found.stderr
    rows = {Path(file["path"]).name: file["rows"] for file in json.loads(found.stdout)["files"]}
    assert rows == {
        "run.json": None,
        "metrics.parquet": 3,
        "trajectories.parquet": 1,
        "tokens.parquet": 1,
        "turns.parquet": 0,
        "events.parquet": 0,
    }
    points = parquet.read_table(tmp_path / "out" / "metrics.parquet").to_pylist()
    assert {(p["step"], p["source_key"]): p["value"] for p in points if p["value"] == p["value"]} == {
        (1, "reward.mean"): 0.5,
        (2, "reward.mean"): -0.25,
    }
    assert sum(p["value"] != p["value"] for p in points) == 1
    (tokens,) = parquet.read_table(tmp_path / "out" / "tokens.parquet").to_pylist()
    assert (tokens["token_ids"], tokens["old_logprobs"]) == ([1, 2], [None, -0.5])


def test_csv_cells_that_a_spreadsheet_would_run_are_quoted(ingested: str, rlvitals: Command, tmp_path: Path) -> None:
    assert rlvitals("export", ingested, "--format", "csv", "--out", tmp_path / "out").returncode == 0
    with (tmp_path / "out" / "trajectories.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["prompt"], row["response"], row["reward"]) == ("'=cmd()", "'-1", "1.0")
    with (tmp_path / "out" / "metrics.csv").open(newline="") as file:
        assert "-0.25" in {row["value"] for row in csv.DictReader(file)}


def test_json_lines_are_json(ingested: str, rlvitals: Command, tmp_path: Path) -> None:
    assert rlvitals("export", ingested, "--format", "jsonl", "--out", tmp_path / "out").returncode == 0

    def no_constants(word: str) -> None:
        raise AssertionError(word)

    lines = (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()
    points = [json.loads(line, parse_constant=no_constants) for line in lines]
    assert {(p["step"], p["source_key"]): p["value"] for p in points} == {
        (1, "reward.mean"): 0.5,
        (2, "reward.mean"): -0.25,
        (1, "loss.policy"): None,
    }


def test_an_export_overwrites_nothing(ingested: str, rlvitals: Command, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    found = rlvitals("export", ingested, "--format", "csv", "--out", tmp_path / "out")
    assert found.returncode == 2
    assert "not empty" in found.stderr


def test_an_unknown_run_names_those_there_are(ingested: str, rlvitals: Command, tmp_path: Path) -> None:
    found = rlvitals("export", "nothing", "--format", "csv", "--out", tmp_path / "out")
    assert found.returncode == 2
    assert "a-run" in found.stderr
