"""A service with its stores in memory, and runs made of files as a trainer would write them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import pytest

from ingest.discover import discover
from ingest.load import load_run
from ingest.store.connection import Store
from server.backtests import Backtests
from server.control.models import Control
from server.hub import Hub

MakeRun: TypeAlias = Callable[..., str]


@pytest.fixture
def service() -> Iterator[Any]:
    """What pages use of a service: store, control, hub, settings, backtests (not started: orders wait)."""
    store, control = Store(None), Control("sqlite://")
    control.migrate()
    yield SimpleNamespace(
        store=store, control=control, hub=Hub(), backtests=Backtests(store, control), settings=SimpleNamespace(demo=False)
    )
    control.close()
    store.close()


@pytest.fixture
def make_run(service: Any, tmp_path: Path) -> MakeRun:
    """Writes and reads a native run; its id. rows: metric records, steps counted from 0 unless given."""

    def make(
        name: str = "run-a",
        rows: Sequence[Mapping[str, Any]] = (),
        config: Mapping[str, Any] | None = None,
        events: Sequence[Mapping[str, Any]] = (),
        rollouts: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        folder = tmp_path / "project" / name
        folder.mkdir(parents=True)
        lines = [json.dumps({"step": step, **row}) for step, row in enumerate(rows)]
        if lines:
            (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
        if config is not None:
            (folder / "config.json").write_text(json.dumps(config))
        if events:
            (folder / "events.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))
        if rollouts:
            (folder / "rollouts.jsonl").write_text("".join(f"{json.dumps(rollout)}\n" for rollout in rollouts))
        found, _ = discover([folder])
        (run,) = found
        for result in load_run(service.store, run):
            assert result.state != "rejected", result.reason
        return run.run_id

    return make


def words_of(component: Any) -> str:
    """Every text in a component tree, in order, as one string."""
    if component is None or isinstance(component, bool):
        return ""
    if isinstance(component, str | int | float):
        return str(component)
    if isinstance(component, list | tuple):
        return " ".join(filter(None, (words_of(item) for item in component)))
    return words_of(getattr(component, "children", None))


@pytest.fixture(name="words_of")
def _words_of() -> Callable[[Any], str]:
    """The function that collects the texts of a page."""
    return words_of
