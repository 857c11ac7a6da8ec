"""A look at a run that builds on the last one sees what a first look sees, and says where rows came."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.store.connection import Store
from server.queries.progress import Progress, progress

ROWS = st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(1, 2), st.integers(1, 2), st.integers(0, 30)), max_size=6)
"""Run, source, attempt, step."""
CHANGES = st.lists(st.tuples(st.sampled_from(["points", "trajectories", "taken back"]), ROWS), min_size=1, max_size=8)


def made() -> Store:
    store = Store(None)
    with store.transaction() as connection:
        for number, run in enumerate("ab"):
            connection.execute(
                "INSERT INTO series VALUES (?, ?, 'k', NULL, 'identity', NULL, NULL, NULL)", [number, run],
            )  # fmt: skip
            for source, growth in ((1, "append"), (2, "whole")):
                connection.execute(
                    "INSERT INTO source VALUES (?, ?, ?, 'native', ?, 'x', 0, 0, '{}', 'read', 0, 1, 0, 0, ?, NULL, NULL)",
                    [10 * number + source, run, f"/{run}{source}", growth, float(source)],
                )
    return store


def change(store: Store, kind: str, rows: list[tuple[str, int, int, int]]) -> None:
    with store.transaction() as connection:
        for run, source, attempt, step in rows:
            number = "ab".index(run)
            key = 10 * number + source
            if kind == "points":
                connection.execute("INSERT INTO point VALUES (?, ?, ?, ?, 1.0, NULL)", [number, key, attempt, step])
            elif kind == "trajectories":
                connection.execute(
                    "INSERT INTO trajectory (run_id, source_id, attempt, step, n, has_tokens) VALUES (?, ?, ?, ?, 0, FALSE)",
                    [run, key, attempt, step],
                )
            else:
                connection.execute("DELETE FROM point WHERE source_id = ? AND step < ?", [key, step])


def told(found: Progress) -> Any:
    return found.streams, found.places, found.rows


@settings(max_examples=30, deadline=None)
@given(changes=CHANGES)
def test_a_look_that_builds_on_the_last_one_equals_a_first_look(changes: list[Any]) -> None:
    store = made()
    found = progress(store, "a")
    for kind, rows in changes:
        before = dict(found.rows)
        change(store, kind, rows)
        found = progress(store, "a", found)
        assert told(found) == told(progress(store, "a"))
        more = [place for place, count in found.rows.items() if count != before.get(place)]
        assert found.earliest == min(more, default=None)
    store.close()


def test_the_places_behind_one_are_those_of_later_steps_and_attempts() -> None:
    store = made()
    change(store, "points", [("a", 1, 1, 3), ("a", 1, 1, 5), ("a", 1, 2, 4), ("b", 1, 1, 9)])
    found = progress(store, "a")
    assert list(found.behind((1, 3))) == [(1, 5), (2, 4)]
    assert list(found.behind((2, 4))) == []
    store.close()
