"""Reading found runs into the store: once, or again when files have grown or changed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import duckdb

from ingest.discover import FoundFile, FoundRun, run_id_of
from ingest.errors import ReaderError, StoreError
from ingest.readers.base import open_binary
from ingest.schema.records import Cursor, Json, Reject, SourceState
from ingest.store.connection import Store
from ingest.store.write import RunRow, SourceRow, SourceWriter, find_source

_PRINT_BYTES = 4096


@dataclass
class FileResult:
    """What became of one file in one read."""

    path: Path
    reader: str | None
    state: SourceState
    bytes: int = 0
    rows: int = 0
    rejected: int = 0
    reason: str | None = None
    run_id: str | None = None


@dataclass
class Progress:
    """Called with the bytes read so far of a file; the default shows nothing."""

    report: Callable[[Path, int], None] = field(default=lambda _path, _bytes: None)


def load_run(store: Store, found: FoundRun, *, follow: bool = False, progress: Progress | None = None) -> Iterator[FileResult]:
    """Reads every file of a run from where it was left; one result a file."""
    run = identify(store, found)
    for file in found.files:
        yield load_file(store, run, file, follow=follow, progress=progress)


def identify(store: Store, found: FoundRun) -> RunRow:
    """The run's stored identity, or a new one that does not collide with another folder's."""
    for file in found.files:
        known = find_source(store, file.path)
        if known is not None:
            rows = store.rows("SELECT run_id, project, name, framework, root, framework_version FROM run WHERE run_id = ?", [known.run_id])
            run_id, project, name, framework, root, version = rows[0]
            return RunRow(run_id, project, name, framework, Path(root), version)
    run_id = found.run_id
    taken = store.rows("SELECT root FROM run WHERE run_id = ?", [run_id])
    if taken and taken[0][0] != str(found.root):
        with open_binary(found.files[0].path) as stream:
            run_id = run_id_of(found.project, found.name, found.framework, stream.read(_PRINT_BYTES).split(b"\n", 1)[0])
    return RunRow(run_id, found.project, found.name, found.framework, found.root)


def load_file(store: Store, run: RunRow, file: FoundFile, *, follow: bool = False, progress: Progress | None = None) -> FileResult:
    """Reads one file from its cursor on; commits rows and cursor together."""
    try:
        size = file.path.stat().st_size
        source = find_source(store, file.path) or SourceRow(-1, run.run_id, file.path, file.reader.name, file.reader.growth, 0)
        source.precedence = file.reader.precedence
        fresh = fingerprint(file, source.cursor)
        if source.source_id >= 0 and _unchanged(file, source, size, fresh):
            return FileResult(file.path, file.reader.name, "unchanged", size, 0, 0, source.note, run.run_id)
        source = _rewound(file, source, size)
        return _read(store, run, file, source, size, "followed" if follow else "read", progress or Progress())
    except ReaderError as error:
        return FileResult(file.path, file.reader.name, "rejected", reason=str(error), run_id=run.run_id)
    except OSError as error:
        return FileResult(file.path, file.reader.name, "rejected", reason=f"{file.path}: {error.strerror}.", run_id=run.run_id)


def _read(
    store: Store, run: RunRow, file: FoundFile, source: SourceRow, size: int, state: SourceState, progress: Progress
) -> FileResult:
    before = (source.rows, source.rejected)
    writer = SourceWriter(store, run, source)
    failure: str | None = None
    try:
        try:
            for item in file.reader.read(file.path, source.cursor):
                writer.add(item)
                if item.cursor is not None:
                    progress.report(file.path, item.cursor.offset)
        except ReaderError as error:
            failure = str(error)
            writer.add(Reject(None, None, failure, ""))
        writer.commit(size=size, state="rejected" if failure and not writer.source.rows else state)
        writer.commit(fingerprint=fingerprint(file, writer.source.cursor), size=size)
    except duckdb.Error as error:
        raise StoreError(f"{store.path or 'The store'} could not be written while reading {file.path}: {error}") from error
    after = writer.source
    return FileResult(
        file.path, file.reader.name, after.state, size, after.rows - before[0], after.rejected - before[1], failure or after.note, run.run_id
    )


def fingerprint(file: FoundFile, cursor: Cursor) -> str:
    """What a file must still look like for its cursor to hold.

    whole: a digest of all bytes. append: digests of the first and the last 4 KiB before the cursor.
    """
    if file.reader.growth == "whole":
        with file.path.open("rb") as stream:
            return "whole:" + hashlib.file_digest(stream, "blake2b").hexdigest()[:32]
    with open_binary(file.path) as stream:
        head = stream.read(min(_PRINT_BYTES, cursor.offset))
        tail = b""
        if file.path.suffix not in (".gz", ".zst") and cursor.offset > _PRINT_BYTES:
            stream.seek(cursor.offset - _PRINT_BYTES)
            tail = stream.read(_PRINT_BYTES)
    return f"append:{hashlib.blake2b(head).hexdigest()[:16]}:{hashlib.blake2b(tail).hexdigest()[:16]}"


def _unchanged(file: FoundFile, source: SourceRow, size: int, fresh: str) -> bool:
    return source.fingerprint == fresh and source.bytes == size


def _rewound(file: FoundFile, source: SourceRow, size: int) -> SourceRow:
    """The source as it must be read now: from its cursor if the file only grew, from the start if it was rewritten."""
    if source.source_id < 0:
        return source
    if file.reader.growth == "whole":
        return replace(source, cursor=Cursor(0, 0, {**source.cursor.state, "rewritten": True}))
    if source.fingerprint == fingerprint(file, source.cursor) and (size >= source.bytes or file.path.suffix in (".gz", ".zst")):
        return source
    return replace(source, cursor=Cursor(0, 0, {**source.cursor.state, "rewritten": True}), note="the file was overwritten: a new attempt")


