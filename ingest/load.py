"""Reading found runs into the store: once, or again when files have grown or changed."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ingest.discover import FoundFile, FoundRun, provides_metrics, run_id_of
from ingest.errors import ReaderError
from ingest.readers.base import open_binary
from ingest.schema.records import Cursor, Reject, SourceState
from ingest.store.connection import Store
from ingest.store.sources import RunRow, SourceRow, announce, find_source, known_run, remember_look, root_of
from ingest.store.write import CommitHook, SourceWriter, no_commit_hook

_PRINT_BYTES = 4096
_COMPRESSED = (".gz", ".zst")
_RACY_NS = 2_000_000_000
"""A file touched this short a time before it was looked at may change again without a new time stamp."""

__all__ = ["CommitHook", "FileResult", "Look", "Progress", "identify", "load_file", "load_run", "look_at", "no_commit_hook"]


class Look(NamedTuple):
    """What a file looks like from outside."""

    size: int
    mtime_ns: int


@dataclass
class FileResult:
    """What became of one file in one read; rows and rejected count this read alone."""

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
    """planned is called once with the number of files and their bytes, report with the bytes of a file read so far.

    Bytes of a compressed file are those after decompression, so they may pass its size. The defaults show nothing.
    """

    report: Callable[[Path, int], None] = field(default=lambda _path, _bytes: None)
    planned: Callable[[int, int], None] = field(default=lambda _files, _bytes: None)


def load_run(
    store: Store, found: FoundRun, *, follow: bool = False, progress: Progress | None = None, on_commit: CommitHook = no_commit_hook
) -> Iterator[FileResult]:
    """Reads every file of a run from where it was left; one result a file.

    Raises:
        StoreError: the store cannot be written; what was committed before stays.
    """
    run: RunRow | None = None
    for file in found.files:
        try:
            run = run or identify(store, found)
        except (ReaderError, OSError) as error:
            yield FileResult(file.key, file.reader.name, "rejected", reason=str(error))
            continue
        yield load_file(store, run, file, follow=follow, progress=progress, on_commit=on_commit)


def identify(store: Store, found: FoundRun) -> RunRow:
    """The run's stored identity, or a new one that does not collide with another folder's; its files are announced.

    The first metrics record joins the id only where another folder has the same project, name and framework; copies of
    one folder, whose first records are the same too, are told apart by their place.
    """
    run = known_run(store, [file.key for file in found.files]) or _new_identity(store, found)
    announce(store, run, [SourceRow(-1, run.run_id, file.path, file.reader.name, file.reader.growth) for file in found.files])
    return run


def _new_identity(store: Store, found: FoundRun) -> RunRow:
    run_id = found.run_id
    if root_of(store, run_id) not in (None, str(found.root)):
        record = _first_record(found)
        run_id = run_id_of(found.project, found.name, found.framework, record)
        if root_of(store, run_id) not in (None, str(found.root)):
            run_id = run_id_of(found.project, found.name, found.framework, record + b"\0" + str(found.root).encode())
    return RunRow(run_id, found.project, found.name, found.framework, found.root)


def _first_record(found: FoundRun) -> bytes:
    file = next((file for file in found.files if provides_metrics(file)), found.files[0])
    with open_binary(file.path) as stream:
        return stream.read(_PRINT_BYTES).split(b"\n", 1)[0]


def look_at(path: Path) -> Look:
    """Size and time of a file.

    Raises:
        OSError: it is gone or cannot be looked at.
    """
    found = path.stat()
    return Look(found.st_size, found.st_mtime_ns)


def load_file(
    store: Store,
    run: RunRow,
    file: FoundFile,
    *,
    follow: bool = False,
    progress: Progress | None = None,
    on_commit: CommitHook = no_commit_hook,
) -> FileResult:
    """Reads one file from its cursor on; commits rows and cursor together.

    Raises:
        StoreError: the store cannot be written.
    """
    try:
        with store.reading(file.key):
            return _load(store, run, file, "followed" if follow else "read", progress or Progress(), on_commit)
    except ReaderError as error:
        return FileResult(file.key, file.reader.name, "rejected", reason=str(error), run_id=run.run_id)
    except OSError as error:
        return FileResult(file.key, file.reader.name, "rejected", reason=f"{file.path}: {error.strerror}.", run_id=run.run_id)


def _load(store: Store, run: RunRow, file: FoundFile, state: SourceState, progress: Progress, on_commit: CommitHook) -> FileResult:
    look = look_at(file.path)
    settled = look.mtime_ns if time.time_ns() - look.mtime_ns > _RACY_NS else None
    source = find_source(store, file.key) or SourceRow(-1, run.run_id, file.key, file.reader.name, file.reader.growth)
    source.precedence = file.reader.precedence
    if source.source_id >= 0 and _quiet(store, file, source, look, settled):
        return FileResult(file.key, file.reader.name, "unchanged", look.size, 0, 0, source.note, run.run_id)
    source = replace(_rewound(file, source, look.size), mtime_ns=settled)
    return _read(store, run, file, source, look.size, state, progress, on_commit)


def _quiet(store: Store, file: FoundFile, source: SourceRow, look: Look, settled: int | None) -> bool:
    """True if the file is as it was when last read to its end. Size and time decide where they can; bytes otherwise."""
    if source.bytes != look.size or source.fingerprint is None:
        return False
    if source.mtime_ns == look.mtime_ns:
        return True
    if source.fingerprint != fingerprint(file, source.cursor):
        return False
    if settled is not None:
        remember_look(store, source.source_id, settled)
    return True


def _read(
    store: Store,
    run: RunRow,
    file: FoundFile,
    source: SourceRow,
    size: int,
    state: SourceState,
    progress: Progress,
    on_commit: CommitHook,
) -> FileResult:
    whole = fingerprint(file, source.cursor) if file.reader.growth == "whole" else None
    print_of = _no_print if whole else partial(fingerprint, file)
    writer = SourceWriter(store, run, source, print_of=print_of, on_commit=on_commit)
    failure: str | None = None
    try:
        for item in file.reader.read(file.path, source.cursor):
            writer.add(item)
            if item.cursor is not None:
                progress.report(file.path, item.cursor.offset)
    except ReaderError as error:
        failure = str(error)
        writer.add(Reject(None, None, failure, ""))
    writer.finish(whole, size, state, failure)
    after = writer.source
    return FileResult(file.key, file.reader.name, after.state, size, writer.rows, writer.rejected, failure or after.note, run.run_id)


def _no_print(_cursor: Cursor) -> None:
    return None


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
        if file.path.suffix not in _COMPRESSED and cursor.offset > _PRINT_BYTES:
            stream.seek(cursor.offset - _PRINT_BYTES)
            tail = stream.read(_PRINT_BYTES)
    return f"append:{hashlib.blake2b(head).hexdigest()[:16]}:{hashlib.blake2b(tail).hexdigest()[:16]}"


def _rewound(file: FoundFile, source: SourceRow, size: int) -> SourceRow:
    """The source as it must be read now: from its cursor if the file only grew, from the start if it was rewritten.

    A whole file, and an appended one cut back to an earlier state of itself, is compared row by row with what it said
    before: the same rows are not taken twice, and from the first step that differs on they are a new attempt. An
    appended file that begins otherwise than before is a new attempt altogether.
    """
    if source.source_id < 0 or (source.fingerprint is None and source.cursor.offset == 0):
        return source
    if file.reader.growth == "whole":
        return _from_start(source, "compare", None)
    now = fingerprint(file, source.cursor)
    if source.fingerprint == now and (size >= source.bytes or file.path.suffix in _COMPRESSED):
        return source
    same_start = source.fingerprint is not None and source.fingerprint.split(":")[1] == now.split(":")[1]
    if same_start:
        return _from_start(source, "compare", "the file was cut back and written on")
    return _from_start(source, "restart", "the file was overwritten: a new attempt")


def _from_start(source: SourceRow, how: str, note: str | None) -> SourceRow:
    return replace(source, cursor=Cursor(0, 0, {**source.cursor.state, "rewritten": how}), note=note)
