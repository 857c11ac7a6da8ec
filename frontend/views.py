"""One frozen View a page: the address is the only state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, TypeVar

Self = TypeVar("Self", bound="View")


@dataclass(frozen=True)
class View:
    """Keys of a query string with their defaults. A wrong value counts as the default, an unknown key is left alone."""

    @classmethod
    def from_query(cls: type[Self], query: Mapping[str, str]) -> Self:
        """The view of an address."""
        given: dict[str, Any] = {}
        for field in fields(cls):
            text = query.get(field.name.rstrip("_"))
            if text is not None:
                value = _typed(text, field.default)
                if value is not None:
                    given[field.name] = value
        return cls(**given)

    def to_query(self, **changed: Any) -> dict[str, Any]:
        """What must stand in the address for this view with some keys changed; defaults are left out."""
        view = replace(self, **changed)
        standard = {field.name: field.default for field in fields(view)}
        return {name.rstrip("_"): value for name, value in asdict(view).items() if value != standard[name]}


def _typed(text: str, default: object) -> object:
    if isinstance(default, str):
        return text
    try:
        return int(text)
    except ValueError:
        return None


@dataclass(frozen=True)
class RunsView(View):
    """/runs: q, text in name or project; state, one of the states or "open" for runs with open incidents; sort, a
    column, with "-" for descending; project; page from 1."""

    q: str = ""
    state: str = ""
    project: str = ""
    sort: str = ""
    page: int = 1


@dataclass(frozen=True)
class OverviewView(View):
    """/r/<run>: from and to, the steps shown (-1: all); smooth, points of the smoothing; q, text in the list of series;
    s, a series from that list, drawn below it."""

    from_: int = -1
    to: int = -1
    smooth: int = 10
    q: str = ""
    s: str = ""


@dataclass(frozen=True)
class SourcesView(View):
    """/sources: run, a run id; source, the file whose rejected rows are listed (-1: none)."""

    run: str = ""
    source: int = -1


@dataclass(frozen=True)
class SlicesView(View):
    """/r/<run>/slices: m, a measure; by, a dimension; bin, steps a cell (0: chosen by the length of the run); task; split,
    train, eval or all; incident, whose onset and windows are used (empty: the most severe open one)."""

    m: str = "reward"
    by: str = "length"
    bin: int = 0
    task: str = ""
    split: str = "train"
    incident: str = ""


@dataclass(frozen=True)
class RolloutsView(View):
    """/r/<run>/rollouts: step, score (reward), len (response tokens) and lag as ranges; task, difficulty, finish, group;
    trunc, yes or no; tok, yes for rollouts with token arrays; split; q, text; sort, a column, with "-" for descending."""

    step: str = ""
    score: str = ""
    len: str = ""
    lag: str = ""
    split: str = ""
    task: str = ""
    difficulty: str = ""
    finish: str = ""
    group: str = ""
    trunc: str = ""
    tok: str = ""
    q: str = ""
    sort: str = "-step"


@dataclass(frozen=True)
class TrajectoryView(View):
    """/r/<run>/t/<step>.<n>: tok, marked tokens; color, what they are coloured by; show, cells, text or raw; turn."""

    tok: str = ""
    color: str = ""
    show: str = ""
    turn: int = -1


@dataclass(frozen=True)
class IncidentsView(View):
    """/incidents: state, open, recovered, acknowledged or all; run, a run id."""

    state: str = "open"
    run: str = ""


@dataclass(frozen=True)
class IncidentView(View):
    """/incidents/<incident>: baseline, id of a second run that its explanations are tested with (empty: none)."""

    baseline: str = ""


@dataclass(frozen=True)
class RuleView(View):
    """/rules/<name>: for, whose settings are shown and changed: project:NAME, run:ID, empty for all runs."""

    for_: str = ""
