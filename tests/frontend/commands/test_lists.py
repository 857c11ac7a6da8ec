"""The commands that list: tables for people, JSON for programs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.parametrize("name", ["runs", "readers", "metrics", "rules", "settings"])
def test_every_list_prints_json_alone_on_standard_output(rlvitals: Command, name: str) -> None:
    found = rlvitals(name, "--json")
    value = json.loads(found.stdout)
    assert (found.returncode, value["schema"], found.stderr) == (0, 1, "")
    assert isinstance(value[name], list)
    assert rlvitals(name).returncode == 0


def test_the_readers_are_those_of_the_contract(rlvitals: Command) -> None:
    names = {reader["name"] for reader in json.loads(rlvitals("readers", "--json").stdout)["readers"]}
    assert names >= {
        "native", "verl-file-logger", "verl-rollouts", "verl-validation", "trl-trainer-state", "trl-completions", "jsonl", "csv", "parquet",
        "wandb-chart-csv",
    }  # fmt: skip


def test_words_narrow_the_metrics(rlvitals: Command) -> None:
    found = json.loads(rlvitals("metrics", "entropy", "mean", "--json").stdout)["metrics"]
    assert 0 < len(found) < 10
    assert all("entropy" in f"{m['id']} {m['title']} {m['definition']}".lower() for m in found)


def test_settings_say_where_a_value_came_from(rlvitals: Command, tmp_path: Path) -> None:
    rows = {row["name"]: row for row in json.loads(rlvitals("settings", "--json").stdout)["settings"]}
    assert rows["home"]["origin"] == "environment"
    assert rows["port"]["origin"] == "default"
    rows = {row["name"]: row for row in json.loads(rlvitals("settings", "--json", "--home", tmp_path / "x").stdout)["settings"]}
    assert (rows["home"]["origin"], rows["home"]["value"]) == ("command line", str(tmp_path / "x"))


def test_a_pipe_that_closes_early_is_no_error() -> None:
    command = [str(Path(sys.executable).parent / "rlvitals"), "metrics"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
