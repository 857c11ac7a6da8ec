"""The readers, in the order in which they are asked."""

from __future__ import annotations

from ingest.errors import ReaderError
from ingest.readers.base import Reader
from ingest.readers.csv import CsvReader
from ingest.readers.jsonl import JsonlReader
from ingest.readers.native import NativeReader
from ingest.readers.parquet import ParquetReader
from ingest.readers.trl_completions import TrlCompletionsReader
from ingest.readers.trl_trainer_state import TrlTrainerStateReader
from ingest.readers.verl_file_logger import VerlFileLoggerReader
from ingest.readers.verl_rollouts import VerlRolloutsReader
from ingest.readers.verl_validation import VerlValidationReader
from ingest.readers.wandb_chart_csv import WandbChartReader

READERS: tuple[Reader, ...] = (
    NativeReader(),
    VerlFileLoggerReader(),
    VerlRolloutsReader(),
    VerlValidationReader(),
    TrlTrainerStateReader(),
    TrlCompletionsReader(),
    WandbChartReader(),
    JsonlReader(),
    CsvReader(),
    ParquetReader(),
)


def precedence_of(name: str) -> int:
    """How much a reader's points weigh against another source of the same run; 0 for a reader that is gone."""
    return next((reader.precedence for reader in READERS if reader.name == name), 0)


def reader_named(name: str) -> Reader:
    """The reader of that name.

    Raises:
        ReaderError: no such reader, with the names there are.
    """
    for reader in READERS:
        if reader.name == name:
            return reader
    raise ReaderError(f"There is no reader {name!r}. Known: {', '.join(sorted(r.name for r in READERS))}.")
