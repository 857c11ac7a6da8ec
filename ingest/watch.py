"""Following paths: files that grow, files that are written whole, folders that gain files, files that vanish."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ingest.discover import FoundFile, FoundRun, IgnoredFile, group, take
from ingest.errors import RLVitalsError
from ingest.load import FileResult, identify, load_file
from ingest.readers import reader_named
from ingest.readers.base import Reader
from ingest.store.connection import Store
from ingest.store.sources import RunRow, find_source, note_source
from ingest.store.write import Commit, CommitHook

__all__ = ["Commit", "Watcher"]

POLL_SECONDS = 0.5
"""Network file systems send no notices; a look at this interval always happens."""

GONE = "the file is gone; what was read of it is kept"
_RETRY_SECONDS = 5.0
_COMPRESSED = (".gz", ".zst")


class _Seen(NamedTuple):
    """What tells a changed file from an unchanged one."""

    size: int
    mtime_ns: int
    inode: int


@dataclass
class _Target:
    """A followed path, what it is to be called, and its files as they were last seen."""

    path: Path
    project: str | None
    run: str | None
    reader: Reader | None
    read: dict[Path, _Seen] = field(default_factory=dict)
    """As each file was when it was last read to its end."""
    pending: dict[Path, _Seen] = field(default_factory=dict)
    """Files written whole that changed since the last look; taken once two looks agree."""
    taken: dict[Path, FoundFile] = field(default_factory=dict)
    ignored: dict[Path, _Seen] = field(default_factory=dict)
    run_of: dict[Path, list[tuple[FoundRun, FoundFile]]] = field(default_factory=dict)
    gone: set[Path] = field(default_factory=set)


class Watcher:
    """Reads what the added paths gain, in a thread of its own, until stopped.

    on_commit is called in that thread after each committed transaction; on_problem with a sentence when a file or the
    store cannot be read or written (and the file is tried again); on_result with every file that was looked into.
    notices False: polling alone, as on a network file system.
    """

    def __init__(
        self,
        store: Store,
        on_commit: CommitHook,
        *,
        on_problem: Callable[[Path, str], None] = lambda _path, _sentence: None,
        on_result: Callable[[FileResult], None] = lambda _result: None,
        poll_seconds: float = POLL_SECONDS,
        notices: bool = True,
    ) -> None:
        self.store, self._on_commit, self._on_problem, self._on_result = store, on_commit, on_problem, on_result
        self._poll_seconds = poll_seconds
        self._targets: list[_Target] = []
        self._runs: dict[Path, RunRow] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._notices = _Notices(self._wake, wanted=notices)

    def add(self, path: Path, project: str | None = None, run: str | None = None, reader: str | None = None) -> None:
        """Follows a file or folder; it may not exist yet.

        Raises:
            ReaderError: there is no reader of that name.
        """
        target = _Target(Path(os.path.abspath(path)), project, run, reader_named(reader) if reader else None)
        with self._lock:
            if all(known.path != target.path for known in self._targets):
                self._targets.append(target)
                self._notices.follow([known.path for known in self._targets])
        self._wake.set()

    def start(self) -> None:
        """Starts the thread."""
        self._thread = threading.Thread(target=self._follow, name="watcher", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread after the transaction it is in."""
        self._stopping.set()
        self._wake.set()
        self._notices.stop()
        if self._thread is not None:
            self._thread.join()

    def _follow(self) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            wait = self._poll_seconds
            try:
                self.look()
            except RLVitalsError as error:
                self._on_problem(self.store.path or Path("."), str(error))
                wait = _RETRY_SECONDS
            except Exception as error:  # the thread must outlive whatever one look meets; the sentence is shown
                self._on_problem(self.store.path or Path("."), f"Following stopped for a moment: {type(error).__name__}: {error}")
                wait = _RETRY_SECONDS
            if wait == _RETRY_SECONDS:
                self._stopping.wait(wait)
            else:
                self._wake.wait(wait)

    def look(self) -> None:
        """One look at every followed path; reads what has changed.

        Raises:
            StoreError: the store cannot be written.
        """
        with self._lock:
            targets = list(self._targets)
        for target in targets:
            if not self._stopping.is_set():
                self._look_at(target)

    def _look_at(self, target: _Target) -> None:
        now = dict(_files_below(target.path))
        self._note_vanished(target, now)
        changed = [path for path, seen in now.items() if target.read.get(path) != seen and target.ignored.get(path) != seen]
        if self._recognise(target, changed, now):
            self._regroup(target)
        for path in sorted((p for p in changed if p in target.taken), key=lambda p: (target.taken[p].reader.growth == "whole", p)):
            if self._stopping.is_set():
                return
            if _settled(target, path, now[path]):
                self._read(target, path, now[path])

    def _note_vanished(self, target: _Target, now: dict[Path, _Seen]) -> None:
        for path in [path for path in target.read if path not in now and path not in target.gone]:
            target.gone.add(path)
            source = find_source(self.store, path)
            if source is not None:
                note_source(self.store, path, GONE)
        for path in [path for path in target.gone if path in now]:
            target.gone.discard(path)
            target.read.pop(path, None)
            note_source(self.store, path, None)

    def _recognise(self, target: _Target, changed: Iterable[Path], now: dict[Path, _Seen]) -> bool:
        """Asks the readers about files not taken yet; True if one was."""
        found = False
        for path in changed:
            if path in target.taken:
                continue
            result = take(path, target.reader)
            if isinstance(result, IgnoredFile):
                target.ignored[path] = now[path]
                if result.failed and now[path].size:
                    self._on_problem(path, result.reason)
            else:
                target.ignored.pop(path, None)
                target.taken[path] = result
                found = True
        return found

    def _regroup(self, target: _Target) -> None:
        root = target.path if target.path.is_dir() else target.path.parent
        files = sorted(target.taken.values(), key=lambda file: file.path)
        target.run_of.clear()
        for run in group(root, files):
            if not target.path.is_dir():
                run.root, run.project = target.path, target.path.parent.name or "default"
                run.name = target.path.name.split(".")[0]
            run.project, run.name = target.project or run.project, target.run or run.name
            for file in run.files:
                target.run_of.setdefault(file.path, []).append((run, file))

    def _read(self, target: _Target, path: Path, seen: _Seen) -> None:
        # A chart's export holds several runs; a checkpoint's older state and a configuration alone belong to none.
        for found, file in target.run_of.get(path, ()):
            result = load_file(self.store, self._identity(found), file, follow=True, on_commit=self._on_commit)
            self._on_result(result)
            if result.state == "rejected":
                self._on_problem(path, result.reason or "nothing could be read")
        target.read[path] = seen
        target.pending.pop(path, None)

    def _identity(self, run: FoundRun) -> RunRow:
        known = self._runs.get(run.root)
        if known is None:
            known = self._runs[run.root] = identify(self.store, run)
        return known


def _settled(target: _Target, path: Path, seen: _Seen) -> bool:
    """Files that are read from an offset at once; those written whole when two looks saw the same size and time."""
    if target.taken[path].reader.growth == "append" and path.suffix not in _COMPRESSED:
        return True
    before = target.pending.get(path)
    target.pending[path] = seen
    return before == seen


def _files_below(path: Path) -> Iterator[tuple[Path, _Seen]]:
    """Every visible file of a folder tree (or the file itself) with what it looks like; links to files are followed
    within the tree only."""
    try:
        if not path.is_dir():
            found = path.stat()
            yield path, _Seen(found.st_size, found.st_mtime_ns, found.st_ino)
            return
    except OSError:
        return
    folders = [str(path)]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                inside = [entry for entry in entries if not entry.name.startswith(".")]
        except OSError:
            continue
        for entry in inside:
            try:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif entry.is_file() and _inside(entry, path):
                    found = entry.stat()
                    yield Path(entry.path), _Seen(found.st_size, found.st_mtime_ns, found.st_ino)
            except OSError:
                continue


def _inside(entry: os.DirEntry[str], root: Path) -> bool:
    return not entry.is_symlink() or Path(entry.path).resolve().is_relative_to(root.resolve())


class _Notices:
    """Wakes the watcher at once where the system tells of changes; polling goes on whether it does or not."""

    def __init__(self, wake: threading.Event, *, wanted: bool) -> None:
        self._wake, self._wanted = wake, wanted
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def follow(self, paths: list[Path]) -> None:
        """Watches these paths instead of those before."""
        self.stop()
        if not self._wanted:
            return
        try:
            import watchfiles
        except ImportError:
            return
        # A missing path is left to polling.
        present = [path for path in paths if path.exists()]
        if present:
            self._stop = threading.Event()
            self._thread = threading.Thread(target=self._run, args=(watchfiles, present, self._stop), name="file-notices", daemon=True)
            self._thread.start()

    def _run(self, watchfiles: object, paths: list[Path], stop: threading.Event) -> None:
        watch = getattr(watchfiles, "watch")  # noqa: B009 - the module is optional
        try:
            for _ in watch(*paths, stop_event=stop, debounce=50, step=20, rust_timeout=200, raise_interrupt=False):
                self._wake.set()
        except (OSError, RuntimeError):
            # Too many watches, or a path that went away: polling remains.
            return

    def stop(self) -> None:
        """Ends the notices; the thread leaves within a fifth of a second."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
