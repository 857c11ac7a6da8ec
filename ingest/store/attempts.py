"""Which attempt a row belongs to, where the file does not say: a key whose own step goes back starts a new one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from ingest.schema.records import EventRow, Json, MetricRow

Rewritten = Literal["restart", "compare"]


@dataclass
class Attempts:
    """Attempt counter of one source; its state travels in the source's cursor.

    Different records may share a step, and an evaluation may be logged later than the training of its step: only a
    key that itself goes back to an earlier step is a resume.

    A pass is one reading of the file from its start; passage counts the attempts within the pass. segments maps each
    passage to stored attempts: from which step on (None: from its start) which one. A file that is read again and
    differs from some step on gets a new stored attempt for that passage from that step on.
    """

    passage: int = 1
    last: dict[str, int] = field(default_factory=dict)
    last_trajectory: int | None = None
    newest: int = 0
    base: int = 0
    segments: dict[int, list[tuple[int | None, int]]] = field(default_factory=dict)
    comparing: bool = False
    pass_rows: dict[int, int] = field(default_factory=dict)
    """Trajectories of each step met in this pass; kept while comparing only."""
    pass_of_rows: int = 1
    """The passage that pass_rows counts."""
    _seams: list[EventRow] = field(default_factory=list)
    _overwritten: bool = False

    @classmethod
    def from_state(cls, state: Mapping[str, Json]) -> Attempts:
        """The counter as it was at the cursor."""
        saved = state.get("attempts")
        if not isinstance(saved, dict):
            return cls()
        return cls(
            _int(saved.get("passage"), 1),
            {k: v for k, v in _dict(saved.get("last")).items() if isinstance(v, int)},
            _optional(saved.get("last_trajectory")),
            _int(saved.get("newest"), 0),
            _int(saved.get("base"), 0),
            {int(k): [(_optional(pair[0]), _int(pair[1], 1)) for pair in v] for k, v in _dict(saved.get("segments")).items()},  # type: ignore[union-attr,index]
            saved.get("comparing") is True,
            {int(k): _int(v, 0) for k, v in _dict(saved.get("pass_rows")).items()},
            _int(saved.get("pass_of_rows"), 1),
        )

    def to_state(self) -> dict[str, Json]:
        """What the cursor must remember."""
        segments: dict[str, Json] = {str(k): [[start, attempt] for start, attempt in v] for k, v in self.segments.items()}
        return {
            "attempts": {
                "passage": self.passage,
                "last": dict(self.last),
                "last_trajectory": self.last_trajectory,
                "newest": self.newest,
                "base": self.base,
                "segments": segments,
                "comparing": self.comparing,
                "pass_rows": {str(k): v for k, v in self.pass_rows.items()},
                "pass_of_rows": self.pass_of_rows,
            }
        }

    def rewritten(self, how: Json) -> None:
        """The file is read from its start again: as a new attempt (restart), or row by row against what it said (compare)."""
        self.passage = 1
        self.last.clear()
        self.last_trajectory = None
        self.pass_rows.clear()
        self.pass_of_rows = 1
        self.comparing = how == "compare"
        if how == "restart":
            self.restart()

    def restart(self) -> None:
        """The file was overwritten: what follows is a new attempt."""
        self.segments.clear()
        self.base = self.newest
        self._overwritten = self.newest > 0

    def stored(self, passage: int, step: int) -> int:
        """The stored attempt of a row of that passage and step."""
        pieces = self.segments.get(passage)
        if pieces is None:
            # A passage number that the file itself gives is kept unless an overwritten file has used it already.
            used = {attempt for pieces in self.segments.values() for _, attempt in pieces}
            attempt = passage if passage > self.base and passage not in used else self.newest + 1
            pieces = self.segments[passage] = [(None, attempt)]
            self.newest = max(self.newest, attempt)
        if self._overwritten:
            self._overwritten = False
            self._seam(step, f"the file was overwritten: attempt {self.newest}", self.newest)
        return next(attempt for start, attempt in reversed(pieces) if start is None or start <= step)

    def stored_all(self, passages: Sequence[int], steps: Sequence[int]) -> list[int]:
        """The stored attempts of rows in order of arrival."""
        if passages and passages[0] == passages[-1] and len(set(passages)) == 1:
            attempt = self.stored(passages[0], steps[0])
            if len(self.segments[passages[0]]) == 1:
                return [attempt] * len(steps)
        return [self.stored(passage, step) for passage, step in zip(passages, steps, strict=True)]

    def diverged(self, passage: int, step: int) -> int:
        """The file now says otherwise from that step of the passage on; the new stored attempt."""
        kept = [(start, attempt) for start, attempt in self.segments.get(passage, []) if start is None or start < step]
        self.newest += 1
        self.base = self.newest
        self.segments = {k: v for k, v in self.segments.items() if k < passage}
        self.segments[passage] = [*kept, (step, self.newest)]
        self._seam(step, f"the file was rewritten from step {step} on: attempt {self.newest}", self.newest)
        return self.newest

    def of_metrics(self, row: MetricRow) -> int:
        """The passage of a metrics record; stored() turns it into an attempt."""
        if row.attempt is not None:
            self.passage = row.attempt
            return row.attempt
        back = [self.last[key] for key in row.values if self.last.get(key, row.step) > row.step]
        if back:
            self._new_passage(max(back), row.step)
        for key in row.values:
            self.last[key] = row.step
        return self.passage

    def of_trajectories(self, steps: Sequence[int], given: Sequence[int | None] | None = None) -> list[int]:
        """The passage of each trajectory, in order of arrival; given: the attempts that the rows themselves name."""
        if not steps:
            return []
        if given is None or all(attempt is None for attempt in given):
            before = self.last_trajectory if self.last_trajectory is not None else steps[0]
            if steps[0] >= before and all(a <= b for a, b in pairwise(steps)):
                self.last_trajectory = steps[-1]
                return [self.passage] * len(steps)
        return [self._of_trajectory(step, given[i] if given else None) for i, step in enumerate(steps)]

    def _of_trajectory(self, step: int, attempt: int | None) -> int:
        if attempt is not None:
            self.passage = attempt
            return attempt
        if self.last_trajectory is not None and step < self.last_trajectory:
            self._new_passage(self.last_trajectory, step)
        self.last_trajectory = step
        return self.passage

    def _new_passage(self, newest: int, step: int) -> None:
        self.passage += 1
        known = self.passage in self.segments
        self.last.clear()
        self.last_trajectory = None
        attempt = self.stored(self.passage, step)
        if not known:
            self._seam(step, f"steps go back from {newest} to {step}: attempt {attempt}", attempt)

    def _seam(self, step: int, text: str, attempt: int) -> None:
        self._seams.append(EventRow(step, "resume", text, attempt))

    def seams(self) -> list[EventRow]:
        """The resume events found since the last call."""
        found, self._seams = self._seams, []
        return found


def _dict(value: Json) -> dict[str, Json]:
    return value if isinstance(value, dict) else {}


def _optional(value: Json) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _int(value: Json, default: int) -> int:
    found = _optional(value)
    return default if found is None else found
