"""Reading a run from the store into the memory that rules look at."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ingest.schema.config_keys import canonical
from ingest.schema.metrics import apply_transform
from ingest.schema.records import Json
from ingest.store.connection import Columns, Store
from server.queries.view import Event, Position, RunData, RunFacts

_Points: TypeAlias = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]
"""Attempts, steps and values."""


def load_run(store: Store, run_id: str) -> RunData:
    """The whole run in memory: every series by canonical id (unknown keys under their own name), events, config.

    Raises:
        KeyError: no such run.
    """
    data = open_run(store, run_id)
    refresh(data)
    return data


def open_run(store: Store, run_id: str) -> RunData:
    """The run without any series yet; refresh() reads them.

    Raises:
        KeyError: no such run.
    """
    return RunData(store, _facts(store, run_id), (), {})


def refresh(data: RunData, after: Position | None = None) -> None:
    """Reads config, events and the series again; after: only points behind that place, all before it stay as they are.

    Of several keys with one meaning the first in name order speaks for a step; several records of one key and step are
    averaged.
    """
    store, run_id = data.store, data.run.run_id
    before = data.run, data.events, data.attempt_starts
    data.run = _facts(store, run_id)
    data.events = tuple(
        Event(*row) for row in store.rows("SELECT attempt, step, kind, text FROM event WHERE run_id = ? ORDER BY attempt, step", [run_id])
    )
    points = _points(store, run_id, after)
    data.attempt_starts = _attempt_starts(data, points, after)
    if (data.run, data.events, data.attempt_starts) != before:
        data.forget()
    for metric, attempts, steps, values in _series(store, run_id, points):
        data.add(metric, attempts, steps, values, after=after)
    if (times := _times(points)) is not None:
        data.add("fact.wall_time", *times, after=after)


_BEFORE_ALL = -(2**62)


def _place(run_id: str, after: Position | None) -> dict[str, object]:
    attempt, step = after if after is not None else (-1, _BEFORE_ALL)
    return {"run": run_id, "attempt": attempt, "step": step}


def _behind(columns: str, table: str) -> str:
    """SQL for rows of a table behind a place, in two parts, so that the database leaves out blocks of older rows unread."""
    parts = ("attempt = $attempt AND step > $step", "attempt > $attempt")
    return " UNION ALL ".join(f"SELECT {columns} FROM {table} WHERE {part}" for part in parts)


def _points(store: Store, run_id: str, after: Position | None) -> Columns:
    """series_id, attempt, step, value and wall_time of every point behind a place, in the order of the first three."""
    columns = store.columns(
        f"""SELECT * FROM ({_behind("series_id, attempt, step, value, wall_time", "point")})
            WHERE series_id IN (SELECT series_id FROM series WHERE run_id = $run)""",
        _place(run_id, after),
    )
    order = np.lexsort((columns["step"], columns["attempt"], columns["series_id"]))
    return {name: values[order].astype(np.float64 if name in ("value", "wall_time") else np.int64) for name, values in columns.items()}


def _attempt_starts(data: RunData, points: Columns, after: Position | None) -> dict[int, int]:
    """First step of each attempt; with `after`, rows up to that place are known already."""
    found = data.store.rows(
        f"SELECT attempt, min(step) FROM ({_behind('run_id, attempt, step', 'trajectory')}) WHERE run_id = $run GROUP BY attempt",
        _place(data.run.run_id, after),
    )
    attempts = points["attempt"]
    found += [(attempt, int(points["step"][attempts == attempt].min())) for attempt in np.unique(attempts).tolist()]
    starts = dict(data.attempt_starts) if after is not None else {}
    for attempt, first in found:
        starts[attempt] = min(first, starts.get(attempt, first))
    return dict(sorted(starts.items()))


def _facts(store: Store, run_id: str) -> RunFacts:
    found = store.rows("SELECT run_id, project, name, framework, framework_version, config FROM run WHERE run_id = ?", [run_id])
    if not found:
        raise KeyError(run_id)
    rid, project, name, framework, version, config = found[0]
    raw_config: dict[str, Json] = json.loads(config) if config else {}
    return RunFacts(rid, project, name, framework, version, canonical(raw_config, framework), raw_config)


def _times(points: Columns) -> _Points | None:
    """Newest time of each step's records, without steps of which none has a time."""
    known = np.isfinite(points["wall_time"])
    attempts, steps, times = (points[name][known] for name in ("attempt", "step", "wall_time"))
    order = np.lexsort((times, steps, attempts))
    attempts, steps, times = attempts[order], steps[order], times[order]
    last = np.ones(len(steps), np.bool_)
    last[:-1] = (steps[1:] != steps[:-1]) | (attempts[1:] != attempts[:-1])
    return (attempts[last], steps[last], times[last]) if len(steps) else None


def _series(store: Store, run_id: str, points: Columns) -> Iterator[tuple[str, NDArray[Any], NDArray[Any], NDArray[Any]]]:
    keys = store.rows(
        "SELECT coalesce(metric, source_key) AS id, series_id, transform FROM series WHERE run_id = ? ORDER BY id, source_key", [run_id]
    )
    for metric, group in groupby(keys, key=itemgetter(0)):
        parts = [part for _, series, transform in group if len((part := _part(points, series, transform))[1])]
        if parts:
            yield metric, *(parts[0] if len(parts) == 1 else _first_of(parts))


def _part(points: Columns, series: int, transform: str | None) -> _Points:
    first, end = points["series_id"].searchsorted(series), points["series_id"].searchsorted(series, "right")
    attempts, steps, values = (points[name][first:end] for name in ("attempt", "step", "value"))
    new = np.ones(len(steps), np.bool_)
    new[1:] = (steps[1:] != steps[:-1]) | (attempts[1:] != attempts[:-1])
    if not new.all():
        of = np.cumsum(new) - 1
        attempts, steps, values = attempts[new], steps[new], np.bincount(of, weights=values) / np.bincount(of)
    if transform not in (None, "identity"):
        values = np.array([apply_transform(transform, value) for value in values.tolist()])
    return attempts, steps, values


def _first_of(parts: list[_Points]) -> _Points:
    """Of several points at one place that of the first part."""
    attempts, steps, values = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    order = np.lexsort((steps, attempts))  # stable: equal places stay in the order of the parts
    attempts, steps, values = attempts[order], steps[order], values[order]
    new = np.ones(len(steps), np.bool_)
    new[1:] = (steps[1:] != steps[:-1]) | (attempts[1:] != attempts[:-1])
    return attempts[new], steps[new], values[new]
