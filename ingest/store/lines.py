"""Deciding fast which trajectory lines need no second look.

Lines are clean if one strict decode proves that the exact path (rows.py) would store the same values. Everything else
is left to that path, which also knows the reasons for rejects. Token arrays are not decoded at all: their bytes are
checked and handed to DuckDB's own JSON reader.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any

import msgspec

from ingest.schema.records import Json
from ingest.schema.tables import TOKEN_ARRAYS, TRAJECTORY_FIELDS
from ingest.store.rows import INT_BOUNDS, LABELS

UNSET = msgspec.UNSET
_LEARNED_KEYS = 64
"""Unknown keys of a file that are read fast once met; a file with ever new keys goes the exact way."""

_DERIVED = {"prompt_messages", "policy_version_first", "policy_version_last", "extra"}
_OWN_COLUMNS = {name for name in TRAJECTORY_FIELDS if name not in _DERIVED and not name.startswith("verifier_")}
NESTED = ("prompt", "policy_version", "verifier", "turns", "reward_parts", "sampling", "seconds", "extra")
"""Fields that may hold lists or objects; decoded to Python values."""

SCALARS: tuple[str, ...] = ("step", "attempt", *sorted(_OWN_COLUMNS - set(NESTED)))
ARRAYS: tuple[str, ...] = tuple(name for name in TOKEN_ARRAYS if name != "token_texts")
FIELDS: tuple[str, ...] = (*SCALARS, *NESTED, "token_texts", *ARRAYS)
"""Order of a decoded line's values."""

_NESTED_AT = len(SCALARS)
_TEXTS_AT = FIELDS.index("token_texts")
_ARRAYS_AT = len(FIELDS) - len(ARRAYS)
_INTEGER_ARRAYS = {name for name in ARRAYS if "INT" in TOKEN_ARRAYS[name]}
_LONGEST_NUMBER = 38
"""Bytes between two commas. DuckDB reads an integer literal of more than 38 digits into a FLOAT as infinity, silently."""

_HUGE = 309
"""A number with a point is infinity only from this many digits on."""

_SHORT_LINE = 4096
"""Bytes; cutting the arrays out of a shorter line costs more than looking through them."""

_SPACED_KEY = re.compile(rb'[^\\]"[ \t\r]+:')

_INTEGER = Annotated[int, msgspec.Meta(ge=INT_BOUNDS["INTEGER"][0], le=INT_BOUNDS["INTEGER"][1])]
_BIGINT = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]
_ANY = None | bool | int | float | str | list[Any] | dict[str, Any]
"""Any JSON value; written out because UNSET cannot join Any."""

_TYPES: dict[str, Any] = {"INTEGER": _INTEGER | None, "DOUBLE": float | None, "VARCHAR": str | None, "BOOLEAN": bool | None}


def _field_type(name: str) -> Any:
    if name == "step":
        return _BIGINT
    if name in ARRAYS:
        return msgspec.Raw
    if name == "token_texts":
        return list[str | None] | None
    if name in LABELS:
        return str | int | None
    if name == "prompt":
        return str | list[Any] | None
    if name in NESTED:
        return _ANY
    return _INTEGER | None if name == "attempt" else _TYPES[TRAJECTORY_FIELDS[name]]


@lru_cache(maxsize=64)
def _decoder(names: tuple[str, ...], learned: tuple[str, ...]) -> msgspec.json.Decoder[Any]:
    """A decoder of lines whose fields are written as `names` (in the order of FIELDS) and learned unknown keys."""
    fields = [(f"f{i}", _field_type(name) | msgspec.UnsetType, UNSET) for i, name in enumerate(FIELDS)]
    extra = [(f"x{i}", _ANY | msgspec.UnsetType, UNSET) for i in range(len(learned))]
    keys = {f"f{i}": name for i, name in enumerate(names)} | {f"x{i}": name for i, name in enumerate(learned)}
    return msgspec.json.Decoder(msgspec.defstruct("Line", [*fields, *extra], rename=keys, forbid_unknown_fields=True, gc=False))


@dataclass
class CleanLines:
    """Lines that need no second look, by column.

    fields: by place in FIELDS, without the arrays, UNSET where a line lacks the key; columns that no line has are
    absent. extra: unknown keys. arrays: by place of the line, the bytes of its token arrays.
    """

    count: int
    fields: Mapping[int, Sequence[Any]]
    extra: Mapping[str, Sequence[Any]]
    arrays: dict[int, dict[str, bytes]]


@dataclass
class LineShape:
    """What the lines of one file look like: which key is written for which field, and the unknown keys met so far."""

    rename: Mapping[str, str]
    has_step: bool = False
    """True if rows without a step have one by default."""
    learned: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        written = {native: key for key, native in self.rename.items()}
        self._names = tuple(written.get(name, name) for name in FIELDS)
        # Two keys for one field: which one wins depends on their order in the line; only the exact path sees that.
        self._usable = len(written) == len(self.rename) and len(set(self._names)) == len(self._names)
        self._quoted = {name: b'"%s"' % key.encode() for name, key in zip(FIELDS, self._names, strict=True) if name in ARRAYS}
        self._known = {*self._names, *self.rename, *TRAJECTORY_FIELDS, *TOKEN_ARRAYS}
        self._update()

    def _update(self) -> None:
        self._decode = _decoder(self._names, tuple(self.learned)).decode if self._usable else None

    def learn(self, record: Mapping[str, Json]) -> None:
        """Takes note of the unknown keys of a good line, so that later lines with them are read fast."""
        fresh = [key for key in record if key not in self._known and key not in self.learned]
        if fresh and self._usable and len(self.learned) + len(fresh) <= _LEARNED_KEYS:
            self.learned.extend(fresh)
            self._update()

    def clean(self, lines: Sequence[bytes]) -> CleanLines | None:
        """The values of these lines, or None if the exact path must look at one of them."""
        if self._decode is None:
            return None
        decode, astuple = self._decode, msgspec.structs.astuple
        try:
            rows = [astuple(decode(line)) for line in lines]
        except (msgspec.MsgspecError, RecursionError, UnicodeError):
            return None
        count = len(rows)
        present = {place: column for place, column in enumerate(zip(*rows, strict=True)) if not all(v is UNSET for v in column)}
        if not self.has_step and (0 not in present or UNSET in present[0]):
            return None
        arrays = _arrays(rows, present)
        if arrays is None:
            return None
        extra = {self.learned[place - len(FIELDS)]: column for place, column in present.items() if place >= len(FIELDS)}
        nested = [present[place] for place in range(_NESTED_AT, _TEXTS_AT) if place in present]
        keys = sum(count - column.count(UNSET) for column in present.values())
        keys += sum(_keys(value) for column in (*nested, *extra.values()) for value in column if isinstance(value, (dict, list)))
        texts = [_without_arrays(line, arrays.get(place), self._quoted) for place, line in enumerate(lines)]
        if not _every_key_once(b"\n".join(texts), keys):
            return None
        return CleanLines(count, {place: column for place, column in present.items() if place < _ARRAYS_AT}, extra, arrays)


def _arrays(rows: list[tuple[Any, ...]], present: Mapping[int, Sequence[Any]]) -> dict[int, dict[str, bytes]] | None:
    """The bytes of the token arrays, or None if one holds anything but numbers of its kind and nulls, or lengths differ."""
    names = [(place, name) for place, name in enumerate(ARRAYS, _ARRAYS_AT) if place in present]
    if not names and _TEXTS_AT not in present:
        return {}
    found: dict[int, dict[str, bytes]] = {}
    for number, row in enumerate(rows):
        spans: dict[str, bytes] = {}
        texts = row[_TEXTS_AT]
        length = -1 if texts is UNSET or texts is None else len(texts)
        for place, name in names:
            if row[place] is UNSET:
                continue
            span = bytes(row[place])
            if span == b"null":
                continue
            count = _plain_numbers(name, span)
            if count is None or length not in (-1, count):
                return None
            length = count
            spans[name] = span
        if spans:
            found[number] = spans
    return found


def _plain_numbers(name: str, span: bytes) -> int | None:
    """The number of elements of a JSON array of such numbers, or None if the exact path must look at it."""
    if name in _INTEGER_ARRAYS:
        return _plain_integers(span)
    rest = span.translate(None, b"0123456789- ")
    dots = len(rest) // 2
    if rest == b"[%s.]" % (b".," * (dots - 1)) and _no_huge_real(span):
        return dots
    if b"n" in rest:
        rest = rest.replace(b"null", b"")
    negative = span.count(b"e-") + span.count(b"E-")
    rest = rest.translate(None, b".eE") if negative == rest.count(b"e") + rest.count(b"E") else rest
    commas = len(rest) - 2
    # Only negative exponents are sure not to be too large, and only short literals.
    if rest != b"[%s]" % (b"," * commas) or max(map(len, span.split(b","))) > _LONGEST_NUMBER:
        return None
    return commas + 1 if commas or span[1:-1].strip() else 0


def _plain_integers(span: bytes) -> int | None:
    rest = span.translate(None, b"0123456789- ")
    commas = len(rest) - 2
    if rest != b"[%s]" % (b"," * commas):
        rest = rest.replace(b"null", b"")
        # A mask written as 1.0: whole all the same.
        if span.count(b".0,") + span.count(b".0 ") + span.endswith(b".0]") != rest.count(b"."):
            return None
        rest = rest.translate(None, b".")
        commas = len(rest) - 2
        if rest != b"[%s]" % (b"," * commas):
            return None
    return commas + 1 if commas or span[1:-1].strip() else 0


def _no_huge_real(span: bytes) -> bool:
    """True if no number has _HUGE digits or more: from comma to comma, each within that many bytes of the last."""
    at, end = 0, len(span) - _HUGE
    while at < end:
        at = span.rfind(b",", at + 1, at + _HUGE)
        if at < 0:
            return False
    return True


def _keys(value: Json) -> int:
    """Number of keys anywhere in a value."""
    if isinstance(value, dict):
        return len(value) + sum(_keys(v) for v in value.values() if isinstance(v, (dict, list)))
    if isinstance(value, list):
        return sum(_keys(v) for v in value if isinstance(v, (dict, list)))
    return 0


def _without_arrays(line: bytes, spans: dict[str, bytes] | None, names: Mapping[str, bytes]) -> bytes:
    """The line without its token arrays, which hold no text; one that is not found where its key says stays in."""
    if not spans or len(line) < _SHORT_LINE:
        return line
    cuts = []
    at = 0
    for name, span in spans.items():
        key = line.find(names[name], at)
        if key < 0:
            key = line.find(names[name])
        start = line.find(b"[", key)
        if key >= 0 and line.startswith(span, start):
            at = start + len(span)
            cuts.append((start, at))
    cuts.sort()
    ends = [0, *(end for _, end in cuts)]
    starts = [*(start for start, _ in cuts), len(line)]
    return b"".join([line[end:start] for end, start in zip(ends, starts, strict=True)])


def _every_key_once(text: bytes, expected: int) -> bool:
    """True if the JSON text has as many keys as were decoded, so that none was lost as a duplicate.

    A key is a quote followed by a colon. Quotes inside texts are escaped; a key that ends in a backslash or a space
    before the colon would hide one, so such lines are looked at again.
    """
    if any(gap in text for gap in (b" :", b"\t:", b"\r:")) and _SPACED_KEY.search(text):
        return False
    found = text.count(b'":')
    if found == expected:
        return True
    return found - text.count(b'\\":') == expected and b'\\\\":' not in text
