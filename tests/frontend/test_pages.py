"""Runs, Overview and Sources: with data, without, and with text that tries to be more."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from frontend import drawn
from frontend.address import NoSuchPage
from frontend.live import gathered
from frontend.pages import overview, runs, sources
from frontend.views import OverviewView, RunsView, SourcesView
from server.control import incidents as control_incidents
from server.control.incidents import Incident
from server.queries.runs import run_summary
from server.queries.sources import sources as all_sources

HEALTHY = [{"reward.mean": 0.5 + step / 400, "entropy.mean": 1.0, "grad.norm": 1.0 + step % 3, "my/own key": step} for step in range(60)]


def incident(run_id: str, symptom: str = "entropy-collapse", severity: str = "warn", onset: int = 40, **more: Any) -> Incident:
    evidence = [{"metric": "reward.mean", "before": 0.5, "after": 0.6, "baseline_steps": [5, 30], "n": 25, "note": ""}]
    body = {"evidence": evidence, "hypotheses": [], "next_checks": [], "trajectories": [], "absorbed": [], **more}
    return Incident(
        f"in_{symptom[:6]}",
        run_id,
        1,
        symptom,
        "RS031",
        "1",
        None,
        "entropy.mean",
        severity,
        "open",
        onset,
        onset + 2,
        59,
        {severity: onset + 2},
        "Entropy fell to 0.1 from 1.0.",
        body,
        1.0,
        1.0,
    )


def save(service: Any, *items: Incident) -> None:
    with service.control.session() as session:
        for item in items:
            control_incidents.save(session, item)


def as_json(component: Any) -> str:
    return json.dumps(component.to_plotly_json(), default=lambda part: part.to_plotly_json() if hasattr(part, "to_plotly_json") else part)


def test_without_runs_the_list_says_how_to_get_one(service: Any, words_of: Callable[[Any], str]) -> None:
    said = words_of(runs.layout(service))
    assert "No runs yet" in said
    assert "rlvitals serve --watch PATH" in said


def test_without_files_sources_says_how_to_get_one(service: Any, words_of: Callable[[Any], str]) -> None:
    assert "rlvitals ingest PATH" in words_of(sources.layout(service))


def test_an_unknown_run_is_named(service: Any) -> None:
    with pytest.raises(NoSuchPage, match="There is no run 0123"):
        overview.layout(service, run="0123")


def test_a_run_without_steps_leads_to_its_sources(service: Any, make_run: Any, words_of: Callable[[Any], str]) -> None:
    run_id = make_run(rows=[{"step": None, "reward.mean": 1.0}])
    assert "Nothing with a step was read yet" in words_of(overview.layout(service, run=run_id))


def test_a_run_in_trouble_stands_above_a_quiet_one(service: Any, make_run: Any) -> None:
    make_run("quiet", HEALTHY)
    troubled = make_run("troubled", HEALTHY)
    save(service, incident(troubled))
    rows = runs.shown(runs.read(service), RunsView())
    assert [row.run.name for row in rows] == ["troubled", "quiet"]
    assert rows[0].since == 40


@pytest.mark.parametrize(
    ("view", "names"),
    [(RunsView(q="trou"), ["troubled"]), (RunsView(state="open"), ["troubled"]), (RunsView(sort="run"), ["quiet", "troubled"])],
)
def test_the_list_is_filtered_and_sorted_by_the_address(service: Any, make_run: Any, view: RunsView, names: list[str]) -> None:
    make_run("quiet", HEALTHY)
    save(service, incident(make_run("troubled", HEALTHY)))
    assert [row.run.name for row in runs.shown(runs.read(service), view)] == names


def test_a_sort_puts_runs_without_the_value_last(service: Any, make_run: Any) -> None:
    make_run("a", [{"x": 1.0}])
    make_run("b", HEALTHY)
    for sort in ("reward", "-reward"):
        assert [row.run.name for row in runs.shown(runs.read(service), RunsView(sort=sort))] == ["b", "a"]


def test_the_overview_draws_what_is_logged_and_names_what_is_not(service: Any, make_run: Any, words_of: Callable[[Any], str]) -> None:
    run_id = make_run(rows=HEALTHY)
    page = overview.layout(service, run=run_id)
    text = as_json(page)
    charts = [key for key in ("reward", "entropy", "gradient", "lag", "kl") if f'"chart": "{key}"' in text]
    assert charts == ["reward", "entropy", "gradient"]
    said = words_of(page)
    assert "No chart for" in said
    assert "Policy lag" in said
    assert "my/own key" in said


def test_an_unknown_key_can_be_plotted(service: Any, make_run: Any) -> None:
    run_id = make_run(rows=HEALTHY)
    assert '"chart": "series"' in as_json(overview.layout(service, run=run_id, s="my/own key"))
    assert '"chart": "series"' not in as_json(overview.layout(service, run=run_id, s="absent"))


def test_the_strip_names_the_missing_metric_and_the_switch(
    service: Any, make_run: Any, words_of: Callable[[Any], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview, "_known_symptoms", lambda: ["staleness-harm", "entropy-collapse"])
    run_id = make_run(rows=HEALTHY)
    blocked = {"symptom": "staleness-harm", "missing": ["lag.policy.mean"], "how": "Set trainer.log_lag=true."}
    with service.control.session() as session:
        control_incidents.set_judged(session, run_id, 1, 59, {"not_judged": [blocked]})
    said = words_of(overview.layout(service, run=run_id))
    assert "lag.policy.mean" in said
    assert "Set trainer.log_lag=true." in said
    assert "No incident in 60 steps. 1 families judged, 15 cannot be." in said


def test_at_most_three_incidents_are_shown_and_the_rest_is_counted(service: Any, make_run: Any, words_of: Callable[[Any], str]) -> None:
    run_id = make_run(rows=HEALTHY)
    names = ("entropy-collapse", "length-growth", "spike", "truncation", "reward-flat")
    save(service, *(incident(run_id, name) for name in names))
    said = words_of(overview.layout(service, run=run_id))
    assert said.count("See the rollouts") == 3
    assert "2 more open incidents" in said


def test_the_gravest_incident_shades_the_charts(service: Any, make_run: Any) -> None:
    run_id = make_run(rows=HEALTHY)
    save(service, incident(run_id, onset=40), incident(run_id, "spike", "critical", onset=50))
    run = run_summary(service.store, run_id)
    assert run is not None
    made = drawn.read(service, run, OverviewView())
    assert made.window is not None
    assert (made.window.onset, made.window.baseline) == (50, (5, 30))


def test_a_page_that_has_the_rest_is_given_only_the_end(service: Any, make_run: Any) -> None:
    run_id = make_run(rows=HEALTHY)
    answer = drawn.tails(service, run_id, OverviewView(), ["reward", "gradient"], 55, "light")
    assert answer is not None
    assert set(answer["charts"]) == {"reward", "gradient"}
    reward = answer["charts"]["reward"]
    assert reward["from"] == 55
    assert [trace["x"] for trace in reward["traces"][:2]] == [[55, 56, 57, 58, 59]] * 2
    whole = drawn.tails(service, run_id, OverviewView(), ["reward"], 0, "light")
    assert whole is not None
    assert whole["charts"]["reward"]["traces"][1]["y"][-5:] == reward["traces"][1]["y"]
    assert drawn.tails(service, "nope", OverviewView(), ["reward"], 0, "light") is None


def test_a_metric_logged_for_the_first_time_changes_what_the_page_compares(service: Any, make_run: Any) -> None:
    before = drawn.tails(service, make_run("a", HEALTHY), OverviewView(), ["reward"], 0, "light")
    after = drawn.tails(
        service, make_run("b", [{**row, "eval.heldout.score": 0.5} for row in HEALTHY]), OverviewView(), ["reward"], 0, "light"
    )
    assert before is not None
    assert after is not None
    assert "reward:1" in before["panels"]
    assert "reward:2" in after["panels"]


def test_hostile_names_stay_text_with_their_marks(service: Any, make_run: Any, words_of: Callable[[Any], str]) -> None:
    run_id = make_run("run <b>\u202eevil", [{"reward.mean": 1.0, "<img src=x>\x1b[31m": 2.0}], {"algorithm": "<script>\u2066"})
    for page in (runs.layout(service), overview.layout(service, run=run_id), sources.layout(service)):
        said = words_of(page)
        assert "\u202e" not in said
        assert "\x1b" not in said
    assert "run <b>\u27e8RLO\u27e9evil" in words_of(overview.layout(service, run=run_id))
    assert "dangerously" not in as_json(overview.layout(service, run=run_id))


def test_rejected_rows_are_listed_with_line_and_reason(service: Any, make_run: Any, words_of: Callable[[Any], str], tmp_path: Any) -> None:
    from ingest.discover import discover
    from ingest.load import load_run

    folder = tmp_path / "project" / "broken"
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text('{"step": 1, "reward.mean": 1}\n{"step": 2, \n{"step": 3, "reward.mean": 1}\n')
    (run,) = discover([folder])[0]
    list(load_run(service.store, run))
    (source,) = all_sources(service.store)
    assert source.rejected == 1
    said = words_of(sources.layout(service, source=str(source.source_id)))
    assert "1 of 1 rejected rows" in said
    assert words_of(sources.body(service.store, SourcesView(run="other"))).startswith("Sources")


def test_a_file_written_at_checkpoints_is_old_and_not_late() -> None:
    from server.queries.sources import Source

    whole = Source(1, "r", "p", "n", "/f", "trl-trainer-state", "whole", "followed", 1, 9, 0, 40, 1000.0, None)
    assert sources.how_live(whole, 1000.0 + 2400) == "written at checkpoints, newest step 40 min old"
    assert not sources.is_late(whole, 1000.0 + 2400)
    growing = Source(1, "r", "p", "n", "/f", "native", "append", "followed", 1, 9, 0, 40, 1000.0, None)
    assert sources.is_late(growing, 1000.0 + 2400)


def test_live_messages_within_a_moment_become_one() -> None:
    async def flow() -> dict[str, Any]:
        queue: asyncio.Queue[Any] = asyncio.Queue()
        for step in (3, 4, 5):
            queue.put_nowait({"type": "rows", "run_id": "a", "newest_step": step})
        queue.put_nowait({"type": "source", "run_id": "a"})
        queue.put_nowait({"type": "source", "run_id": "a"})
        queue.put_nowait({"type": "incident", "run_id": "a", "incident_id": "in_1", "kind": "incident.opened"})
        return await gathered(queue, 7)

    message = asyncio.run(flow())
    assert message["rows"] == {"a": 5}
    assert message["sources"] == ["a"]
    assert [item["incident_id"] for item in message["incidents"]] == ["in_1"]
    assert message["seq"] == 7
    assert abs(message["at"] - time.time()) < 60
