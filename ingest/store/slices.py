"""Loading a slice of trajectory lines, exactly: a value that cannot be taken as it is becomes a reject with its line."""

from __future__ import annotations

from dataclasses import dataclass, field

import duckdb

from ingest.readers.jsonl import BadLine, decode_object, numbered_lines, sample_of
from ingest.schema.records import JsonSlice
from ingest.store.attempts import Attempts
from ingest.store.rows import BadRow, StoredTrajectory, integer, stored


@dataclass
class Loaded:
    """What became of a slice: rows stored, the newest step, and (line, offset, reason, sample) of each reject."""

    rows: int = 0
    newest_step: int | None = None
    rejects: list[tuple[int | None, int | None, str, str]] = field(default_factory=list)


def load_slice(connection: duckdb.DuckDBPyConnection, item: JsonSlice, run_id: str, source_id: int, attempts: Attempts) -> Loaded:
    """Stores the trajectories of a slice inside the open transaction."""
    from ingest.store.write import insert_trajectories

    loaded = Loaded()
    good: list[tuple[int, int, StoredTrajectory]] = []
    for number, offset, line in numbered_lines(item.data, item.first_line, item.first_offset):
        try:
            fields = {item.rename.get(key, key): value for key, value in decode_object(line).items()}
            for key, value in item.defaults.items():
                fields.setdefault(key, value)
            step = integer("step", fields.get("step"))
            if step is None:
                raise BadRow("no step")
            row = stored(fields)
            attempt = attempts.of_trajectory(step, integer("attempt", fields.get("attempt")))
            good.append((attempt, step, row))
        except (BadLine, BadRow) as error:
            loaded.rejects.append((number, offset, str(error), sample_of(line)))
    insert_trajectories(connection, run_id, source_id, good)
    loaded.rows = len(good)
    loaded.newest_step = max((step for _, step, _ in good), default=None)
    return loaded
