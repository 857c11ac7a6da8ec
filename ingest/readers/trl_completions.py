"""Reader of TRL's `completions/completions_{step:05d}.parquet` (log_completions=True, since 0.28): one row a sample.

Written by GRPOTrainer.log and RLOOTrainer.log (trl/trainer/grpo_trainer.py) at every log call. Columns: step, prompt,
completion, one float column a reward function, whatever log_extra added, advantage. What the file cannot say is found
out and marked under `extra.derived`, or stays null:

- an evaluation shares the file name with its training step and overwrites it, unmarked: such files are recognised by
  the log history, by the prompts of an earlier evaluation, or by another group size, and stored with split eval;
- with several steps per generation the same rows are written under each step: stored once, under the first;
- groups have no id: consecutive rows with the same prompt are one group;
- the reward is the weighted sum of the parts; weights are fitted to the history, where it determines them.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from ingest.errors import ReaderError
from ingest.readers.base import Head
from ingest.readers.lines import as_number, whole_number
from ingest.readers.parquet import MAGIC, column_names, double_columns, row_count, slices
from ingest.readers.trl_trainer_state import newest_history, states_beside
from ingest.schema.records import Batch, Cursor, Growth, Item, Json, TrajectoryRow

_NAME = re.compile(r"^completions_(\d{1,15})\.parquet$")
_LOGGED_PART = re.compile(r"^rewards/(.+?)(?:/mean)?$")
_OWN = {"step", "prompt", "completion", "advantage"}
_LABELS = {"task", "difficulty"}
_FIT_ERROR = 1e-4


@dataclass(frozen=True)
class TrlCompletionsReader:
    """Samples of the generation batch alive at one log call."""

    name: str = "trl-completions"
    framework: str = "trl"
    precedence: int = 60
    growth: Growth = "whole"

    def sniff(self, head: Head) -> float:
        """Confidence that the file is this format, from its name and first bytes."""
        return 0.9 if _NAME.match(head.path.name) and head.head.startswith(MAGIC) else 0.0

    def read(self, path: Path, cursor: Cursor) -> Iterator[Item]:
        """Items from the cursor on; see `Reader.read`."""
        names = column_names(path)
        if not {"step", "prompt", "completion"} <= set(names):
            raise ReaderError(f"{path}: columns step, prompt and completion were expected, got {', '.join(names)[:200]}.")
        facts = _facts(path)
        size, total = path.stat().st_size, row_count(path)
        if facts.repeats is not None:
            note = f"the same generation as {facts.repeats}: stored once, under the step in which it was first used"
            yield Batch(Cursor(size, total), note=note)
            return
        parts = facts.history.parts or [name for name in double_columns(path) if name not in _OWN]
        about = f"rows of an evaluation ({facts.evaluation})" if facts.evaluation else None
        for first, rows in slices(path, cursor.line):
            done = first - 1 + len(rows)
            taken = tuple(_row(row, first + n, facts, parts) for n, row in enumerate(rows))
            yield Batch(Cursor(size * done // max(total, 1), done), trajectories=taken, note=about)


@dataclass(frozen=True)
class _History:
    """What the log history of the run says about its completions."""

    evaluated: frozenset[int] = frozenset()
    """Steps with an evaluation."""
    newest: int = -1
    """The newest step of the history; what is newer it cannot know."""
    parts: Sequence[str] = ()
    weights: Sequence[float] = ()
    """Weights of the reward functions; empty: the history does not determine them."""


@dataclass(frozen=True)
class _Facts:
    """What is known of a file beyond its rows."""

    step: int
    groups: Sequence[int]
    """Group number of each row, from 0."""
    members: Sequence[int]
    """Place of each row in its group, from 0."""
    evaluation: str | None
    """Why the rows are taken for an evaluation's; None: they are training rows."""
    repeats: str | None
    """Name of the earlier file that holds the same generation."""
    history: _History


def _facts(path: Path) -> _Facts:
    prompts, rows = _digests(path)
    step = _step_of(path)
    history = _history(path)
    evaluation = _evaluation(path, step, prompts, history)
    groups, members = _groups(prompts)
    return _Facts(step, groups, members, evaluation, None if evaluation else _repeated(path, rows, history), history)


def _history(path: Path) -> _History:
    """The history beside a file. Every file of a run asks for it, so it is read again only when a state has changed."""
    states = states_beside(path)
    return _read_history(states, tuple(_stamp(state) for state in states))


@lru_cache(maxsize=8)
def _read_history(states: tuple[Path, ...], _stamps: tuple[tuple[int, int], ...]) -> _History:
    rows = newest_history(states)
    steps = [(step, row) for row in rows if (step := whole_number(row.get("step"))) is not None]
    evaluated = frozenset(step for step, row in steps if any(key.startswith("eval_") for key in row))
    parts, weights = _weights(rows)
    return _History(evaluated, max((step for step, _ in steps), default=-1), tuple(parts), tuple(weights))


def _stamp(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def _step_of(path: Path) -> int:
    found = _NAME.match(path.name)
    return int(found.group(1)) if found else 0


def _digests(path: Path) -> tuple[list[bytes], bytes]:
    """A digest of each row's prompt, and one of all rows without their step. Texts are not kept: a file may be large."""
    return _read_digests(path, _stamp(path))


@lru_cache(maxsize=16)
def _read_digests(path: Path, _stamp_of_file: tuple[int, int]) -> tuple[list[bytes], bytes]:
    prompts: list[bytes] = []
    whole = hashlib.blake2b(digest_size=16)
    for _, rows in slices(path):
        for row in rows:
            prompts.append(hashlib.blake2b(str(row.get("prompt")).encode("utf-8", "replace"), digest_size=8).digest())
            whole.update(repr([(key, value) for key, value in row.items() if key != "step"]).encode("utf-8", "replace"))
    return prompts, whole.digest()


def _runs(prompts: Sequence[bytes]) -> list[int]:
    """Lengths of the runs of equal neighbours."""
    lengths: list[int] = []
    for index, prompt in enumerate(prompts):
        if index and prompt == prompts[index - 1]:
            lengths[-1] += 1
        else:
            lengths.append(1)
    return lengths


def _group_size(prompts: Sequence[bytes]) -> int:
    """The most frequent length of a run of equal prompts: num_generations, unless neighbours happen to share a prompt."""
    counts = Counter(_runs(prompts))
    return max(counts, key=lambda length: (counts[length], -length), default=1)


def _groups(prompts: Sequence[bytes]) -> tuple[list[int], list[int]]:
    """Group number and place in the group of each row; a run of several whole groups of one prompt is split."""
    size = _group_size(prompts)
    groups: list[int] = []
    members: list[int] = []
    group = -1
    for length in _runs(prompts):
        own = size if length % size == 0 else length
        for place in range(length):
            group += place % own == 0
            groups.append(group)
            members.append(place % own)
    return groups, members


def _evaluation(path: Path, step: int, prompts: Sequence[bytes], history: _History) -> str | None:
    """The evidence that an evaluation's rows stand in this file, or None."""
    evaluated = history.evaluated
    if step in evaluated:
        return f"the log has an evaluation at step {step}, which overwrites the step's file"
    if step == 0:
        return "no training has been logged at step 0"
    if step <= history.newest:
        return None
    # Newer than the newest checkpoint: the history cannot say, the rows of the neighbours can.
    for other in _files_beside(path):
        number = _step_of(other)
        if number != step and (number in evaluated or number == 0):
            known, _ = _digests(other)
            if sorted(known) == sorted(prompts):
                return f"the same prompts as the evaluation in {other.name}"
            earlier = _before(path)
            if earlier is not None and _step_of(earlier) not in (evaluated | {0}) and _group_size(known) == _group_size(prompts):
                training, _ = _digests(earlier)
                if _group_size(training) != _group_size(prompts):
                    return f"groups of {_group_size(prompts)} as in the evaluation in {other.name}, training has {_group_size(training)}"
            break
    return None


def _files_beside(path: Path) -> list[Path]:
    return sorted((p for p in path.parent.glob("completions_*.parquet") if _NAME.match(p.name) and not p.is_symlink()), key=_step_of)


def _before(path: Path) -> Path | None:
    earlier = [other for other in _files_beside(path) if _step_of(other) < _step_of(path)]
    return earlier[-1] if earlier else None


def _repeated(path: Path, rows: bytes, history: _History) -> str | None:
    """The name of the first file with the same training rows, or None.

    Evaluations that stand between are passed over: the generation may go on behind them.
    """
    first: str | None = None
    step = _step_of(path)
    for other in reversed([p for p in _files_beside(path) if _step_of(p) < step]):
        try:
            prompts, digest = _digests(other)
        except ReaderError:
            break
        if digest == rows:
            first = other.name
        elif not _evaluation(other, _step_of(other), prompts, history):
            break
    return first


def _weights(history: Sequence[dict[str, Json]]) -> tuple[list[str], list[float]]:
    """Names and weights of the reward functions: `reward` is the weighted sum of their means at every step of the log.

    Weights are given only where the history determines them and they explain every step; a reward function that may
    answer null, or another aggregation, does not.
    """
    rows = [row for row in history if as_number(row.get("reward")) is not None]
    names = sorted({m.group(1) for row in rows for key in row if (m := _LOGGED_PART.match(key)) and not key.endswith("/std")})
    if not names:
        return [], []
    table = [[as_number(row.get(f"rewards/{n}/mean", row.get(f"rewards/{n}"))) for n in names] for row in rows]
    if any(value is None for line in table for value in line):
        return names, []
    means = np.array(table, dtype=np.float64)
    rewards = np.array([as_number(row.get("reward")) for row in rows], dtype=np.float64)
    if not (np.isfinite(means).all() and np.isfinite(rewards).all()):
        return names, []
    weights, _, rank, _ = np.linalg.lstsq(means, rewards, rcond=1e-6)
    fits = np.abs(means @ weights - rewards).max() <= _FIT_ERROR * max(1.0, float(np.abs(rewards).max()))
    return names, [float(w) for w in np.round(weights, 4)] if rank == len(names) and fits else []


def _row(row: dict[str, Json], number: int, facts: _Facts, parts: Sequence[str]) -> TrajectoryRow:
    """One sample in native field names."""
    split = "eval" if facts.evaluation else "train"
    derived: list[Json] = ["trajectory_id", "group_id", "sample_index", "split"]
    values = {name: as_number(row.get(name)) for name in parts if name in row}
    fields: dict[str, Json] = {
        "trajectory_id": f"{split}-{facts.step}-{number}",
        "group_id": f"{split}-{facts.step}-{facts.groups[number - 1]}",
        "sample_index": facts.members[number - 1],
        "split": split,
        "prompt": _message(row.get("prompt")),
        "response": _message(row.get("completion")),
        "advantage": as_number(row.get("advantage")),
        "reward_parts": dict(values),
    }
    known = [value for value in values.values() if value is not None]
    weights = facts.history.weights
    if weights and len(known) == len(weights):
        fields["reward"] = float(sum(w * v for w, v in zip(weights, known, strict=True)))
        derived.append("reward")
    extra: dict[str, Json] = {}
    for key, value in row.items():
        if key in _LABELS and isinstance(value, (str, int)) and not isinstance(value, bool):
            fields[key] = str(value)
        elif key not in _OWN and key not in values and value is not None:
            extra[key] = value
    step = whole_number(row.get("step"))
    return TrajectoryRow(facts.step if step is None else step, {**fields, "extra": {**extra, "derived": derived}}, None, number)


def _message(value: Json) -> Json:
    """Text as it is; a list of messages (conversational prompts) as it is for the prompt, joined for a completion."""
    if isinstance(value, list):
        return "\n".join(str(m.get("content", "")) if isinstance(m, dict) else str(m) for m in value)
    return value if isinstance(value, str) else None if value is None else str(value)
