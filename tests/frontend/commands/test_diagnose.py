"""rlvitals diagnose: its JSON, its exit codes, and the same answer wherever the run is."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from server.rules import RULES

Command = Callable[..., subprocess.CompletedProcess[str]]

HOSTILE = "run\x1b[31m\u202e"


def answer(found: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(found.stdout)
    return value


def test_the_json_is_that_of_the_contract(rlvitals: Command, make_run: Callable[..., Path]) -> None:
    found = rlvitals("diagnose", make_run(), "--json")
    told = answer(found)
    assert (found.returncode, found.stderr) == (1, "")
    assert set(told) == {"schema", "run", "steps", "incidents", "not_judged", "rules"}
    assert told["schema"] == 1 and told["run"]["name"] == "grpo-small" and told["run"]["algorithm"] == "grpo"
    assert told["run"]["framework"] == "native" and len(told["run"]["run_id"]) == 12
    assert told["steps"] == {"first": 1, "last": 60}
    assert told["rules"]["count"] == len(RULES) and isinstance(told["rules"]["version"], str)
    (incident,) = [i for i in told["incidents"] if i["symptom"] == "non-finite"]
    assert set(incident) >= {
        "symptom", "metric", "severity", "onset_step", "detected_step", "steps_by_severity", "last_step", "status", "slice", "summary",
        "absorbed", "evidence", "hypotheses", "next_checks", "trajectories",
    }  # fmt: skip
    assert (incident["metric"], incident["severity"], incident["onset_step"], incident["detected_step"]) == (
        "loss.policy",
        "critical",
        40,
        40,
    )
    assert incident["steps_by_severity"] == {"critical": 40} and incident["status"] == "open" and incident["last_step"] == 60
    assert set(incident["evidence"][0]) == {"metric", "before", "after", "baseline_steps", "n", "note"}
    assert [h["rank"] for h in incident["hypotheses"]] == list(range(1, len(incident["hypotheses"]) + 1))
    for hypothesis in incident["hypotheses"]:
        assert set(hypothesis) >= {"id", "title", "rank", "verdict", "computable_from", "checks"}
        assert hypothesis["verdict"] in ("supported", "refuted", "inconclusive", "not_checkable")
        assert all(set(check) >= {"id", "verdict", "observed", "missing"} for check in hypothesis["checks"]) and hypothesis["checks"]
    assert {item["symptom"] for item in told["not_judged"]} >= {"staleness-harm", "critic-unreliable"}
    assert all(item["missing"] and item["how"] for item in told["not_judged"])


def test_a_healthy_run_exits_with_0(rlvitals: Command, make_run: Callable[..., Path]) -> None:
    found = rlvitals("diagnose", make_run(nan_from=None), "--json")
    assert (found.returncode, [i["severity"] for i in answer(found)["incidents"] if i["severity"] in ("warn", "critical")]) == (0, [])


def test_steps_behind_until_are_not_looked_at(rlvitals: Command, make_run: Callable[..., Path]) -> None:
    folder = make_run()
    before = rlvitals("diagnose", folder, "--until", 39, "--json")
    assert (before.returncode, answer(before)["steps"]) == (0, {"first": 1, "last": 39})
    assert rlvitals("diagnose", folder, "--until", 40, "--json").returncode == 1


def test_fail_on_says_from_which_severity_on_the_exit_code_is_1(rlvitals: Command, make_run: Callable[..., Path]) -> None:
    folder = make_run()
    assert rlvitals("diagnose", folder, "--fail-on", "critical").returncode == 1
    assert rlvitals("diagnose", folder, "--fail-on", "sometimes").returncode == 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere"], "nowhere"),
        (["logs"], "2 runs: one, two. Name one with --run."),
        (["logs", "--run", "three"], "no run 'three'; there is one, two."),
    ],
)
def test_what_names_no_single_run_exits_with_2_and_one_sentence(
    rlvitals: Command, make_run: Callable[..., Path], tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    make_run("one")
    make_run("two")
    found = rlvitals("diagnose", *arguments, "--json", cwd=tmp_path)
    assert (found.returncode, found.stdout) == (2, "")
    assert sentence in found.stderr and found.stderr.count("\n") == 1


def test_a_folder_without_a_run_exits_with_2(rlvitals: Command, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "notes.md").write_text("# nothing\n")
    found = rlvitals("diagnose", tmp_path / "empty")
    assert (found.returncode, found.stdout, found.stderr.count("\n")) == (2, "", 1)


def test_one_of_several_runs_is_picked_by_name(rlvitals: Command, make_run: Callable[..., Path]) -> None:
    make_run("one", nan_from=None)
    folder = make_run("two").parent
    assert answer(rlvitals("diagnose", folder, "--run", "two", "--json"))["run"]["name"] == "two"


def test_a_baseline_may_be_another_path(rlvitals: Command, make_run: Callable[..., Path]) -> None:
    told = answer(rlvitals("diagnose", make_run("one"), "--baseline", make_run("two"), "--json"))
    assert told["baseline"]["name"] == "two"


def test_a_baseline_that_does_not_exist_is_said_to(rlvitals: Command, make_run: Callable[..., Path]) -> None:
    done = rlvitals("diagnose", make_run("one"), "--baseline", "another-run", "--json")
    assert done.returncode == 2
    assert "another-run" in done.stderr


def test_a_baseline_may_be_a_run_of_the_home(rlvitals: Command, make_run: Callable[..., Path]) -> None:
    rlvitals("ingest", make_run("one"), make_run("two"))
    assert answer(rlvitals("diagnose", "one", "--baseline", "two", "--json"))["baseline"]["name"] == "two"
    assert answer(rlvitals("diagnose", make_run("three"), "--baseline", "two", "--json"))["baseline"]["name"] == "two"


def test_rows_that_cannot_be_read_are_told_and_the_rest_is_judged(rlvitals: Command, make_run: Callable[..., Path]) -> None:
    folder = make_run()
    with (folder / "metrics.jsonl").open("a") as stream:
        stream.write("not json\n")
    found = rlvitals("diagnose", folder, "--json")
    assert found.returncode == 1 and answer(found)["steps"]["last"] == 60
    assert "1 row rejected" in found.stderr


def test_the_terminal_shows_what_happened_with_control_characters_made_visible(rlvitals: Command, make_run: Callable[..., Path]) -> None:
    found = rlvitals("diagnose", make_run(HOSTILE))
    assert found.returncode == 1
    assert "CRITICAL non-finite: since step 40, open" in found.stdout
    assert "Cannot tell (log what is missing):" in found.stdout and "next: " in found.stdout
    assert "\x1b" not in found.stdout and "\u202e" not in found.stdout and "␛[31m" in found.stdout


def test_a_run_in_the_home_gives_the_answer_of_its_files(rlvitals: Command, make_run: Callable[..., Path]) -> None:
    folder = make_run()
    of_files = answer(rlvitals("diagnose", folder, "--json"))
    assert rlvitals("ingest", folder).returncode == 0
    by_name, by_id = (answer(rlvitals("diagnose", name, "--json")) for name in ("grpo-small", of_files["run"]["run_id"]))
    assert by_name == by_id == of_files
    unknown = rlvitals("diagnose", "another")
    assert unknown.returncode == 2 and "which holds: grpo-small" in unknown.stderr


def test_while_a_server_owns_the_home_it_is_asked(rlvitals: Command, start: Callable[..., Any], make_run: Callable[..., Path]) -> None:
    folder = make_run()
    of_files = answer(rlvitals("diagnose", folder, "--json"))
    start("serve", "--port", 0)
    assert rlvitals("ingest", folder).returncode == 0
    found = rlvitals("diagnose", "grpo-small", "--json")
    assert (found.returncode, answer(found)) == (1, of_files)


DEMO = Path(__file__).parents[3] / "frontend" / "demo_data"


@pytest.mark.parametrize(
    ("run", "symptom", "cause", "onset", "new_grader"),
    [("lr-spike", "joint-collapse", "H5a", 92, "refuted"), ("grader-timeout", "verifier-fault", "H13e", 104, "inconclusive")],
)
def test_the_demo_names_what_broke_and_why(rlvitals: Command, run: str, symptom: str, cause: str, onset: int, new_grader: str) -> None:
    """A grader that changed would leave the policy alone: long after the onset nothing seems to move any more, so it is asked there."""
    told = answer(rlvitals("diagnose", DEMO / run, "--json"))
    incident = next(i for i in told["incidents"] if i["symptom"] == symptom)
    assert (incident["severity"], incident["status"]) == ("critical", "open")
    assert abs(incident["onset_step"] - onset) <= 2
    first = incident["hypotheses"][0]
    assert (first["id"], first["verdict"]) == (cause, "supported")
    assert {h["id"]: h["verdict"] for h in incident["hypotheses"]}["H13g"] == new_grader


def test_the_healthy_demo_run_warns_of_nothing(rlvitals: Command) -> None:
    told = answer(rlvitals("diagnose", DEMO / "healthy", "--json"))
    assert {i["severity"] for i in told["incidents"]} <= {"info", "watch"}
