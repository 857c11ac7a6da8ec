"""The live engine: steps are judged as soon as nothing more is expected for them, and the answer is stored at once."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from sqlalchemy.orm import Session

from ingest.store.connection import Store
from server.control.incidents import judged, save, set_judged
from server.control.models import Control
from server.engine.incident import Incident, IncidentChange, Kind
from server.engine.judge import Judge
from server.engine.ruleset import RuleSet
from server.engine.settings import changed_rules, told_changes
from server.engine.stall import Rhythm, goes_on, stalled
from server.engine.state import Case, RunState
from server.engine.steps import START, Move, advance, not_judged, registered
from server.notify.outbox import enqueue
from server.queries.facts import add_facts
from server.queries.progress import Progress, Stream, progress
from server.queries.run_data import open_run, refresh
from server.queries.runs import run_summary
from server.queries.view import Position, RunData, RunFacts
from server.rules.base import Rule

__all__ = ["Engine", "JudgedElsewhere", "advance"]

SILENT_SECONDS = 60.0
SILENT_INTERVALS = 5.0
"""A stream is silent after max(60 s, 5 of its own usual intervals) without rows (design 5)."""
SETTLE_SECONDS = 1.0
"""Rows of a stream's newest step may still follow within this time: records of one step are written together."""
_MOST_RUNS = 16
_KEPT_STEPS = 200

OnChange: TypeAlias = Callable[[IncidentChange], None]


@dataclass
class _Memory:
    """One run between two calls."""

    data: RunData
    state: RunState
    stored: Position | None
    """How far the control store has it."""
    seen: Progress | None = None
    """What was stored at the last look."""
    unread: Position | None = None
    """First place with rows that the data lacks."""
    intervals: dict[str, float] = field(default_factory=dict)
    updated: dict[str, float] = field(default_factory=dict)
    behind: bool = False
    """The last call left steps that were ready."""
    rhythm: Rhythm = field(default_factory=Rhythm)
    newest: Position = START
    changed: Mapping[str, Any] = field(default_factory=dict)
    """What people had changed about the rules at the last judged step, by code."""
    rule_changes: list[dict[str, Any]] = field(default_factory=list)
    """attempt, step from which a change held, text."""


class Engine:
    """Judges live runs: what became judgeable since the last call, stored with its messages in one control transaction.

    Telemetry commits first and is only read here, so a stop at any moment means no more than that steps are judged
    again, with the same incidents. One thread at a time judges; others wait.
    """

    def __init__(
        self,
        store: Store,
        control: Control,
        *,
        on_change: OnChange | None = None,
        public_url: str | None = None,
        rules: Sequence[Rule] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store, self._control = store, control
        self._on_change, self._public_url, self._clock = on_change, public_url, clock
        self._rules = tuple(registered() if rules is None else rules)
        self._started = clock()
        self._runs: OrderedDict[str, _Memory] = OrderedDict()
        self._lock = threading.Lock()

    def advance(self, run_id: str, most: int | None = None) -> list[IncidentChange]:
        """Judges every step that all streams have reached, ended or fallen silent on; what happened to incidents by it.

        most: judge no more steps than this in one call, so that a long run keeps no other waiting; `behind` then tells
        that there are more. Nothing happens for an unknown run. Rows that arrive for a judged step are seen by later steps only.
        """
        with self._lock:
            try:
                changes = self._advance(run_id, most)
            except BaseException:
                # The memory may be ahead of the control store now; the next call begins again from what is stored.
                self._runs.pop(run_id, None)
                raise
        for change in changes:
            if self._on_change is not None:
                self._on_change(change)
        return changes

    def behind(self, run_id: str) -> bool:
        """Whether the last call of advance left steps that were ready, because of its `most`."""
        with self._lock:
            memory = self._runs.get(run_id)
            return memory is not None and memory.behind

    def _advance(self, run_id: str, most: int | None) -> list[IncidentChange]:
        memory = self._memory(run_id)
        if memory is None:
            return []
        now = self._clock()
        found = memory.seen = progress(self._store, run_id, memory.seen)
        memory.unread = min((place for place in (memory.unread, found.earliest) if place is not None), default=None)
        self._notice(memory, found.streams)
        self._arrivals(memory, found, now)
        judged = memory.state.judged or START
        ready, memory.behind = START, False
        for count, place in enumerate(found.behind(judged)):
            if count == most:
                memory.behind = True
                break
            if any(self._waits(memory, stream, place, now) for stream in found.streams):
                break
            ready = place
        if ready <= judged:
            return self._still(memory, run_id, now)
        self._read(memory)
        rules = self._rules_now(memory, found.behind(judged)[0])
        went = [Move(case, False, False, True) for case in goes_on(memory.state, memory.data)]
        moves = [*went, *advance(memory.state, memory.data, judged, ready, rules)]
        if memory.state.judged == memory.stored:
            return []
        return self._save(memory, moves, rules, now)

    def _rules_now(self, memory: _Memory, place: Position) -> RuleSet:
        """The rules as people have set them for the run; a change is noted with the first place judged by it."""
        run = memory.data.run
        with self._control.session(write=False) as session:
            rules = RuleSet(self._rules, changed=changed_rules(session, run.run_id, run.project, self._rules))
        changed = {code: one.to_json() for code, one in rules.changed.items()}
        if changed != memory.changed:
            told = told_changes(memory.changed, changed, rules)
            memory.rule_changes += [{"attempt": place[0], "step": place[1], "text": text} for text in told]
            memory.changed = changed
        return rules

    def _memory(self, run_id: str) -> _Memory | None:
        if run_id in self._runs:
            self._runs.move_to_end(run_id)
            return self._runs[run_id]
        try:
            data = open_run(self._store, run_id)
        except KeyError:
            return None
        with self._control.session(write=False) as session:
            stored = judged(session, run_id)
        kept = stored.state if stored is not None and stored.state is not None else {}
        known = {rule.code for rule in self._rules}
        state = RunState.from_json(run_id, kept.get("engine"))
        state.cases = [case for case in state.cases if case.rule_code in known]
        if stored is not None and state.judged is None:
            state.judged = (stored.attempt, stored.step)
        memory = _Memory(data, state, state.judged, intervals=dict(kept.get("intervals", {})))
        memory.changed, memory.rule_changes = dict(kept.get("rules", {})), list(kept.get("rule_changes", []))
        self._runs[run_id] = memory
        while len(self._runs) > _MOST_RUNS:
            self._runs.popitem(last=False)
        return memory

    def _notice(self, memory: _Memory, streams: Sequence[Stream]) -> None:
        """Learns each stream's usual interval from the times of its commits."""
        for stream in streams:
            before = memory.updated.get(stream.name)
            memory.updated[stream.name] = stream.updated
            if before is not None and stream.updated > before:
                passed = stream.updated - before
                known = memory.intervals.get(stream.name)
                memory.intervals[stream.name] = passed if known is None else 0.8 * known + 0.2 * passed

    def _arrivals(self, memory: _Memory, found: Progress, now: float) -> None:
        new = found.behind(memory.newest)
        if new:
            memory.rhythm.arrived(len(new), now)
            memory.newest = new[-1]

    def _still(self, memory: _Memory, run_id: str, now: float) -> list[IncidentChange]:
        """Nothing new to judge: whether the run stands still."""
        if memory.behind or memory.state.judged is None or memory.rhythm.live == 0:
            return []
        summary = run_summary(self._store, run_id, now=now)
        if summary is None:
            return []
        rules = self._rules_now(memory, memory.state.judged)
        case = stalled(memory.rhythm, summary, Judge(memory.state, memory.data, rules), now)
        return self._save(memory, [Move(case, True, False, False)], rules, now) if case else []

    def _waits(self, memory: _Memory, stream: Stream, place: Position, now: float) -> bool:
        # Silence is counted from our own start at the earliest: while nobody read, the trainer may well have written.
        quiet = now - max(stream.updated, self._started)
        if quiet > max(SILENT_SECONDS, SILENT_INTERVALS * memory.intervals.get(stream.name, 0.0)):
            return False
        return stream.expects(place) or (stream.newest == place and now - stream.updated < SETTLE_SECONDS)

    def _read(self, memory: _Memory) -> None:
        """Brings the data in memory up to what is stored, from the earliest place on that has new rows."""
        if memory.unread is None:
            return
        after = (memory.unread[0], memory.unread[1] - 1)
        memory.unread = None
        refresh(memory.data, after)
        add_facts(memory.data, after)

    def _save(self, memory: _Memory, moves: Sequence[Move], rules: RuleSet, now: float) -> list[IncidentChange]:
        state, run = memory.state, memory.data.run
        assert state.judged is not None
        with self._control.session() as session:
            stored = judged(session, run.run_id)
            if (None if stored is None else (stored.attempt, stored.step)) != memory.stored:
                raise JudgedElsewhere(f"run {run.run_id} was judged by another process meanwhile; it is looked at again with the next rows")
            changes = [change for move in moves for change in self._store_move(session, move, run, rules, now)]
            kept = {
                "engine": _pruned(state).to_json(),
                "not_judged": not_judged(state, memory.data, rules),
                "intervals": memory.intervals,
                "rules": memory.changed,
                "rule_changes": memory.rule_changes,
            }
            set_judged(session, run.run_id, *state.judged, kept)
        memory.stored = state.judged
        memory.state = _pruned(state)
        return changes

    def _store_move(self, session: Session, move: Move, run: RunFacts, rules: RuleSet, now: float) -> list[IncidentChange]:
        incident = save(session, incident_of(move.case, run.run_id, now))
        changes = [IncidentChange(kind, one) for kind, one in _told(move, incident)]
        if incident.absorbed_by is None:
            preview = rules.status(move.case.rule_code) == "preview"
            for change in changes:
                enqueue(session, change, run, self._public_url, preview=preview)
        return changes


class JudgedElsewhere(Exception):
    """Another process judged the run between our reading and our writing."""


def incident_of(case: Case, run_id: str, now: float) -> Incident:
    """The case as the control store keeps it; times that are stored already are kept by the store."""
    return Incident(
        id=case.id,
        run_id=run_id,
        attempt=case.attempt,
        symptom=case.symptom,
        rule_code=case.rule_code,
        rule_version=case.rule_version,
        slice=case.slice,
        metric=case.metric,
        severity=case.severity,
        status=case.status,
        onset_step=case.onset_step,
        detected_step=case.detected_step,
        last_step=case.last_step,
        steps_by_severity=case.steps_by_severity,
        summary=case.summary,
        body=case.body(),
        opened_at=now,
        updated_at=now,
        closed_at=now if case.status == "recovered" else None,
        absorbed_by=case.absorbed_by,
    )


def _told(move: Move, incident: Incident) -> list[tuple[Kind, Incident]]:
    told: list[tuple[Kind, Incident]] = []
    if move.opened:
        told.append(("incident.opened", replace(incident, status="open", closed_at=None)))
    elif move.raised:
        told.append(("incident.updated", replace(incident, status="open", closed_at=None)))
    if move.recovered:
        told.append(("incident.resolved", incident))
    return told


def _pruned(state: RunState) -> RunState:
    """The state without recovered cases that can no longer matter: not the newest of their kind, and long past."""
    newest = {case.key: case.id for case in state.cases}
    step = state.judged[1] if state.judged is not None else 0
    open_joints = {case.id for case in state.open_cases()}
    kept = [
        case
        for case in state.cases
        if case.status == "open" or newest[case.key] == case.id or case.absorbed_by in open_joints or case.last_step >= step - _KEPT_STEPS
    ]
    return replace(state, cases=kept)
