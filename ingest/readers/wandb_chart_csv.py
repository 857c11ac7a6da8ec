"""Reader of the CSV that a wandb chart exports: per run and metric three columns, the value, `__MIN` and `__MAX`.

Columns are named `{run} - {metric}`, `{run} - {metric}__MIN`, `{run} - {metric}__MAX` after one column of the chart's x
axis (as in gradio-app/trackio:examples/logs.csv). One export may hold several runs: `parts` names them and a reader made
`for_part` reads one. Long runs are reported to be sampled, so the extremes are kept as series of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ingest.readers.base import Head, LongLine, open_binary
from ingest.readers.csv import Record, header_of, records
from ingest.readers.dialects import dialect
from ingest.readers.lines import as_number, sample_of, too_long, whole_number
from ingest.schema.metrics import resolve
from ingest.schema.records import Batch, Cursor, Growth, Item, MetricRow, Reject

_OWN_STEP = "_step"
_HEADER_BYTES = 4 << 20


@dataclass(frozen=True)
class WandbChartReader:
    """One run's columns of a chart export; part None: the first run in it, which is mostly the only one."""

    name: str = "wandb-chart-csv"
    framework: str = "plain"
    precedence: int = 40
    growth: Growth = "append"
    part: str | None = None

    def sniff(self, head: Head) -> float:
        """Confidence that the file is this format, from its name and first bytes."""
        header = header_of(head.head)
        if header is None:
            return 0.0
        paired = [cell for cell in header[1:] if cell.endswith("__MIN") and " - " in cell]
        return 0.8 if paired else 0.0

    def parts(self, path: Path) -> tuple[str, ...]:
        """The display names of the runs in the export, in the order of their columns."""
        with open_binary(path) as stream:
            header = header_of(stream.read(_HEADER_BYTES)) or []
        return tuple(dict.fromkeys(run for run, _ in _columns(header).values()))

    def for_part(self, part: str) -> WandbChartReader:
        """The reader of one of the runs."""
        return replace(self, part=part)

    def read(self, path: Path, cursor: Cursor) -> Iterator[Item]:
        """Items from the cursor on; see `Reader.read`."""
        saved = cursor.state.get("header")
        header = [str(name) for name in saved] if isinstance(saved, list) else None
        runs = self.parts(path)
        mine = self if self.part is not None or not runs else self.for_part(runs[0])
        for group in records(path, cursor):
            if isinstance(group, LongLine):
                yield too_long(group, {"header": list(header or [])})
                continue
            rows: list[MetricRow] = []
            for record in group:
                if header is None and record.cells is not None:
                    header = record.cells
                    continue
                row = mine._row(record, header or [])
                if isinstance(row, str):
                    yield Reject(record.line, record.offset, row, sample_of(record.raw))
                elif row is not None:
                    rows.append(row)
            last = group[-1]
            yield Batch(
                Cursor(last.end_offset, last.end_line, {"header": list(header or [])}),
                metrics=tuple(rows),
                framework_version=dialect(metric for run, metric in _columns(header or []).values() if run == mine.part),
                note="an exported chart: values of long runs are sampled; the largest and smallest are series of their own",
            )

    def _row(self, record: Record, header: Sequence[str]) -> MetricRow | str | None:
        """This run's values of a record; None where it has no point there, a text where the record cannot be read."""
        if record.cells is None:
            return record.reason
        if len(record.cells) != len(header):
            return f"{len(record.cells)} cells, the header has {len(header)}"
        values: dict[str, float] = {}
        for index, (run, metric) in _columns(header).items():
            number = as_number(record.cells[index])
            if number is not None and run == self.part:
                values[metric] = number
        if not values:
            return None
        step = whole_number(record.cells[0])
        own = values.get(_OWN_STEP)
        if step is None and own is not None:
            # An axis such as epoch: wandb adds its own counter, the only whole number to go by.
            step = whole_number(own)
        if step is None:
            return f"no integer in the column of the x axis {header[0]!r}: got {record.cells[0][:60]!r}"
        return MetricRow(step, {key: value for key, value in values.items() if not key.startswith(_OWN_STEP)})


def _columns(header: Sequence[str]) -> dict[int, tuple[str, str]]:
    """Column number -> (run, metric with its __MIN or __MAX)."""
    return {index: _split(cell) for index, cell in enumerate(header) if index and " - " in cell}


def _split(cell: str) -> tuple[str, str]:
    """Run and metric of a column name.

    Run names may hold ` - ` too: the split is at the last one that leaves a metric that is known, else at the last one.
    """
    places = [found.start() for found in re.finditer(" - ", cell)]
    for place in reversed(places):
        metric = cell[place + 3 :]
        bare = metric.removesuffix("__MIN").removesuffix("__MAX")
        if bare == _OWN_STEP or resolve(bare, "plain", dialect([bare]) or "trl").metric:
            return cell[:place], metric
    return cell[: places[-1]], cell[places[-1] + 3 :]
