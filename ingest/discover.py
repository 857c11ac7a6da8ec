"""From a path to runs: which files belong together, and which reader takes each."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ingest.errors import NoRunFound, ReaderError
from ingest.readers import READERS, reader_named
from ingest.readers.base import Head, Reader, read_head

_IGNORED_NAMES = {"label.json"}
_IGNORED_SUFFIXES = {".md", ".png", ".py"}
_SURE = 0.1
"""Least confidence with which a reader may take a file."""


@dataclass(frozen=True)
class FoundFile:
    """One file and the reader that takes it."""

    path: Path
    reader: Reader


@dataclass(frozen=True)
class IgnoredFile:
    """A file that no reader takes, and why. failed: it was asked for by name or looked like a known file but is broken."""

    path: Path
    reason: str
    failed: bool = False


@dataclass
class FoundRun:
    """Files of one folder (and its sub-folders without a metrics file of their own) that make one run."""

    root: Path
    project: str
    name: str
    framework: str
    files: list[FoundFile] = field(default_factory=list)

    @property
    def run_id(self) -> str:
        """First 12 hex digits of sha256 over project, name and framework."""
        return run_id_of(self.project, self.name, self.framework)


def run_id_of(project: str, name: str, framework: str, first_record: bytes = b"") -> str:
    """The id of a run; `first_record` joins in only where two folders would collide."""
    digest = hashlib.sha256("\0".join((project, name, framework)).encode())
    if first_record:
        digest.update(b"\0" + first_record)
    return digest.hexdigest()[:12]


def discover(
    paths: Iterable[Path], *, project: str | None = None, name: str | None = None, reader: str | None = None
) -> tuple[list[FoundRun], list[IgnoredFile]]:
    """The runs under the paths and the files that belong to none.

    Raises:
        NoRunFound: a path is missing, or nothing in any of them is of a known format.
        ReaderError: `reader` is not a reader's name.
    """
    forced = reader_named(reader) if reader else None
    runs: list[FoundRun] = []
    ignored: list[IgnoredFile] = []
    for path in paths:
        if not path.exists():
            raise NoRunFound(f"{path}: no such file or folder.")
        found, left = _discover_one(path.resolve(), forced)
        runs.extend(found)
        ignored.extend(left)
    for run in runs:
        run.project = project or run.project
        run.name = name or run.name
    return runs, ignored


def _discover_one(path: Path, forced: Reader | None) -> tuple[list[FoundRun], list[IgnoredFile]]:
    if path.is_file():
        taken = take(path, forced)
        if isinstance(taken, IgnoredFile):
            return [], [taken]
        return [_new_run(path, [taken])], []
    taken_files: list[FoundFile] = []
    ignored: list[IgnoredFile] = []
    for file in walk(path):
        result = take(file, forced)
        if isinstance(result, IgnoredFile):
            ignored.append(result)
        else:
            taken_files.append(result)
    return group(path, taken_files), ignored


def walk(folder: Path) -> Iterator[Path]:
    """Files below a folder in name order, hidden ones and links out of the folder left out."""
    inside = folder.resolve()
    for directory, folders, names in os.walk(folder):
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        for name in sorted(names):
            file = Path(directory, name)
            if not name.startswith(".") and file.resolve().is_relative_to(inside):
                yield file


def take(path: Path, forced: Reader | None = None) -> FoundFile | IgnoredFile:
    """The file with the reader that knows it best, or the reason why none takes it."""
    if forced is not None:
        return FoundFile(path, forced)
    if path.name in _IGNORED_NAMES or path.suffix in _IGNORED_SUFFIXES:
        return IgnoredFile(path, "not a log of a run")
    try:
        head = read_head(path)
    except (ReaderError, OSError) as error:
        return IgnoredFile(path, str(error), failed=True)
    if not head.head:
        return IgnoredFile(path, "empty file", failed=True)
    best = _best(head)
    if best is None:
        return IgnoredFile(path, _why_unknown(head))
    return FoundFile(path, best)


def _best(head: Head) -> Reader | None:
    scored = [(reader.sniff(head), -position, reader) for position, reader in enumerate(READERS)]
    confidence, _, reader = max(scored, key=lambda item: item[:2])
    return reader if confidence >= _SURE else None


def _why_unknown(head: Head) -> str:
    if b"\0" in head.head[:4096]:
        return "binary file of no known format"
    return f"no known format (begins with {head.head[:24]!r})"


def group(root: Path, files: list[FoundFile]) -> list[FoundRun]:
    """One run a folder that holds a metrics file; other files join the nearest such folder above them, else their own."""
    homes = {file.path.parent for file in files if provides_metrics(file)}
    members: dict[Path, list[FoundFile]] = {}
    for file in files:
        members.setdefault(_home_of(file.path.parent, homes, root), []).append(file)
    return [_new_run(folder, found) for folder, found in sorted(members.items())]


def _home_of(folder: Path, homes: set[Path], root: Path) -> Path:
    for candidate in (folder, *folder.parents):
        if candidate in homes:
            return candidate
        if candidate == root:
            break
    return folder if folder.parent == root or folder == root else _below(root, folder)


def _below(root: Path, folder: Path) -> Path:
    """A folder without metrics anywhere above: its own run."""
    return folder if root in folder.parents else root


def provides_metrics(file: FoundFile) -> bool:
    """True if the file can make its folder a run of its own."""
    bare = file.path.name.split(".")[0]
    return bare not in ("rollouts", "events", "config") and file.reader.name not in _TRAJECTORY_READERS


_TRAJECTORY_READERS = {"verl-rollouts", "verl-validation", "trl-completions"}


def _new_run(place: Path, files: list[FoundFile]) -> FoundRun:
    name = place.name.split(".")[0] if place.is_file() else place.name
    framework = next((f.reader.framework for f in files if f.reader.framework not in ("plain", "native")), files[0].reader.framework)
    return FoundRun(place, place.parent.name or "default", name, framework, files)
