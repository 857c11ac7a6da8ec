"""Small rules whose answers can be counted by hand, and runs in memory for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pytest

from server.engine.judge import RuleSet
from server.engine.state import Case, RunState
from server.engine.steps import START, Move, advance
from server.queries.view import RunData, RunView
from server.rules.base import SEVERITIES, Check, CheckResult, Evidence, Finding, Hypothesis, Param, Rule, Severity, Status, Verdict

FAR = (99, 0)


@dataclass(frozen=True)
class Level:
    """A finding at every step at which the metric lies above the limits, of the severity of the highest one."""

    name: str
    metric: str
    watch: float = float("inf")
    warn: float = 1.0
    critical: float = float("inf")
    family: str = "groups"
    hold_points: int = 3
    hard: bool = False
    hypotheses: tuple[Hypothesis, ...] = ()
    next_checks: tuple[str, ...] = ("look at it",)
    status: Status = "stable"
    version: int = 1
    params: tuple[Param, ...] = ()
    own_needs: tuple[tuple[str, ...], ...] | None = None
    families: tuple[tuple[str, int], ...] = ()

    @property
    def code(self) -> str:
        return f"T-{self.name}"

    @property
    def needs(self) -> tuple[tuple[str, ...], ...]:
        return ((self.metric,),) if self.own_needs is None else self.own_needs

    def evaluate(self, view: RunView) -> Sequence[Finding]:
        series = view.series(self.metric)
        if not len(series) or series.steps[-1] != view.step:
            return ()
        value = float(series.values[-1])
        warn = view.params.get("warn", self.warn)
        reached = [s for s, limit in zip(SEVERITIES[1:], (self.watch, warn, self.critical), strict=True) if value > limit]
        if not reached:
            return ()
        lowest = min(self.watch, warn, self.critical)
        onset = view.step
        for step, earlier in zip(series.steps[::-1].tolist(), series.values[::-1].tolist(), strict=True):
            if not earlier > lowest:
                break
            onset = step
        evidence = (Evidence(self.metric, 0.0, value, n=1),)
        text = f"{self.metric} is {value}"
        return (Finding(self.name, reached[-1], onset, text, self.metric, None, evidence, hard=self.hard, families=self.families),)


@dataclass(frozen=True)
class Joint(Level):
    """Stands for the rule that the engine composes."""

    name: str = "joint-collapse"
    metric: str = "none"
    family: str = "joint"
    own_needs: tuple[tuple[str, ...], ...] | None = ()

    def evaluate(self, view: RunView) -> Sequence[Finding]:
        return ()


@pytest.fixture(scope="session")
def level() -> type[Level]:
    """The class of small rules: level(name, metric, watch, warn, critical, family=...)."""
    return Level


@pytest.fixture(scope="session")
def joint() -> Joint:
    return Joint()


@pytest.fixture(scope="session")
def answers() -> Callable[..., Check]:
    """A check that always gives this verdict."""

    def make(verdict: Verdict, missing: tuple[str, ...] = (), **observed: float) -> Check:
        def check(view: RunView, finding: Finding) -> CheckResult:
            return CheckResult(f"says-{verdict}", verdict, observed, missing)

        return check

    return make


@pytest.fixture
def judge() -> Callable[..., RunState]:
    """Judges a whole run with strict rules; the state after it."""

    def all_of(data: RunData, *rules: Rule) -> RunState:
        state = RunState(data.run.run_id)
        advance(state, data, START, FAR, RuleSet(rules, strict=True))
        return state

    return all_of


@pytest.fixture
def step_by_step() -> Callable[..., Iterator[tuple[int, list[Move]]]]:
    """Judges one step a time through a stored copy of the state, as after a restart each time; what happened at each."""

    def each(data: RunData, *rules: Rule) -> Iterator[tuple[int, list[Move]]]:
        state = RunState(data.run.run_id)
        for place in data.judge_order():
            state = RunState.from_json(data.run.run_id, state.to_json())
            yield place[1], advance(state, data, state.judged or START, place, RuleSet(rules, strict=True))

    return each


@pytest.fixture
def only() -> Callable[[RunState], Case]:
    """The one case of a state."""

    def one(state: RunState) -> Case:
        assert len(state.cases) == 1, [(c.symptom, c.onset_step) for c in state.cases]
        return state.cases[0]

    return one


__all__ = ["FAR", "Joint", "Level", "Severity"]
