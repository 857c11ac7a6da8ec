"""Reading a slice of trajectory lines, exactly: a value that cannot be taken as it is becomes a reject with its line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ingest.readers.jsonl import BadLine, decode_object, numbered_lines, sample_of
from ingest.schema.records import Json, JsonSlice
from ingest.schema.tables import TRAJECTORY_FIELDS
from ingest.store.lines import ARRAYS, FIELDS, NESTED, SCALARS, UNSET, CleanLines, LineShape
from ingest.store.rows import LABELS, BadRow, StoredTrajectory, cast, fill_nested, integer, json_text, own_extra, stored, turns_of
from ingest.store.trajectories import COLUMNS, NewRows, encoded_texts

RejectedLine: TypeAlias = tuple[int | None, int | None, str, str]
NumberedLine: TypeAlias = tuple[int, int, bytes]

_BLOCK_LINES = 512
_BLOCK_BYTES = 1 << 20
_PARTS = 8
"""A block with a line that is not clean is tried again in this many parts."""


@dataclass
class ReadSlice:
    """The good rows of a slice, and (line, offset, reason, sample) of each line that is not one."""

    rows: NewRows = field(default_factory=NewRows)
    rejects: list[RejectedLine] = field(default_factory=list)


def read_slice(item: JsonSlice, shape: SliceShape | None = None) -> ReadSlice:
    """The rows of a slice; without a shape every line goes the exact way, with the same result."""
    found = ReadSlice()
    lines = numbered_lines(item.data, item.first_line, item.first_offset)
    if shape is None:
        for line in lines:
            _read_exact(line, item, None, found)
    else:
        for block in _blocks(lines):
            _read_block(block, item, shape, found)
    return found


def _blocks(lines: Iterator[NumberedLine]) -> Iterator[list[NumberedLine]]:
    block: list[NumberedLine] = []
    size = 0
    for line in lines:
        block.append(line)
        size += len(line[2])
        if len(block) >= _BLOCK_LINES or size >= _BLOCK_BYTES:
            yield block
            block, size = [], 0
    if block:
        yield block


def _read_block(block: Sequence[NumberedLine], item: JsonSlice, shape: SliceShape, found: ReadSlice) -> None:
    if shape.add_clean([line for _, _, line in block], found.rows):
        return
    if len(block) == 1:
        _read_exact(block[0], item, shape, found)
        return
    part = -(-len(block) // _PARTS)
    for start in range(0, len(block), part):
        _read_block(block[start : start + part], item, shape, found)


def _read_exact(numbered: NumberedLine, item: JsonSlice, shape: SliceShape | None, found: ReadSlice) -> None:
    number, offset, line = numbered
    try:
        record = decode_object(line)
        found.rows.add(*exact_row(record, item.rename, item.defaults))
    except (BadLine, BadRow) as error:
        found.rejects.append((number, offset, str(error), sample_of(line)))
    else:
        if shape is not None:
            shape.learn(record)


def exact_row(
    record: Mapping[str, Json], rename: Mapping[str, str], defaults: Mapping[str, Json]
) -> tuple[int, int | None, StoredTrajectory]:
    """Step, attempt and columns of a decoded line.

    Raises:
        BadRow: with the reason.
    """
    fields = {rename.get(key, key): value for key, value in record.items()}
    for key, value in defaults.items():
        fields.setdefault(key, value)
    step = integer("step", fields.get("step"), "BIGINT")
    if step is None:
        raise BadRow("no step")
    return step, integer("attempt", fields.get("attempt")), stored(fields)


_AT = {name: place for place, name in enumerate(COLUMNS)}
_FROM = {name: place for place, name in enumerate(FIELDS)}
_PLAIN = tuple(name for name in SCALARS if name in _AT)
_VERIFIER = {"status": "verifier_status", "seconds": "verifier_seconds", "name": "verifier_name", "version": "verifier_version"}


class SliceShape:
    """How the lines of one file are read fast; remembers the unknown keys it has met."""

    def __init__(self, rename: Mapping[str, str], defaults: Mapping[str, Json]) -> None:
        self._lines = LineShape(dict(rename), has_step="step" in defaults)
        self._extra: dict[str, Json] = {}
        self._defaults: dict[str, Any] = {}
        self._usable = True
        for key, value in defaults.items():
            self._default(key, value)

    def _default(self, key: str, value: Json) -> None:
        if key in ARRAYS or key == "token_texts" or (key in TRAJECTORY_FIELDS and key not in FIELDS):
            self._usable = False
        elif key not in FIELDS:
            self._extra[key] = value
        elif value is not None:
            try:
                self._defaults[key] = value if key in NESTED else cast(key, value)
            except BadRow:
                # Every row will be refused, with the reason.
                self._usable = False

    def learn(self, record: Mapping[str, Json]) -> None:
        """Takes note of the unknown keys of a good line, so that later lines with them are read fast."""
        self._lines.learn(record)

    def add_clean(self, lines: Sequence[bytes], rows: NewRows) -> bool:
        """Adds the rows of lines that need no second look; False (and nothing added) if the exact path must read one."""
        clean = self._lines.clean(lines) if self._usable else None
        if clean is None:
            return False
        values = _Values(clean, self._defaults)
        try:
            columns = _columns(values, self._extra)
            turns = {place: rows_ for place, rows_ in enumerate(map(turns_of, values.of("turns"))) if rows_} if values.has("turns") else {}
        except BadRow:
            # The exact path finds the same, and gives the reason in the order in which it looks.
            return False
        arrays = clean.arrays
        if values.has("token_texts"):
            arrays = dict(arrays)
            for place, texts in enumerate(values.of("token_texts")):
                if texts is not None:
                    arrays[place] = {**arrays.get(place, {}), "token_texts": encoded_texts(texts)}
        rows.extend(values.of("step"), values.of("attempt"), columns, arrays, turns)
        return True


class _Values:
    """Columns of clean lines by field name, with defaults where a line lacks the key and None for what is absent."""

    def __init__(self, clean: CleanLines, defaults: Mapping[str, Any]) -> None:
        self.clean, self._defaults = clean, defaults

    def has(self, name: str) -> bool:
        return _FROM[name] in self.clean.fields or name in self._defaults

    def of(self, name: str) -> Sequence[Any]:
        default = self._defaults.get(name)
        column = self.clean.fields.get(_FROM[name])
        if column is None:
            return [default] * self.clean.count
        return [default if value is UNSET else value for value in column] if UNSET in column else column


def _columns(values: _Values, extra: Mapping[str, Json]) -> list[Sequence[Any]]:
    count = values.clean.count
    nothing = [None] * count
    columns: list[Sequence[Any]] = [nothing] * len(COLUMNS)
    for name in _PLAIN:
        if values.has(name):
            column = values.of(name)
            columns[_AT[name]] = [str(v) if isinstance(v, int) else v for v in column] if name in LABELS else column
    for name in ("reward_parts", "sampling", "seconds"):
        if values.has(name):
            columns[_AT[name]] = [None if v is None else json_text(name, v) for v in values.of(name)]
    left = _nested(columns, values)
    _extra(columns, values, extra, left)
    return columns


def _nested(columns: list[Sequence[Any]], values: _Values) -> list[dict[str, Json]] | None:
    """Fills the columns of prompt, policy_version and verifier; what is left of each row's verifier, None if nothing is."""
    prompts, versions = values.of("prompt"), values.of("policy_version")
    verifiers = values.of("verifier")
    if not (all(map(_plain_verifier, verifiers)) and _plain(prompts, str) and _plain(versions, int) and _in_range(versions)):
        return _nested_by_row(columns, values.clean.count, prompts, versions, verifiers)
    columns[_AT["prompt"]] = prompts
    columns[_AT["policy_version_first"]] = columns[_AT["policy_version_last"]] = versions
    if values.has("verifier"):
        for key, name in _VERIFIER.items():
            columns[_AT[name]] = [None if v is None else v.get(key) for v in verifiers]
    return None


def _plain(column: Sequence[Any], kind: type) -> bool:
    return {type(value) for value in column} <= {kind, type(None)}


def _in_range(versions: Sequence[int | None]) -> bool:
    numbers = [version for version in versions if version is not None]
    return not numbers or (min(numbers) >= 0 and max(numbers) < 2**31)


def _plain_verifier(value: Any) -> bool:
    """True if a verifier has nothing but texts and a number in its known keys."""
    if value is None:
        return True
    if type(value) is not dict:
        return False
    return all(
        type(part) is float or part is None if key == "seconds" else key in _VERIFIER and (type(part) is str or part is None)
        for key, part in value.items()
    )


def _nested_by_row(
    columns: list[Sequence[Any]], count: int, prompts: Sequence[Any], versions: Sequence[Any], verifiers: Sequence[Any]
) -> list[dict[str, Json]]:
    names = ["prompt", "prompt_messages", "policy_version_first", "policy_version_last", *_VERIFIER.values()]
    filled: dict[str, list[Any]] = {name: [] for name in names}
    left: list[dict[str, Json]] = []
    for prompt, version, verifier in zip(prompts, versions, verifiers, strict=True):
        row: dict[str, Any] = dict.fromkeys(names)
        over: dict[str, Json] = {}
        fill_nested(row, over, {"prompt": prompt, "policy_version": version, "verifier": verifier})
        left.append(over)
        for name in names:
            filled[name].append(row[name])
    for name in names:
        columns[_AT[name]] = filled[name]
    return left


def _extra(columns: list[Sequence[Any]], values: _Values, given: Mapping[str, Json], left: list[dict[str, Json]] | None) -> None:
    """Fills `extra`: what the writer put there itself, unknown keys, and what is left of the verifier."""
    unknown = values.clean.extra
    if not (given or unknown or values.has("extra") or (left and any(left))):
        return
    texts: list[str | None] = []
    for place, own in enumerate(values.of("extra")):
        row = {**given, **own_extra(own), **{key: column[place] for key, column in unknown.items() if column[place] is not UNSET}}
        if left:
            row |= left[place]
        texts.append(json_text("extra", row) if row else None)
    columns[_AT["extra"]] = texts
