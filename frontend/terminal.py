"""What a person sees on a terminal: tables and JSON on standard output, everything else on standard error."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TextIO

from ingest.text import visible, visible_line

_BAR = 24
_LEAST_SECONDS = 0.1


def out(text: str = "") -> None:
    """One line of a command's answer."""
    sys.stdout.write(text + "\n")


def out_now(text: str) -> None:
    """The same for a command that goes on: whoever waits behind a pipe sees the line at once."""
    out(text)
    sys.stdout.flush()


def out_json(value: object) -> None:
    """The answer as JSON, alone on standard output. Not-a-number and infinities are written as null."""
    json.dump(_finite(value), sys.stdout, ensure_ascii=True, indent=2, allow_nan=False)
    sys.stdout.write("\n")


def say(text: str) -> None:
    """A line of news or of an error: standard error, so that a pipe behind standard output stays clean."""
    sys.stderr.write(visible(text) + "\n")
    sys.stderr.flush()


def table(headers: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[int] = ()) -> None:
    """Rows under headers; text from logs has its control characters made visible; `right` are columns of numbers."""
    cells = [[visible_line(_cell(value)) for value in row] for row in rows]
    widths = [max([len(header), *(len(row[n]) for row in cells)]) for n, header in enumerate(headers)]
    for line in ([*headers], *cells):
        padded = [text.rjust(width) if n in right else text.ljust(width) for n, (text, width) in enumerate(zip(line, widths, strict=True))]
        out("  ".join(padded).rstrip())


def size(count: float) -> str:
    """Bytes for people: 3.4 MB."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def plural(count: int, one: str, many: str | None = None) -> str:
    """`1 file`, `2 files`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


class Bar:
    """A progress bar on a terminal; on anything else it draws nothing."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()
        self._drawn = 0.0
        self._width = 0

    def show(self, done: int, total: int, note: str = "") -> None:
        """Draws done of total bytes and a note, at most ten times a second."""
        now = time.monotonic()
        if not self._live or now - self._drawn < _LEAST_SECONDS:
            return
        self._drawn = now
        share = min(1.0, done / total) if total > 0 else 0.0
        bar = "#" * round(share * _BAR)
        text = visible_line(f"[{bar:<{_BAR}}] {share:4.0%}  {size(done)} of {size(max(done, total))}  {note}")
        text = text[: shutil.get_terminal_size().columns - 1]
        self._stream.write("\r" + text.ljust(self._width))
        self._stream.flush()
        self._width = len(text)

    def close(self) -> None:
        """Wipes the bar."""
        if self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()
            self._width = 0


class Counter:
    """How many of several things are done, on a terminal; on anything else it draws nothing."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()
        self._width = 0

    def show(self, done: int, total: int, note: str) -> None:
        """Draws done of total and a note."""
        if self._live:
            text = visible_line(f"{done:,} of {total:,}  {note}")[: shutil.get_terminal_size().columns - 1]
            self._stream.write("\r" + text.ljust(self._width))
            self._stream.flush()
            self._width = len(text)

    def close(self) -> None:
        """Wipes the line."""
        if self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()
            self._width = 0


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if value - value == 0.0 else None
    if isinstance(value, Mapping):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return value
