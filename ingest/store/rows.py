"""From a trajectory in native field names to the columns of trajectory, token and turn: strict, nothing invented."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ingest.schema.records import Json
from ingest.schema.tables import TOKEN_ARRAYS, TRAJECTORY_FIELDS


class BadRow(ValueError):
    """A trajectory that cannot be stored; the message is the reason shown in the rejects."""


class StoredTrajectory(NamedTuple):
    """Column values of one trajectory; tokens None where no array was written."""

    columns: dict[str, Any]
    tokens: dict[str, list[Any]] | None
    turns: list[dict[str, Any]]


INT_BOUNDS: dict[str, tuple[int, int]] = {"TINYINT": (-(2**7), 2**7 - 1), "INTEGER": (-(2**31), 2**31 - 1), "BIGINT": (-(2**63), 2**63 - 1)}
"""Least and greatest value of an integer column."""

_FLOAT_BEYOND = float(np.finfo(np.float32).max) * (1 + 2.0**-25)
"""From here on a double becomes infinity when rounded to 32 bits."""
_CONSUMED = {"step", "attempt", "prompt", "turns", "policy_version", "verifier", "extra", *TOKEN_ARRAYS}
LABELS = {"trajectory_id", "group_id", "task", "difficulty"}
"""Columns that take a number as a label."""

_INTEGER_ARRAYS = {name for name, kind in TOKEN_ARRAYS.items() if "INT" in kind}


def stored(fields: Mapping[str, Json]) -> StoredTrajectory:
    """The rows of one trajectory.

    Raises:
        BadRow: a value has the wrong type (a fraction or boolean where an integer belongs, an object where a text
        belongs), or arrays of different lengths.
    """
    columns: dict[str, Any] = dict.fromkeys(TRAJECTORY_FIELDS)
    extra = own_extra(fields.get("extra"))
    for key, value in fields.items():
        if key in _CONSUMED:
            continue
        if key in columns:
            columns[key] = cast(key, value)
        else:
            extra[key] = value
    fill_nested(columns, extra, fields)
    columns["extra"] = _json("extra", extra) if extra else None
    return StoredTrajectory(columns, _tokens(fields), turns_of(fields.get("turns")))


def fill_nested(columns: dict[str, Any], extra: dict[str, Json], fields: Mapping[str, Json]) -> None:
    """Fills the columns that come from a list or an object: prompt, policy_version and verifier; what is left goes to extra.

    Raises:
        BadRow: a part has the wrong type.
    """
    if fields.get("prompt") is not None:
        columns["prompt"], messages = _prompt(fields["prompt"])
        columns["prompt_messages"] = messages or columns["prompt_messages"]
    if fields.get("policy_version") is not None:
        columns["policy_version_first"], columns["policy_version_last"] = _versions(fields["policy_version"])
    extra |= _verifier(fields.get("verifier"), columns)


def own_extra(value: Json) -> dict[str, Json]:
    """The unknown keys that the writer itself put under `extra`; anything but an object is kept under that name."""
    if value is None:
        return {}
    return dict(value) if isinstance(value, dict) else {"extra": value}


def integer(key: str, value: Json, kind: str = "INTEGER") -> int | None:
    """An integer of that column type, also one written as 3.0 or "3".

    Raises:
        BadRow: a fraction, no number, or one too large for the column.
    """
    if value is None:
        return None
    number = _number(key, value)
    if isinstance(number, float):
        if not number.is_integer():
            raise BadRow(f"{key}: an integer was expected, got {_shown(value)}")
        number = int(number)
    low, high = INT_BOUNDS[kind]
    if not low <= number <= high:
        raise BadRow(f"{key}: an integer from {low} to {high} was expected, got {_shown(value)}")
    return number


def _shown(value: Json) -> str:
    return json.dumps(value)[:60]


def _number(key: str, value: Json) -> int | float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise BadRow(f"{key}: a number was expected, got {_shown(value)}")
    return _from_text(key, value) if isinstance(value, str) else value


def _from_text(key: str, value: str) -> int | float:
    """A number written as a text; float() alone would take 1_0 for 10, 1e400 for infinity, and lose digits of integers."""
    try:
        number = int(value) if value.strip().lstrip("+-").isdecimal() else float(value)
    except ValueError:
        number = None
    if number is None or "_" in value or not value.isascii():
        raise BadRow(f"{key}: a number was expected, got {_shown(value)}")
    if isinstance(number, float) and math.isinf(number) and "inf" not in value.lower():
        raise BadRow(f"{key}: the number {_shown(value)} is too large for a double")
    return number


def _double(key: str, value: Json) -> float | None:
    if value is None:
        return None
    try:
        return float(_number(key, value))
    except OverflowError:
        raise BadRow(f"{key}: the number {_shown(value)} is too large for a double") from None


def _float(key: str, value: Json) -> float | None:
    number = _double(key, value)
    if number is not None and abs(number) >= _FLOAT_BEYOND and not math.isinf(number):
        raise BadRow(f"{key}: the number {_shown(value)} is too large for a 32-bit float")
    return number


def _text(key: str, value: Json) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise BadRow(f"{key}: a text was expected, got {_shown(value)}")
    return _whole(key, value)


def _whole(key: str, text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadRow(f"{key}: half of a character (a lone surrogate) at character {error.start + 1}") from None
    return text


def _label(key: str, value: Json) -> str | None:
    """Identifiers and slices may be written as numbers; they are labels."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    return _text(key, value)


def _boolean(key: str, value: Json) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    raise BadRow(f"{key}: true or false was expected, got {_shown(value)}")


def json_text(key: str, value: Json) -> str:
    """The JSON text of a value, the same for the same value whichever way it was read. For values without NaN.

    Raises:
        BadRow: a text in it holds half of a character.
    """
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        raise BadRow(f"{key}: half of a character (a lone surrogate) in a text") from None
    except (OverflowError, RecursionError):
        return json.dumps(value, ensure_ascii=False)


def _json(key: str, value: Json) -> str | None:
    if value is None:
        return None
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        # msgspec would write null for NaN.
        return _whole(key, json.dumps(value, ensure_ascii=False))
    return json_text(key, value)


_CASTS: dict[str, Callable[[str, Json], Any]] = {
    "INTEGER": integer,
    "BIGINT": lambda key, value: integer(key, value, "BIGINT"),
    "DOUBLE": _double,
    "VARCHAR": _text,
    "BOOLEAN": _boolean,
    "JSON": _json,
}


def cast(key: str, value: Json) -> Any:
    """The value of a column of `trajectory`, or of step and attempt.

    Raises:
        BadRow: it has the wrong type.
    """
    if key in LABELS:
        return _label(key, value)
    return _CASTS[_KEY_KINDS.get(key) or TRAJECTORY_FIELDS[key]](key, value)


_KEY_KINDS = {"step": "BIGINT", "attempt": "INTEGER"}


def _prompt(value: Json) -> tuple[str | None, str | None]:
    """The prompt as text, and as messages where it was a list of them."""
    if isinstance(value, list):
        lines = [f"{m.get('role', '')}\n{m.get('content', '')}" if isinstance(m, dict) else str(m) for m in value]
        return _whole("prompt", "\n".join(lines)), _json("prompt", value)
    return _text("prompt", value), None


def _versions(value: Json) -> tuple[int | None, int | None]:
    if isinstance(value, list):
        numbers = [n for n in (integer("policy_version", v) for v in value) if n is not None]
        return (min(numbers), max(numbers)) if numbers else (None, None)
    number = integer("policy_version", value)
    return number, number


def _verifier(value: Json, columns: dict[str, Any]) -> dict[str, Json]:
    """Fills the verifier columns; returns what is left for `extra`."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadRow(f"verifier: an object was expected, got {_shown(value)}")
    columns["verifier_name"] = _label("verifier.name", value.get("name"))
    columns["verifier_version"] = _label("verifier.version", value.get("version"))
    columns["verifier_status"] = _text("verifier.status", value.get("status"))
    columns["verifier_seconds"] = _double("verifier.seconds", value.get("seconds"))
    return {f"verifier.{k}": v for k, v in value.items() if k not in ("name", "version", "status", "seconds")}


def _tokens(fields: Mapping[str, Json]) -> dict[str, list[Any]] | None:
    arrays: dict[str, list[Any]] = {}
    for name in TOKEN_ARRAYS:
        value = fields.get(name)
        if value is None:
            continue
        if not isinstance(value, list):
            raise BadRow(f"{name}: an array was expected, got {_shown(value)}")
        arrays[name] = _array(name, value)
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise BadRow("arrays over the same tokens differ in length: " + ", ".join(f"{k} {v}" for k, v in lengths.items()))
    return arrays or None


def _array(name: str, values: list[Json]) -> list[Any]:
    if name == "token_texts":
        return [_text(name, value) for value in values]
    if name in _INTEGER_ARRAYS:
        kind = TOKEN_ARRAYS[name].removesuffix("[]")
        return [integer(name, value, kind) for value in values]
    return [_float(name, value) for value in values]


def turns_of(value: Json) -> list[dict[str, Any]]:
    """The rows of `turn` without their key.

    Raises:
        BadRow: not a list of objects, or a part of one has the wrong type.
    """
    if value is None:
        return []
    if not isinstance(value, list):
        raise BadRow(f"turns: a list was expected, got {_shown(value)}")
    rows = []
    for number, turn in enumerate(value):
        if not isinstance(turn, dict):
            raise BadRow(f"turns[{number}]: an object was expected, got {_shown(turn)}")
        content = turn.get("content")
        rows.append(
            {
                "turn": number,
                "role": _text("turns.role", turn.get("role")),
                "content": _text("turns.content", content) if isinstance(content, str) else _json("turns.content", content),
                "tool_name": _text("turns.tool_name", turn.get("tool_name")),
                "tool_args": _json("turns.tool_args", turn.get("tool_args")),
                "is_error": _boolean("turns.is_error", turn.get("is_error")),
                "seconds": _double("turns.seconds", turn.get("seconds")),
                "policy_version": integer("turns.policy_version", turn.get("policy_version")),
                "prompt_token_ids": _id_list("turns.prompt_token_ids", turn.get("prompt_token_ids")),
                "token_ids": _id_list("turns.token_ids", turn.get("token_ids")),
            }
        )
    return rows


def _id_list(key: str, value: Json) -> list[int | None] | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise BadRow(f"{key}: an array was expected, got {_shown(value)}")
    return [integer(key, item) for item in value]
