"""A run as a rule sees it: read-only, up to one step of one attempt, with nothing later in reach."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ingest.schema.records import Json
from ingest.store.connection import Columns, Store
from server.queries.placed import Placed, Position, Steps, Values
from server.queries.view_rows import Reach, token_rows, trajectory_rows, turn_rows

__all__ = ["EMPTY", "PLANNED", "Event", "Position", "RunData", "RunFacts", "RunView", "Series", "Steps", "Values"]

PLANNED = frozenset({"resume", "restart", "curriculum", "config", "config_change", "data", "data_mix", "stage", "reward", "epoch"})
"""Kinds of events that a person intended and that change what is normal (symptoms 0.3)."""

_BEFORE_ALL = -(2**62)


class Series(NamedTuple):
    """steps [n] ascending, values [n] as logged (NaN and infinities included)."""

    steps: Steps
    values: Values

    def tail(self, points: int) -> Series:
        """The last `points` points."""
        return Series(self.steps[-points:], self.values[-points:])

    def since(self, step: int) -> Series:
        """Points from `step` on."""
        first = int(self.steps.searchsorted(step))
        return Series(self.steps[first:], self.values[first:])

    def __len__(self) -> int:  # a NamedTuple's own length is 2
        return int(self.steps.size)


EMPTY = Series(np.empty(0, np.int64), np.empty(0))


class Event(NamedTuple):
    """An event of the run."""

    attempt: int
    step: int
    kind: str
    text: str


@dataclass(frozen=True)
class RunFacts:
    """Identity and configuration; config holds the canonical keys of vocabulary section 5, absent where unknown."""

    run_id: str
    project: str
    name: str
    framework: str
    framework_version: str | None
    config: Mapping[str, Json]
    raw_config: Mapping[str, Json]

    @property
    def algorithm(self) -> str | None:
        """grpo, ppo, gspo, ... in lower case; None: no config says it."""
        value = self.config.get("algorithm")
        return value.lower() if isinstance(value, str) else None


@dataclass
class RunData:
    """Every metric of a run in memory, and its facts derived from trajectories; made once, seen through RunViews.

    add_facts() takes series derived from trajectories and tokens (ids begin with `fact.`).
    """

    store: Store
    run: RunFacts
    events: tuple[Event, ...]
    attempt_starts: dict[int, int]
    """First step of each attempt, in order of attempt."""
    second: RunData | None = None
    """The run to compare with, chosen by a person; None: none was."""
    memo: dict[object, Any] = field(default_factory=dict)
    """For results that cost much and are asked for often, such as a detector's causal array over a whole chain; the key
    names the metric and the attempt. Emptied whenever rows are added, so it may be used without care."""
    kept: dict[str, Any] = field(default_factory=dict)
    """What fact modules keep from one refresh to the next, by module, so that they read new rows only."""
    _raw: dict[str, Placed] = field(default_factory=dict)
    _chains: dict[str, dict[int, Series]] = field(default_factory=dict)
    _grown: dict[str, dict[tuple[int, object], tuple[Steps, tuple[NDArray[Any], ...]]]] = field(default_factory=dict)
    _scratch: tuple[Position, dict[object, Any]] = field(default_factory=lambda: ((0, 0), {}))
    _names: list[str] | None = None
    _planned: dict[int, tuple[list[int], list[Event]]] = field(default_factory=dict)

    def add(
        self, metric: str, attempts: Iterable[int], steps: Iterable[int], values: Iterable[float], *, after: Position | None = None
    ) -> None:
        """Adds a series, sorted by (attempt, step). It replaces what was there, with `after` only what lies behind that place."""
        a, s, v = (np.asarray(list(x) if not isinstance(x, np.ndarray) else x) for x in (attempts, steps, values))
        points = a.astype(np.int32), s.astype(np.int64), v.astype(np.float64)
        known = self._raw.get(metric)
        if known is None or after is None:
            self._raw[metric] = Placed(*points)
            self._grown.pop(metric, None)
            self._names = self._names if known is not None else None
        else:
            known.replace_behind(after, *points)
            self._cut(metric, after)
        self._chains.pop(metric, None)
        self._scratch[1].clear()
        self.memo.clear()

    def grown(
        self, metric: str, attempt: int, what: object, steps: Steps, make: Callable[[int], tuple[NDArray[Any], ...]]
    ) -> tuple[NDArray[Any], ...]:
        """Causal arrays over points of a chain, one value a point, that are too dear to be made anew for each live step.

        They outlive rows that are added behind their points, unlike `memo`; make(position) gives the values of the points
        from that position on. what: names the arrays and all that they depend on besides the chain; steps: of the points.
        """
        kept = self._grown.setdefault(metric, {})
        known = kept.get((attempt, what))
        if known is None:
            arrays = make(0)
        elif len(known[0]) == len(steps):
            return known[1]
        else:
            arrays = tuple(np.concatenate(pair) for pair in zip(known[1], make(len(known[0])), strict=True))
        kept[attempt, what] = (steps, arrays)
        return arrays

    def _cut(self, metric: str, after: Position) -> None:
        """Takes from grown arrays what belongs to points that were replaced."""
        kept = self._grown.get(metric, {})
        for key in [key for key in kept if key[0] >= after[0]]:
            steps, arrays = kept.pop(key)
            if key[0] == after[0]:
                end = int(steps.searchsorted(after[1], "right"))
                kept[key] = (steps[:end], tuple(values[:end] for values in arrays))

    def metrics(self) -> list[str]:
        """Ids of all series, facts included."""
        if self._names is None:
            self._names = sorted(self._raw)
        return self._names

    def forget(self) -> None:
        """Drops everything derived, after events, attempts or configuration changed."""
        self._chains.clear()
        self._grown.clear()
        self._planned.clear()
        self._scratch[1].clear()
        self.memo.clear()

    def planned(self, attempt: int, step: int) -> Event | None:
        """The newest planned event that the attempt knows of at the step; see RunView.planned."""
        known = self._planned.get(attempt)
        if known is None:
            found = sorted(self._planned_of(attempt), key=lambda e: (e.step, e.attempt))
            known = self._planned[attempt] = ([event.step for event in found], found)
        position = bisect_right(known[0], step)
        return known[1][position - 1] if position else None

    def _planned_of(self, attempt: int) -> Iterator[Event]:
        for event in self.events:
            if event.kind in PLANNED and self.on_branch(event.attempt, event.step, attempt):
                yield event
        for known in self.run.config.get("planned_events") or ():  # type: ignore[union-attr]
            if isinstance(known, dict) and isinstance(known.get("step"), int):
                yield Event(attempt, known["step"], str(known.get("kind")), str(known.get("text")))  # type: ignore[arg-type]
        for later, start in self.attempt_starts.items():
            if self.first_attempt < later <= attempt:
                yield Event(later, start, "resume", f"attempt {later} starts at step {start}")

    def scratch(self, place: Position) -> dict[object, Any]:
        """See RunView.scratch; only the newest place's is kept here."""
        if self._scratch[0] != place:
            self._scratch = (place, {})
        return self._scratch[1]

    @property
    def first_attempt(self) -> int:
        """The lowest attempt number of the run; 1 where nothing was logged."""
        return min(self.attempt_starts, default=1)

    def on_branch(self, attempt: int, step: int, seen_from: int) -> bool:
        """Whether a row of an attempt is part of the run as a later attempt continues it."""
        return attempt <= seen_from and all(step < start for later, start in self.attempt_starts.items() if attempt < later <= seen_from)

    def chain(self, metric: str, attempt: int) -> Series:
        """The series as seen from an attempt: earlier attempts up to where a later one took over."""
        known = self._chains.get(metric)
        if known is None:
            known = self._chains[metric] = {}
        found = known.get(attempt)
        if found is None:
            found = known[attempt] = self._make_chain(metric, attempt)
        return found

    def _make_chain(self, metric: str, attempt: int) -> Series:
        raw = self._raw.get(metric)
        if raw is None or not len(raw):
            return EMPTY
        attempts, steps, values = raw.attempts, raw.steps, raw.values
        own = int(attempts[0])
        if own == attempts[-1] and own <= attempt and not any(own < later <= attempt for later in self.attempt_starts):
            return Series(steps, values)
        keep = attempts <= attempt
        for later, start in self.attempt_starts.items():
            if later <= attempt:
                keep &= (attempts >= later) | (steps < start)
        order = np.argsort(steps[keep], kind="stable")
        return Series(steps[keep][order], values[keep][order])

    def extreme(self, metric: str, place: Position, pick: Callable[[Values], np.float64]) -> float | None:
        """The lowest or highest finite value up to a place, over all attempts; None without any."""
        raw = self._raw.get(metric)
        values = raw.values[: raw.behind(place)] if raw is not None else np.empty(0)
        values = values[np.isfinite(values)]
        return float(pick(values)) if len(values) else None

    def judge_order(self, after: Position | None = None) -> list[Position]:
        """Every (attempt, step) that has a metric or fact, in the order in which a live run meets them; after: the rest."""
        pairs: set[Position] = set()
        seen: set[tuple[bytes, bytes]] = set()  # most series have the same places
        for raw in self._raw.values():
            first = 0 if after is None else raw.behind(after)
            attempts, steps = raw.attempts[first:], raw.steps[first:]
            places = attempts.tobytes(), steps.tobytes()
            if places not in seen:
                seen.add(places)
                pairs.update(zip(attempts.tolist(), steps.tolist(), strict=True))
        return sorted(pairs)


@dataclass(frozen=True)
class RunView:
    """The run up to and including `step` of `attempt`."""

    data: RunData
    attempt: int
    step: int
    params: Mapping[str, float] = field(default_factory=dict)
    """Values of the rule's parameters in force, by name."""
    scratch: dict[object, Any] = field(init=False, repr=False, compare=False)
    """What was worked out about this very step, shared by all rules that look at it and gone with the next step. A view is
    of the rows that were there when it was made."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "scratch", self.data.scratch((self.attempt, self.step)))

    @property
    def run(self) -> RunFacts:
        """Identity and configuration."""
        return self.data.run

    @property
    def config(self) -> Mapping[str, Json]:
        """Canonical configuration keys; absent where unknown."""
        return self.data.run.config

    @property
    def planned(self) -> Event | None:
        """The newest planned event up to the step (resume, restart, curriculum, config change, ...); None: there was none."""
        return self.data.planned(self.attempt, self.step)

    @property
    def baseline_start(self) -> int:
        """First step whose points may enter a baseline: that of the newest planned event, else before everything."""
        found: int | None = self.scratch.get("baseline start")
        if found is None:
            event = self.planned
            found = self.scratch["baseline start"] = event.step if event is not None else _BEFORE_ALL
        return found

    def has(self, *metrics: str) -> bool:
        """True if any of the metrics has a point up to the step."""
        for metric in metrics:
            steps = self.data.chain(metric, self.attempt).steps
            if steps.size and steps[0] <= self.step:
                return True
        return False

    def series(self, metric: str) -> Series:
        """A metric's or fact's points up to the step (all of them; use .tail for a window)."""
        scratch, key = self.scratch, ("series", metric)
        found: Series | None = scratch.get(key)
        if found is None:
            chain = self.data.chain(metric, self.attempt)
            end = int(chain.steps.searchsorted(self.step, "right"))
            found = scratch[key] = Series(chain.steps[:end], chain.values[:end])
        return found

    @property
    def second_run(self) -> RunView | None:
        """The run to compare with, seen at the same step in its newest attempt; None: none was chosen."""
        other = self.data.second
        return None if other is None else RunView(other, max(other.attempt_starts, default=1), self.step, self.params)

    def first_of(self, *metrics: str) -> tuple[str, Series] | None:
        """The first of the metrics that has points, with its series."""
        for metric in metrics:
            series = self.series(metric)
            if len(series):
                return metric, series
        return None

    def matching(self, prefix: str, suffix: str = "") -> list[str]:
        """Ids of series that begin and end so and have a point up to the step."""
        key = ("matching", prefix, suffix)
        names: list[str] | None = self.data.memo.get(key)
        if names is None:
            names = self.data.memo[key] = [m for m in self.data.metrics() if m.startswith(prefix) and m.endswith(suffix)]
        return [m for m in names if self.has(m)]

    def events(self, since: int = _BEFORE_ALL) -> list[Event]:
        """Events at or after `since` that this attempt knows of, up to the step."""
        return [e for e in self.data.events if e.attempt <= self.attempt and since <= e.step <= self.step]

    def at(self, step: int) -> RunView:
        """The same run seen at an earlier step.

        Raises:
            ValueError: a later step.
        """
        if step > self.step:
            raise ValueError(f"step {step} lies after the judged step {self.step}")
        return RunView(self.data, self.attempt, step, self.params)

    @property
    def _reach(self) -> Reach:
        return Reach(self.data.store, self.run.run_id, self.attempt, self.step, len(self.data.attempt_starts) < 2)

    def trajectories(self, first: int, last: int, columns: Sequence[str], *, split: str | None = "train") -> Columns:
        """Trajectories of steps first..last (never after the judged step) in the newest attempt known here.

        One array a column, ordered by step and n; `attempt`, `step`, `n` are always there. split None: all;
        trajectories without a split count as train.
        """
        return trajectory_rows(self._reach, first, last, columns, split)

    def turns(self, first: int, last: int, columns: Sequence[str]) -> Columns:
        """Turns of the training trajectories of steps first..last, as in trajectories(); ordered by step, n and turn."""
        return turn_rows(self._reach, first, last, columns)

    def tokens(self, first: int, last: int, arrays: Sequence[str], *, columns: Sequence[str] = ()) -> list[dict[str, Any]]:
        """Token rows of steps first..last: a dict a trajectory with step, n, the trajectory's columns and the arrays.

        Arrays are numpy float64 or int arrays of shape [tokens] (null elements are NaN), or None where not written.
        """
        return token_rows(self._reach, first, last, arrays, columns)
