"""How far each stream of a run has come: what decides which steps can be judged."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ingest.store.connection import Columns, Store
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


@dataclass
class Progress:
    """What is stored of a run. Handed to the next look, it spares that one all rows that it has counted.

    streams: those that can hold a step's rows. places: every (attempt, step) with a point or a trajectory, in order.
    earliest: the first place with rows that came behind those of the look that was handed in; None: none came.
    """

    streams: tuple[Stream, ...] = ()
    places: list[Position] = field(default_factory=list)
    earliest: Position | None = None
    rows: dict[Position, int] = field(default_factory=dict)
    """Number of points and trajectories at each place."""
    recent: dict[int, list[Position]] = field(default_factory=dict)
    """The last places of each source, in order."""
    counted: tuple[_Counted, ...] = ()
    """By table, how far it was counted."""

    def behind(self, place: Position) -> Sequence[Position]:
        """The places behind one, in order."""
        return self.places[bisect_right(self.places, place) :]


class _Counted(NamedTuple):
    """Rows of all runs in a table, and the database's number of the last one (it numbers rows as they are appended)."""

    rows: int = 0
    last: int = -1


_TABLES = {
    "point": "point JOIN series USING (series_id)",
    "trajectory": "trajectory",
}


def progress(store: Store, run_id: str, before: Progress | None = None) -> Progress:
    """How far the run has come. Files that hold no row with a step (configuration, events) are no streams once read.

    before: what the last look at the same store gave; it is brought up to date and given back.
    """
    found = _counted_on(store, run_id, before) if before is not None else None
    if found is None:
        found = _counted_on(store, run_id, Progress(counted=(_Counted(),) * len(_TABLES)))
        assert found is not None
        known = before.rows if before is not None else {}
        found.earliest = min((place for place, count in found.rows.items() if known.get(place) != count), default=None)
    found.streams = tuple(_streams(store, run_id, found.recent))
    return found


def _counted_on(store: Store, run_id: str, before: Progress) -> Progress | None:
    """The look before with the rows that were appended since; None: rows were taken away too, and all must be counted again."""
    new = [_appended(store, run_id, table, counted) for table, counted in zip(_TABLES, before.counted, strict=True)]
    if any(
        int(columns["total"][0]) != counted.rows + np.nansum(columns["n"]) for columns, counted in zip(new, before.counted, strict=True)
    ):
        return None
    before.earliest = None
    for columns in new:
        _take(before, columns)
    before.counted = tuple(
        _Counted(int(columns["total"][0]), int(np.nanmax([*columns["last"], counted.last])))
        for columns, counted in zip(new, before.counted, strict=True)
    )
    return before


def _appended(store: Store, run_id: str, table: str, counted: _Counted) -> Columns:
    """Rows of each source and place behind those counted, those of other runs as one (source null); total: rows of the table."""
    return store.columns(
        f"""SELECT total, source_id, attempt, step, n, last FROM (SELECT count(*) AS total FROM {table}) LEFT JOIN (
                SELECT CASE WHEN mine THEN source_id END AS source_id, CASE WHEN mine THEN attempt END AS attempt,
                       CASE WHEN mine THEN step END AS step, count(*) AS n, max(number) AS last
                FROM (SELECT run_id = $run AS mine, source_id, attempt, step, {table}.rowid AS number
                      FROM {_TABLES[table]} WHERE {table}.rowid > $last) GROUP BY ALL) ON TRUE""",
        {"run": run_id, "last": counted.last},
    )


def _take(found: Progress, columns: Columns) -> None:
    mine = ~np.isnan(columns["source_id"].astype(np.float64))
    sources, attempts, steps, counts = (columns[name][mine].astype(np.int64).tolist() for name in ("source_id", "attempt", "step", "n"))
    places = list(zip(attempts, steps, strict=True))
    for place, count in zip(places, counts, strict=True):
        found.rows[place] = found.rows.get(place, 0) + count
    if not places:
        return
    earliest = min(places)
    found.earliest = earliest if found.earliest is None else min(earliest, found.earliest)
    if found.places and earliest <= found.places[-1]:
        found.places = sorted(found.rows)
    else:
        found.places += sorted(set(places))
    of: dict[int, set[Position]] = {}
    for source, place in zip(sources, places, strict=True):
        of.setdefault(source, set()).add(place)
    for source, new in of.items():
        found.recent[source] = sorted(new.union(found.recent.get(source, ())))[-_RECENT_STEPS:]


def _streams(store: Store, run_id: str, recent: Mapping[int, list[Position]]) -> list[Stream]:
    sources = store.rows(
        "SELECT source_id, path, reader, growth, rows, rejected, fingerprint, updated FROM source WHERE run_id = ? ORDER BY source_id",
        [run_id],
    )
    seen: dict[str, list[Position]] = {}
    waiting: set[str] = set()
    updated: dict[str, float] = {}
    for source_id, path, reader, growth, rows, rejected, fingerprint, at in sources:
        unread = fingerprint is None and rows == 0 and rejected == 0
        if source_id not in recent and not unread:
            continue
        name = reader if growth == "whole" else path
        if unread:
            waiting.add(name)
        seen.setdefault(name, []).extend(recent.get(source_id, ()))
        updated[name] = max(updated.get(name, 0.0), at)
    return [_stream(name, updated[name], sorted(set(places)), name in waiting) for name, places in seen.items()]


def _stream(name: str, updated: float, places: list[Position], unread: bool) -> Stream:
    if not places:
        return Stream(name, updated, unread=unread)
    newest = places[-1]
    steps = np.array([step for attempt, step in places if attempt == newest[0]][-_RECENT_STEPS:])
    stride = int(np.median(np.diff(steps))) if steps.size > 2 else 1
    return Stream(name, updated, newest, max(1, stride), unread)
