"""The readers, in the order in which they are asked."""

from __future__ import annotations

from ingest.errors import ReaderError
from ingest.readers.base import Reader
from ingest.readers.native import NativeReader

READERS: tuple[Reader, ...] = (NativeReader(),)


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
