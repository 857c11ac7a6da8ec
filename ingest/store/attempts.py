"""Which attempt a row belongs to, where the file does not say: a key whose own step goes back starts a new one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ingest.schema.records import EventRow, Json, MetricRow


@dataclass
class Attempts:
    """Attempt counter of one source; its state travels in the source's cursor.

    Different records may share a step, and an evaluation may be logged later than the training of its step: only a
    key that itself goes back to an earlier step is a resume.
    """

    current: int = 1
    last: dict[str, int] = field(default_factory=dict)
    last_trajectory: int | None = None
    _seams: list[EventRow] = field(default_factory=list)

    @classmethod
    def from_state(cls, state: Mapping[str, Json]) -> Attempts:
        """The counter as it was at the cursor."""
        saved = state.get("attempts")
        if not isinstance(saved, dict):
            return cls()
        last = saved.get("last")
        trajectory = saved.get("last_trajectory")
        current = saved.get("current")
        return cls(
            current if isinstance(current, int) else 1,
            {k: v for k, v in last.items() if isinstance(v, int)} if isinstance(last, dict) else {},
            trajectory if isinstance(trajectory, int) else None,
        )

    def to_state(self) -> dict[str, Json]:
        """What the cursor must remember."""
        return {"attempts": {"current": self.current, "last": dict(self.last), "last_trajectory": self.last_trajectory}}

    def restart(self) -> None:
        """The file was overwritten: what follows is a new attempt."""
        self.current += 1
        self.last.clear()
        self.last_trajectory = None

    def of_metrics(self, row: MetricRow) -> int:
        """The attempt of a metrics record."""
        if row.attempt is not None:
            self.current = row.attempt
            return row.attempt
        back = [self.last[key] for key in row.values if self.last.get(key, row.step) > row.step]
        if back:
            self._new_attempt(max(back), row.step)
        for key in row.values:
            self.last[key] = row.step
        return self.current

    def of_trajectory(self, step: int, attempt: int | None) -> int:
        """The attempt of a trajectory."""
        if attempt is not None:
            self.current = attempt
            return attempt
        if self.last_trajectory is not None and step < self.last_trajectory:
            self._new_attempt(self.last_trajectory, step)
        self.last_trajectory = step
        return self.current

    def _new_attempt(self, newest: int, step: int) -> None:
        self.current += 1
        self.last.clear()
        self.last_trajectory = None
        self._seams.append(EventRow(step, "resume", f"steps go back from {newest} to {step}: attempt {self.current}", self.current))

    def seams(self) -> list[EventRow]:
        """The resume events found since the last call."""
        found, self._seams = self._seams, []
        return found
