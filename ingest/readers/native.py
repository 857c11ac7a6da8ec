"""Reader of the native folder (contracts.md): metrics.jsonl, rollouts.jsonl, config.json, events.jsonl.

Each may be .gz or .zst. Nothing is renamed: the files use the store's own names.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ingest.errors import ReaderError
from ingest.readers.base import Chunk, Head, LongLine, bare_name, open_binary, whole_lines
from ingest.readers.jsonl import first_object
from ingest.readers.lines import BadLine, as_number, decode_object, numbered_lines, object_is_whole, sample_of, whole_number
from ingest.schema.metrics import metric
from ingest.schema.records import Batch, Cursor, EventRow, Growth, Item, Json, JsonSlice, MetricRow, Reject

CONFIG_NAMES = {"config.json", "run_params.json", "hparams.json", "hyperparameters.json", "training_args.json", "params.json"}
"""Names of files that hold a run's hyper-parameters and nothing else."""

_FILES = {"metrics.jsonl", "rollouts.jsonl", "events.jsonl", *CONFIG_NAMES}
_ABOUT_THE_RECORD = {"step", "wall_time", "attempt"}


@dataclass(frozen=True)
class NativeReader:
    """The format anyone can write."""

    name: str = "native"
    framework: str = "native"
    precedence: int = 70
    growth: Growth = "append"

    def sniff(self, head: Head) -> float:
        """Confidence that the file is this format, from its name and first bytes."""
        if head.name not in _FILES:
            return 0.0
        first = head.head.lstrip()[:1]
        if head.name in CONFIG_NAMES:
            return 0.9 if first == b"{" else 0.0
        if head.name == "metrics.jsonl":
            # Any trainer may call its log metrics.jsonl: native is what uses at least one of the vocabulary's names.
            record = first_object(head) or {}
            return 0.9 if "step" in record and any(metric(key) for key in record) else 0.0
        if head.name == "rollouts.jsonl":
            line = head.head.split(b"\n", 1)[0]
            return 0.9 if b'"trajectory_id"' in line or b'"group_id"' in line else 0.0
        return 0.9 if first == b"{" or not first else 0.0

    def read(self, path: Path, cursor: Cursor) -> Iterator[Item]:
        """Items from the cursor on; see `Reader.read`."""
        kind = path.name.split(".")[0]
        if bare_name(path) in CONFIG_NAMES:
            yield read_config(path)
            return
        for chunk in whole_lines(path, cursor, tail_complete=object_is_whole):
            if isinstance(chunk, LongLine):
                after = Cursor(chunk.end_offset, chunk.number)
                yield Reject(chunk.number, chunk.offset, "the line is longer than 64 MiB", sample_of(chunk.sample), after)
            elif kind == "rollouts":
                yield JsonSlice(Cursor(chunk.end_offset, chunk.end_line), chunk.data, chunk.first_line, chunk.first_offset)
            else:
                yield from self._records(kind, chunk)

    def _records(self, kind: str, chunk: Chunk) -> Iterator[Item]:
        metrics: list[MetricRow] = []
        events: list[EventRow] = []
        for number, offset, line in numbered_lines(chunk.data, chunk.first_line, chunk.first_offset):
            try:
                record = decode_object(line)
                if kind != "events":
                    metrics.append(metric_row(record))
                else:
                    events.append(_event_row(record))
            except BadLine as error:
                yield Reject(number, offset, str(error), sample_of(line))
        yield Batch(Cursor(chunk.end_offset, chunk.end_line), metrics=tuple(metrics), events=tuple(events))


def read_config(path: Path) -> Batch:
    """The configuration of one JSON file as a Batch.

    Raises:
        ReaderError: the file is not one JSON object.
    """
    with open_binary(path) as stream:
        raw = stream.read()
    try:
        config = decode_object(raw)
    except BadLine as error:
        raise ReaderError(f"{path} was read as a configuration: {error}. One JSON object was expected.") from None
    return Batch(Cursor(len(raw), raw.count(b"\n")), config=config)


def metric_row(record: Mapping[str, Json]) -> MetricRow:
    """A metrics record: every key with a number, numbers written as strings included.

    Raises:
        BadLine: no integer step.
    """
    values: dict[str, float] = {}
    for key, value in record.items():
        if key in _ABOUT_THE_RECORD:
            continue
        number = as_number(value)
        if number is not None:
            values[key] = number
    wall_time = as_number(record.get("wall_time"))
    attempt = record.get("attempt")
    return MetricRow(step_of(record), values, wall_time, attempt if isinstance(attempt, int) else None)


def step_of(record: Mapping[str, Json], key: str = "step") -> int:
    """The integer step of a record.

    Raises:
        BadLine: absent or not an integer.
    """
    value = whole_number(record.get(key))
    if value is None:
        raise BadLine(f"no integer {key!r}: got {json.dumps(record.get(key))[:80]}")
    return value


def _event_row(record: Mapping[str, Json]) -> EventRow:
    kind, text, attempt = record.get("kind"), record.get("text"), record.get("attempt")
    return EventRow(
        step_of(record),
        kind if isinstance(kind, str) else "note",
        text if isinstance(text, str) else json.dumps(text),
        attempt if isinstance(attempt, int) else None,
        as_number(record.get("wall_time")),
    )
