"""Series in memory that grow: the same as if they had been made at once, and what was handed out stays as it was."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from server.queries.placed import Placed
from server.queries.view import RunData, RunFacts, RunView

PLACES = st.lists(st.tuples(st.integers(1, 3), st.integers(-3, 12)), max_size=12)
BATCHES = st.lists(st.tuples(st.tuples(st.integers(0, 3), st.integers(-4, 12)), PLACES), min_size=1, max_size=6)

Row = tuple[int, int, float]


def arrays(rows: list[Row]) -> tuple[Any, Any, Any]:
    return np.array([r[0] for r in rows], np.int32), np.array([r[1] for r in rows], np.int64), np.array([r[2] for r in rows], np.float64)


def run(starts: dict[int, int]) -> RunData:
    return RunData(cast(Any, None), RunFacts("r", "p", "r", "native", None, {}, {}), (), starts)


def rows_of(placed: Placed) -> list[Row]:
    return list(zip(placed.attempts.tolist(), placed.steps.tolist(), placed.values.tolist(), strict=True))


@given(batches=BATCHES)
def test_points_behind_a_place_are_replaced_and_nothing_handed_out_changes(batches: list[Any]) -> None:
    placed, model = Placed(*arrays([])), list[Row]()
    number = 0.0
    for after, places in batches:
        new = [(a, s, number + i) for i, (a, s) in enumerate(places) if (a, s) > after]
        number += len(new)
        before, snapshot = (placed.attempts, placed.steps, placed.values), rows_of(placed)
        placed.replace_behind(after, *arrays(new))
        model = sorted([row for row in model if row[:2] <= after] + new, key=lambda row: row[:2])
        assert rows_of(placed) == model
        assert list(zip(*(array.tolist() for array in before), strict=True)) == snapshot
        for place in [(0, 0), (1, 5), (2, -2), (3, 12), after]:
            assert placed.behind(place) == sum(row[:2] <= place for row in model)


def test_points_before_the_place_are_put_in_order_with_the_others() -> None:
    placed = Placed(*arrays([(1, 1, 1.0), (1, 5, 5.0)]))
    placed.replace_behind((1, 5), *arrays([(1, 3, 3.0), (1, 6, 6.0)]))
    assert rows_of(placed) == [(1, 1, 1.0), (1, 3, 3.0), (1, 5, 5.0), (1, 6, 6.0)]


@given(batches=BATCHES)
def test_a_run_that_grows_has_the_chains_the_order_and_the_grown_arrays_of_the_whole(batches: list[Any]) -> None:
    starts = {1: -3, 2: 4, 3: 7}
    live, model = run(starts), list[Row]()
    number = 0.0
    for after, places in batches:
        new = [(a, s, number + i) for i, (a, s) in enumerate(dict.fromkeys(places)) if (a, s) > after]
        number += len(new)
        live.add("m", *arrays(new), after=after)
        model = [row for row in model if row[:2] <= after] + new
        whole = run(starts)
        whole.add("m", *arrays(model))
        assert live.judge_order() == whole.judge_order() == sorted({row[:2] for row in model})
        assert live.judge_order((2, 3)) == [place for place in live.judge_order() if place > (2, 3)]
        for attempt in (1, 2, 3):
            chain, expected = live.chain("m", attempt), whole.chain("m", attempt)
            assert (chain.steps.tolist(), chain.values.tolist()) == (expected.steps.tolist(), expected.values.tolist())
            (sums,) = live.grown("m", attempt, "sum", chain.steps, lambda at, c=chain: (np.cumsum(c.values)[at:],))  # type: ignore[misc]
            assert sums.tolist() == np.cumsum(expected.values).tolist()


def test_grown_arrays_are_made_for_the_new_points_only() -> None:
    data, asked = run({1: 0}), list[int]()
    data.add("m", *arrays([(1, s, float(s)) for s in range(10)]))

    def values() -> Any:
        chain = data.chain("m", 1)

        def make(position: int) -> Any:
            asked.append(position)
            return (chain.values[position:] * 2,)

        return data.grown("m", 1, "twice", chain.steps, make)[0]

    values()
    data.add("m", *arrays([(1, 10, 10.0)]), after=(1, 9))
    data.add("other", *arrays([(1, 10, 10.0)]), after=(1, 9))
    assert values().tolist() == [2.0 * s for s in range(11)]
    data.add("m", *arrays([(1, 7, -1.0)]), after=(1, 6))
    assert values().tolist() == [0, 2, 4, 6, 8, 10, 12, -2]
    assert asked == [0, 10, 7]


def test_a_view_has_what_has_a_point_up_to_its_step_and_shares_its_scratch() -> None:
    data = run({1: 0})
    data.add("a.x", *arrays([(1, 3, 1.0)]))
    data.add("a.y", *arrays([(1, 5, 1.0)]))
    assert [RunView(data, 1, step).matching("a.") for step in (2, 3, 5)] == [[], ["a.x"], ["a.x", "a.y"]]
    assert not RunView(data, 1, 2).has("a.x", "a.y", "b") and RunView(data, 1, 3).has("b", "a.x")
    RunView(data, 1, 5).scratch["key"] = 1
    assert RunView(data, 1, 5).scratch == {"key": 1}
    data.add("a.y", *arrays([(1, 6, 1.0)]), after=(1, 5))
    assert RunView(data, 1, 5).scratch == {}
