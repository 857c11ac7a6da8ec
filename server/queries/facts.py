"""Series derived from trajectory and token rows (`fact.*`), one value an (attempt, step), where their fields are written.

Only training trajectories count (split train, or no split). A fact whose fields a run does not write is absent, never 0.
FACTS (fact_list) says what each one means; the queries are in the fact_* modules beside this one.
"""

from __future__ import annotations

from server.queries.fact_context import context_facts
from server.queries.fact_eval import eval_facts
from server.queries.fact_groups import group_facts
from server.queries.fact_mix import fixed_mix_facts, mix_facts
from server.queries.fact_parts import part_facts
from server.queries.fact_repeats import repeat_facts
from server.queries.fact_script import script_facts
from server.queries.fact_text import text_facts
from server.queries.fact_times import time_facts
from server.queries.fact_tokens import token_facts
from server.queries.fact_trajectories import trajectory_facts
from server.queries.fact_turns import turn_facts
from server.queries.view import Position, RunData

_PARTS = (
    trajectory_facts,
    mix_facts,
    group_facts,
    token_facts,
    text_facts,
    turn_facts,
    context_facts,
    script_facts,
    fixed_mix_facts,
    part_facts,
    eval_facts,
    repeat_facts,
    time_facts,
)


def add_facts(data: RunData, after: Position | None = None) -> None:
    """Derives every fact of the run and adds it to the run's series; after: only for steps behind that place.

    Reads the tables in one pass each, groups in the database and keeps one number a step, so that memory does not grow
    with the length of responses.
    """
    for part in _PARTS:
        for name, (attempts, steps, values) in part(data, after).items():
            data.add(name, attempts, steps, values, after=after)
