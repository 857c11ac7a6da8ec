"""Rows of no particular trainer: step, text and reward columns found by name, for JSON lines, CSV and Parquet alike."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from ingest.readers.dialects import dialect
from ingest.readers.lines import as_number, sample_of, whole_number
from ingest.schema.metrics import resolve
from ingest.schema.records import Batch, Cursor, Item, Json, MetricRow, Reject, TrajectoryRow

STEP_KEYS = (
    "step", "Step", "training_step", "trainer/global_step", "train/global_step", "training/global_step", "global_step",
    "progress/step", "progress/batch", "global_step/max_steps", "batch_index", "iteration", "iter", "update", "episode", "_step",
)  # fmt: skip
"""In this order; `_step` counts log calls rather than updates and is taken only where nothing better is there."""

_PROMPT = ("prompt", "input", "question", "problem", "query", "instruction", "prompt_text", "input_text")
_RESPONSE = ("response", "completion", "output", "model_output", "generation", "response_text", "output_text", "text")
_REWARD = ("reward", "score", "total_reward", "reward_total", "final_reward", "episode_reward")
_CONVERSATION = ("messages", "conversation", "trace")
_NESTED = ("rollouts", "samples", "completions", "responses")
_GROUP = ("group_id", "uid", "prompt_id", "qid")
_TASK = ("task", "task_id", "data_source")
_WALL = ("wall_time", "_timestamp", "timestamp")
_SPLIT = ("split", "log_type", "phase")
_EVALUATION = {"eval", "val", "valid", "validation", "test"}
_ABOUT = {*STEP_KEYS, "attempt", "wall_time", "_timestamp", "timestamp", "_runtime", "epoch", "", "Unnamed: 0"}
# Of a file or folder name: step-100, global_step_100, rollouts_step100, checkpoint-100, or 100.jsonl.
_STEP_IN_NAME = re.compile(r"(?:step|checkpoint|iter)[-_]?(\d{1,15})(?!\d)|^(\d{1,15})$", re.IGNORECASE)


class Table:
    """Takes the rows of one file in order; `state` is what a later read must know (step column, what has been said)."""

    def __init__(self, path: Path, state: Mapping[str, Json]) -> None:
        self.path = path
        self._key = _text(state.get("step_key"))
        self._dialect = _text(state.get("dialect"))
        last, counted, placed, jumping = (state.get(key) for key in ("last_step", "counted", "placed", "jumping"))
        self._last = last if isinstance(last, int) else None
        self._counted = counted if isinstance(counted, int) else 0
        self._placed = placed if isinstance(placed, int) else 0
        # Decided by the first rows that hold trajectories; None: not yet.
        self._jumping = jumping if isinstance(jumping, bool) else None

    @staticmethod
    def recognises(record: Mapping[str, Json]) -> bool:
        """True for a row that holds a response, or numbers with a step column, or without one at least two known metrics."""
        if _first(record, (*_RESPONSE[:-1], *_CONVERSATION)) or (_first(record, _PROMPT) and _first(record, (*_RESPONSE, *_NESTED))):
            return True
        numbers = [key for key in record if key not in _ABOUT]
        if _step_key([record]):
            return bool(numbers)
        words = dialect(record)
        return sum(1 for key in numbers if resolve(key, "plain", words).metric) >= 2

    @staticmethod
    def holds_texts(record: Mapping[str, Json]) -> bool:
        """True for a row (or a header with empty texts as values) that is a trajectory, not a record of metrics."""
        return bool(_texts(record))

    def state(self) -> dict[str, Json]:
        """What the cursor must remember."""
        return {
            "step_key": self._key,
            "dialect": self._dialect,
            "last_step": self._last,
            "counted": self._counted,
            "placed": self._placed,
            "jumping": self._jumping,
        }

    def take(self, rows: Sequence[tuple[int, int | None, Mapping[str, Json]]], cursor: Cursor) -> Iterator[Item]:
        """The items of (line, byte offset, record) rows; the cursor after them gets this table's state."""
        if self._key is None:
            self._key = _step_key([record for _, _, record in rows])
        if self._dialect is None:
            self._dialect = dialect({key for _, _, record in rows[:1000] for key in record})
        metrics: list[MetricRow] = []
        trajectories: list[TrajectoryRow] = []
        for line, offset, record in rows:
            texts = _texts(record)
            step = self._step(record, trajectory=bool(texts))
            if isinstance(step, str):
                yield Reject(line, offset, step, sample_of(repr(dict(record)).encode()))
                continue
            if texts:
                trajectories += [TrajectoryRow(step, fields, _attempt(record), line, offset) for fields in _trajectories(record, texts)]
                continue
            values = _numbers(record)
            if values:
                wall = next((w for w in (as_number(record.get(k)) for k in _WALL) if w is not None), None)
                metrics.append(MetricRow(step, values, wall, _attempt(record)))
        if self._jumping is None and trajectories:
            self._jumping = _jumps(trajectories)
        if self._jumping:
            trajectories = [row._replace(attempt=row.attempt or 1) for row in trajectories]
        yield Batch(
            Cursor(cursor.offset, cursor.line, self.state()),
            tuple(metrics),
            tuple(trajectories),
            note=self._note(),
            framework_version=self._dialect,
        )

    def _step(self, record: Mapping[str, Json], *, trajectory: bool) -> int | str:
        """The row's step, or the reason why it has none."""
        if self._key is None:
            if trajectory:
                return _step_of_name(self.path)
            self._counted += 1
            return self._counted
        value = record.get(self._key)
        if self._key == "global_step/max_steps" and isinstance(value, str):
            value = value.split("/")[0]
        step = whole_number(value)
        if step is not None:
            self._last = step
            return step
        if value is not None and value != "":
            return f"no integer {self._key!r}: got {str(value)[:60]!r}"
        if trajectory or self._last is None or "_step" not in record:
            return f"no step: the column {self._key!r} is empty"
        # wandb: rows of the profiler and of tables carry their own counter only; they stand after the step logged last.
        self._placed += 1
        return self._last

    def _note(self) -> str | None:
        said = []
        if self._key is None and self._counted:
            said.append("no step column: rows were counted from 1")
        elif self._key is None:
            said.append(f"no step column: all rows at step {_step_of_name(self.path)}")
        if self._jumping:
            said.append(f"{self._key!r} goes up and down as the turns of an episode do: all rows are one attempt")
        if self._placed:
            said.append(f"{self._placed} rows without {self._key!r} were placed at the step before them")
        return "; ".join(said) or None


def _jumps(rows: Sequence[TrajectoryRow]) -> bool:
    """True where steps go back too often for resumes: more than three times, and in more than one of a hundred rows."""
    back = sum(1 for before, after in pairwise(rows) if after.step < before.step)
    return back > 3 and 100 * back > len(rows)


def _step_key(records: Iterable[Mapping[str, Json]]) -> str | None:
    present = {key for record in records for key in record}
    return next((key for key in STEP_KEYS if key in present), None)


def _step_of_name(path: Path) -> int:
    """The step that the file or its folder is named after, else 0."""
    for name in (path.name.split(".")[0], path.parent.name):
        found = _STEP_IN_NAME.search(name)
        if found:
            return int(found.group(1) or found.group(2))
    return 0


def _attempt(record: Mapping[str, Json]) -> int | None:
    return whole_number(record.get("attempt"))


def _numbers(record: Mapping[str, Json]) -> dict[str, float]:
    """Every key with a number; an object of numbers only (wandb's nested rows) as its slashed keys.

    Rows that name themselves an evaluation keep their keys apart from those of training (prefix `eval/`).
    """
    named = next((str(record[key]).lower() for key in _SPLIT if isinstance(record.get(key), str)), "")
    prefix = "eval/" if named in _EVALUATION else ""
    values: dict[str, float] = {}
    for key, value in _leaves(record):
        if key not in _ABOUT:
            number = as_number(value)
            if number is not None:
                values[prefix + key] = number
    return values


def _leaves(record: Mapping[str, Json], prefix: str = "") -> Iterator[tuple[str, Json]]:
    for key, value in record.items():
        if isinstance(value, dict):
            if value and _all_numbers(value):
                yield from _leaves(value, f"{prefix}{key}/")
        else:
            yield prefix + key, value


def _all_numbers(value: dict[str, Json]) -> bool:
    return all(_all_numbers(v) if isinstance(v, dict) else isinstance(v, (int, float)) and not isinstance(v, bool) for v in value.values())


def _first(record: Mapping[str, Json], names: Iterable[str]) -> str | None:
    return next((name for name in names if name in record), None)


def _text(value: Json) -> str | None:
    return value if isinstance(value, str) else None


def _texts(record: Mapping[str, Json]) -> dict[str, str]:
    """Which keys hold prompt and response, or the list of responses; empty: the row is a record of metrics."""
    found: dict[str, str] = {}
    prompt = next((k for k in _PROMPT if isinstance(record.get(k), (str, list))), None)
    response = next((k for k in _RESPONSE if isinstance(record.get(k), str) and (k != "text" or prompt)), None)
    nested = next((k for k in _NESTED if isinstance(record.get(k), list) and prompt), None)
    if response:
        found["response"] = response
    elif nested:
        found["nested"] = nested
    elif conversation := next((k for k in _CONVERSATION if _is_conversation(record.get(k))), None):
        found["conversation"] = conversation
    else:
        return {}
    return {**found, "prompt": prompt} if prompt else found


def _is_conversation(value: Json) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(m, dict) and "role" in m for m in value)


def _spoken(messages: Json) -> dict[str, Json]:
    """Prompt (the messages before the first answer), response (what follows, as text) and turns of a conversation."""
    turns = [message for message in messages if isinstance(message, dict)] if isinstance(messages, list) else []
    first = next((n for n, turn in enumerate(turns) if turn.get("role") == "assistant"), len(turns))
    said = [f"{turn.get('role')}\n{_content(turn)}" for turn in turns[first:]]
    known: list[Json] = [{"role": str(turn.get("role")), "content": _content(turn), **_called(turn)} for turn in turns]
    return {"prompt": [*turns[:first]], "response": "\n".join(said), "turns": known}


def _called(turn: Mapping[str, Json]) -> dict[str, Json]:
    """Tool and arguments of a message's calls (one call's own, several side by side), or the tool whose answer it is."""
    calls = turn.get("tool_calls")
    if not isinstance(calls, list) or not calls:
        return {"tool_name": turn["name"]} if turn.get("role") == "tool" and isinstance(turn.get("name"), str) else {}
    functions = [call.get("function", call) if isinstance(call, dict) else {} for call in calls]
    named = [function if isinstance(function, dict) else {"name": function} for function in functions]
    names, arguments = [str(function.get("name")) for function in named], [function.get("arguments") for function in named]
    return {"tool_name": "+".join(names), "tool_args": arguments[0] if len(arguments) == 1 else arguments}


def _content(turn: Mapping[str, Json]) -> str:
    """A message's text; typed parts (tool calls, images) as their JSON."""
    content = turn.get("content")
    return content if isinstance(content, str) else json.dumps(content)


def _trajectories(record: Mapping[str, Json], texts: Mapping[str, str]) -> Iterator[dict[str, Json]]:
    """The trajectory of a row, or every member of the group that is nested in it."""
    if "conversation" in texts:
        spoken = _spoken(record[texts["conversation"]])
        yield {**_fields({**record, "response": spoken["response"]}, {"response": "response"}, texts["conversation"]), **spoken}
        return
    if "nested" not in texts:
        yield _fields(record, texts)
        return
    members = record[texts["nested"]]
    shared = {key: value for key, value in record.items() if key != texts["nested"]}
    for index, member in enumerate(members if isinstance(members, list) else []):
        own: dict[str, Json] = dict(member) if isinstance(member, dict) else {"response": member}
        merged = {**shared, **own}
        names = {**texts, "response": _first(own, _RESPONSE) or "response"}
        fields = _fields(merged, names)
        fields.setdefault("sample_index", index)
        yield fields


def _fields(record: Mapping[str, Json], texts: Mapping[str, str], *taken: str) -> dict[str, Json]:
    """Native field names; a value of a type that its field cannot hold stays among the extras under its own name."""
    fields: dict[str, Json] = {"response": record.get(texts["response"])}
    used = {texts["response"], *taken, *STEP_KEYS, "attempt", "", "Unnamed: 0"}
    if "prompt" in texts:
        fields["prompt"] = record.get(texts["prompt"])
        used.add(texts["prompt"])
    for field, names in (("group_id", _GROUP), ("task", _TASK)):
        key = next((n for n in names if isinstance(record.get(n), (str, int)) and not isinstance(record.get(n), bool)), None)
        if key:
            fields[field] = str(record[key])
            used.add(key)
    reward = next((n for n in _REWARD if as_number(record.get(n)) is not None), None)
    if reward:
        fields["reward"] = as_number(record[reward])
        used.add(reward)
    parts = next((n for n in ("reward_parts", "reward_components") if isinstance(record.get(n), dict)), None)
    if parts:
        fields["reward_parts"] = record[parts]
        used.add(parts)
    advantage = as_number(record.get("advantage"))
    if advantage is not None:
        fields["advantage"] = advantage
        used.add("advantage")
    used |= _take_typed(record, fields)
    extra: dict[str, Json] = {key: value for key, value in record.items() if key not in used and value is not None and value != ""}
    if extra:
        fields["extra"] = extra
    return fields


def _take_typed(record: Mapping[str, Json], fields: dict[str, Json]) -> set[str]:
    """Native fields under their own name, where the value has the field's type. Returns the keys taken."""
    taken: set[str] = set()
    for key in ("trajectory_id", "difficulty", "finish_reason", "drop_reason", "origin"):
        value = record.get(key)
        if isinstance(value, (str, int)) and not isinstance(value, bool) and value != "":
            fields[key] = str(value)
            taken.add(key)
    for key in ("sample_index", "prompt_tokens", "response_tokens", "policy_version", "policy_lag"):
        number = whole_number(record.get(key))
        if number is not None:
            fields[key] = number
            taken.add(key)
    kept = record.get("kept")
    if isinstance(kept, bool):
        fields["kept"] = kept
        taken.add("kept")
    split = record.get("split")
    if isinstance(split, str):
        fields["split"] = "eval" if split.lower() in _EVALUATION else "train" if split.lower() == "train" else split
        taken.add("split")
    return taken
