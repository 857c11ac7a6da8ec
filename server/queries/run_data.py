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
    data.attempt_starts = _attempt_starts(data, after)
    if (data.run, data.events, data.attempt_starts) != before:
        data.forget()
    for metric, attempts, steps, values in _series(store, run_id, after):
        data.add(metric, attempts, steps, values, after=after)
    times = _times(store, run_id, after)
    if len(times["step"]):
        data.add("fact.wall_time", times["attempt"], times["step"], times["wall_time"], after=after)


_BEFORE_ALL = -(2**62)


def _place(run_id: str, after: Position | None) -> dict[str, object]:
    attempt, step = after if after is not None else (-1, _BEFORE_ALL)
    return {"run": run_id, "attempt": attempt, "step": step}


def _behind(columns: str, table: str) -> str:
    """SQL for rows of a table behind a place, in two parts, so that the database leaves out blocks of older rows unread."""
    parts = ("attempt = $attempt AND step > $step", "attempt > $attempt")
    return " UNION ALL ".join(f"SELECT {columns} FROM {table} WHERE {part}" for part in parts)


def _attempt_starts(data: RunData, after: Position | None) -> dict[int, int]:
    """First step of each attempt; with `after`, rows up to that place are known already."""
    found = data.store.rows(
        f"""SELECT attempt, min(step) FROM (
                SELECT attempt, step FROM ({_behind("series_id, attempt, step", "point")}) JOIN series USING (series_id) WHERE run_id = $run
                UNION ALL SELECT attempt, step FROM ({_behind("run_id, attempt, step", "trajectory")}) WHERE run_id = $run)
            GROUP BY attempt""",
        _place(data.run.run_id, after),
    )
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


def _times(store: Store, run_id: str, after: Position | None) -> Columns:
    return store.columns(
        f"""SELECT attempt, step, max(wall_time) AS wall_time
            FROM ({_behind("series_id, attempt, step, wall_time", "point")}) JOIN series USING (series_id)
            WHERE run_id = $run AND wall_time IS NOT NULL GROUP BY ALL ORDER BY attempt, step""",
        _place(run_id, after),
    )


def _series(store: Store, run_id: str, after: Position | None) -> Iterator[tuple[str, NDArray[Any], NDArray[Any], NDArray[Any]]]:
    keys = store.rows(
        "SELECT coalesce(metric, source_key) AS id, series_id, transform FROM series WHERE run_id = ? ORDER BY id, source_key", [run_id]
    )
    columns = store.columns(
        f"""SELECT series_id, attempt, step, avg(value) AS value FROM ({_behind("series_id, attempt, step, value", "point")})
            WHERE series_id IN (SELECT series_id FROM series WHERE run_id = $run) GROUP BY ALL ORDER BY series_id, attempt, step""",
        _place(run_id, after),
    )
    for metric, group in groupby(keys, key=itemgetter(0)):
        parts = [part for _, series, transform in group if len((part := _part(columns, series, transform))[1])]
        if parts:
            yield metric, *(parts[0] if len(parts) == 1 else _first_of(parts))


def _part(columns: Columns, series: int, transform: str | None) -> _Points:
    first, end = columns["series_id"].searchsorted(series), columns["series_id"].searchsorted(series, "right")
    values = columns["value"][first:end].astype(np.float64)
    if transform not in (None, "identity"):
        values = np.array([apply_transform(transform, value) for value in values.tolist()])
    return columns["attempt"][first:end], columns["step"][first:end], values


def _first_of(parts: list[_Points]) -> _Points:
    """Of several points at one place that of the first part."""
    attempts, steps, values = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    order = np.lexsort((steps, attempts))  # stable: equal places stay in the order of the parts
    attempts, steps, values = attempts[order], steps[order], values[order]
    new = np.ones(len(steps), np.bool_)
    new[1:] = (steps[1:] != steps[:-1]) | (attempts[1:] != attempts[:-1])
    return attempts[new], steps[new], values[new]
