"""Which files were read, how far, and what was not taken."""

from __future__ import annotations

from dataclasses import dataclass

from ingest.store.connection import Store


@dataclass(frozen=True, slots=True)
class Source:
    """One file of a run. newest_step: null before a row with a step; updated: Unix seconds of the last commit;
    growth: append (followed by offset) or whole (written anew now and then); note: what a person should know."""

    source_id: int
    run_id: str
    project: str
    run: str
    path: str
    reader: str
    growth: str
    state: str
    bytes: int
    rows: int
    rejected: int
    newest_step: int | None
    updated: float
    note: str | None


@dataclass(frozen=True, slots=True)
class RejectedRow:
    """One row that was not taken. line from 1, null where the format has none; sample: first 200 characters."""

    source_id: int
    line: int | None
    byte_offset: int | None
    reason: str
    sample: str


@dataclass(frozen=True, slots=True)
class RejectReason:
    """How often one reason turned rows of a source away, and the first such row."""

    source_id: int
    reason: str
    count: int
    first_line: int | None
    sample: str


def sources(store: Store, run_id: str | None = None) -> list[Source]:
    """Every source (of one run, or of all), run by run: runs with rejects first, then those with the newest rows."""
    rows = store.rows(
        """SELECT s.source_id, s.run_id, r.project, r.name, s.path, s.reader, s.growth, s.state, s.bytes, s.rows, s.rejected,
                  s.newest_step, s.updated, s.note
           FROM source s JOIN run r USING (run_id) WHERE ? IS NULL OR s.run_id = ?
           WINDOW run AS (PARTITION BY s.run_id)
           ORDER BY max(s.rejected > 0) OVER run DESC, max(s.updated) OVER run DESC, s.run_id, s.rejected > 0 DESC, s.path""",
        [run_id, run_id],
    )
    return [Source(*row) for row in rows]


def reject_reasons(store: Store, source_ids: list[int]) -> list[RejectReason]:
    """The reasons of some sources with their counts, the most frequent first."""
    rows = store.rows(
        """SELECT source_id, reason, count(*) AS n, min(line), arg_min(sample, coalesce(line, 0))
           FROM reject WHERE list_contains(?, source_id) GROUP BY ALL ORDER BY source_id, n DESC, reason""",
        [source_ids],
    )
    return [RejectReason(*row) for row in rows]


def rejects(store: Store, source_id: int, limit: int = 100) -> list[RejectedRow]:
    """The first rejected rows of a source in order of place."""
    rows = store.rows(
        "SELECT source_id, line, byte_offset, reason, sample FROM reject WHERE source_id = ? ORDER BY line, byte_offset LIMIT ?",
        [source_id, limit],
    )
    return [RejectedRow(*row) for row in rows]
