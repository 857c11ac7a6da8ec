"""CSV that a spreadsheet shows and does not run."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

_RUNS = ("=", "+", "-", "@", "\t", "\r")


def csv_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Lines of CSV. Text that a spreadsheet would take for a formula gets a leading apostrophe; numbers stay numbers.

    None becomes an empty cell; NaN and infinities are written as nan, inf, -inf.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow([_cell(name) for name in header])
    writer.writerows([_cell(value) for value in row] for row in rows)
    return out.getvalue()


def _cell(value: object) -> object:
    if value is None or isinstance(value, int | float):
        return value
    text = str(value)
    return "'" + text if text.lstrip(" ").startswith(_RUNS) else text
