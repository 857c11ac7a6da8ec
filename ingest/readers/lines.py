"""Decoding of JSON lines as trainers write them: literal NaN and Infinity, half-written tails, exact reasons."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import NoReturn

from ingest.readers.base import LongLine
from ingest.schema.records import Cursor, Json, Reject

UTF8_MARK = b"\xef\xbb\xbf"
"""Byte order mark that Windows programs write before UTF-8; it is no part of the first line."""

LARGEST_STEP = 2**53

MAX_DEPTH_MESSAGE = "nested too deeply to read"


class BadLine(ValueError):
    """A line that is not one JSON object; the message is the reason shown in the rejects."""


def decode_object(line: bytes) -> dict[str, Json]:
    """The JSON object of one line.

    NaN, Infinity and -Infinity are read as themselves. Duplicate keys, literals too large for a double and anything
    but one object are refused.

    Raises:
        BadLine: with the reason.
    """
    try:
        text = line.removeprefix(UTF8_MARK).decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadLine(f"not UTF-8 at byte {error.start} of the line") from None
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_float=_finite, parse_int=int)
    except json.JSONDecodeError as error:
        raise BadLine(f"not JSON: {error.msg} at character {error.pos + 1}") from None
    except RecursionError:
        raise BadLine(MAX_DEPTH_MESSAGE) from None
    except BadLine:
        raise
    except ValueError as error:
        raise BadLine(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadLine(f"a JSON object was expected, got {type(value).__name__}")
    return value


def object_is_whole(tail: bytes) -> bool:
    """True if a last line without newline is one complete JSON object."""
    if not tail.rstrip().endswith(b"}"):
        return False
    try:
        decode_object(tail)
    except BadLine:
        return False
    return True


def numbered_lines(data: bytes, first_line: int, first_offset: int) -> Iterator[tuple[int, int, bytes]]:
    """(line number, byte offset, bytes without line end) of each line that is not blank."""
    offset = first_offset
    for number, raw in enumerate(data.split(b"\n"), first_line):
        stripped = raw.rstrip(b"\r")
        if stripped.strip():
            yield number, offset, stripped
        offset += len(raw) + 1


def sample_of(line: bytes) -> str:
    """The first 200 characters of a line, undecodable bytes shown as replacement characters."""
    return line[:800].decode("utf-8", "replace")[:200]


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise BadLine(f"the key {key!r} occurs twice")
            seen.add(key)
    return result


def _finite(literal: str) -> float:
    value = float(literal)
    if math.isinf(value):
        _too_large(literal)
    return value


def _too_large(literal: str) -> NoReturn:
    raise BadLine(f"the number {literal} is too large for a double")


def too_long(line: LongLine, state: Mapping[str, Json]) -> Reject:
    """The reject of a line beyond the limit, with the cursor after it."""
    after = Cursor(line.end_offset, line.number, state)
    return Reject(line.number, line.offset, "the line is longer than 64 MiB", sample_of(line.sample), after)


def as_number(value: Json) -> float | None:
    """A number, also one written as a string; None for anything else (booleans are not numbers)."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, (int, float)):
        try:
            return float(value)
        except OverflowError:
            return None
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return None
    return None


def whole_number(value: Json) -> int | None:
    """An integer, also one written as 3.0 or as a string; None for anything else, and beyond 2^53, where doubles skip integers."""
    number = as_number(value)
    return int(number) if number is not None and abs(number) <= LARGEST_STEP and number.is_integer() else None
