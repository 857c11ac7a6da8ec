"""Where a rule has anything to look at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from ingest.store.connection import Store
from server.checks.active import grown, held, means, near
from server.queries.view import RunData, RunFacts, RunView


@pytest.fixture
def store() -> Iterator[Store]:
    opened = Store(None)
    yield opened
    opened.close()


def run(store: Store, values: Sequence[float], every: int = 1, gap_before: int | None = None) -> RunData:
    data = RunData(store, RunFacts("r", "p", "r", "native", None, {}, {}), (), {1: 1})
    steps = [1 + every * n + (100 if gap_before is not None and n >= gap_before else 0) for n in range(len(values))]
    data.add("m", [1] * len(values), steps, values)
    return data


def active(data: RunData, steps: Sequence[int], of: int = 3, times: int = 2) -> list[int]:
    def one(step: int) -> bool:
        view = RunView(data, 1, step)
        return near(view, "rule", lambda: [held(view, "m", 0.5, of, times)])

    return [step for step in steps if one(step)]


def test_a_level_is_looked_at_where_enough_of_the_newest_points_lie_beyond_it(store: Store) -> None:
    assert active(run(store, [0, 1, 0, 1, 1, 0, 0, 0, 0]), range(1, 10)) == [4, 5, 6]


def test_nothing_is_looked_at_before_the_first_point_or_where_nothing_holds(store: Store) -> None:
    data = run(store, [0, 0.5, 0.5])
    assert active(data, range(-3, 20)) == []


def test_a_point_speaks_until_the_next_one_and_not_for_ever(store: Store) -> None:
    assert active(run(store, [1, 1, 0, 0], every=4), range(1, 20)) == [5, 6, 7, 8, 9, 10, 11, 12]
    stopped = active(run(store, [0, 1, 1]), range(1, 30))
    assert stopped[0] == 3 and 8 <= stopped[-1] < 15


def test_not_a_number_is_left_out(store: Store) -> None:
    assert active(run(store, [1, float("nan"), 1, 0, 0]), range(1, 6)) == [3, 4]


def test_what_holds_at_a_step_does_not_change_with_what_comes_later(store: Store) -> None:
    values = np.random.default_rng(4).random(60)
    whole = active(run(store, values.tolist()), range(1, 61))
    grew = [step for step in range(1, 61) if active(run(store, values[:step].tolist()), [step])]
    assert grew == whole
    assert 5 < len(whole) < 55


def test_means_over_windows_of_their_own_length() -> None:
    assert means(np.array([1.0, 2.0, 3.0, 6.0]), np.array([1, 2, 3, 2])).tolist() == [1.0, 1.5, 2.0, 4.5]


def test_growth_is_seen_against_the_points_before_and_not_below_the_fewest(store: Store) -> None:
    data = run(store, [*([1.0] * 20), *([1.5] * 10)])
    series, where = grown(RunView(data, 1, 30), "m", 0.2, 25, 20)
    assert series.steps[where].tolist() == list(range(23, 31))
    assert not grown(RunView(data, 1, 30), "m", 0.2, 25, 31)[1].any()
    assert not grown(RunView(data, 1, 30), "m", 0.6, 25, 20)[1].any()
