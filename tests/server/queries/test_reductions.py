"""Reductions to groups against the same statistics of each group alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.queries.reductions import Floats, Groups, ratio

Alone = Callable[[Floats], float]
number = st.one_of(st.just(float("nan")), st.sampled_from([0.1, 0.1, 0.3, -2.0]), st.floats(-1e6, 1e6))
rows = st.lists(st.tuples(st.integers(0, 3), number, number, st.booleans()), max_size=40)

STATISTICS: dict[str, tuple[Callable[[Groups, Floats], Floats], Alone]] = {
    "total": (lambda g, v: g.total(v), np.sum),
    "mean": (lambda g, v: g.mean(v), np.mean),
    "most": (lambda g, v: g.most(v), np.max),
    "least": (lambda g, v: g.least(v), np.min),
    "deviation": (lambda g, v: g.deviation(v), lambda v: float(np.std(v, ddof=1)) if len(v) > 1 else np.nan),
    "median": (lambda g, v: g.quantile(v, 0.5), np.median),
    "p95": (lambda g, v: g.quantile(v, 0.95), lambda v: float(np.quantile(v, 0.95))),
    "distinct": (lambda g, v: g.distinct(v, np.isfinite(v)), lambda v: len(set(v.tolist()))),
}  # fmt: skip


@pytest.mark.parametrize("name", STATISTICS)
@given(rows)
def test_each_group_has_what_its_known_rows_alone_have(name: str, made: list[tuple[int, float, float, bool]]) -> None:
    reduce, alone = STATISTICS[name]
    of = np.array([row[0] for row in made], np.int64)
    values = np.array([row[1] for row in made], np.float64)
    found = reduce(Groups(of, 4), values)
    for group in range(4):
        own = values[(of == group) & np.isfinite(values)]
        nothing = 0.0 if name in ("total", "distinct") else np.nan
        wanted = alone(own) if len(own) else nothing
        assert found[group] == pytest.approx(wanted, rel=1e-9, abs=1e-6, nan_ok=True)


@given(rows)
def test_correlation_and_covariance_use_rows_in_which_both_are_known(made: list[tuple[int, float, float, bool]]) -> None:
    of = np.array([row[0] for row in made], np.int64)
    x, y = (np.array([row[k] for row in made], np.float64) for k in (1, 2))
    where = np.array([row[3] for row in made], np.bool_)
    groups = Groups(of, 4)
    covariance, correlation = groups.covariance(x, y, where), groups.correlation(x, y, where)
    for group in range(4):
        both = (of == group) & where & np.isfinite(x) & np.isfinite(y)
        if both.sum() < 2:
            assert np.isnan(covariance[group])
            continue
        scale = 1 + float(np.ptp(x[both]) * np.ptp(y[both]))
        assert covariance[group] == pytest.approx(np.cov(x[both], y[both])[0, 1], abs=1e-9 * scale)
        spread = min(np.ptp(x[both]), np.ptp(y[both]))
        if spread > 1e-3:
            assert correlation[group] == pytest.approx(np.corrcoef(x[both], y[both])[0, 1], abs=1e-6)
        elif spread == 0:
            assert np.isnan(correlation[group])


def test_equal_values_have_no_deviation_at_all() -> None:
    groups = Groups(np.zeros(3, np.int64), 1)
    assert groups.deviation(np.full(3, 0.1)) == [0.0]  # 0.1 + 0.1 + 0.1 is not 0.3
    assert np.isnan(groups.correlation(np.full(3, 0.1), np.arange(3.0))[0])


def test_a_weighted_mean_and_rows_of_groups() -> None:
    groups = Groups(np.array([1, 0, 1]), 3)
    assert groups.mean(np.array([1.0, 5.0, 4.0]), weights=np.array([2.0, 1.0, 1.0])).tolist() == pytest.approx([5, 2, np.nan], nan_ok=True)
    assert [rows.tolist() for rows in groups.rows()] == [[1], [0, 2], []]
    assert ratio(np.ones(2), np.array([0.0, 4.0])).tolist() == pytest.approx([np.nan, 0.25], nan_ok=True)
