"""Reader of verl's `file` logger: one JSONL a run, lines `{"step": n, "data": {name: value}}` (verl/utils/tracking.py, since 0.6).

0.6 wrote literal NaN and Infinity; since 0.7 a non-finite value is null, which is read as NaN. Several lines may share
a step (fully asynchronous trainer, validation). The file is opened for overwriting, so a resume erases its beginning:
the store then starts a new attempt. Not in the file: the configuration, the standard deviation of the reward.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ingest.readers.base import Head, LongLine, whole_lines
from ingest.readers.dialects import verl_trainer
from ingest.readers.jsonl import first_object
from ingest.readers.lines import BadLine, as_number, decode_object, numbered_lines, object_is_whole, sample_of, too_long, whole_number
from ingest.schema.records import Batch, Cursor, Growth, Item, Json, MetricRow, Reject


@dataclass(frozen=True)
class VerlFileLoggerReader:
    """Metrics of a verl run."""

    name: str = "verl-file-logger"
    framework: str = "verl"
    precedence: int = 50
    growth: Growth = "append"

    def sniff(self, head: Head) -> float:
        """Confidence that the file is this format, from its name and first bytes."""
        record = first_object(head)
        if record is None:
            return 0.0
        # In a first line longer than the head the values are not known, only the keys.
        known = isinstance(record.get("data"), dict) or record.get("data", 0) is None
        return 0.95 if set(record) == {"step", "data"} and known else 0.0

    def read(self, path: Path, cursor: Cursor) -> Iterator[Item]:
        """Items from the cursor on; see `Reader.read`."""
        known = cursor.state.get("trainer")
        trainer = known if isinstance(known, str) else None
        for chunk in whole_lines(path, cursor, 4 << 20, tail_complete=object_is_whole):
            if isinstance(chunk, LongLine):
                yield too_long(chunk, {"trainer": trainer})
                continue
            rows: list[MetricRow] = []
            nulls: set[str] = set()
            for number, offset, line in numbered_lines(chunk.data, chunk.first_line, chunk.first_offset):
                try:
                    row = _row(decode_object(line), nulls)
                except BadLine as error:
                    yield Reject(number, offset, str(error), sample_of(line))
                    continue
                trainer = trainer or verl_trainer(row.values)
                rows.append(row)
            yield Batch(
                Cursor(chunk.end_offset, chunk.end_line, {"trainer": trainer}),
                metrics=tuple(rows),
                framework_version=trainer,
                transforms=dict.fromkeys(sorted(nulls), "null_as_nonfinite"),
            )


def _row(record: dict[str, Json], nulls: set[str]) -> MetricRow:
    """One line; names of null values are added to `nulls`.

    Raises:
        BadLine: no integer step, or no object under `data`.
    """
    step, data = whole_number(record.get("step")), record.get("data")
    if step is None:
        raise BadLine(f"no integer 'step': got {str(record.get('step'))[:60]!r}")
    if not isinstance(data, dict):
        raise BadLine(f"an object under 'data' was expected, got {type(data).__name__}")
    values: dict[str, float] = {}
    for key, value in data.items():
        if value is None:
            nulls.add(key)
            values[key] = float("nan")
            continue
        number = as_number(value)
        if number is not None:
            values[key] = number
    return MetricRow(step, values)
