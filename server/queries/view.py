"""A run as a rule sees it: read-only, up to one step of one attempt, with nothing later in reach."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ingest.schema.records import Json
from ingest.store.connection import Columns, Store

Steps = NDArray[np.int64]
Values = NDArray[np.float64]
Position: TypeAlias = tuple[int, int]
"""(attempt, step): how far a run has come. A later attempt lies behind every step of an earlier one."""

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
        first = int(np.searchsorted(self.steps, step))
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
class _Raw:
    attempts: NDArray[np.int32]
    steps: Steps
    values: Values

    def up_to(self, place: Position) -> _Raw:
        keep = (self.attempts < place[0]) | ((self.attempts == place[0]) & (self.steps <= place[1]))
        return _Raw(self.attempts[keep], self.steps[keep], self.values[keep])

    def joined(self, other: _Raw) -> _Raw:
        return _Raw(
            np.concatenate((self.attempts, other.attempts)),
            np.concatenate((self.steps, other.steps)),
            np.concatenate((self.values, other.values)),
        )


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
    _raw: dict[str, _Raw] = field(default_factory=dict)
    _chains: dict[tuple[str, int], Series] = field(default_factory=dict)
    _scratch: tuple[Position, dict[object, Any]] = ((0, 0), {})
    _names: list[str] | None = None
    _planned: dict[int, list[Event]] = field(default_factory=dict)

    def add(
        self, metric: str, attempts: Iterable[int], steps: Iterable[int], values: Iterable[float], *, after: Position | None = None
    ) -> None:
        """Adds a series, sorted by (attempt, step). It replaces what was there, with `after` only what lies behind that place."""
        a, s, v = (np.asarray(list(x) if not isinstance(x, np.ndarray) else x) for x in (attempts, steps, values))
        raw = _Raw(a.astype(np.int32), s.astype(np.int64), v.astype(np.float64))
        before = self._raw.get(metric)
        if after is not None and before is not None:
            raw = before.up_to(after).joined(raw)
        order = np.lexsort((raw.steps, raw.attempts))
        self._raw[metric] = _Raw(raw.attempts[order], raw.steps[order], raw.values[order])
        self._chains = {key: chain for key, chain in self._chains.items() if key[0] != metric}
        self._names = None
        self._scratch = ((0, 0), {})
        self.memo.clear()

    def metrics(self) -> list[str]:
        """Ids of all series, facts included."""
        if self._names is None:
            self._names = sorted(self._raw)
        return self._names

    def forget(self) -> None:
        """Drops everything derived, after events, attempts or configuration changed."""
        self._chains.clear()
        self._planned.clear()
        self._scratch = ((0, 0), {})
        self.memo.clear()

    def planned(self, attempt: int, step: int) -> Event | None:
        """The newest planned event that the attempt knows of at the step; see RunView.planned."""
        if attempt not in self._planned:
            self._planned[attempt] = sorted(self._planned_of(attempt), key=lambda e: (e.step, e.attempt))
        found = self._planned[attempt]
        position = bisect_right(found, step, key=lambda e: e.step)
        return found[position - 1] if position else None

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
        """See RunView.scratch; only the newest place's is kept."""
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
        key = (metric, attempt)
        if key not in self._chains:
            self._chains[key] = self._make_chain(metric, attempt)
        return self._chains[key]

    def _make_chain(self, metric: str, attempt: int) -> Series:
        raw = self._raw.get(metric)
        if raw is None:
            return EMPTY
        keep = raw.attempts <= attempt
        for later, start in self.attempt_starts.items():
            if later <= attempt:
                keep &= (raw.attempts >= later) | (raw.steps < start)
        order = np.argsort(raw.steps[keep], kind="stable")
        return Series(raw.steps[keep][order], raw.values[keep][order])

    def judge_order(self, after: Position | None = None) -> list[Position]:
        """Every (attempt, step) that has a metric or fact, in the order in which a live run meets them; after: the rest."""
        pairs: set[Position] = set()
        for raw in self._raw.values():
            pairs.update(zip(raw.attempts.tolist(), raw.steps.tolist(), strict=True))
        return sorted(pair for pair in pairs if after is None or pair > after)


@dataclass(frozen=True)
class RunView:
    """The run up to and including `step` of `attempt`."""

    data: RunData
    attempt: int
    step: int
    params: Mapping[str, float] = field(default_factory=dict)
    """Values of the rule's parameters in force, by name."""

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
        event = self.planned
        return event.step if event is not None else _BEFORE_ALL

    def has(self, *metrics: str) -> bool:
        """True if any of the metrics has a point up to the step."""
        return any(len(self.series(metric)) for metric in metrics)

    def series(self, metric: str) -> Series:
        """A metric's or fact's points up to the step (all of them; use .tail for a window)."""
        scratch, key = self.scratch, ("series", metric)
        found: Series | None = scratch.get(key)
        if found is None:
            chain = self.data.chain(metric, self.attempt)
            end = int(np.searchsorted(chain.steps, self.step, side="right"))
            found = scratch[key] = Series(chain.steps[:end], chain.values[:end])
        return found

    @property
    def second_run(self) -> RunView | None:
        """The run to compare with, seen at the same step in its newest attempt; None: none was chosen."""
        other = self.data.second
        return None if other is None else RunView(other, max(other.attempt_starts, default=1), self.step, self.params)

    @property
    def scratch(self) -> dict[object, Any]:
        """What was worked out about this very step, shared by all rules that look at it and gone with the next step."""
        return self.data.scratch((self.attempt, self.step))

    def first_of(self, *metrics: str) -> tuple[str, Series] | None:
        """The first of the metrics that has points, with its series."""
        for metric in metrics:
            series = self.series(metric)
            if len(series):
                return metric, series
        return None

    def matching(self, prefix: str, suffix: str = "") -> list[str]:
        """Ids of series that begin and end so and have a point up to the step."""
        return [m for m in self.data.metrics() if m.startswith(prefix) and m.endswith(suffix) and self.has(m)]

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

    def trajectories(self, first: int, last: int, columns: Sequence[str], *, split: str | None = "train") -> Columns:
        """Trajectories of steps first..last (never after the judged step) in the newest attempt known here.

        One array a column, ordered by step and n; `attempt`, `step`, `n` are always there. split None: all;
        trajectories without a split count as train.
        """
        return _rows(self, "trajectory", first, last, columns, split)

    def tokens(self, first: int, last: int, arrays: Sequence[str], *, columns: Sequence[str] = ()) -> list[dict[str, Any]]:
        """Token rows of steps first..last: a dict a trajectory with step, n, the trajectory's columns and the arrays.

        Arrays are numpy float64 or int arrays of shape [tokens] (null elements are NaN), or None where not written.
        """
        return _token_rows(self, first, last, arrays, columns)


_NEWEST = """attempt = (SELECT max(t2.attempt) FROM trajectory t2
                        WHERE t2.run_id = t.run_id AND t2.step = t.step AND t2.attempt <= $attempt)"""


def _rows(view: RunView, table: str, first: int, last: int, columns: Sequence[str], split: str | None) -> Columns:
    names = ["attempt", "step", "n", *(c for c in columns if c not in ("attempt", "step", "n"))]
    single = len(view.data.attempt_starts) < 2
    where = "TRUE" if single else _NEWEST
    parameters: dict[str, object] = {"run": view.run.run_id, "first": first, "last": min(last, view.step)}
    if not single:
        parameters["attempt"] = view.attempt
    if split is not None:
        where += " AND coalesce(split, 'train') = $split"
        parameters["split"] = split
    return view.data.store.columns(
        f"SELECT {', '.join(names)} FROM {table} t WHERE run_id = $run AND step BETWEEN $first AND $last AND {where} ORDER BY step, n",
        parameters,
    )


def _token_rows(view: RunView, first: int, last: int, arrays: Sequence[str], columns: Sequence[str]) -> list[dict[str, Any]]:
    keys = ["step", "n", *(c for c in columns if c not in ("step", "n"))]
    single = len(view.data.attempt_starts) < 2
    where = "TRUE" if single else _NEWEST
    parameters: dict[str, object] = {"run": view.run.run_id, "first": first, "last": min(last, view.step)}
    if not single:
        parameters["attempt"] = view.attempt
    selected = ", ".join([*(f"t.{k}" for k in keys), *(f"k.{a}" for a in arrays)])
    rows = view.data.store.rows(
        f"""SELECT {selected} FROM trajectory t JOIN token k ON k.run_id = t.run_id AND k.step = t.step AND k.n = t.n
            WHERE t.run_id = $run AND t.step BETWEEN $first AND $last AND t.has_tokens AND {where.replace("attempt = (", "t.attempt = (")}
            ORDER BY t.step, t.n""",
        parameters,
    )
    result = []
    for row in rows:
        record: dict[str, Any] = dict(zip(keys, row[: len(keys)], strict=True))
        for name, value in zip(arrays, row[len(keys) :], strict=True):
            record[name] = value if value is None or name == "token_texts" else np.array(value, dtype=np.float64)
        result.append(record)
    return result
