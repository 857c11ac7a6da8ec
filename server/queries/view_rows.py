"""The rows of a run that a view reaches: trajectories, turns and tokens up to its step, in the newest attempt it knows of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ingest.store.connection import Columns, Store


class Reach(NamedTuple):
    """How far a view reaches. single: the run has one attempt, so that no row can belong to an earlier one."""

    store: Store
    run_id: str
    attempt: int
    step: int
    single: bool


_NEWEST = """attempt = (SELECT max(t2.attempt) FROM trajectory t2
                        WHERE t2.run_id = t.run_id AND t2.step = t.step AND t2.attempt <= $attempt)"""


def trajectory_rows(reach: Reach, first: int, last: int, columns: Sequence[str], split: str | None) -> Columns:
    """See RunView.trajectories."""
    names = ["attempt", "step", "n", *(c for c in columns if c not in ("attempt", "step", "n"))]
    where = "TRUE" if reach.single else _NEWEST
    parameters: dict[str, object] = {"run": reach.run_id, "first": first, "last": min(last, reach.step)}
    if not reach.single:
        parameters["attempt"] = reach.attempt
    if split is not None:
        where += " AND coalesce(split, 'train') = $split"
        parameters["split"] = split
    return reach.store.columns(
        f"SELECT {', '.join(names)} FROM trajectory t WHERE run_id = $run AND step BETWEEN $first AND $last AND {where} ORDER BY step, n",
        parameters,
    )


def turn_rows(reach: Reach, first: int, last: int, columns: Sequence[str]) -> Columns:
    """See RunView.turns."""
    chosen = ", ".join(["u.step", "u.n", "u.turn", *(f"u.{c}" for c in columns if c not in ("step", "n", "turn"))])
    return reach.store.columns(
        f"""SELECT {chosen} FROM turn u JOIN trajectory t ON t.run_id = u.run_id AND t.attempt = u.attempt AND t.step = u.step AND t.n = u.n
            WHERE t.run_id = $run AND t.step BETWEEN $first AND $last AND coalesce(t.split, 'train') = 'train'
                  AND t.{_NEWEST} ORDER BY u.step, u.n, u.turn""",
        {"run": reach.run_id, "first": first, "last": min(last, reach.step), "attempt": reach.attempt},
    )


def token_rows(reach: Reach, first: int, last: int, arrays: Sequence[str], columns: Sequence[str]) -> list[dict[str, Any]]:
    """See RunView.tokens."""
    keys = ["step", "n", *(c for c in columns if c not in ("step", "n"))]
    where = "TRUE" if reach.single else _NEWEST
    parameters: dict[str, object] = {"run": reach.run_id, "first": first, "last": min(last, reach.step)}
    if not reach.single:
        parameters["attempt"] = reach.attempt
    selected = ", ".join([*(f"t.{k}" for k in keys), *(f"k.{a}" for a in arrays)])
    rows = reach.store.rows(
        f"""SELECT {selected} FROM trajectory t JOIN token k ON k.run_id = t.run_id AND k.step = t.step AND k.n = t.n
            WHERE t.run_id = $run AND t.step BETWEEN $first AND $last AND t.has_tokens AND {where.replace("attempt = (", "t.attempt = (")}
            ORDER BY t.step, t.n""",
        parameters,
    )
    result = []
    for row in rows:
        record: dict[str, Any] = dict(zip(keys, row[: len(keys)], strict=True))
        for name, value in zip(arrays, row[len(keys) :], strict=True):
            record[name] = value if value is None or name == "token_texts" else np.array(value, dtype=np.float64)
        result.append(record)
    return result
