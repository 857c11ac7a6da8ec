"""From a path to runs: which files belong together, and which reader takes each."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from ingest.errors import NoRunFound, ReaderError
from ingest.readers import READERS, reader_named
from ingest.readers.base import Head, Reader, read_head
from ingest.readers.columns import STEP_KEYS, Table
from ingest.readers.csv import header_of
from ingest.readers.jsonl import first_object
from ingest.readers.native import CONFIG_NAMES
from ingest.readers.parquet import column_names
from ingest.readers.wandb_chart_csv import WandbChartReader
from ingest.schema.records import Json

_IGNORED_NAMES = {"label.json"}
_IGNORED_SUFFIXES = {".md", ".png", ".py"}
_NO_READER = (
    (re.compile(r"^events\.out\.tfevents"), "TensorBoard event file: there is no reader for it yet"),
    (re.compile(r"\.wandb$"), "wandb record log: there is no reader for it yet (a chart's CSV or a history export is read)"),
    (re.compile(r"^wandb-(summary|metadata)\.json$"), "wandb summary: it repeats the last values of the run's history"),
    (re.compile(r"\.eval$"), "Inspect evaluation log: there is no reader for it yet"),
    (re.compile(r"\.(pt|pth|pkl|pickle|bin|dp)$"), "a pickle or tensor file: it is not opened, because reading one can run code"),
    (re.compile(r"\.(safetensors|gguf|arrow)$"), "model weights or a data set, not a log of a run"),
    (re.compile(r"\.(log|txt)$"), "console output: there is no reader for it yet"),
)
_TEXT_SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")
_CHECKPOINT = re.compile(r"^checkpoint-(\d+)$")
_GLOBAL_STEP = re.compile(rb'"global_step":\s*(\d+)')
_TRAJECTORY_READERS = {"verl-rollouts", "verl-validation", "trl-completions"}
_WHOLE_LOGS = {"verl-file-logger", "trl-trainer-state", "jsonl", "csv"}
_SURE = 0.1
"""Least confidence with which a reader may take a file."""


@dataclass(frozen=True)
class FoundFile:
    """One file and the reader that takes it; part: of a file that holds several runs, the run meant here."""

    path: Path
    reader: Reader
    part: str | None = None
    trajectories: bool = False
    """The rows hold responses rather than metrics (plain formats only; other readers say it by their name)."""

    @property
    def key(self) -> Path:
        """What names this source in the store: the path, and the part where there is one."""
        return self.path if self.part is None else Path(f"{self.path}#{self.part}")


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
    """The runs under the paths and the files that belong to none. A file under two of the paths is taken once.

    Raises:
        NoRunFound: a path is missing.
        ReaderError: `reader` is not a reader's name.
    """
    forced = reader_named(reader) if reader else None
    runs: list[FoundRun] = []
    ignored: list[IgnoredFile] = []
    seen: set[Path] = set()
    for path in paths:
        if not path.exists():
            raise NoRunFound(f"{path}: no such file or folder.")
        found, left = _discover_one(path.resolve(), forced, seen)
        runs.extend(found)
        ignored.extend(left)
    for run in runs:
        run.project = project or run.project
        run.name = name or run.name
    return runs, ignored


def _discover_one(path: Path, forced: Reader | None, seen: set[Path]) -> tuple[list[FoundRun], list[IgnoredFile]]:
    if path.is_file():
        taken = take(path, forced)
        if isinstance(taken, IgnoredFile):
            return [], [taken]
        seen.add(path)
        return _runs_of(path, [taken]), []
    files: list[FoundFile] = []
    ignored: list[IgnoredFile] = []
    for file in _walk_all(path):
        if file in seen:
            continue
        seen.add(file)
        result = IgnoredFile(file, _link_reason(file, path)) if file.is_symlink() else take(file, forced)
        if isinstance(result, IgnoredFile):
            ignored.append(result)
        else:
            files.append(result)
    runs, loose = arrange(path, files)
    return runs, [*ignored, *loose]


def walk(folder: Path) -> Iterator[Path]:
    """Files below a folder in name order, hidden ones and links left out."""
    return (file for file in _walk_all(folder) if not file.is_symlink())


def _walk_all(folder: Path) -> Iterator[Path]:
    for directory, folders, names in os.walk(folder):
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        for name in sorted(names):
            if not name.startswith("."):
                yield Path(directory, name)


def _link_reason(file: Path, folder: Path) -> str:
    if file.resolve().is_relative_to(folder.resolve()):
        return "a link to another file of the folder, which is read under its own name"
    return "a link out of the folder: it is not followed"


def take(path: Path, forced: Reader | None = None) -> FoundFile | IgnoredFile:
    """The file with the reader that knows it best, or the reason why none takes it."""
    if forced is not None:
        return FoundFile(path, forced)
    if path.name in _IGNORED_NAMES or path.suffix in _IGNORED_SUFFIXES:
        return IgnoredFile(path, "not a log of a run")
    if path.name == "config.json" and _CHECKPOINT.match(path.parent.name):
        return IgnoredFile(path, "the model's configuration in a checkpoint, not the run's")
    try:
        head = read_head(path)
    except (ReaderError, OSError) as error:
        return IgnoredFile(path, str(error), failed=True)
    if not head.head:
        return IgnoredFile(path, "empty file", failed=head.name.lower().endswith(_TEXT_SUFFIXES))
    best = _best(head)
    if best is None:
        return _unknown(head)
    if best.name == "parquet":
        return _take_parquet(path, best)
    return FoundFile(path, best, trajectories=best.framework == "plain" and _holds_texts(head))


def _take_parquet(path: Path, reader: Reader) -> FoundFile | IgnoredFile:
    """A table's columns stand at its end, so it is opened: data sets lie beside runs in the same format."""
    try:
        columns: dict[str, Json] = dict.fromkeys(column_names(path), "")
    except ReaderError as error:
        return IgnoredFile(path, str(error), failed=True)
    if not Table.recognises(columns):
        return IgnoredFile(path, f"a table without a step, a response or known metrics among its columns ({', '.join(columns)[:80]})")
    return FoundFile(path, reader, trajectories=Table.holds_texts(columns))


def _holds_texts(head: Head) -> bool:
    """True if the first row of a plain file holds a response."""
    return Table.holds_texts(first_object(head) or dict.fromkeys(header_of(head.head) or [], ""))


def _best(head: Head) -> Reader | None:
    scored = [(reader.sniff(head), -position, reader) for position, reader in enumerate(READERS)]
    confidence, _, reader = max(scored, key=lambda item: item[:2])
    return reader if confidence >= _SURE else None


def _unknown(head: Head) -> IgnoredFile:
    """Why no reader takes the file; it failed only where its name promised a format that is read."""
    name = head.name.lower()
    for pattern, reason in _NO_READER:
        if pattern.search(name):
            return IgnoredFile(head.path, reason)
    promised = name.endswith(_TEXT_SUFFIXES) and not name.endswith(".json")
    if head.head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return IgnoredFile(head.path, "UTF-16 text, UTF-8 was expected. Convert it: iconv -f UTF-16 -t UTF-8", failed=promised)
    if b"\0" in head.head[:4096]:
        return IgnoredFile(head.path, "binary file of no known format", failed=promised)
    try:
        head.head[:4096].decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < min(len(head.head), 4096) - 4:
            return IgnoredFile(head.path, f"not UTF-8 text at byte {error.start}", failed=promised)
    if name.endswith((".csv", ".tsv")):
        return IgnoredFile(head.path, "a table without a header row that names a step, a response or known metrics")
    record = first_object(head)
    if record is not None:
        return IgnoredFile(head.path, f"no step, response or known metric among its keys ({', '.join(record)[:80]})")
    return IgnoredFile(head.path, f"no known format (begins with {head.head[:24]!r})", failed=promised)


def _newest_states(files: list[FoundFile]) -> tuple[list[FoundFile], list[IgnoredFile]]:
    """Of several trainer states of one run (checkpoint-N folders and the folder above) only the newest: it holds the history.

    The step is read from the state itself, since the folder above has none in its name.
    """
    states: dict[Path, list[tuple[int, FoundFile]]] = {}
    for file in files:
        if file.reader.name == "trl-trainer-state" and file.path.name == "trainer_state.json":
            states.setdefault(place_of(file.path), []).append((_global_step(file.path), file))
    older: list[IgnoredFile] = []
    for found in states.values():
        newest = max(found, key=lambda item: (item[0], -len(item[1].path.parts)))[1]
        where = newest.path.parent.name
        reason = f"an older state of the same run: {where} holds the whole history"
        older += [IgnoredFile(file.path, reason) for _, file in found if file is not newest]
    dropped = {file.path for file in older}
    return [file for file in files if file.path not in dropped], older


def _global_step(path: Path) -> int:
    try:
        found = _GLOBAL_STEP.search(read_head(path).head)
    except (ReaderError, OSError):
        return -1
    return int(found.group(1)) if found else -1


def place_of(path: Path) -> Path:
    """The folder that a file stands for: checkpoints and completions belong to the folder above them."""
    folder = path.parent
    return folder.parent if _CHECKPOINT.match(folder.name) or folder.name == "completions" else folder


def group(root: Path, files: list[FoundFile]) -> list[FoundRun]:
    """The runs of taken files; see `arrange`."""
    return arrange(root, files)[0]


def arrange(root: Path, files: list[FoundFile]) -> tuple[list[FoundRun], list[IgnoredFile]]:
    """One run a folder that holds a metrics file; other files join the nearest such folder above them.

    Dumps of verl beside the only log of verl below the root join it. Files that belong to no run, and older states of
    one, are handed back with the reason.
    """
    files, older = _newest_states(files)
    homes = {place_of(file.path) for file in files if provides_metrics(file)}
    members: dict[Path, list[FoundFile]] = {}
    for file in files:
        members.setdefault(_home_of(place_of(file.path), homes, root), []).append(file)
    _join_dumps(members, homes)
    runs: list[FoundRun] = []
    loose = older
    for folder, found in sorted(members.items()):
        if all(_is_config(file) for file in found):
            loose += [IgnoredFile(file.path, "a configuration without metrics or rollouts beside it") for file in found]
        else:
            runs += _runs_of(folder, found)
    return runs, loose


def _home_of(folder: Path, homes: set[Path], root: Path) -> Path:
    for candidate in (folder, *folder.parents):
        if candidate in homes:
            return candidate
        if candidate == root:
            break
    return folder


def _join_dumps(members: dict[Path, list[FoundFile]], homes: set[Path]) -> None:
    """Moves verl's dumps to the run whose log they belong to: the only one, or the one named in the dump's path."""
    logs = {f.path.name.split(".")[0]: place for place in homes for f in members.get(place, []) if f.reader.name == "verl-file-logger"}
    for place in [p for p in members if p not in homes]:
        dumps = members[place]
        if not logs or any(file.reader.name not in ("verl-rollouts", "verl-validation") for file in dumps):
            continue
        named = [home for stem, home in logs.items() if stem in place.parts or home.name in place.parts]
        target = named[0] if len(set(named)) == 1 else next(iter(logs.values())) if len(set(logs.values())) == 1 else None
        if target is not None:
            members[target].extend(members.pop(place))


def provides_metrics(file: FoundFile) -> bool:
    """True if the file can make its folder a run of its own."""
    if file.reader.name in _TRAJECTORY_READERS:
        return False
    if file.reader.name == "native":
        return file.path.name.split(".")[0] == "metrics"
    return not file.trajectories


def _is_config(file: FoundFile) -> bool:
    return file.path.name.removesuffix(".gz").removesuffix(".zst") in (*CONFIG_NAMES, "events.jsonl")


def _runs_of(place: Path, files: list[FoundFile]) -> list[FoundRun]:
    """The run of a place, or several where its files cannot be one run.

    Two logs of one format that record the same keys from the same first step on are different runs (a folder with a log
    for each experiment); so are the runs of a chart's export.
    """
    charts = [file for file in files if isinstance(file.reader, WandbChartReader)]
    named = _charts_by_run(charts)
    if len(named) > 1:
        rest = [file for file in files if file not in charts]
        runs = [FoundRun(Path(f"{place}#{run}"), _folder(place), run, "plain", parts) for run, parts in sorted(named.items())]
        return [*runs, *(_runs_of(place, rest) if any(not _is_config(file) for file in rest) else [])]
    alike = _different_runs(files)
    if not alike:
        return [_new_run(place, files)]
    rest = [file for file in files if file not in alike]
    runs = [_new_run(file.path, [file, *(f for f in rest if _named_after(f, file))]) for file in alike]
    left = [file for file in rest if not any(file in run.files for run in runs)]
    return [*runs, *([_new_run(place, left)] if any(not _is_config(file) for file in left) else [])]


def _charts_by_run(charts: list[FoundFile]) -> dict[str, list[FoundFile]]:
    named: dict[str, list[FoundFile]] = {}
    for file in charts:
        reader = file.reader
        if isinstance(reader, WandbChartReader):
            for run in reader.parts(file.path):
                named.setdefault(run, []).append(replace(file, reader=reader.for_part(run), part=run))
    return named


def _different_runs(files: list[FoundFile]) -> list[FoundFile]:
    """The metrics files that would overwrite one another if they were one run; empty: there are none."""
    logs = [file for file in files if provides_metrics(file) and file.reader.name in _WHOLE_LOGS]
    by_reader: dict[tuple[str, Json], list[tuple[frozenset[str], FoundFile]]] = {}
    for file in logs:
        keys, first = _first_of(file)
        by_reader.setdefault((file.reader.name, first), []).append((keys, file))
    found: list[FoundFile] = []
    for entries in by_reader.values():
        for keys, file in entries:
            if any(other is not file and 2 * len(keys & theirs) >= max(len(keys), 1) for theirs, other in entries):
                found.append(file)
    return found


def _first_of(file: FoundFile) -> tuple[frozenset[str], Json]:
    """Keys and step of the first record. Two states of trainers are always two runs: each holds its whole history."""
    if file.reader.name == "trl-trainer-state":
        return frozenset({"log_history"}), None
    head = read_head(file.path)
    record: dict[str, Json]
    if file.reader.name == "csv":
        lines = head.head.split(b"\n", 2)
        names, cells = (line.decode("utf-8", "replace").rstrip("\r").split(",") for line in (*lines, b"")[:2])
        record = dict(zip(names, cells, strict=False))
    else:
        record = first_object(head) or {}
    data = record.get("data")
    step = next((record[key] for key in STEP_KEYS if isinstance(record.get(key), (int, str))), None)
    return frozenset(data if isinstance(data, dict) else record) - set(STEP_KEYS), step


def _named_after(file: FoundFile, log: FoundFile) -> bool:
    return log.path.name.split(".")[0] in (file.path.parent.name, file.path.name.split(".")[0])


def _folder(place: Path) -> str:
    return (place.parent if place.is_file() else place).name or "default"


def _new_run(place: Path, files: list[FoundFile]) -> FoundRun:
    name = place.name.split(".")[0] if place.is_file() else place.name
    readers = [file.reader.framework for file in files if not _is_config(file)]
    framework = next((f for f in readers if f not in ("plain", "native")), "native" if "native" in readers else "plain")
    # Richer sources first: what a poorer one repeats is then not written at all.
    ordered = sorted(files, key=lambda file: (-file.reader.precedence, file.path))
    return FoundRun(place, place.parent.name or "default", name, framework, ordered)
