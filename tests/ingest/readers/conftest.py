"""Reading a file to its end, and the recorded samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ingest.discover import FoundFile, take
from ingest.readers.base import Reader
from ingest.schema.records import Batch, Cursor, EventRow, Json, JsonSlice, MetricRow, Reject, TrajectoryRow

DATA = Path(__file__).resolve().parents[2] / "data"


@dataclass
class Taken:
    """Everything a reader yielded for one file."""

    metrics: list[MetricRow] = field(default_factory=list)
    trajectories: list[TrajectoryRow] = field(default_factory=list)
    events: list[EventRow] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)
    slices: list[JsonSlice] = field(default_factory=list)
    config: dict[str, Json] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    versions: list[str] = field(default_factory=list)
    transforms: dict[str, str] = field(default_factory=dict)
    cursors: list[Cursor] = field(default_factory=list)

    def series(self, key: str) -> list[tuple[int, float]]:
        """(step, value) of one source key."""
        return [(row.step, row.values[key]) for row in self.metrics if key in row.values]


Read = Callable[..., Taken]


@pytest.fixture(scope="session")
def data() -> Path:
    return DATA


@pytest.fixture(scope="session")
def read() -> Read:
    def read_all(path: Path, cursor: Cursor | None = None, reader: Reader | None = None) -> Taken:
        if reader is None:
            found = take(path)
            assert isinstance(found, FoundFile), found
            reader = found.reader
        taken = Taken()
        for item in reader.read(path, cursor or Cursor()):
            if item.cursor is not None:
                taken.cursors.append(item.cursor)
            if isinstance(item, Batch):
                taken.metrics += item.metrics
                taken.trajectories += item.trajectories
                taken.events += item.events
                taken.config |= item.config or {}
                taken.notes += [item.note] if item.note else []
                taken.versions += [item.framework_version] if item.framework_version else []
                taken.transforms |= item.transforms
            elif isinstance(item, JsonSlice):
                taken.slices.append(item)
            else:
                taken.rejects.append(item)
        return taken

    return read_all
