"""The API over real stores: what each address answers."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.control.models import IncidentRow
from server.service import Service

Until = Callable[[Callable[[], bool]], None]


@pytest.fixture
def run_id(api: httpx.Client, run_folder: Path, until: Until) -> str:
    """The run of the folder, read through the API as the command line does it."""
    job = api.post("/api/v1/paths", json={"paths": [str(run_folder)], "project": None, "run": None, "reader": None})
    assert job.status_code == 202
    until(lambda: api.get(f"/api/v1/jobs/{job.json()['job']}").json()["state"] == "done")
    report = api.get(f"/api/v1/jobs/{job.json()['job']}").json()
    assert {"state", "bytes", "total_bytes", "files", "report", "error"} <= report.keys()
    found: str = report["report"]["runs"][0]["run_id"]
    return found


def test_the_list_of_runs_has_the_keys_of_the_contract(api: httpx.Client, run_id: str) -> None:
    (run,) = api.get("/api/v1/runs").json()["runs"]
    assert list(run) == [
        "run_id", "project", "name", "framework", "state", "last_step", "last_seen", "points", "trajectories", "open_incidents",
    ]  # fmt: skip
    assert (run["run_id"], run["project"], run["name"], run["last_step"], run["points"], run["trajectories"]) == (
        run_id, "team", "grpo-small", 20, 60, 1,
    )  # fmt: skip


def test_a_run_shows_its_configuration_without_secrets(api: httpx.Client, run_id: str) -> None:
    run = api.get(f"/api/v1/runs/{run_id}").json()
    assert run["logged_config"]["wandb_api_key"] == "[removed]" and run["algorithm"] == "grpo" and run["rejected"] == 1


def test_series_and_curves_are_answered_with_null_for_what_is_not_finite(api: httpx.Client, run_id: str) -> None:
    keys = [item["key"] for item in api.get(f"/api/v1/runs/{run_id}/series").json()["series"]]
    assert set(keys) == {"reward.mean", "my/own", "=1+1"}
    curve = api.get(f"/api/v1/runs/{run_id}/curve", params={"key": "reward.mean"}).json()
    assert curve["steps"] == list(range(1, 21)) and curve["mean"][4] is None and curve["nonfinite_steps"] == [5]
    thin = api.get(f"/api/v1/runs/{run_id}/curve", params={"key": "my/own", "most": 10}).json()
    assert len(thin["steps"]) <= 10 and max(thin["high"]) == 20


def test_a_curve_as_csv_quotes_what_a_spreadsheet_would_run(api: httpx.Client, run_id: str) -> None:
    answer = api.get(f"/api/v1/runs/{run_id}/curve.csv", params={"key": "=1+1"})
    assert answer.headers["content-type"].startswith("text/csv") and "attachment" in answer.headers["content-disposition"]
    assert answer.text.splitlines()[:2] == ["step,'=1+1,low,high,n", "1,2.0,2.0,2.0,1"]


def test_a_trajectory_is_answered_whole_and_its_tokens_apart(api: httpx.Client, run_id: str) -> None:
    listed = api.get(f"/api/v1/runs/{run_id}/trajectories", params={"text": "script"}).json()
    assert listed["total"] == 1 and listed["trajectories"][0]["trajectory_id"] == "t1"
    assert api.get(f"/api/v1/runs/{run_id}/trajectories", params={"text": "absent"}).json()["total"] == 0
    one = api.get(f"/api/v1/runs/{run_id}/trajectories/1/0")
    assert one.json()["response"] == "<script>alert(1)</script>" and one.headers["content-type"] == "application/json"
    tokens = api.get(f"/api/v1/runs/{run_id}/trajectories/1/0/tokens").json()
    assert tokens["ids"] == [5, 6] and tokens["rollout_logprobs"] == [-0.5, None] and tokens["entropies"] is None


def test_sources_and_rejects_say_what_was_not_taken(api: httpx.Client, run_id: str) -> None:
    found = api.get("/api/v1/sources", params={"run_id": run_id}).json()["sources"]
    assert len(found) == 3 and found[0]["path"].endswith("rollouts.jsonl") and found[0]["rejected"] == 1
    (reject,) = api.get(f"/api/v1/sources/{found[0]['source_id']}/rejects").json()["rejects"]
    assert reject["line"] == 2 and reject["sample"] == "not json" and reject["reason"]


@pytest.mark.parametrize("path", [
    "runs/none", "runs/none/series", "runs/{run}/curve?key=none", "runs/{run}/trajectories/1/9", "runs/{run}/trajectories/1/9/tokens",
    "incidents/in_none", "incidents/in_none/explanations?baseline=x", "jobs/none", "nothing",
])  # fmt: skip
def test_what_does_not_exist_is_a_404_with_a_sentence(api: httpx.Client, run_id: str, path: str) -> None:
    answer = api.get("/api/v1/" + path.format(run=run_id))
    assert answer.status_code == 404 and answer.json()["error"]


def test_orders_that_cannot_be_carried_out_are_refused_with_a_sentence(api: httpx.Client) -> None:
    assert "not absolute" in api.post("/api/v1/paths", json={"paths": ["here"]}).json()["error"]
    assert api.post("/api/v1/paths", json={"paths": []}).status_code == 422
    assert "prject" in api.post("/api/v1/paths", json={"paths": ["/x"], "prject": "p"}).json()["error"]


@pytest.fixture
def stored_incident(service: Service) -> str:
    values: dict[str, Any] = {
        "id": "in_0123456789ab", "run_id": "r", "attempt": 1, "symptom": "spike", "rule_code": "RS051", "rule_version": "1",
        "severity": "warn", "status": "open", "onset_step": 5, "detected_step": 6, "last_step": 7, "steps_by_severity": {"warn": 6},
        "summary": "s", "body": {"evidence": [{"metric": "loss", "after": float("inf")}]}, "opened_at": 1.0, "updated_at": 1.0,
    }  # fmt: skip
    with service.control.session() as session:
        session.add(IncidentRow(**values))
    return "in_0123456789ab"


def test_an_incident_is_listed_read_and_acknowledged_once(api: httpx.Client, stored_incident: str) -> None:
    assert [one["id"] for one in api.get("/api/v1/incidents").json()["incidents"]] == [stored_incident]
    assert api.get(f"/api/v1/incidents/{stored_incident}").json()["body"]["evidence"][0]["metric"] == "loss"
    first = api.post(f"/api/v1/incidents/{stored_incident}/acknowledge").json()["acknowledged_at"]
    assert first and api.post(f"/api/v1/incidents/{stored_incident}/acknowledge").json()["acknowledged_at"] == first
    assert api.get("/api/v1/incidents").json()["incidents"] == []
    assert len(api.get("/api/v1/incidents", params={"state": "acknowledged"}).json()["incidents"]) == 1
    assert api.get("/api/v1/incidents", params={"state": "recovered"}).json()["incidents"] == []


def test_a_channel_is_added_tested_switched_and_deleted_without_its_address_coming_back(api: httpx.Client) -> None:
    url = "http://10.0.0.1:9/hooks/sEcReTpArT1234"
    added = api.post("/api/v1/channels", json={"kind": "webhook", "name": "bot", "url": url})
    assert added.status_code == 201 and added.json()["secret"].startswith("whsec_")
    channel = added.json()["channel"]
    assert channel["address_hint"] == "10.0.0.1 …1234"
    trial = api.post(f"/api/v1/channels/{channel['id']}/test")
    assert trial.json()["outcome"] == "permanent" and "--webhook-allow 10.0.0.1" in trial.json()["meaning"]
    assert api.patch(f"/api/v1/channels/{channel['id']}", json={"enabled": False}).json()["enabled"] is False
    listed, log = api.get("/api/v1/channels"), api.get("/api/v1/channels/deliveries")
    assert [one["type"] for one in log.json()["deliveries"]] == ["channel.test"]
    said = "".join(answer.text for answer in (added, trial, listed, log))
    assert "sEcReT" not in said and added.json()["secret"] not in listed.text + log.text
    assert api.delete(f"/api/v1/channels/{channel['id']}").status_code == 204
    assert api.delete(f"/api/v1/channels/{channel['id']}").status_code == 404


@pytest.mark.parametrize("new", [
    {"kind": "slack", "name": "x", "url": "ftp://h/sEcReT"}, {"kind": "slack", "name": "x", "url": ["sEcReT"]},
    {"kind": "pigeon", "name": "x", "url": "https://h/sEcReT"}, {"kind": "slack", "name": "", "url": "https://h/sEcReT"},
    {"kind": "slack", "name": "x", "url": "https://h/sEcReT", "more": "sEcReT"},
    {"kind": "webhook", "name": "x", "url": "https://h/x", "secret": "whsec_sEcReT"},
])  # fmt: skip
def test_a_refused_channel_does_not_echo_what_was_sent(api: httpx.Client, new: dict[str, object]) -> None:
    answer = api.post("/api/v1/channels", json=new)
    assert answer.status_code == 422 and "sEcReT" not in answer.text and answer.json()["error"].endswith(".")
    assert api.get("/api/v1/channels").json() == {"channels": []}


def test_the_description_is_a_page_that_loads_nothing_from_elsewhere(api: httpx.Client) -> None:
    page = api.get("/api/docs").text
    paths = api.get("/api/openapi.json").json()["paths"]
    assert all(path.replace("{", "{") in page for path in paths) and len(paths) >= 18
    assert "<script" not in page and not re.search(r"""(src|href)=["']?(https?:)?//""", page)


def test_every_address_of_the_description_has_words_and_a_typed_answer(api: httpx.Client) -> None:
    for path, methods in api.get("/api/openapi.json").json()["paths"].items():
        for method, operation in methods.items():
            assert operation["description"], path
            if path.startswith("/api/") and not path.endswith(".csv") and method != "delete":
                good = next(answer for status, answer in operation["responses"].items() if status.startswith("2"))
                assert "$ref" in good["content"]["application/json"]["schema"], path


def test_health_is_empty_and_turns_to_503_when_the_service_is_gone(api: httpx.Client, service: Service) -> None:
    assert (api.get("/healthz").content, api.get("/readyz").status_code) == (b"", 200)
    service.stop()
    assert (api.get("/readyz").status_code, api.get("/readyz").content, api.get("/healthz").status_code) == (503, b"", 200)
