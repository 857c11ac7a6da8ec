"""Rules, their settings and backtests over the API."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.backtests import KEPT, MOST_WAITING, Backtests, TooMany
from server.control.models import IncidentRow
from server.rules import RULES
from server.service import Service

Until = Callable[[Callable[[], bool]], None]


@pytest.fixture
def run_id(api: httpx.Client, tmp_path: Path, until: Until) -> str:
    """A run whose loss is not a number from step 40 on."""
    folder = tmp_path / "math" / "bad"
    folder.mkdir(parents=True)
    rows = [{"step": s, "reward.mean": 0.5, "loss.policy": float("nan") if s >= 40 else 0.1, "grad.norm": 0.5} for s in range(1, 61)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    job = api.post("/api/v1/paths", json={"paths": [str(folder)]}).json()["job"]
    until(lambda: api.get(f"/api/v1/jobs/{job}").json()["state"] == "done")
    found: str = api.get("/api/v1/runs").json()["runs"][0]["run_id"]
    return found


def of(api: httpx.Client, name: str, **query: str) -> dict[str, Any]:
    answer = api.get(f"/api/v1/rules/{name}", params=query)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


def value(rule: dict[str, Any], name: str) -> tuple[float, str]:
    return next((p["value"], p["origin"]) for p in rule["params"] if p["name"] == name)


def test_every_rule_is_listed_as_it_stands_and_one_comes_with_its_page(api: httpx.Client) -> None:
    listed = api.get("/api/v1/rules").json()["rules"]
    assert [rule["code"] for rule in listed] == [rule.code for rule in RULES]
    assert all(rule["enabled"] and rule["open_incidents"] == 0 for rule in listed)
    rule = of(api, "RS101")
    assert rule["name"] == "truncation" and rule["page"].startswith("# truncation") and rule["hypotheses"][0]["computable_from"]
    assert rule["feedback"] == {"useful": 0, "false_alarms": 0, "judged": 0, "hit_rate": None}


def test_a_setting_is_changed_in_part_read_for_its_run_and_taken_back(api: httpx.Client, run_id: str) -> None:
    place = {"scope": "run", "target": run_id}
    put = api.put("/api/v1/rules/truncation/settings", json={**place, "params": {"warn": 0.4, "watch": 0.1}})
    assert put.status_code == 200 and put.json()["params"] == {"warn": 0.4, "watch": 0.1} and put.json()["enabled"] is None
    api.put("/api/v1/rules/truncation/settings", json={**place, "params": {"watch": None}, "enabled": False})
    api.put("/api/v1/rules/truncation/settings", json={"scope": "project", "target": "math", "status": "preview"})
    rule = of(api, "truncation", run_id=run_id)
    assert value(rule, "warn") == (0.4, f"run {run_id}") and value(rule, "watch") == (0.05, "default")
    assert (rule["enabled"], rule["status"], rule["status_as_written"]) == (False, "preview", "stable")
    assert of(api, "truncation")["enabled"] and of(api, "truncation", project="math")["status"] == "preview"
    listed = api.get("/api/v1/rules/truncation/settings").json()["settings"]
    assert [(one["scope"], one["target"]) for one in listed] == [("project", "math"), ("run", run_id)]
    gone = api.delete("/api/v1/rules/truncation/settings", params=place)
    assert gone.status_code == 200 and gone.json()["params"] == {} and of(api, "truncation", run_id=run_id)["enabled"]


@pytest.mark.parametrize(
    ("change", "status", "sentence"),
    [
        ({"params": {"warm": 1}}, 422, "Did you mean warn?"), ({"params": {"warn": 2}}, 422, "lies between 0 and 1"),
        ({"scope": "every"}, 422, "no scope"), ({"scope": "run"}, 422, "need its id"), ({"target": "x"}, 422, "no target"),
        ({"scope": "run", "target": "none"}, 404, "There is no run none"), ({"status": "done"}, 422, "status"), ({"more": 1}, 422, "more"),
    ],
)  # fmt: skip
def test_what_cannot_be_set_is_refused_with_a_sentence(api: httpx.Client, change: Any, status: int, sentence: str) -> None:
    answer = api.put("/api/v1/rules/truncation/settings", json=change)
    assert answer.status_code == status and sentence in answer.json()["error"]
    assert api.get("/api/v1/rules/truncation/settings").json() == {"settings": []}


def test_an_unknown_rule_is_a_404_that_names_the_nearest(api: httpx.Client) -> None:
    answer = api.get("/api/v1/rules/truncatoin")
    assert answer.status_code == 404 and "Did you mean truncation?" in answer.json()["error"]
    assert api.get("/api/v1/rules", params={"run_id": "none"}).status_code == 404


def test_a_replay_of_a_stored_run_uses_what_is_set_for_it(api: httpx.Client, run_id: str) -> None:
    def symptoms() -> list[str]:
        return [one["symptom"] for one in api.get(f"/api/v1/runs/{run_id}/diagnosis").json()["incidents"]]

    assert "non-finite" in symptoms()
    api.put("/api/v1/rules/non-finite/settings", json={"scope": "run", "target": run_id, "enabled": False})
    assert "non-finite" not in symptoms()
    told = api.get(f"/api/v1/runs/{run_id}/diagnosis").json()
    assert told["notes"] == ["rules are changed for this run: non-finite: switched off"]


def test_feedback_is_given_taken_back_and_counted_for_the_rule(api: httpx.Client, service: Service) -> None:
    values: dict[str, Any] = {
        "run_id": "r", "attempt": 1, "symptom": "spike", "rule_code": "RS051", "rule_version": "1", "severity": "warn", "status": "open",
        "detected_step": 6, "last_step": 7, "steps_by_severity": {"warn": 6}, "summary": "s", "body": {}, "opened_at": 1.0,
        "updated_at": 1.0,
    }  # fmt: skip
    with service.control.session() as session:
        session.add_all(IncidentRow(id=f"in_{n}", onset_step=n, **values) for n in range(3))

    def judge(n: int, feedback: str | None) -> httpx.Response:
        return api.put(f"/api/v1/incidents/in_{n}/feedback", json={"feedback": feedback})

    assert judge(0, "useful").json()["feedback"] == "useful" and judge(1, "false_alarm").status_code == 200
    judge(2, "useful")
    assert of(api, "spike")["feedback"] == {"useful": 2, "false_alarms": 1, "judged": 3, "hit_rate": 2 / 3}
    assert judge(2, None).json()["feedback"] is None and of(api, "spike")["feedback"]["judged"] == 2
    assert judge(9, "useful").status_code == 404 and judge(0, "lovely").status_code == 422
    assert of(api, "spike")["open_incidents"] == 3


def test_a_backtest_runs_in_the_background_and_says_what_other_values_would_change(api: httpx.Client, run_id: str, until: Until) -> None:
    order = {"rules": ["non-finite"], "runs": [run_id], "severity": "warn"}
    answer = api.post("/api/v1/backtests", json=order)
    assert answer.status_code == 202
    place = f"/api/v1/backtests/{answer.json()['id']}"
    until(lambda: api.get(place).json()["state"] == "done")
    told = api.get(place).json()
    assert (told["done"], told["total"], told["error"]) == (1, 1, None)
    (row,) = told["result"]["rules"]
    assert (row["name"], row["raised"], row["false_alarms"]) == ("non-finite", 1, None)
    assert told["result"]["runs"][0]["incidents"][0]["raised_step"] == 40
    assert api.delete(place).json()["state"] == "done"
    assert api.get("/api/v1/backtests/bt_none").status_code == 404
    assert "Did you mean" in api.post("/api/v1/backtests", json={"changed": {"truncation": {"warm": 1}}}).json()["error"]


def test_a_run_whose_loud_incidents_were_all_false_alarms_counts_as_healthy(
    api: httpx.Client, service: Service, run_id: str, until: Until
) -> None:
    def backtest() -> dict[str, Any]:
        place = f"/api/v1/backtests/{api.post('/api/v1/backtests', json={'rules': ['non-finite']}).json()['id']}"
        until(lambda: api.get(place).json()["state"] == "done")
        told: dict[str, Any] = api.get(place).json()["result"]
        return told

    until(lambda: bool(api.get("/api/v1/incidents", params={"run_id": run_id}).json()["incidents"]))
    found = api.get("/api/v1/incidents", params={"run_id": run_id, "state": "all"}).json()["incidents"]
    assert backtest()["runs"][0]["label"] is None
    for one in found:
        api.put(f"/api/v1/incidents/{one['id']}/feedback", json={"feedback": "false_alarm"})
    told = backtest()
    assert (told["runs"][0]["label"], told["runs"][0]["quiet_steps"], told["rules"][0]["false_alarms"]) == ("feedback", 60, 1)
    api.put(f"/api/v1/incidents/{found[0]['id']}/feedback", json={"feedback": "useful"})
    assert backtest()["runs"][0]["label"] is None


def test_backtests_wait_in_line_are_cancelled_and_forgotten_in_the_end(service: Service) -> None:
    idle = Backtests(service.store, service.control)  # not started: everything waits
    jobs = [idle.submit() for _ in range(MOST_WAITING + 1)]
    with pytest.raises(TooMany):
        idle.submit()
    cancelled = idle.cancel(jobs[0].id)
    assert cancelled is not None and cancelled.state == "cancelled" and idle.cancel("bt_none") is None
    for _ in range(KEPT + 5):
        idle.cancel(idle.submit(["RS101"]).id)
    assert idle.job(jobs[0].id) is None and idle.job(jobs[1].id) is not None
    assert idle.newest("RS101") is not None and idle.newest("RS051") is None


def test_an_unknown_run_is_told_and_the_others_are_replayed(api: httpx.Client, run_id: str, until: Until) -> None:
    place = f"/api/v1/backtests/{api.post('/api/v1/backtests', json={'rules': ['spike'], 'runs': ['gone', run_id]}).json()['id']}"
    until(lambda: api.get(place).json()["state"] == "done")
    told = api.get(place).json()["result"]
    assert [one["run_id"] for one in told["runs"]] == [run_id] and told["failed"][0]["run"] == "gone"
