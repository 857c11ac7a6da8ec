"""rlvitals rules: how the rules stand, changing one for all runs, a project or a run, and taking it back."""

from __future__ import annotations

import json
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., subprocess.CompletedProcess[str]]


def rule(found: subprocess.CompletedProcess[str], name: str) -> dict[str, Any]:
    assert found.returncode == 0, found.stderr
    return next(one for one in json.loads(found.stdout)["rules"] if one["name"] == name)


def in_force(rule: dict[str, Any]) -> dict[str, float]:
    return {p["name"]: p["value"] for p in rule["params"] if p["value"] != p["default"]}


def test_the_keys_of_the_first_version_stay_and_listing_makes_no_home(rlvitals: Command, tmp_path: Path) -> None:
    told = rule(rlvitals("rules", "--json"), "truncation")
    first = ["code", "name", "family", "status", "version", "summary", "needs", "hold_points", "params", "hypotheses"]
    assert list(told)[: len(first)] == first
    assert list(told["params"][0])[:7] == ["name", "default", "unit", "low", "high", "source", "help"]
    assert (told["enabled"], told["feedback"]["hit_rate"], in_force(told)) == (True, None, {})
    assert not (tmp_path / "home").exists()


def test_a_rule_is_changed_for_all_runs_and_taken_back(rlvitals: Command, tmp_path: Path) -> None:
    found = rlvitals("rules", "set", "truncation", "warn=0.3", "watch=0.1", "--status", "preview")
    assert found.returncode == 0 and "truncation, all runs: on, preview." in found.stdout
    assert stat.S_IMODE((tmp_path / "home" / "control.sqlite").stat().st_mode) == 0o600
    told = rule(rlvitals("rules", "--json"), "truncation")
    assert in_force(told) == {"warn": 0.3, "watch": 0.1} and (told["status"], told["status_as_written"]) == ("preview", "stable")
    rlvitals("rules", "unset", "truncation", "warn")
    assert in_force(rule(rlvitals("rules", "--json"), "truncation")) == {"watch": 0.1}
    rlvitals("rules", "unset", "RS101")
    told = rule(rlvitals("rules", "--json"), "truncation")
    assert in_force(told) == {} and told["status"] == "stable"


def test_a_change_for_one_run_holds_for_it_alone_and_its_replay_uses_it(rlvitals: Command, make_run: Callable[..., Path]) -> None:
    for name in ("one", "two"):
        assert rlvitals("ingest", make_run(name)).returncode == 0
    # The words may stand on either side of the option.
    assert rlvitals("rules", "set", "non-finite", "--run", "one", "--off").returncode == 0
    changed = rlvitals("rules", "set", "truncation", "--run", "one", "warn=0.3", "watch=0.1")
    assert changed.returncode == 0, changed.stderr
    assert in_force(rule(rlvitals("rules", "--run", "one", "--json"), "truncation")) == {"warn": 0.3, "watch": 0.1}
    assert in_force(rule(rlvitals("rules", "--run", "two", "--json"), "truncation")) == {}
    assert rule(rlvitals("rules", "--json"), "non-finite")["enabled"]
    symptoms = [[i["symptom"] for i in json.loads(rlvitals("diagnose", name, "--json").stdout)["incidents"]] for name in ("one", "two")]
    assert ["non-finite" in found for found in symptoms] == [False, True]
    assert "rules are changed for this run: non-finite: switched off" in rlvitals("diagnose", "one").stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("set", "truncatoin", "warn=1"), "Did you mean truncation?"), (("set", "truncation", "warm=1"), "Did you mean warn?"),
        (("set", "truncation", "warn=2"), "lies between 0 and 1"), (("set", "truncation", "warn"), "write name=value"),
        (("set", "truncation"), "Nothing to change"), (("unset", "truncation", "warm"), "Did you mean warn?"),
        (("set", "truncation", "warn=0.3", "--run", "nobody"), "neither a path nor a run of the home"),
        (("set", "truncation", "--on", "--off"), "not allowed with"), (("set", "truncation", "--speed"), "no option --speed"),
        (("explain", "truncatoin"), "Did you mean truncation?"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_exits_with_2_and_one_sentence(refused: Callable[..., str], arguments: tuple[str, ...], sentence: str) -> None:
    assert sentence in refused("rules", *arguments)


def test_a_change_reaches_a_server_that_owns_the_home(rlvitals: Command, start: Callable[..., Any], make_run: Callable[..., Path]) -> None:
    start("serve", "--port", 0)
    assert rlvitals("ingest", make_run("one")).returncode == 0
    assert rlvitals("rules", "set", "non-finite", "--run", "one", "--off").returncode == 0
    told = json.loads(rlvitals("diagnose", "one", "--json").stdout)
    assert "non-finite" not in [i["symptom"] for i in told["incidents"]]


def test_every_hypothesis_is_listed_with_what_decides_it(rlvitals: Command) -> None:
    told = json.loads(rlvitals("rules", "hypotheses", "--json").stdout)
    by_id = {one["id"]: one for one in told["hypotheses"]}
    assert by_id["H5d"]["computable_from"] == ["metrics"]
    assert by_id["H5d"]["rules"] == ["non-finite", "spike"]
    assert {one for one, found in by_id.items() if not found["rules"]} == {"H8a", "H8b", "H8c"}
    assert sum(told["count_by_kind"].values()) == len(by_id) - 3
    assert "H16c" in rlvitals("rules", "hypotheses").stdout
