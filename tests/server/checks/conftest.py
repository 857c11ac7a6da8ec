"""Runs for checks: rows through the native reader, series by hand, and the view of a step."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ingest.discover import discover
from ingest.load import identify
from ingest.load import load_run as read_run
from ingest.store.connection import Store
from server.checks.base import Finding
from server.queries.facts import add_facts
from server.queries.run_data import load_run
from server.queries.view import Event, RunData, RunFacts, RunView

Rows = Sequence[Mapping[str, Any]]


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    """One store a module: opening it costs more than a test."""
    opened = Store(None)
    yield opened
    opened.close()


@pytest.fixture
def view(store: Store, tmp_path: Path) -> Callable[..., RunView]:
    """Makes a run of rollout rows and of series (step to value) and looks at its last step, or at the one that is given."""
    made = itertools.count()

    def build(
        rows: Rows = (),
        series: Mapping[str, Mapping[int, float]] | None = None,
        config: Mapping[str, Any] | None = None,
        events: Sequence[tuple[int, str]] = (),
        step: int | None = None,
        second: RunView | None = None,
    ) -> RunView:
        data = _read(store, tmp_path / f"run{next(made)}", rows) if rows else RunData(store, _facts({}), (), {1: 1})
        data.run = replace(data.run, config=dict(config or {}), raw_config=dict(config or {}))
        data.events = tuple(Event(1, at, kind, f"{kind} at {at}") for at, kind in events)
        data.second = second.data if second is not None else None
        for metric, points in (series or {}).items():
            data.add(metric, [1] * len(points), list(points), list(points.values()))
        last = max((place[1] for place in data.judge_order()), default=1)
        return RunView(data, 1, last if step is None else step)

    return build


def _facts(config: Mapping[str, Any]) -> RunFacts:
    return RunFacts("run", "tests", "run", "native", None, config, config)


def _read(store: Store, folder: Path, rows: Rows) -> RunData:
    folder.mkdir()
    full = [{"step": 1, "trajectory_id": f"t{n}", "finish_reason": "stop", **row} for n, row in enumerate(rows)]
    (folder / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in full))
    found = discover([folder])[0][0]
    assert all(result.rejected == 0 for result in read_run(store, found))
    data = load_run(store, identify(store, found).run_id)
    add_facts(data)
    return data


@pytest.fixture
def seen() -> Callable[..., Finding]:
    """A finding that began at a step."""
    return lambda onset=1, metric=None: Finding("engine-mismatch", "warn", onset, "it differs", metric)
