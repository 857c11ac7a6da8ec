"""What a reader yields and what the store takes. One word has one meaning here and everywhere above."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

SourceState = Literal["read", "followed", "unchanged", "rejected", "ignored"]
Growth = Literal["append", "whole"]


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far a source has been read.

    offset: bytes of the (decompressed) stream that are covered; line: lines covered, so the next line is line + 1;
    state: what the reader must remember between two reads (JSON values only), for example the newest attempt.
    """

    offset: int = 0
    line: int = 0
    state: Mapping[str, Json] = field(default_factory=dict)


class MetricRow(NamedTuple):
    """One logged record: source keys exactly as logged, numbers as logged (NaN and infinities stay themselves)."""

    step: int
    values: Mapping[str, float]
    wall_time: float | None = None
    """Unix seconds, or None where the trainer writes none."""
    attempt: int | None = None
    """None: the loader derives it (a step that goes back starts a new attempt)."""


class TrajectoryRow(NamedTuple):
    """One trajectory in the field names of the native format (contracts.md); unknown keys go to `extra` in the store."""

    step: int
    fields: Mapping[str, Json]
    attempt: int | None = None
    line: int | None = None
    """Line (JSONL, CSV) or row (Parquet) in its file, counted from 1, for an exact reject."""
    offset: int | None = None
    """Byte offset of that line; None where the format has none."""


class EventRow(NamedTuple):
    """Something that happened to the run: resume, checkpoint, config, curriculum, eval, restart, crash, note."""

    step: int
    kind: str
    text: str
    attempt: int | None = None
    wall_time: float | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows that a reader has parsed itself, with the cursor after them."""

    cursor: Cursor
    metrics: tuple[MetricRow, ...] = ()
    trajectories: tuple[TrajectoryRow, ...] = ()
    events: tuple[EventRow, ...] = ()
    config: Mapping[str, Json] | None = None
    note: str | None = None
    """A sentence for the Sources page, for example why rows were not counted twice."""
    framework_version: str | None = None
    """What the file says about the trainer (see `metrics.resolve`), or None. Known keys of the run get their meaning anew."""
    transforms: Mapping[str, str] = field(default_factory=dict)
    """How this reader changed values on the way, by source key, for example null_as_nonfinite."""


@dataclass(frozen=True, slots=True)
class JsonSlice:
    """Whole JSONL lines of trajectories that the store loads by DuckDB's own reader and checks strictly.

    rename maps the file's keys to native names; defaults gives native fields that the file cannot hold
    (for example split); first_line is the number of the first line in the file, counted from 1.
    """

    cursor: Cursor
    data: bytes
    first_line: int
    first_offset: int
    rename: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reject:
    """One row that was not taken. line counts from 1; sample is the first 200 characters."""

    line: int | None
    offset: int | None
    reason: str
    sample: str
    cursor: Cursor | None = None


Item: TypeAlias = Batch | JsonSlice | Reject
