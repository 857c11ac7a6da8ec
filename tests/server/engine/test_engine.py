"""The live engine: when a step is judged, what is stored with it, and what a stop leaves behind."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from ingest.discover import discover
from ingest.load import load_run as load_files
from ingest.store.connection import Store
from server.control.incidents import acknowledge, count_open_by_run, incidents, judged, not_judged, open_incidents, rule_changes
from server.control.models import ChannelRow, Control, OutboxRow
from server.engine.advance import SETTLE_SECONDS, SILENT_SECONDS, Engine, JudgedElsewhere
from server.engine.settings import Place, change_rule
from server.notify.channels import add_channel
from server.queries.progress import Stream, progress
from server.rules.base import CheckResult, Hypothesis, Param
from server.rules.run_stalled import RunStalled

RULE = "reward-drop"


class Live:
    """A followed folder with its engine; the clock is moved by hand and starts where the files were read."""

    def __init__(self, folder: Path, rules: Any) -> None:
        self.folder, self.now = folder / "run", time.time()
        self.folder.mkdir()
        self.store, self.control = Store(None), Control(f"sqlite:///{folder / 'control.sqlite'}")
        self.control.migrate()
        self.rules = rules
        self.run_id = ""
        self.heard: list[str] = []
        self.engine = self.new_engine()

    def new_engine(self) -> Engine:
        return Engine(self.store, self.control, rules=self.rules, clock=lambda: self.now, on_change=lambda c: self.heard.append(c.kind))

    def metrics(self, *rows: tuple[int, float]) -> None:
        self._write("metrics.jsonl", [{"step": step, "reward.mean": value} for step, value in rows])

    def rollouts(self, *steps: int) -> None:
        self._write(
            "rollouts.jsonl", [{"step": s, "trajectory_id": f"{s}", "group_id": "g", "response": "x", "reward": 1.0} for s in steps]
        )

    def _write(self, name: str, rows: Any) -> None:
        with (self.folder / name).open("a") as stream:
            stream.writelines(json.dumps(row) + "\n" for row in rows)

    def read(self) -> None:
        (found,), _ = discover([self.folder])
        first = next(iter(load_files(self.store, found, follow=True)))
        assert first.run_id is not None
        self.run_id = first.run_id
        list(load_files(self.store, found, follow=True))
        self.now = max(self.now, time.time())

    def advance(self, seconds: float = 0.0) -> list[str]:
        self.now += seconds
        return [change.kind for change in self.engine.advance(self.run_id)]

    def judged_step(self) -> int | None:
        with self.control.session(write=False) as session:
            found = judged(session, self.run_id)
        return None if found is None else found.step


@pytest.fixture
def live(tmp_path: Path, level: Any) -> Iterator[Live]:
    made = Live(tmp_path, (level(RULE, "reward.mean", watch=0.5, warn=1, critical=5, hold_points=2, family="quality"),))
    yield made
    made.store.close()
    made.control.close()


def test_an_unknown_run_is_nothing_to_do(live: Any) -> None:
    assert live.engine.advance("nobody") == []


def test_a_step_waits_until_every_source_has_reached_it(live: Any) -> None:
    live.metrics(*((step, 0.0) for step in range(1, 11)))
    live.rollouts(1, 2, 3)
    live.read()
    live.advance()
    assert live.judged_step() == 2
    live.rollouts(4, 5)
    live.read()
    live.advance()
    assert live.judged_step() == 4


def test_the_newest_step_is_judged_once_its_rows_have_settled(live: Any) -> None:
    live.metrics((1, 0.0), (2, 0.0))
    live.read()
    live.advance()
    assert live.judged_step() == 1
    live.advance(SETTLE_SECONDS + 0.5)
    assert live.judged_step() == 2


def test_a_silent_source_is_waited_for_no_longer_than_a_minute(live: Any) -> None:
    live.metrics(*((step, 0.0) for step in range(1, 11)))
    live.rollouts(1)
    live.read()
    live.advance(SILENT_SECONDS - 5)
    assert live.judged_step() == 1
    live.advance(10)
    assert live.judged_step() == 10


def test_silence_while_the_engine_was_not_there_does_not_count(live: Any) -> None:
    live.metrics(*((step, 0.0) for step in range(1, 11)))
    live.rollouts(1)
    live.read()
    live.now += 10 * SILENT_SECONDS
    live.engine = live.new_engine()
    live.advance()
    assert live.judged_step() == 1


def test_a_file_that_is_known_but_not_read_yet_is_waited_for(live: Any) -> None:
    live.metrics(*((step, 0.0) for step in range(1, 11)))
    live.rollouts(*range(1, 11))
    (found,), _ = discover([live.folder])
    reading = load_files(live.store, found, follow=True)
    live.run_id = next(reading).run_id or ""
    assert live.engine.advance(live.run_id) == []
    assert live.judged_step() is None
    list(reading)
    live.now = time.time()
    live.advance(SETTLE_SECONDS + 0.5)
    assert live.judged_step() == 10


def test_a_source_with_a_row_every_five_steps_is_not_waited_for_in_between() -> None:
    sparse = Stream("eval", 0.0, (1, 20), stride=5)
    assert [sparse.expects((1, step)) for step in (20, 21, 24, 25, 26)] == [False, False, False, True, True]
    assert sparse.expects((2, 1))


def test_the_usual_distance_of_a_sources_steps_is_learnt(live: Any) -> None:
    live.metrics(*((step, 0.0) for step in range(1, 41)))
    live.rollouts(10, 20, 30, 40)
    live.read()
    strides = {Path(stream.name).name: stream.stride for stream in progress(live.store, live.run_id).streams}
    assert strides == {"metrics.jsonl": 1, "rollouts.jsonl": 10}


def test_configuration_and_events_are_no_sources_that_steps_wait_for(live: Any) -> None:
    live.metrics((1, 0.0), (2, 0.0))
    (live.folder / "config.json").write_text('{"group": 8}')
    (live.folder / "events.jsonl").write_text('{"step": 1, "kind": "note", "text": "hello"}\n')
    live.read()
    assert [Path(stream.name).name for stream in progress(live.store, live.run_id).streams] == ["metrics.jsonl"]


def test_what_happens_to_an_incident_is_told_as_it_happens(live: Any) -> None:
    live.metrics((1, 0.0), (2, 0.7))
    live.read()
    assert live.advance(2) == ["incident.opened"]
    live.metrics((3, 2.0))
    live.read()
    assert live.advance(2) == ["incident.updated"]
    live.metrics((4, 2.0))
    live.read()
    assert live.advance(2) == []
    live.metrics((5, 0.0), (6, 0.0))
    live.read()
    assert live.advance(2) == ["incident.resolved"]
    assert live.heard == ["incident.opened", "incident.updated", "incident.resolved"]
    with live.control.session(write=False) as session:
        (incident,) = incidents(session, live.run_id)
    assert (incident.severity, incident.status, incident.onset_step, incident.last_step) == ("warn", "recovered", 2, 4)
    assert incident.steps_by_severity == {"watch": 2, "warn": 3}
    assert incident.closed_at is not None and incident.opened_at < incident.closed_at


def test_what_came_and_went_between_two_looks_is_told_as_opened_and_resolved(live: Any) -> None:
    live.metrics((1, 0.7), (2, 2.0), (3, 0.0), (4, 0.0))
    live.read()
    assert live.advance(2) == ["incident.opened", "incident.resolved"]


def test_open_incidents_are_counted_by_run_and_an_acknowledgement_survives_updates(live: Any) -> None:
    live.metrics((1, 2.0))
    live.read()
    live.advance(2)
    with live.control.session() as session:
        (incident,) = open_incidents(session, live.run_id)
        assert count_open_by_run(session) == {live.run_id: 1}
        acknowledge(session, incident.id)
    live.metrics((2, 6.0))
    live.read()
    live.advance(2)
    with live.control.session(write=False) as session:
        (after,) = open_incidents(session)
    assert after.severity == "critical" and after.acknowledged_at is not None and after.opened_at == incident.opened_at


def test_what_cannot_be_told_is_stored_with_the_newest_step(live: Any, level: Any) -> None:
    live.rules = (*live.rules, level("staleness-harm", "lag.policy.mean"))
    live.engine = live.new_engine()
    live.metrics((1, 0.0), (2, 0.0))
    live.read()
    live.advance(2)
    with live.control.session(write=False) as session:
        (item,) = not_judged(session, live.run_id)
    assert (item["symptom"], item["missing"]) == ("staleness-harm", ["lag.policy.mean"])
    assert "metrics.jsonl" in item["how"]


@pytest.fixture
def channel(live: Live) -> str:
    with live.control.session() as session:
        session.add(
            ChannelRow(
                id="ch_1", kind="webhook", name="team", url_secret="http://127.0.0.1:9/x", url_hint="127.0.0.1 x", secret=None,
                min_severity="warn", enabled=True, created_at=0.0, off_reason=None, failures_in_row=0,
            )
        )  # fmt: skip
    return "ch_1"


def messages(live: Live) -> list[str]:
    with live.control.session(write=False) as session:
        return [row.type for row in session.scalars(select(OutboxRow).order_by(OutboxRow.created_at))]


def test_messages_are_written_in_the_transaction_of_the_incident(live: Any, channel: Any) -> None:
    live.metrics((1, 2.0))
    live.read()
    live.advance(2)
    assert messages(live) == ["incident.opened"]


def test_an_error_while_storing_leaves_neither_incident_nor_progress_nor_message_and_is_made_up_for(
    live: Any, channel: Any, monkeypatch: Any
) -> None:
    live.metrics((1, 0.0), (2, 2.0))
    live.read()

    def full(*_args: object) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as broken:
        broken.setattr("server.engine.advance.set_judged", full)
        with pytest.raises(OSError, match="disk full"):
            live.advance(2)
    assert (live.judged_step(), messages(live)) == (None, [])
    assert live.advance() == ["incident.opened"]
    assert (live.judged_step(), messages(live)) == (2, ["incident.opened"])


def test_a_run_that_another_process_judged_meanwhile_is_taken_up_from_there(live: Any, channel: Any) -> None:
    live.metrics((1, 2.0))
    live.read()
    live.advance(2)
    other = live.new_engine()
    other.advance(live.run_id)
    live.metrics((2, 6.0), (3, 0.0))
    live.read()
    live.now += 2
    assert [c.kind for c in other.advance(live.run_id)] == ["incident.updated"]
    with pytest.raises(JudgedElsewhere):
        live.engine.advance(live.run_id)
    assert live.engine.advance(live.run_id) == []
    assert messages(live) == ["incident.opened", "incident.updated"]


def test_parts_of_a_joint_collapse_are_not_told_by_themselves(live: Any, channel: Any, level: Any, joint: Any) -> None:
    live.rules = (*(level(f"{name}-moves", "reward.mean", family=name) for name in ("quality", "engine", "shape")), joint)
    live.engine = live.new_engine()
    live.metrics((1, 0.0), (2, 2.0))
    live.read()
    live.advance(2)
    assert messages(live) == ["incident.opened"]
    with live.control.session(write=False) as session:
        assert [i.symptom for i in open_incidents(session)] == ["joint-collapse"]
        assert len(incidents(session, live.run_id, absorbed=True)) == 4


@pytest.fixture
def standing(tmp_path: Path) -> Iterator[Live]:
    made = Live(tmp_path, (RunStalled(),))
    yield made
    made.store.close()
    made.control.close()


def _arrive(live: Live, steps: range, seconds: float) -> None:
    """Steps that come one by one while the engine looks on."""
    for step in steps:
        live.metrics((step, 0.5))
        live.read()
        live.now += seconds
        live.advance()


def _stalls(live: Live) -> list[tuple[str, str]]:
    with live.control.session(write=False) as session:
        return [(found.severity, found.status) for found in incidents(session, live.run_id)]


def test_a_run_that_stands_still_is_told_once_and_closed_by_the_next_step(standing: Live) -> None:
    _arrive(standing, range(1, 7), 30)
    assert standing.advance(560) == []
    assert standing.advance(60) == ["incident.opened"]
    assert standing.advance(3600) == []
    assert _stalls(standing) == [("critical", "open")]
    standing.metrics((7, 0.5))
    standing.read()
    standing.advance(30)
    assert "incident.resolved" in standing.heard
    assert _stalls(standing) == [("critical", "recovered")]


def test_a_slow_rhythm_is_waited_for_five_of_its_steps(standing: Live) -> None:
    _arrive(standing, range(1, 7), 300)
    assert standing.advance(1400) == []
    assert standing.advance(200) == ["incident.opened"]


def test_a_long_pause_that_the_run_has_had_before_is_part_of_its_rhythm(standing: Live) -> None:
    _arrive(standing, range(1, 5), 30)
    _arrive(standing, range(5, 7), 1000)
    standing.heard.clear()
    _arrive(standing, range(7, 10), 30)
    assert standing.advance(1900) == []


def test_an_old_log_that_is_followed_does_not_stand_still(standing: Live) -> None:
    standing.metrics(*((step, 0.5) for step in range(1, 200)))
    standing.read()
    assert standing.advance(100) == [] and standing.advance(100_000) == []


def test_a_run_that_has_reached_its_planned_steps_has_ended(standing: Live) -> None:
    (standing.folder / "config.json").write_text(json.dumps({"total_steps": 6}))
    _arrive(standing, range(1, 7), 30)
    assert standing.advance(100_000) == []


def test_an_open_case_is_explained_anew_once_enough_steps_have_followed(tmp_path: Path, level: Any) -> None:
    asked: list[int] = []

    def at(view: Any, finding: Any) -> CheckResult:
        asked.append(view.step)
        return CheckResult("late", "supported" if view.step >= 30 else "inconclusive")

    rule = level("spike", "reward.mean", hypotheses=(Hypothesis("H5a", "step size", "metrics", (at,)),))
    live = Live(tmp_path, (rule,))
    live.metrics(*((step, 2.0 if step >= 10 else 0.0) for step in range(1, 61)))
    live.read()
    live.advance(100)
    with live.control.session(write=False) as session:
        (found,) = incidents(session, live.run_id)
    assert asked == [10, 30]
    assert found.body["hypotheses"][0]["verdict"] == "supported"
    live.store.close()
    live.control.close()


@pytest.fixture
def limited(live: Any, level: Any) -> Any:
    """The rule of `live` with its warn limit as a parameter."""
    param = Param("warn", 1.0, "x", 0, 10, "default of ours")
    live.rules = (level(RULE, "reward.mean", critical=5, hold_points=2, family="quality", params=(param,)),)
    live.engine = live.new_engine()
    return live


def change(live: Any, place: Place, **changes: Any) -> None:
    with live.control.session() as session:
        change_rule(session, place, live.rules[0], **changes)


def test_a_changed_parameter_holds_from_the_next_judged_step_and_is_noted_on_the_run(limited: Any) -> None:
    limited.metrics((1, 0.0), (2, 0.8))
    limited.read()
    limited.advance(SETTLE_SECONDS + 0.5)
    change(limited, Place("run", limited.run_id), params={"warn": 0.5})
    limited.metrics((3, 0.8), (4, 0.8))
    limited.read()
    limited.advance(SETTLE_SECONDS + 0.5)
    with limited.control.session(write=False) as session:
        (found,) = incidents(session, limited.run_id)
        assert rule_changes(session, limited.run_id) == [{"attempt": 1, "step": 3, "text": "reward-drop: warn 1 to 0.5"}]
    assert found.detected_step == 3 and found.body["rule"] == {"status": "stable", "changed": {"warn": 0.5}}
    limited.engine = limited.new_engine()
    limited.metrics((5, 0.8))
    limited.read()
    limited.advance(SETTLE_SECONDS + 0.5)
    with limited.control.session(write=False) as session:
        assert len(rule_changes(session, limited.run_id)) == 1


def test_what_is_set_for_another_run_or_project_does_not_hold(limited: Any) -> None:
    change(limited, Place("run", "another"), enabled=False)
    change(limited, Place("project", "another"), enabled=False)
    limited.metrics((1, 0.0), (2, 2.0))
    limited.read()
    assert limited.advance(SETTLE_SECONDS + 0.5) == ["incident.opened"]


def test_a_preview_rule_writes_to_channels_that_asked_for_it_alone(limited: Any) -> None:
    change(limited, Place(), status="preview")
    with limited.control.session() as session:
        add_channel(session, "slack", "team", "https://hooks.slack.com/services/T/B/x")
        eager, _ = add_channel(session, "slack", "eager", "https://hooks.slack.com/services/T/B/y", preview=True)
    limited.metrics((1, 0.0), (2, 2.0))
    limited.read()
    limited.advance(SETTLE_SECONDS + 0.5)
    with limited.control.session(write=False) as session:
        (message,) = session.scalars(select(OutboxRow)).all()
        assert (message.channel_id, message.payload["data"]["preview"]) == (eager.id, True)
        assert [one.body["rule"]["status"] for one in incidents(session, limited.run_id)] == ["preview"]
