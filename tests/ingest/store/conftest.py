"""A store, and the two ways of reading trajectory lines into one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from ingest.schema.records import JsonSlice
from ingest.store import write
from ingest.store.connection import Store
from ingest.store.slices import read_slice
from ingest.store.sources import RunRow, SourceRow

Tables: TypeAlias = dict[str, list[tuple[Any, ...]]]
ReadBoth: TypeAlias = Callable[..., tuple[Tables, Tables]]

_JSON_COLUMNS = {"prompt_messages", "reward_parts", "sampling", "seconds", "extra", "tool_args"}
_ORDER = {"trajectory": "step, n", "token": "step, n", "turn": "step, n, turn", "reject": "line", "event": "step, text"}


@pytest.fixture
def store() -> Iterator[Store]:
    """An empty store in memory."""
    opened = Store(None)
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def run() -> RunRow:
    return RunRow("0123456789ab", "project", "name", "native", Path("/runs/name"))


@pytest.fixture(scope="session")
def tables_of() -> Callable[[Store], Tables]:
    """Everything that reading trajectories writes, with JSON as values and NaN as a text, so that equal means equal."""

    def tables(store: Store) -> Tables:
        found: Tables = {}
        for table, order in _ORDER.items():
            cursor = store.cursor().execute(f"SELECT * FROM {table} ORDER BY {order}")
            names = [column[0] for column in cursor.description]
            found[table] = [tuple(_plain(name, value) for name, value in zip(names, row, strict=True)) for row in cursor.fetchall()]
        return found

    return tables


def _plain(name: str, value: Any) -> Any:
    if name in _JSON_COLUMNS and value is not None:
        return _plain("", json.loads(value))
    if isinstance(value, float):
        return repr(value) if value != value else value
    if isinstance(value, list):
        return [_plain("", item) for item in value]
    if isinstance(value, dict):
        return {key: _plain("", item) for key, item in value.items()}
    return value


@pytest.fixture(scope="session")
def read_both(run: RunRow, tables_of: Callable[[Store], Tables]) -> ReadBoth:
    """Reads the same slices the fast way and line by line, each into a store of its own; what both hold."""

    def read(*slices: JsonSlice) -> tuple[Tables, Tables]:
        results = []
        for exact in (False, True):
            opened = Store(None)
            with pytest.MonkeyPatch.context() as patched:
                if exact:
                    patched.setattr(write, "read_slice", lambda item, _shape: read_slice(item, None))
                writer = write.SourceWriter(opened, run, SourceRow(-1, run.run_id, Path("/runs/rollouts.jsonl"), "native", "append"))
                for item in slices:
                    writer.add(item)
                writer.finish("print", 1, "read")
            results.append(tables_of(opened))
            opened.close()
        return results[0], results[1]

    return read
