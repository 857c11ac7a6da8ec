"""Reader of Parquet tables of no particular trainer: wandb history artifacts, exported frames, tables of rollouts.

Columns are found by name (columns.py). Row groups are read in slices, so memory does not grow with the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingest.errors import ReaderError
from ingest.readers.base import Head
from ingest.readers.columns import Table
from ingest.schema.records import Cursor, Growth, Item, Json

MAGIC = b"PAR1"
_ROWS = 1024


@dataclass(frozen=True)
class ParquetReader:
    """A plain Parquet table; the column names stand at its end, so the file's ending and first bytes must do for sniffing."""

    name: str = "parquet"
    framework: str = "plain"
    precedence: int = 20
    growth: Growth = "whole"

    def sniff(self, head: Head) -> float:
        """Confidence that the file is this format, from its name and first bytes."""
        return 0.3 if head.head.startswith(MAGIC) else 0.0

    def read(self, path: Path, cursor: Cursor) -> Iterator[Item]:
        """Items from the cursor on; see `Reader.read`."""
        table = Table(path, cursor.state)
        size = path.stat().st_size
        names = column_names(path)
        if not Table.recognises(dict.fromkeys(names)):
            raise ReaderError(f"{path} has no step column and no text column that is known. Its columns: {', '.join(names)[:200]}.")
        total = row_count(path)
        for first, rows in slices(path, cursor.line):
            done = first - 1 + len(rows)
            numbered = [(first + n, None, {k: v for k, v in row.items() if v is not None}) for n, row in enumerate(rows)]
            yield from table.take(numbered, Cursor(size * done // max(total, 1), done))


def _open(path: Path) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(path)
    except FileNotFoundError:
        raise ReaderError(f"{path}: no such file.") from None
    except (pa.ArrowException, OSError) as error:
        raise ReaderError(f"{path} is not a whole Parquet file: {error}.") from None


def column_names(path: Path) -> list[str]:
    """Names of the top-level columns.

    Raises:
        ReaderError: not a whole Parquet file (half-written, or damaged).
    """
    with _open(path) as file:
        return list(file.schema_arrow.names)


def double_columns(path: Path) -> list[str]:
    """Names of the floating-point columns."""
    import pyarrow as pa

    with _open(path) as file:
        return [field.name for field in file.schema_arrow if pa.types.is_floating(field.type)]


def row_count(path: Path) -> int:
    """Rows of the file."""
    with _open(path) as file:
        return int(file.metadata.num_rows)


def slices(path: Path, skip: int = 0, columns: Sequence[str] | None = None) -> Iterator[tuple[int, list[dict[str, Json]]]]:
    """(number of the first row, rows) of at most 1,024 rows, from row skip + 1 on. Times become texts.

    Raises:
        ReaderError: the file cannot be read to its end.
    """
    import pyarrow as pa

    at = 0
    with _open(path) as file:
        try:
            for batch in file.iter_batches(batch_size=_ROWS, columns=columns):
                if at + batch.num_rows > skip:
                    rows = [{key: _plain(value) for key, value in row.items()} for row in batch.slice(max(0, skip - at)).to_pylist()]
                    yield max(at, skip) + 1, rows
                at += batch.num_rows
        except (pa.ArrowException, OSError) as error:
            raise ReaderError(f"{path} breaks off after row {at}: {error}.") from None


def _plain(value: Any) -> Json:
    """JSON values only: bytes, times and decimals become texts."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return str(value)
