"""Reader of CSV tables with a header row: metrics or trajectories, found by column names (see columns.py).

Cells may be quoted and hold line ends; numbers are texts in every CSV; an unnamed first column is pandas' row index.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ingest.errors import ReaderError
from ingest.readers.base import Chunk, Head, LongLine, whole_lines
from ingest.readers.columns import Table
from ingest.readers.lines import UTF8_MARK, as_number, sample_of, too_long
from ingest.schema.records import Cursor, Growth, Item, Json, Reject

_CHUNK = 4 << 20
csv.field_size_limit(64 << 20)


class Record(NamedTuple):
    """One CSV record: its first line, where it begins and ends, and its cells (None: it cannot be read, with the reason)."""

    line: int
    offset: int
    end_line: int
    end_offset: int
    cells: list[str] | None
    reason: str
    raw: bytes


@dataclass(frozen=True)
class CsvReader:
    """A plain table."""

    name: str = "csv"
    framework: str = "plain"
    precedence: int = 20
    growth: Growth = "append"

    def sniff(self, head: Head) -> float:
        """Confidence that the file is this format, from its name and first bytes."""
        header = header_of(head.head)
        if header is None or not head.name.lower().endswith((".csv", ".tsv")):
            return 0.0
        return 0.3 if Table.recognises(dict.fromkeys(header)) else 0.0

    def read(self, path: Path, cursor: Cursor) -> Iterator[Item]:
        """Items from the cursor on; see `Reader.read`."""
        saved = cursor.state.get("header")
        header = [str(name) for name in saved] if isinstance(saved, list) else None
        table = Table(path, cursor.state)
        delimiter = "\t" if path.name.lower().split(".")[-1] == "tsv" else ","
        for group in records(path, cursor, delimiter):
            if isinstance(group, LongLine):
                yield too_long(group, {**table.state(), "header": list(header or [])})
                continue
            rows: list[tuple[int, int | None, dict[str, Json]]] = []
            for record in group:
                if header is None and record.cells is not None:
                    header = record.cells
                    continue
                row = _row(record, header or [])
                if isinstance(row, str):
                    yield Reject(record.line, record.offset, row, sample_of(record.raw))
                else:
                    rows.append((record.line, record.offset, row))
            last = group[-1]
            for item in table.take(rows, Cursor(last.end_offset, last.end_line)):
                yield with_state(item, header=list(header or []))


def with_state(item: Item, **more: Json) -> Item:
    """The item with more in its cursor's state."""
    from dataclasses import replace

    if item.cursor is None:
        return item
    return replace(item, cursor=Cursor(item.cursor.offset, item.cursor.line, {**item.cursor.state, **more}))


def _row(record: Record, header: Sequence[str]) -> dict[str, Json] | str:
    """The record as a row; empty cells are absent. A text where it cannot be one: the reason."""
    if record.cells is None:
        return record.reason
    if len(record.cells) != len(header):
        return f"{len(record.cells)} cells, the header has {len(header)}"
    return {name: cell for name, cell in zip(header, record.cells, strict=True) if cell.strip()}


def header_of(head: bytes) -> list[str] | None:
    """The cells of a header row; None if the first row holds numbers or no text, or is not finished within the head."""
    first, newline, _ = head.removeprefix(UTF8_MARK).partition(b"\n")
    if not newline or b"\0" in first:
        return None
    try:
        text = first.decode("utf-8").rstrip("\r")
        cells = next(csv.reader(io.StringIO(text), delimiter="\t" if "\t" in text and "," not in text else ","), [])
    except (UnicodeDecodeError, csv.Error):
        return None
    named = [cell for cell in cells if cell.strip()]
    if len(named) < 2 or any(as_number(cell) is not None for cell in named):
        return None
    return cells


def records(path: Path, cursor: Cursor, delimiter: str = ",") -> Iterator[list[Record] | LongLine]:
    """Lists of whole records from the cursor on; a record whose quotes are still open at the end of the file stays for later.

    Raises:
        ReaderError: the file is UTF-16.
    """
    carried, line, offset = b"", 0, 0
    for chunk in whole_lines(path, cursor, _CHUNK):
        if isinstance(chunk, LongLine):
            yield chunk
            continue
        if chunk.first_offset == 0 and chunk.data[:2] in (b"\xff\xfe", b"\xfe\xff"):
            raise ReaderError(f"{path} is UTF-16 text, UTF-8 was expected. Convert it: iconv -f UTF-16 -t UTF-8.")
        if not carried:
            line, offset = chunk.first_line, chunk.first_offset
        data = carried + chunk.data
        found, used_lines, used = _split(data, line, offset, delimiter)
        if found:
            yield found
        carried, line, offset = data[used:], line + used_lines, offset + used
        if len(carried) > 4 * _CHUNK:
            raise ReaderError(f"{path}: a quoted cell that begins in line {line} does not end within 16 MiB. Close the quote.")


def _split(data: bytes, line: int, offset: int, delimiter: str) -> tuple[list[Record], int, int]:
    """The whole records of the data, and the lines and bytes they cover."""
    found: list[Record] = []
    at, number, start, first = 0, line, 0, line
    while at < len(data):
        end = data.find(b"\n", at)
        end = len(data) if end < 0 else end + 1
        number += 1
        at = end
        raw = data[start:at]
        if raw.count(b'"') % 2:
            continue
        if raw.strip():
            cells, reason = _cells(raw, delimiter)
            found.append(Record(first, offset + start, number - 1, offset + at, cells, reason, raw))
        start, first = at, number
    return found, first - line, start


def _cells(raw: bytes, delimiter: str) -> tuple[list[str] | None, str]:
    try:
        text = raw.removeprefix(UTF8_MARK).decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        return None, f"not UTF-8 at byte {error.start} of the line"
    if "\0" in text:
        return None, "a NUL byte in the line"
    try:
        return next(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter), []), ""
    except csv.Error as error:
        return None, f"not CSV: {error}"


__all__ = ["Chunk", "CsvReader", "Record", "header_of", "records", "with_state"]
