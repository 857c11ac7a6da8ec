"""Series derived from trajectory and token rows (`fact.*`), one value an (attempt, step), where their fields are written.

Only training trajectories count (split train, or no split). A fact whose fields a run does not write is absent, never 0.
FACTS (fact_list) says what each one means; the queries are in the fact_* modules beside this one.
"""

from __future__ import annotations

import numpy as np

from server.queries.fact_context import context_facts
from server.queries.fact_eval import eval_facts
from server.queries.fact_groups import group_facts
from server.queries.fact_mix import fixed_mix_facts, mix_facts
from server.queries.fact_parts import part_facts
from server.queries.fact_repeats import repeat_facts
from server.queries.fact_rows import FactSeries
from server.queries.fact_script import script_facts
from server.queries.fact_table import Table, tables
from server.queries.fact_text import text_facts
from server.queries.fact_times import time_facts
from server.queries.fact_tokens import token_facts
from server.queries.fact_trajectories import trajectory_facts
from server.queries.fact_turns import turn_facts
from server.queries.view import Position, RunData


def add_facts(data: RunData, after: Position | None = None) -> None:
    """Derives every fact of the run and adds it to the run's series; after: only for steps behind that place.

    The rows of trajectories are read in parts of whole steps, and texts and tokens are reduced where they lie, so that memory
    does not grow with the length of responses or of the run.
    """
    found = _Found()
    place = after
    for table in tables(data, after):
        found.note(table)
        if len(table):
            _of_table(data, table, place)
            place = int(table.attempts[-1]), int(table.steps[-1])
    if found.rows or found.evaluated:
        _of_store(data, found, after)


class _Found:
    """What the rows hold at all: a question to the store for what is not there costs more than to know it."""

    def __init__(self) -> None:
        self.rows = self.parts = self.evaluated = False

    def note(self, table: Table) -> None:
        """Takes in a part of the rows."""
        self.evaluated |= table.evaluated
        if len(table):
            self.rows = True
            self.parts |= bool(table["in_parts"].any())


def _of_table(data: RunData, table: Table, after: Position | None) -> None:
    """Facts of one part of the rows; later ones use the series of earlier ones."""
    _add(data, trajectory_facts(data, table), after)
    _add(data, mix_facts(data, table, after), after)
    _add(data, group_facts(data, table), after)
    _add(data, repeat_facts(data, table, after), after)
    _add(data, time_facts(table), after)
    if np.isfinite(table["characters"]).any():
        _add(data, text_facts(data, table), after)
        _add(data, script_facts(data, table), after)
    if table["has_tokens"].any():
        _add(data, token_facts(data, table), after)


def _of_store(data: RunData, found: _Found, after: Position | None) -> None:
    parts = (
        (turn_facts, True),
        (context_facts, True),
        (fixed_mix_facts, True),
        (part_facts, found.parts),
        (eval_facts, found.evaluated),
    )
    for part, there in parts:
        if there:
            _add(data, part(data, after), after)


def _add(data: RunData, series: FactSeries, after: Position | None) -> None:
    for name, (attempts, steps, values) in series.items():
        data.add(name, attempts, steps, values, after=after)
