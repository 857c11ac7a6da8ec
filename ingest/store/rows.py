"""From a trajectory in native field names to the columns of trajectory, token and turn: strict, nothing invented."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ingest.schema.records import Json
from ingest.schema.tables import TOKEN_ARRAYS, TRAJECTORY_FIELDS


class BadRow(ValueError):
    """A trajectory that cannot be stored; the message is the reason shown in the rejects."""


class StoredTrajectory(NamedTuple):
    """Column values of one trajectory; tokens None where no array was written."""

    columns: dict[str, Any]
    tokens: dict[str, list[Any]] | None
    turns: list[dict[str, Any]]


_CONSUMED = {"step", "attempt", "prompt", "turns", "policy_version", "verifier", "extra", *TOKEN_ARRAYS}
_LABELS = {"trajectory_id", "group_id", "task", "difficulty"}
_INTEGER_ARRAYS = {name for name, kind in TOKEN_ARRAYS.items() if "INT" in kind}


def stored(fields: Mapping[str, Json]) -> StoredTrajectory:
    """The rows of one trajectory.

    Raises:
        BadRow: a value has the wrong type (a fraction or boolean where an integer belongs, an object where a text
        belongs), or arrays of different lengths.
    """
    columns: dict[str, Any] = {name: None for name in TRAJECTORY_FIELDS}
    extra = dict(fields["extra"]) if isinstance(fields.get("extra"), dict) else {}  # type: ignore[arg-type]
    for key, value in fields.items():
        if key in _CONSUMED:
            continue
        if key in columns:
            cast = _label if key in _LABELS else _CASTS[TRAJECTORY_FIELDS[key]]
            columns[key] = cast(key, value)
        else:
            extra[key] = value
    columns["prompt"], columns["prompt_messages"] = _prompt(fields.get("prompt"))
    columns["policy_version_first"], columns["policy_version_last"] = _versions(fields.get("policy_version"))
    extra |= _verifier(fields.get("verifier"), columns)
    columns["extra"] = json.dumps(extra) if extra else None
    return StoredTrajectory(columns, _tokens(fields), _turns(fields.get("turns")))


def integer(key: str, value: Json) -> int | None:
    """An integer, also one written as 3.0 or "3"."""
    if value is None:
        return None
    number = _number(key, value)
    if not float(number).is_integer():
        raise BadRow(f"{key}: an integer was expected, got {json.dumps(value)[:60]}")
    return int(number)


def _number(key: str, value: Json) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise BadRow(f"{key}: a number was expected, got {json.dumps(value)[:60]}")
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            raise BadRow(f"{key}: a number was expected, got {json.dumps(value)[:60]}") from None
    return value


def _double(key: str, value: Json) -> float | None:
    return None if value is None else float(_number(key, value))


def _text(key: str, value: Json) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise BadRow(f"{key}: a text was expected, got {json.dumps(value)[:60]}")


def _label(key: str, value: Json) -> str | None:
    """Identifiers and slices may be written as numbers; they are labels."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    return _text(key, value)


def _boolean(key: str, value: Json) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    raise BadRow(f"{key}: true or false was expected, got {json.dumps(value)[:60]}")


def _json(_key: str, value: Json) -> str | None:
    return None if value is None else json.dumps(value)


_CASTS: dict[str, Callable[[str, Json], Any]] = {
    "INTEGER": integer,
    "DOUBLE": _double,
    "VARCHAR": _text,
    "BOOLEAN": _boolean,
    "JSON": _json,
}


def _prompt(value: Json) -> tuple[str | None, str | None]:
    """The prompt as text, and as messages where it was a list of them."""
    if isinstance(value, list):
        lines = [f"{m.get('role', '')}\n{m.get('content', '')}" if isinstance(m, dict) else str(m) for m in value]
        return "\n".join(lines), json.dumps(value)
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
        raise BadRow(f"verifier: an object was expected, got {json.dumps(value)[:60]}")
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
            raise BadRow(f"{name}: an array was expected, got {json.dumps(value)[:60]}")
        arrays[name] = _array(name, value)
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise BadRow("arrays over the same tokens differ in length: " + ", ".join(f"{k} {v}" for k, v in lengths.items()))
    return arrays or None


def _array(name: str, values: list[Json]) -> list[Any]:
    if name == "token_texts":
        return [_text(name, value) for value in values]
    cast = integer if name in _INTEGER_ARRAYS else _double
    return [cast(name, value) for value in values]


def _turns(value: Json) -> list[dict[str, Any]]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise BadRow(f"turns: a list was expected, got {json.dumps(value)[:60]}")
    rows = []
    for number, turn in enumerate(value):
        if not isinstance(turn, dict):
            raise BadRow(f"turns[{number}]: an object was expected, got {json.dumps(turn)[:60]}")
        content = turn.get("content")
        rows.append(
            {
                "turn": number,
                "role": _text("turns.role", turn.get("role")),
                "content": content if content is None or isinstance(content, str) else json.dumps(content),
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
        raise BadRow(f"{key}: an array was expected, got {json.dumps(value)[:60]}")
    return [integer(key, item) for item in value]
