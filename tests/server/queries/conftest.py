"""A store with one run whose rollouts a test writes out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ingest.discover import discover
from ingest.load import load_run
from ingest.store.connection import Store


@pytest.fixture
def store() -> Iterator[Store]:
    """An empty store in memory."""
    opened = Store(None)
    yield opened
    opened.close()


@pytest.fixture
def read_rollouts(store: Store, tmp_path: Path) -> Callable[[Sequence[Mapping[str, Any]]], str]:
    """Reads rollouts in the native format as one run; its id."""

    def read(rollouts: Sequence[Mapping[str, Any]]) -> str:
        folder = tmp_path / "project" / "run"
        folder.mkdir(parents=True)
        (folder / "rollouts.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rollouts))
        (found,), _ = discover([folder])
        for result in load_run(store, found):
            assert result.rejected == 0, result.reason
        return found.run_id

    return read
