"""Reader of TRL's (and any transformers Trainer's) `trainer_state.json`: the whole history, written at each checkpoint.

Keys are the bare names of `log_history` (trl/trainer/grpo_trainer.py, transformers/trainer_callback.py). Rows of one step
are merged: training and evaluation are logged apart. After a resume the evaluation of the resumed step is in the history
twice; the later one counts. A metric may be null, or absent on steps without a new generation. TRL's version is in no file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ingest.errors import ReaderError
from ingest.readers.base import Head, open_binary
from ingest.readers.dialects import trl_trainer
from ingest.readers.lines import BadLine, as_number, decode_object, sample_of, whole_number
from ingest.schema.records import Batch, Cursor, EventRow, Growth, Item, Json, MetricRow, Reject

_CONFIG = ("max_steps", "num_train_epochs", "logging_steps", "eval_steps", "save_steps", "train_batch_size")
_EVALUATION = "eval_"


@dataclass(frozen=True)
class TrlTrainerStateReader:
    """Metrics of a TRL run."""

    name: str = "trl-trainer-state"
    framework: str = "trl"
    precedence: int = 60
    growth: Growth = "whole"

    def sniff(self, head: Head) -> float:
        """Confidence that the file is this format, from its name and first bytes."""
        start = head.head.removeprefix(b"\xef\xbb\xbf").lstrip()
        if not start.startswith(b"{") or head.name.endswith(".jsonl"):
            return 0.0
        named = head.name == "trainer_state.json"
        known = b'"log_history"' in head.head and (b'"global_step"' in head.head or b'"max_steps"' in head.head)
        return 0.95 if known else 0.5 if named and b'"best_metric"' in head.head else 0.0

    def read(self, path: Path, cursor: Cursor) -> Iterator[Item]:
        """Items from the cursor on; see `Reader.read`."""
        state, size = read_state(path)
        if cursor.offset >= size:
            return
        history = state.get("log_history")
        if not isinstance(history, list):
            raise ReaderError(f"{path} was read as a trainer state: a list under 'log_history' was expected, got {type(history).__name__}.")
        rows: list[MetricRow] = []
        events: list[EventRow] = []
        keys: set[str] = set()
        for number, record in enumerate(history, 1):
            step = whole_number(record.get("step")) if isinstance(record, dict) else None
            if step is None or not isinstance(record, dict):
                yield Reject(None, None, f"log_history[{number - 1}]: no integer 'step'", sample_of(json.dumps(record).encode()))
                continue
            numbers = {key: as_number(value) for key, value in record.items() if key not in ("step", "epoch")}
            values = {key: value for key, value in numbers.items() if value is not None}
            keys |= values.keys()
            if rows and rows[-1].step == step:
                if _evaluated_again(rows[-1], values):
                    events.append(EventRow(step, "resume", f"step {step} was evaluated twice, as after a resume from its checkpoint"))
                rows[-1] = MetricRow(step, {**rows[-1].values, **values})
            else:
                rows.append(MetricRow(step, values))
        note = f"{len(events)} evaluations were logged twice (after a resume); the later one counts" if events else None
        config = {key: state[key] for key in _CONFIG if state.get(key) is not None}
        yield Batch(Cursor(size, 0), tuple(rows), (), tuple(events), config, note, trl_trainer(keys))


def _evaluated_again(row: MetricRow, values: dict[str, float]) -> bool:
    return any(key.startswith(_EVALUATION) and key in row.values for key in values)


def read_state(path: Path) -> tuple[dict[str, Json], int]:
    """The trainer state and the bytes it has.

    Raises:
        ReaderError: the file is not one JSON object, for example half-written at this moment.
    """
    with open_binary(path) as stream:
        raw = stream.read()
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise ReaderError(f"{path} is UTF-16 text, UTF-8 was expected. Convert it: iconv -f UTF-16 -t UTF-8.")
    try:
        return decode_object(raw), len(raw)
    except BadLine as error:
        raise ReaderError(f"{path} was read as a trainer state: {error}. One whole JSON object was expected.") from None


def states_beside(path: Path) -> tuple[Path, ...]:
    """The trainer states of the run that a completions file belongs to: in the folder above `completions/` and its checkpoints."""
    root = path.parent.parent if path.parent.name == "completions" else path.parent
    found = [root / "trainer_state.json", *sorted(root.glob("checkpoint-*/trainer_state.json"))]
    return tuple(place for place in found if place.is_file() and place.resolve().is_relative_to(root.resolve()))


def newest_history(states: Sequence[Path]) -> list[dict[str, Json]]:
    """The log history of the state with the highest step; empty where none is written yet.

    A state that is half-written at this moment, or damaged, is passed over: its own reader says so.
    """
    read = []
    for place in states:
        try:
            read.append(read_state(place)[0])
        except ReaderError:
            continue
    newest = max(read, key=lambda state: whole_number(state.get("global_step")) or 0, default={})
    history = newest.get("log_history")
    return [row for row in history if isinstance(row, dict)] if isinstance(history, list) else []
