"""rlvitals backtest: over paths and runs of the home, with labels, and with other parameters."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

Command = Callable[..., subprocess.CompletedProcess[str]]
MakeRun = Callable[..., Path]


def answer(found: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert found.returncode == 0, found.stderr
    value: dict[str, Any] = json.loads(found.stdout)
    return value


def test_a_folder_of_runs_is_replayed_and_counted_by_its_labels(rlvitals: Command, make_run: MakeRun) -> None:
    folder = make_run("faulty").parent
    (folder / "faulty" / "label.json").write_text(json.dumps({"onset_step": 40, "symptoms": ["non-finite"]}))
    make_run("quiet", nan_from=None)
    (folder / "quiet" / "label.json").write_text('{"healthy": true}')
    make_run("wrong")
    (folder / "wrong" / "label.json").write_text('{"healthy": true}')
    make_run("unknown")
    told = answer(rlvitals("backtest", folder, "--rule", "non-finite", "--json"))
    assert set(told) == {"schema", "severity", "runs", "failed", "rules", "changed"}
    assert sorted((run["name"], run["quiet_steps"]) for run in told["runs"]) == [
        ("faulty", 39), ("quiet", 60), ("unknown", None), ("wrong", 60),
    ]  # fmt: skip
    (row,) = told["rules"]
    assert (row["raised"], row["runs"], row["false_alarms"], row["quiet_steps"], row["steps"]) == (3, 3, 1, 159, 240)
    assert abs(row["false_alarms_per_1000_quiet_steps"] - 1000 / 159) < 1e-9
    said = rlvitals("backtest", folder, "--rule", "non-finite")
    assert said.returncode == 0 and "4 runs, 240 steps, 3 runs with a label" in said.stdout and "per 1,000 quiet steps" in said.stdout


def test_without_a_label_incidents_are_counted_over_all_steps(rlvitals: Command, make_run: MakeRun) -> None:
    said = rlvitals("backtest", make_run(), "--rule", "RS052").stdout
    assert "false alarms" not in said and "per 1,000 steps" in said and "16.67" in said


def test_another_parameter_is_shown_with_what_it_changes(rlvitals: Command, tmp_path: Path) -> None:
    folder = tmp_path / "jump"
    folder.mkdir()
    rows = [{"step": s, "reward.mean": 0.5, "kl.old": 0.5 if 60 <= s < 70 else 0.01 + 0.0005 * (s % 3)} for s in range(1, 121)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tried = ("backtest", folder, "--rule", "spike", "--set", "spike.kl_warn=0.6", "--set", "spike.z=30", "--set", "spike.factor=100")
    told = answer(rlvitals(*tried, "--json"))
    assert told["changed"] == {"spike": {"kl_warn": 0.6, "z": 30.0, "factor": 100.0}}
    assert [one["raised_step"] for one in told["runs"][0]["incidents"]] != []
    (change,) = told["difference"]
    assert [one["symptom"] for one in change["lost"]] == ["spike"] and change["gained"] == []
    assert told["with_changes"]["rules"][0]["raised"] == 0
    said = rlvitals(*tried).stdout
    assert "With spike.kl_warn=0.6, spike.z=30, spike.factor=100: 1 incident differs." in said and "lost    jump: " in said
    assert "nothing changes." in rlvitals("backtest", folder, "--set", "spike.z=6.1", "--rule", "spike").stdout


def test_a_run_of_the_home_is_replayed_with_what_is_set_for_it_also_beside_a_server(
    rlvitals: Command, start: Callable[..., Any], make_run: MakeRun
) -> None:
    assert rlvitals("ingest", make_run("one")).returncode == 0
    order = ("backtest", "one", "--rule", "non-finite", "--json")
    alone = answer(rlvitals(*order))
    assert [i["raised_step"] for i in alone["runs"][0]["incidents"]] == [40]
    start("serve", "--port", 0)
    assert answer(rlvitals(*order)) == alone


def test_what_cannot_be_replayed_exits_with_2(refused: Callable[..., str], make_run: MakeRun, tmp_path: Path) -> None:
    folder = make_run("one")
    (tmp_path / "empty").mkdir()
    for arguments, sentence in (
        (("nobody",), "no such file or folder"), ((tmp_path / "empty",), "no run that a reader knows"),
        ((folder, "--rule", "truncatoin"), "Did you mean truncation?"),
        ((folder, "--set", "truncation.warm=1"), "Did you mean warn?"), ((folder, "--set", "truncation.warn=7"), "lies between 0 and 1"),
        ((folder, "--set", "truncation=1"), "names no rule"), ((), "required"),
    ):  # fmt: skip
        assert sentence in refused("backtest", *arguments), arguments


def test_a_broken_label_is_told_and_the_other_runs_are_replayed(rlvitals: Command, make_run: MakeRun) -> None:
    folder = make_run("one").parent
    make_run("two")
    (folder / "one" / "label.json").write_text("{}")
    found = rlvitals("backtest", folder, "--rule", "non-finite", "--json")
    told = answer(found)
    assert [run["name"] for run in told["runs"]] == ["two"] and told["failed"][0]["run"] == "one"
    assert "is no label of a run" in found.stderr
