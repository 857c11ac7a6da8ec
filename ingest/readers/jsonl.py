"""Reader of JSON lines of no particular trainer: metrics or trajectories, told apart by the names of their keys.

Reads metrics with any step column (see columns.py), wandb `history()` and `scan_history()` frames, callbacks' own logs
and rollouts with a prompt and a response under any of the usual names. A field that the file does not hold is null.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ingest.readers.base import Head, LongLine, whole_lines
from ingest.readers.columns import Table
from ingest.readers.lines import (
    BadLine,
    decode_object,
    numbered_lines,
    object_is_whole,
    sample_of,
    too_long,
)
from ingest.schema.records import Cursor, Growth, Item, Json, Reject

_CHUNK = 4 << 20
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]]')

__all__ = ["BadLine", "JsonlReader", "decode_object", "numbered_lines", "object_is_whole", "sample_of"]


@dataclass(frozen=True)
class JsonlReader:
    """Plain JSON lines."""

    name: str = "jsonl"
    framework: str = "plain"
    precedence: int = 20
    growth: Growth = "append"

    def sniff(self, head: Head) -> float:
        """Confidence that the file is this format, from its name and first bytes."""
        if head.name.lower().endswith(".json") and b"\n{" not in head.head:
            # One object: a summary, a configuration, a state. Lines of objects are called .jsonl or hold more than one.
            return 0.0
        record = first_object(head)
        return 0.3 if record is not None and Table.recognises(record) else 0.0

    def read(self, path: Path, cursor: Cursor) -> Iterator[Item]:
        """Items from the cursor on; see `Reader.read`."""
        table = Table(path, cursor.state)
        for chunk in whole_lines(path, cursor, _CHUNK, tail_complete=object_is_whole):
            if isinstance(chunk, LongLine):
                yield too_long(chunk, table.state())
                continue
            rows: list[tuple[int, int | None, dict[str, Json]]] = []
            for number, offset, line in numbered_lines(chunk.data, chunk.first_line, chunk.first_offset):
                try:
                    rows.append((number, offset, decode_object(line)))
                except BadLine as error:
                    yield Reject(number, offset, str(error), sample_of(line))
            yield from table.take(rows, Cursor(chunk.end_offset, chunk.end_line))


def first_object(head: Head) -> dict[str, Json] | None:
    """The first JSON object of a file; where its line is longer than the head, its keys with null values. None: no JSON lines."""
    lines = [line for line in head.head.split(b"\n") if line.strip()]
    if not lines or not lines[0].removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{"):
        return None
    for line in lines[:3]:
        try:
            return decode_object(line)
        except BadLine:
            continue
    if b"\n" not in head.head:
        return dict.fromkeys(_outer_keys(lines[0]))
    return None


def _outer_keys(begun: bytes) -> list[str]:
    """Names of the outermost keys in the beginning of an object whose end is not at hand."""
    depth, found = 0, []
    for token in _TOKEN.finditer(begun):
        text = token.group()
        if text in b"{[":
            depth += 1
        elif text in b"}]":
            depth -= 1
        elif depth == 1 and begun[token.end() : token.end() + 2].lstrip().startswith(b":"):
            found.append(text[1:-1].decode("utf-8", "replace"))
    return found
