"""The explanations of an incident with a second run, over the API."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import httpx

Until = Callable[[Callable[[], bool]], None]


def test_an_incident_is_explained_with_a_second_run_and_stays_as_it_is(api: httpx.Client, tmp_path: Path, until: Until) -> None:
    for name, unsolved in (("flat", 0.6), ("base", 0.9)):
        folder = tmp_path / "math" / name
        folder.mkdir(parents=True)
        rows = [{"step": s, "reward.mean": 0.1, "entropy.mean": 1.0, "group.solve_none_frac": unsolved} for s in range(1, 131)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    job = api.post("/api/v1/paths", json={"paths": [str(tmp_path / "math")]}).json()["job"]
    until(lambda: api.get(f"/api/v1/jobs/{job}").json()["state"] == "done")
    runs = {run["name"]: run["run_id"] for run in api.get("/api/v1/runs").json()["runs"]}

    def flat() -> list[str]:
        found = api.get("/api/v1/incidents", params={"run_id": runs["flat"], "state": "all"}).json()["incidents"]
        return [one["id"] for one in found if one["symptom"] == "reward-flat" and one["last_step"] == 130]

    until(lambda: bool(flat()))
    place = f"/api/v1/incidents/{flat()[0]}"
    before = api.get(place).json()
    answer = api.get(f"{place}/explanations", params={"baseline": runs["base"]})
    told = answer.json()
    assert answer.status_code == 200 and told["baseline"] == {"run_id": runs["base"], "name": "base"}
    checks = {check["id"]: check["verdict"] for one in told["hypotheses"] for check in one["checks"] if one["id"] == "H1g"}
    assert checks["base_covers"] == "refuted" and told["step"] <= 130
    assert api.get(place).json()["body"] == before["body"]
    unknown, same = (api.get(f"{place}/explanations", params={"baseline": run}) for run in ("zzz", runs["flat"]))
    assert (unknown.status_code, same.status_code) == (404, 422)
    assert "no run zzz" in unknown.json()["error"] and "compared with itself" in same.json()["error"]
    assert api.get(f"{place}/explanations").status_code == 422
