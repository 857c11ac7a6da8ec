"""How far each stream of a run has come: what decides which steps can be judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ingest.store.connection import Store
from server.queries.view import Position

_RECENT_STEPS = 20


@dataclass
class Stream:
    """One file that grows, or all files that one reader takes whole (a file a step, a file a checkpoint).

    unread: a file of it is known by name and not read yet. newest None: no row with a step. updated: Unix seconds of the
    last commit. stride: usual distance of its steps, so that a stream with a row every 20 steps is not waited for in
    between.
    """

    name: str
    updated: float
    newest: Position | None = None
    stride: int = 1
    unread: bool = False

    def expects(self, place: Position) -> bool:
        """Whether rows of that place are still to come, as far as the steps seen so far tell."""
        if self.newest is None or self.unread:
            return True
        if place <= self.newest:
            return False
        same_attempt = place[0] == self.newest[0]
        return not same_attempt or place[1] >= self.newest[1] + self.stride


@dataclass(frozen=True)
class Progress:
    """streams: those that can hold a step's rows. rows: number of points and trajectories at each place."""

    streams: tuple[Stream, ...]
    rows: Mapping[Position, int] = field(default_factory=dict)


def progress(store: Store, run_id: str) -> Progress:
    """How far the run has come. Files that hold no row with a step (configuration, events) are no streams once read."""
    counted = store.columns(
        """SELECT source_id, attempt, step, count(*) AS n FROM (
               SELECT source_id, attempt, step FROM point WHERE series_id IN (SELECT series_id FROM series WHERE run_id = $run)
               UNION ALL SELECT source_id, attempt, step FROM trajectory WHERE run_id = $run)
           GROUP BY ALL ORDER BY source_id, attempt, step""",
        {"run": run_id},
    )
    places = list(zip(counted["attempt"].tolist(), counted["step"].tolist(), strict=True))
    rows: dict[Position, int] = {}
    for place, count in zip(places, counted["n"].tolist(), strict=True):
        rows[place] = rows.get(place, 0) + count
    by_source: dict[int, list[Position]] = {}
    for source_id, place in zip(counted["source_id"].tolist(), places, strict=True):
        by_source.setdefault(source_id, []).append(place)
    return Progress(tuple(_streams(store, run_id, by_source)), rows)


def _streams(store: Store, run_id: str, by_source: Mapping[int, list[Position]]) -> list[Stream]:
    sources = store.rows(
        "SELECT source_id, path, reader, growth, rows, rejected, fingerprint, updated FROM source WHERE run_id = ? ORDER BY source_id",
        [run_id],
    )
    seen: dict[str, list[Position]] = {}
    waiting: set[str] = set()
    updated: dict[str, float] = {}
    for source_id, path, reader, growth, rows, rejected, fingerprint, at in sources:
        unread = fingerprint is None and rows == 0 and rejected == 0
        if source_id not in by_source and not unread:
            continue
        name = reader if growth == "whole" else path
        if unread:
            waiting.add(name)
        seen.setdefault(name, []).extend(by_source.get(source_id, ()))
        updated[name] = max(updated.get(name, 0.0), at)
    return [_stream(name, updated[name], sorted(set(places)), name in waiting) for name, places in seen.items()]


def _stream(name: str, updated: float, places: list[Position], unread: bool) -> Stream:
    if not places:
        return Stream(name, updated, unread=unread)
    newest = places[-1]
    steps = np.array([step for attempt, step in places if attempt == newest[0]][-_RECENT_STEPS:])
    stride = int(np.median(np.diff(steps))) if steps.size > 2 else 1
    return Stream(name, updated, newest, max(1, stride), unread)
