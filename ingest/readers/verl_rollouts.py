"""Readers of verl's text dumps: `trainer.rollout_data_dir` and `trainer.validation_data_dir`, one `{step}.jsonl` a step.

Written by RayPPOTrainer._write_generations (verl/trainer/ppo/ray_trainer.py, v0) and by v1/trainer_base.py. Rows hold
input, output, gts (since 0.6), score and step; v1 adds uid `{prompt}_{session}_{turn}` and synthetic padding rows whose
uid begins with `pad` and 32 hex digits; v0 adds the reward function's extras as flat keys. Not in the files, hence null:
token ids, masks, advantages, log-probabilities, finish reason, versions, lengths in tokens, task.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ingest.readers.base import Head, LongLine, whole_lines
from ingest.readers.jsonl import first_object
from ingest.readers.lines import BadLine, as_number, decode_object, numbered_lines, object_is_whole, sample_of, too_long, whole_number
from ingest.schema.records import Batch, Cursor, Growth, Item, Json, Reject, TrajectoryRow

_PAD = re.compile(r"^pad[0-9a-f]{32}")
_TRAINERS_OWN = {"input", "output", "score", "step", "uid", "request_id"}
_VALIDATION = re.compile(r"^(val|valid|validation|eval|evaluation)([_.-]|$)|[_.-](val|validation|eval)$", re.IGNORECASE)
_MUST = {"input", "output", "score", "step"}


@dataclass(frozen=True)
class VerlRolloutsReader:
    """Training rollouts of one step."""

    name: str = "verl-rollouts"
    framework: str = "verl"
    precedence: int = 50
    growth: Growth = "whole"

    def sniff(self, head: Head) -> float:
        """Confidence that the file is this format, from its name and first bytes."""
        return 0.9 if is_dump(head) and not is_validation(head) else 0.0

    def read(self, path: Path, cursor: Cursor) -> Iterator[Item]:
        """Items from the cursor on; see `Reader.read`."""
        yield from read_dump(path, cursor, "train")


def is_dump(head: Head) -> bool:
    """True for either kind of dump."""
    record = first_object(head)
    return record is not None and set(record) >= _MUST


def is_validation(head: Head) -> bool:
    """True where the folder says so, or where the validation's own `reward` stands beside the score."""
    record = first_object(head) or {}
    folder = head.path.parent.name
    return bool(_VALIDATION.search(folder)) or ("reward" in record and "rollout" not in folder.lower())


def read_dump(path: Path, cursor: Cursor, split: str) -> Iterator[Item]:
    """The trajectories of a dump; padding rows are counted in the note and left out."""
    saved = cursor.state.get("pads")
    pads = saved if isinstance(saved, int) else 0
    for chunk in whole_lines(path, cursor, 4 << 20, tail_complete=object_is_whole):
        if isinstance(chunk, LongLine):
            yield too_long(chunk, {"pads": pads})
            continue
        rows: list[TrajectoryRow] = []
        for number, offset, line in numbered_lines(chunk.data, chunk.first_line, chunk.first_offset):
            try:
                row = _row(decode_object(line), number, offset, split)
            except BadLine as error:
                yield Reject(number, offset, str(error), sample_of(line))
                continue
            if row is None:
                pads += 1
            else:
                rows.append(row)
        note = f"{pads} padding rows of the trainer were left out" if pads else None
        yield Batch(Cursor(chunk.end_offset, chunk.end_line, {"pads": pads}), trajectories=tuple(rows), note=note)


def _row(record: dict[str, Json], line: int, offset: int, split: str) -> TrajectoryRow | None:
    """One row; None for padding.

    Raises:
        BadLine: no integer step, or no text under input or output.
    """
    uid = record.get("uid")
    if isinstance(uid, str) and _PAD.match(uid):
        return None
    step = whole_number(record.get("step"))
    if step is None:
        raise BadLine(f"no integer 'step': got {str(record.get('step'))[:60]!r}")
    text, answer = record.get("input"), record.get("output")
    if not isinstance(text, str) or not isinstance(answer, str):
        raise BadLine("texts under 'input' and 'output' were expected")
    fields: dict[str, Json] = {"split": split, "prompt": text, "response": answer, "reward": as_number(record.get("score"))}
    extra: dict[str, Json] = {}
    parts = uid.rsplit("_", 2) if isinstance(uid, str) else []
    if len(parts) == 3 and parts[1].isdigit() and parts[2].isdigit():
        fields |= {"trajectory_id": uid, "group_id": parts[0], "sample_index": int(parts[1])}
        extra["turn_index"] = int(parts[2])
    else:
        # v0 shuffles the rows and names no group: the same prompt text is the only sign that rows belong together.
        digest = hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()
        fields |= {"trajectory_id": f"{split}-{step}-{line}", "group_id": f"{step}-{digest}"}
        extra["derived"] = ["trajectory_id", "group_id"]
    numbers: dict[str, Json] = {}
    for key, value in record.items():
        if key in _TRAINERS_OWN or value is None:
            continue
        if isinstance(value, (int, float)) and not isinstance(value, bool) and key != "gts":
            numbers[key] = value
        else:
            extra[key] = value
    if "request_id" in record:
        extra["request_id"] = record["request_id"]
    if numbers:
        fields["reward_parts"] = numbers
    fields["extra"] = extra
    return TrajectoryRow(step, fields, None, line, offset)
