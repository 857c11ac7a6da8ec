"""However a run arrives, the same incidents with the same steps come out as from a replay of the whole."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.discover import discover
from ingest.load import load_run as load_files
from ingest.store.connection import Store
from server.control.incidents import Incident, IncidentChange, incidents
from server.control.models import Control
from server.engine.advance import Engine, advance, incident_of
from server.engine.judge import RuleSet
from server.engine.state import RunState
from server.engine.steps import START
from server.queries.facts import add_facts
from server.queries.run_data import load_run
from server.rules.base import Hypothesis, Rule

FAR = (99, 0)
TIMES = ("opened_at", "updated_at", "closed_at")


@dataclass
class Follower:
    """A run that is written, read and judged piece by piece; time stands still until all_silent()."""

    folder: Path
    rules: Sequence[Rule]
    now: float = field(default_factory=time.time)
    changes: list[IncidentChange] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.folder / "run").mkdir()
        self.store = Store(self.folder / "telemetry.duckdb")
        self.control = Control(f"sqlite:///{self.folder / 'control.sqlite'}")
        self.control.migrate()
        self.run_id = ""
        self._engine()

    def _engine(self) -> None:
        self.engine = Engine(self.store, self.control, rules=self.rules, clock=lambda: self.now)

    def write(self, name: str, lines: Iterable[str]) -> None:
        with (self.folder / "run" / name).open("a") as stream:
            stream.writelines(line + "\n" for line in lines)

    def read(self) -> None:
        (found,), _ = discover([self.folder / "run"])
        results = list(load_files(self.store, found, follow=True))  # every file: the generator reads as it is asked
        self.run_id = results[0].run_id or ""

    def judge(self) -> None:
        self.changes += self.engine.advance(self.run_id)

    def restart(self) -> None:
        """Both stores are closed and opened again, and the engine knows only what they hold."""
        self.store.close()
        self.store = Store(self.folder / "telemetry.duckdb")
        self._engine()

    def all_silent(self) -> None:
        self.now += 1e7
        self.judge()

    def found(self) -> list[dict[str, object]]:
        with self.control.session(write=False) as session:
            return told(incidents(session, self.run_id, absorbed=True))

    def replayed(self) -> list[dict[str, object]]:
        data = load_run(self.store, self.run_id)
        add_facts(data)
        state = RunState(self.run_id)
        advance(state, data, START, FAR, RuleSet(self.rules, strict=True))
        return told([incident_of(case, self.run_id, 0.0) for case in state.cases])

    def close(self) -> None:
        self.store.close()
        self.control.close()


def told(found: Iterable[Incident]) -> list[dict[str, object]]:
    """Incidents without the times at which they were stored, in a fixed order."""
    plain = [{f.name: getattr(i, f.name) for f in fields(i) if f.name not in TIMES} for i in found]
    return sorted((json.loads(json.dumps(i)) for i in plain), key=lambda i: str(i["id"]))


Follow = Callable[[Sequence[Rule]], Follower]


@pytest.fixture
def follow(tmp_path: Path) -> Iterator[Follow]:
    made: list[Follower] = []

    def start(rules: Sequence[Rule]) -> Follower:
        folder = tmp_path / f"home{len(made)}"
        folder.mkdir()
        made.append(Follower(folder, rules))
        return made[-1]

    yield start
    for one in made:
        one.close()


@pytest.fixture(scope="session")
def rules(level: Any, joint: Any, answers: Any) -> Sequence[Rule]:
    """Rules over metrics and over trajectories, in families that agree, collapse jointly and recover."""
    seen = Hypothesis("H5a", "step size", "metrics", (answers("supported"),))
    return (
        level("spike", "grad.norm", watch=0.5, warn=1, critical=3, family="optimiser", hypotheses=(seen,)),
        level("reward-drop", "fact.reward.mean", warn=0.8, family="quality", hold_points=4, hypotheses=(seen,)),
        level("length-growth", "length.response.mean", warn=1, family="shape", hold_points=2),
        level("eval-not-following-reward", "eval.heldout.score", warn=1, hold_points=2),
        joint,
    )


def lines(seed: int, steps: Sequence[int], **more: object) -> dict[str, list[str]]:
    """The lines of a run whose metrics move in episodes; evaluation every five steps, two trajectories a step."""
    chance = random.Random(seed)
    first_bad = range(steps[0] + 4, steps[-1] - 9)
    bad = {name: [step for first in chance.sample(first_bad, 3) for step in range(first, first + chance.randint(1, 9))] for name in "gls"}

    def high(name: str, step: int) -> float:
        return chance.choice([1.5, 2.0, 4.0]) if step in bad[name] else 0.1

    metrics, rollouts = [], []
    for step in steps:
        record: dict[str, object] = {"step": step, "grad.norm": high("g", step), "length.response.mean": high("l", step), **more}
        if step % 5 == 0:
            record["eval.heldout.score"] = high("s", step)
        metrics.append(json.dumps(record))
        reward = 1.0 if step in bad["s"] else 0.2
        for n in range(2):
            row = {
                "step": step,
                "trajectory_id": f"{step}.{n}",
                "group_id": f"{step}",
                "prompt": "2+2",
                "response": f"{n}",
                "reward": reward,
            }
            rollouts.append(json.dumps({**row, **more}))
    return {"metrics.jsonl": metrics, "rollouts.jsonl": rollouts}


def feed(follower: Follower, written: Mapping[str, list[str]], plan: Iterable[str]) -> None:
    """Plays a plan: m and r write the next three lines of metrics or rollouts, M and R all that are left, j judges, ! restarts.

    The first line of each file is there from the start, as the files of a run are.
    """
    left = {name: list(rows) for name, rows in written.items()}
    for name in left:
        follower.write(name, [left[name].pop(0)])
    follower.read()
    for letter in plan:
        if letter in "mMrR":
            name = "metrics.jsonl" if letter in "mM" else "rollouts.jsonl"
            count = 3 if letter in "mr" else len(left[name])
            follower.write(name, left[name][:count])
            del left[name][:count]
            follower.read()
        elif letter == "j":
            follower.judge()
        else:
            follower.restart()
    for name, rest in left.items():
        follower.write(name, rest)
    follower.read()
    follower.judge()
    follower.all_silent()


STEPS = range(1, 61)
PLANS = {
    "whole": "MR",
    "metrics first": "MjRj",
    "rollouts first": "RjMj",
    "in batches": "mrrj" * 12,
    "rollouts far behind": "mmmj" * 5 + "rrrrrrj" * 5,
    "metrics far behind": "rrrrrrj" * 5 + "mmmj" * 5,
    "with restarts": "mmrrrrj!" * 6,
    "a restart between reading and judging": "mrr!j" * 4 + "Mj!Rj",
    "judged once at the end": "mmrrrr" * 8,
}


@pytest.mark.parametrize(("seed", "plan"), list(enumerate(PLANS)))
def test_the_same_incidents_come_out_however_the_rows_arrive(plan: Any, seed: Any, follow: Any, rules: Any) -> None:
    follower = follow(rules)
    feed(follower, lines(seed, STEPS), PLANS[plan])
    found = follower.found()
    assert found == follower.replayed()
    assert len(found) >= 3


def test_the_runs_of_this_test_hold_what_it_is_about(follow: Any, rules: Any) -> None:
    follower = follow(rules)
    feed(follower, lines(2, STEPS), "MR")
    found = follower.found()
    assert {i["status"] for i in found} == {"open", "recovered"} or {i["severity"] for i in found} >= {"warn", "critical"}
    assert {"spike", "reward-drop", "length-growth"} <= {str(i["symptom"]) for i in found}


def test_one_step_at_a_time_gives_the_same_incidents(follow: Any, rules: Any) -> None:
    follower, written = follow(rules), lines(1, range(1, 31))
    for number, step in enumerate(range(1, 31)):
        follower.write("rollouts.jsonl", written["rollouts.jsonl"][2 * number : 2 * step])
        follower.write("metrics.jsonl", written["metrics.jsonl"][number:step])
        follower.read()
        follower.judge()
    follower.all_silent()
    assert follower.found() == follower.replayed()


def test_a_joint_collapse_that_lasts_by_quality_alone_is_stored_as_far_as_it_lasts(follow: Any, rules: Any) -> None:
    """Its other families settle; the steps after that must not be missing from what the page reads."""
    follower = follow(rules)
    metrics = [{"step": s, "grad.norm": 4.0 if 20 <= s < 26 else 0.1, "length.response.mean": 4.0 if 20 <= s < 26 else 0.1} for s in STEPS]
    rollouts = [{"step": s, "trajectory_id": f"{s}", "prompt": "2+2", "response": "4", "reward": float(s >= 21)} for s in STEPS]
    written = {"metrics.jsonl": [json.dumps(row) for row in metrics], "rollouts.jsonl": [json.dumps(row) for row in rollouts]}
    feed(follower, written, "mrj" * 25)
    found = follower.found()
    assert found == follower.replayed()
    (collapse,) = [i for i in found if i["symptom"] == "joint-collapse"]
    assert (collapse["status"], collapse["last_step"]) == ("open", 60)


def test_a_resumed_run_with_overlapping_steps_gives_the_same_incidents(follow: Any, rules: Any) -> None:
    follower = follow(rules)
    first, second = lines(3, range(1, 41), attempt=1), lines(4, range(31, 91), attempt=2)
    feed(follower, {name: first[name] + second[name] for name in first}, "mmrrrrj" * 6 + "!" + "mmrrrrj" * 6)
    assert follower.found() == follower.replayed()
    assert any(int(str(i["onset_step"])) < 31 and int(str(i["last_step"])) > 40 for i in follower.found())


def test_judging_twice_changes_nothing(follow: Any, rules: Any) -> None:
    follower = follow(rules)
    feed(follower, lines(1, STEPS), "MRj")
    before = follower.found()
    changes = len(follower.changes)
    follower.judge()
    follower.restart()
    follower.all_silent()
    assert (follower.found(), len(follower.changes)) == (before, changes)


def test_rows_that_come_after_their_step_was_judged_change_no_finding(follow: Any, rules: Any) -> None:
    follower, written = follow(rules), lines(1, STEPS)
    feed(follower, {**written, "rollouts.jsonl": written["rollouts.jsonl"][:60]}, "MRj")
    before = follower.found()
    follower.write("rollouts.jsonl", written["rollouts.jsonl"][60:])
    follower.read()
    follower.now += 1e7
    follower.judge()
    assert follower.found() == before


@settings(max_examples=8, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10_000), plan=st.lists(st.sampled_from("mmrrrrjj!"), max_size=20))
def test_any_order_of_arrival_gives_the_same_incidents(rules: Any, seed: int, plan: list[str]) -> None:
    with TemporaryDirectory() as folder:
        follower = Follower(Path(folder), rules)
        try:
            feed(follower, lines(seed, range(1, 31)), plan)
            assert follower.found() == follower.replayed()
        finally:
            follower.close()


def test_a_real_run_in_pieces_gives_the_incidents_of_the_whole(shared_data: Any, follow: Any) -> None:
    import gzip

    from server.rules import RULES

    source = shared_data / "labelled" / "length-bonus-s0"
    follower = follow(RULES)
    shutil.copy(source / "config.json", follower.folder / "run")
    rows = {
        f"{name}.jsonl": gzip.decompress((source / f"{name}.jsonl.gz").read_bytes()).decode().splitlines()
        for name in ("metrics", "rollouts")
    }
    last = 150
    by_step = {name: _by_step(found, last) for name, found in rows.items()}
    for first in range(1, last + 1, 25):
        for name in rows:
            follower.write(name, [line for step in range(first, min(first + 25, last + 1)) for line in by_step[name].get(step, [])])
            follower.read()
            follower.judge()
        if first == 76:
            follower.restart()
    follower.all_silent()
    assert follower.found() == follower.replayed()


def _by_step(rows: Sequence[str], last: int) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for line in rows:
        step = json.loads(line)["step"]
        if step <= last:
            found.setdefault(step, []).append(line)
    return found
