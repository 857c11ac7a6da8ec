"""The door through which every format enters: built-in readers and plug-ins alike (entry point `rlvitals.readers`)."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol, cast

import zstandard

from ingest.errors import ReaderError
from ingest.schema.records import Cursor, Growth, Item

MAX_LINE = 64 * 1024 * 1024
"""Longest line that is read, in bytes; a longer one is one reject."""

HEAD_BYTES = 64 * 1024
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Head:
    """What a reader may look at to recognise a file: its path, its size and its first decompressed bytes."""

    path: Path
    size: int
    head: bytes

    @property
    def name(self) -> str:
        """File name without .gz or .zst."""
        return bare_name(self.path)


class Reader(Protocol):
    """One format. A reader yields source keys only; schema/metrics.py alone gives them a meaning."""

    @property
    def name(self) -> str:
        """Name for --reader and the Sources page (contracts.md)."""

    @property
    def framework(self) -> str:
        """native, verl, trl or plain."""

    @property
    def precedence(self) -> int:
        """Which source wins a point that two sources record: the higher."""

    @property
    def growth(self) -> Growth:
        """append: followed by offset; whole: read again when it changed."""

    def sniff(self, head: Head) -> float:
        """Confidence from 0 to 1 that the file is this format. Never opens the file again."""

    def read(self, path: Path, cursor: Cursor) -> Iterator[Item]:
        """Items from the cursor to the last whole row, each with the cursor after it.

        Raises:
            ReaderError: the file cannot be read at all. A bad row is a Reject and reading goes on; a half-written
            last line is neither and stays for the next read.
        """


def bare_name(path: Path) -> str:
    """File name without a compression suffix."""
    return path.name.removesuffix(".gz").removesuffix(".zst")


def open_binary(path: Path) -> BinaryIO:
    """The decompressed bytes of a plain, .gz or .zst file.

    Raises:
        ReaderError: missing, unreadable, or a folder.
    """
    try:
        raw = path.open("rb")
    except FileNotFoundError:
        raise ReaderError(f"{path}: no such file.") from None
    except IsADirectoryError:
        raise ReaderError(f"{path} is a folder, a file was expected.") from None
    except PermissionError:
        raise ReaderError(f"{path} cannot be read: permission denied. Make it readable for this user.") from None
    if path.name.endswith(".gz"):
        raw.close()
        # Opened by name: a GzipFile around an open file does not close it.
        return cast(BinaryIO, gzip.open(path, "rb"))
    if path.name.endswith(".zst"):
        return cast(BinaryIO, io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(raw, closefd=True)))
    return raw


def read_head(path: Path) -> Head:
    """Path, size and first bytes of a file, for sniffing."""
    with open_binary(path) as stream:
        try:
            head = stream.read(HEAD_BYTES)
        except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
            raise ReaderError(f"{path} is not a whole compressed file: {error}.") from error
    return Head(path, path.stat().st_size, head)


@dataclass(frozen=True, slots=True)
class LongLine:
    """A line beyond MAX_LINE; its bytes are not kept, only the first 200."""

    number: int
    offset: int
    end_offset: int
    sample: bytes


@dataclass(frozen=True, slots=True)
class Chunk:
    """Whole lines: bytes that end with a newline (the last of a file may lack it), and the cursor position after them."""

    data: bytes
    first_line: int
    first_offset: int
    end_line: int
    end_offset: int


def never_complete(_tail: bytes) -> bool:
    """For formats in which a line without its newline may always be half-written."""
    return False


def whole_lines(
    path: Path, cursor: Cursor, size: int = 16 << 20, tail_complete: Callable[[bytes], bool] = never_complete
) -> Iterator[Chunk | LongLine]:
    """Chunks of about `size` bytes that end at a newline, from the cursor on.

    A last line without a newline is yielded only if `tail_complete` says that it is whole; else it stays for the
    next read.
    """
    with open_binary(path) as stream:
        _skip(stream, cursor.offset, path)
        line, offset = cursor.line + 1, cursor.offset
        pending = bytearray()
        while True:
            block = _read(stream, max(_CHUNK, size - len(pending)), path, offset)
            full = len(pending) + len(block) >= size
            cut = block.rfind(b"\n") + 1
            if cut and full:
                # The usual case, with one copy of the bytes instead of three.
                data = b"".join((pending, memoryview(block)[:cut]))
                pending = bytearray(memoryview(block)[cut:])
            else:
                pending += block
                cut = pending.rfind(b"\n") + 1 if full or not block else 0
                data = bytes(memoryview(pending)[:cut])
                del pending[:cut]
            if cut:
                end = line + data.count(b"\n") - 1
                yield Chunk(data, line, offset, end, offset + len(data))
                line, offset = end + 1, offset + len(data)
            if not block:
                tail = bytes(pending)
                if tail and tail_complete(tail):
                    yield Chunk(tail, line, offset, line, offset + len(tail))
                return
            if len(pending) > MAX_LINE and b"\n" not in pending:
                sample = bytes(pending[:200])
                end_offset, pending = _pass_newline(stream, offset + len(pending), path)
                if end_offset is None:
                    return
                yield LongLine(line, offset, end_offset, sample)
                line, offset = line + 1, end_offset


def _pass_newline(stream: BinaryIO, offset: int, path: Path) -> tuple[int | None, bytearray]:
    """The offset after the next newline (None: the file ends first) and the bytes read beyond it."""
    while block := _read(stream, _CHUNK, path, offset):
        cut = block.find(b"\n")
        if cut >= 0:
            return offset + cut + 1, bytearray(block[cut + 1 :])
        offset += len(block)
    return None, bytearray()


def _read(stream: BinaryIO, size: int, path: Path, offset: int) -> bytes:
    try:
        return stream.read(size)
    except (EOFError, OSError, zlib.error, zstandard.ZstdError) as error:
        raise ReaderError(f"{path} breaks off after {offset} decompressed bytes: {error}.") from error


def _skip(stream: BinaryIO, offset: int, path: Path) -> None:
    if not offset:
        return
    if isinstance(stream, io.BufferedReader) and not path.name.endswith(".zst"):
        stream.seek(offset)
        return
    left = offset
    while left:
        block = _read(stream, min(_CHUNK, left), path, offset - left)
        if not block:
            raise ReaderError(f"{path} is shorter than the {offset} bytes already read.")
        left -= len(block)
