"""One measure of rollouts by a dimension and by step: length bucket, policy lag, task and the like, with n everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ingest.schema.buckets import LAG_EDGES, bucket_label, length_edges
from ingest.store.connection import Store
from server.queries.rollouts import RolloutFilter, condition

Values = NDArray[np.float64]
Counts = NDArray[np.int64]

MOST_BINS = 40
LENGTH_BUCKETS = 12
MOST_LABELS = 14


@dataclass(frozen=True)
class Measure:
    """What is averaged: sum(numerator) / sum(denominator) over rollouts; n counts those with a denominator above 0.

    needs: the field a trainer must write, in words.
    """

    key: str
    title: str
    unit: str
    numerator: str
    denominator: str
    needs: str
    tokens: bool = False


def _mean(key: str, title: str, unit: str, expression: str, needs: str) -> Measure:
    return Measure(key, title, unit, expression, f"CASE WHEN isfinite({expression}) THEN 1 ELSE 0 END", needs)


# Per trajectory: the sum and the number of |trainer - engine| over response tokens where both values were written.
_DIFFERENCES = """list_filter(list_transform(
    list_zip(coalesce(old_logprobs, current_logprobs), rollout_logprobs, response_mask),
    lambda x: CASE WHEN coalesce(x[3], 1) = 1 AND isfinite(x[1] - x[2]) THEN abs(x[1] - x[2])::DOUBLE END), lambda d: d IS NOT NULL)"""

MEASURES: dict[str, Measure] = {
    measure.key: measure
    for measure in (
        _mean("reward", "Reward", "", "reward", "a reward in each rollout"),
        _mean("length", "Response length", "tokens", "response_tokens::DOUBLE", "response_tokens in each rollout"),
        _mean("truncated", "Truncated share", "share", "(finish_reason = 'length')::INT::DOUBLE", "finish_reason in each rollout"),
        _mean("zero", "Zero-variance share", "share", "flat_group::INT::DOUBLE", "reward and group_id in each rollout"),
        Measure(
            "mismatch", "|Δ logprob|", "nats a token", "coalesce(difference, 0)", "coalesce(compared, 0)",
            "rollout_logprobs and old_logprobs of the tokens", tokens=True,
        ),
        _mean("advantage", "|Advantage|", "", "abs(advantage)", "an advantage in each rollout"),
        _mean("verifier", "Verifier time", "s", "verifier_seconds", "verifier.seconds in each rollout"),
        _mean("fault", "Verifier fault share", "share", "(verifier_status <> 'ok')::INT::DOUBLE", "verifier.status in each rollout"),
        _mean("lag", "Policy lag", "versions", "policy_lag::DOUBLE", "policy_version or policy_lag in each rollout"),
        Measure("share", "Share of rollouts", "share", "1.0", "1", "rollouts"),
    )
}  # fmt: skip
"""Measures by the key of the address."""


@dataclass(frozen=True)
class Dimension:
    """What the rows of the map are. field: the filter of Rollouts that a bucket turns into."""

    key: str
    title: str
    column: str
    field: str
    needs: str
    numeric: bool = False


DIMENSIONS: dict[str, Dimension] = {
    dimension.key: dimension
    for dimension in (
        Dimension("length", "Response length", "response_tokens", "length", "response_tokens in each rollout", numeric=True),
        Dimension("lag", "Policy lag", "policy_lag", "lag", "policy_version or policy_lag in each rollout", numeric=True),
        Dimension("task", "Task", "task", "task", "a task in each rollout"),
        Dimension("difficulty", "Difficulty", "difficulty", "difficulty", "a difficulty in each rollout"),
        Dimension("finish", "Finish reason", "finish_reason", "finish", "finish_reason in each rollout"),
    )
}
"""Dimensions by the key of the address."""


@dataclass(frozen=True)
class Bucket:
    """One row of the map. low and high (inclusive, None: no bound) for numbers; value for labels."""

    label: str
    low: int | None = None
    high: int | None = None
    value: str | None = None


@dataclass(frozen=True)
class SliceGrid:
    """A measure by bucket and step bin.

    value [buckets, bins]: mean, NaN where n is 0; n [buckets, bins]: rollouts the mean is of; rollouts [buckets, bins]:
    rollouts in the cell whether or not they hold the measure; total [bins]: rollouts of the bin in all buckets and none.
    Buckets that no rollout falls into are left out.
    bins: first and last step of each, both inclusive. without_bucket: rollouts whose dimension is null or beyond the
    labels shown; measured: rollouts that hold the measure at all.
    """

    measure: Measure
    dimension: Dimension
    buckets: tuple[Bucket, ...]
    bins: tuple[tuple[int, int], ...]
    value: Values
    n: Counts
    rollouts: Counts
    total: Counts
    without_bucket: int
    measured: int

    @property
    def count(self) -> int:
        """All rollouts of the question."""
        return int(self.total.sum())


@dataclass(frozen=True)
class SliceChange:
    """One bucket before and after. share: of all rollouts of the window (0 to 1); value: mean or NaN; n: rollouts it is of."""

    bucket: Bucket
    rollouts_before: int
    rollouts_after: int
    share_before: float
    share_after: float
    value_before: float
    value_after: float
    n_before: int
    n_after: int


def bucket_list(store: Store, run_id: str, dimension: Dimension, chosen: RolloutFilter) -> tuple[Bucket, ...]:
    """The buckets of a run along a dimension, smallest first (labels in alphabetical order, the most frequent if many).

    Length edges come from the 2nd and 98th percentile, so that one long answer does not leave the rest in one bucket; the
    first bucket reaches down to, and the last up to, whatever there is. Empty: the field is nowhere written.
    """
    where, values = condition(store, run_id, chosen)
    column = dimension.column
    if not dimension.numeric:
        rows = store.rows(
            f"""
            SELECT {column}, count(*) FROM trajectory WHERE {where} AND {column} IS NOT NULL
            GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT {MOST_LABELS}""",
            values,
        )
        return tuple(Bucket(label, value=label) for label in sorted((str(row[0]) for row in rows), key=_natural))
    row = store.rows(
        f"SELECT min({column}), quantile_disc({column}, 0.02), quantile_disc({column}, 0.98), max({column}) FROM trajectory WHERE {where}",
        values,
    )[0]
    if row[0] is None:
        return ()
    least, low, high, greatest = (int(v) for v in row)
    if dimension.key == "lag":
        return _numeric_buckets([edge for edge in LAG_EDGES if edge <= max(greatest, 0)], least, greatest)
    return _numeric_buckets(length_edges(low, high, LENGTH_BUCKETS), least, greatest)


def _numeric_buckets(edges: Sequence[int], least: int, greatest: int) -> tuple[Bucket, ...]:
    edges = [min(least, edges[0]), *edges[1:]]
    buckets = []
    for index, low in enumerate(edges):
        last = index + 1 >= len(edges)
        high = greatest if last else edges[index + 1] - 1
        label = (str(low) if high <= low else f"{low} to {high}") if last else bucket_label(edges, index)
        buckets.append(Bucket(label, low, None if last else high))
    return tuple(buckets)


def _natural(label: str) -> tuple[int, float, str]:
    """Numbers in order of size, then words."""
    try:
        return 0, float(label), label
    except ValueError:
        return 1, 0.0, label


def bin_width(first: int, last: int, most: int = MOST_BINS) -> int:
    """The smallest of 1, 2, 5, 10, 20, 50 ... steps with which first..last makes at most `most` bins."""
    width, factor = 1, 1
    while (last - first) // width + 1 > most:
        width = next((step * factor for step in (1, 2, 5) if step * factor > width), 10 * factor)
        factor *= 10 if width >= 10 * factor else 1
    return width


def slice_grid(
    store: Store,
    run_id: str,
    measure: str,
    dimension: str,
    chosen: RolloutFilter | None = None,
    *,
    bin_steps: int | None = None,
) -> SliceGrid:
    """The measure by bucket and step bin, newest attempt a step.

    Raises:
        KeyError: measure or dimension is not a known key.
    """
    what, by = MEASURES[measure], DIMENSIONS[dimension]
    chosen = chosen or RolloutFilter()
    buckets = bucket_list(store, run_id, by, chosen)
    where, values = condition(store, run_id, chosen, "t")
    first, last = store.rows(f"SELECT min(step), max(step) FROM trajectory t WHERE {where}", values)[0]
    if first is None:
        empty = np.zeros((len(buckets), 0))
        nothing = empty.astype(np.int64)
        return SliceGrid(what, by, buckets, (), empty, nothing, nothing, np.zeros(0, np.int64), 0, 0)
    width = max(1, bin_steps or bin_width(first, last))
    source, bucket_values = _source(what, by, buckets, where)
    cells = store.columns(
        f"""
        {source}
        SELECT bucket, (step - $first_step) // $width AS bin, sum(num) FILTER (den > 0) AS num, sum(den) AS den,
               count(*) FILTER (den > 0) AS n, count(*) AS rollouts
        FROM base GROUP BY ALL""",
        values | bucket_values | {"first_step": first, "width": width},
    )
    shape = (len(buckets), (last - first) // width + 1)
    bins = tuple((int(first + i * width), int(min(last, first + (i + 1) * width - 1))) for i in range(shape[1]))
    numerator, denominator = np.zeros(shape), np.zeros(shape)
    n, rollouts = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    total = np.zeros(shape[1], np.int64)
    column = cells["bin"].astype(np.int64)
    np.add.at(total, column, cells["rollouts"].astype(np.int64))
    inside = cells["bucket"] >= 0
    place = cells["bucket"][inside].astype(np.int64), column[inside]
    numerator[place] = np.nan_to_num(cells["num"][inside].astype(float))
    denominator[place] = cells["den"][inside]
    n[place], rollouts[place] = cells["n"][inside], cells["rollouts"][inside]
    if measure == "share":
        numerator, denominator = rollouts.astype(float), np.broadcast_to(total, shape).astype(float) * (rollouts > 0)
    value = np.divide(numerator, denominator, out=np.full(shape, np.nan), where=denominator > 0)
    met = rollouts.sum(axis=1) > 0
    return SliceGrid(
        what, by, tuple(b for b, seen in zip(buckets, met, strict=True) if seen), bins, value[met], n[met], rollouts[met], total,
        int(total.sum() - rollouts.sum()), int(cells["n"].sum()),
    )  # fmt: skip


def slice_change(
    store: Store,
    run_id: str,
    measure: str,
    dimension: str,
    before: tuple[int, int],
    after: tuple[int, int],
    chosen: RolloutFilter | None = None,
    buckets: Sequence[Bucket] | None = None,
) -> tuple[SliceChange, ...]:
    """Each bucket in the steps before and in the steps after (both ranges inclusive), in the order of the buckets.

    Raises:
        KeyError: measure or dimension is not a known key.
    """
    what, by = MEASURES[measure], DIMENSIONS[dimension]
    chosen = chosen or RolloutFilter()
    buckets = tuple(buckets) if buckets is not None else bucket_list(store, run_id, by, chosen)
    where, values = condition(store, run_id, chosen, "t")
    source, bucket_values = _source(what, by, buckets, where)
    rows = store.rows(
        f"""
        {source}
        SELECT bucket, CASE WHEN step BETWEEN $before_first AND $before_last THEN 0 ELSE 1 END AS side,
               sum(num) FILTER (den > 0), sum(den), count(*) FILTER (den > 0), count(*)
        FROM base WHERE step BETWEEN $before_first AND $before_last OR step BETWEEN $after_first AND $after_last
        GROUP BY ALL""",
        values | bucket_values | {"before_first": before[0], "before_last": before[1], "after_first": after[0], "after_last": after[1]},
    )
    totals = [sum(row[5] for row in rows if row[1] == side) for side in (0, 1)]
    found = {(row[0], row[1]): row for row in rows}
    return tuple(_change(what, bucket, [found.get((index, side)) for side in (0, 1)], totals) for index, bucket in enumerate(buckets))


def _change(what: Measure, bucket: Bucket, sides: Sequence[tuple[object, ...] | None], totals: Sequence[int]) -> SliceChange:
    rollouts = [0 if side is None else int(str(side[5])) for side in sides]
    n = [0 if side is None else int(str(side[4])) for side in sides]
    share = [count / total if total else float("nan") for count, total in zip(rollouts, totals, strict=True)]
    value = [
        float("nan") if side is None or not side[3] or side[2] is None else float(str(side[2])) / float(str(side[3])) for side in sides
    ]
    if what.key == "share":
        value = share
    return SliceChange(bucket, rollouts[0], rollouts[1], share[0], share[1], value[0], value[1], n[0], n[1])


def _source(what: Measure, by: Dimension, buckets: Sequence[Bucket], where: str) -> tuple[str, dict[str, object]]:
    """SQL that names `base` (step, bucket index or -1, num, den), and the values it uses."""
    tokens, joined, extra, windows = "", "trajectory t", "", ""
    if what.tokens:
        tokens = f"""
        differences AS (SELECT step, n, {_DIFFERENCES} AS listed FROM token WHERE run_id = $run_id),
        compared AS (SELECT step, n, list_sum(listed) AS difference, len(listed) AS compared FROM differences),"""
        joined, extra = "trajectory t LEFT JOIN compared k ON k.step = t.step AND k.n = t.n", ", k.difference, k.compared"
    if what.key == "zero":
        extra = (
            ", CASE WHEN t.group_id IS NOT NULL AND t.reward IS NOT NULL THEN "
            "max(reward) OVER g = min(reward) OVER g AND count(reward) OVER g > 1 END AS flat_group"
        )
        windows = "WINDOW g AS (PARTITION BY t.step, t.split, t.group_id)"
    bucket, values = _bucket_expression(by, buckets)
    return (
        f"""
        WITH {tokens}
        chosen AS (SELECT t.*{extra} FROM {joined} WHERE {where} {windows}),
        base AS (SELECT step, {bucket} AS bucket, ({what.numerator})::DOUBLE AS num, ({what.denominator})::DOUBLE AS den FROM chosen)""",
        values,
    )


def _bucket_expression(by: Dimension, buckets: Sequence[Bucket]) -> tuple[str, dict[str, object]]:
    if not by.numeric:
        return f"coalesce(list_position($labels, {by.column}), 0) - 1", {"labels": [bucket.value for bucket in buckets]}
    cases = " ".join(f"WHEN {by.column} >= {int(bucket.low or 0)} THEN {index}" for index, bucket in reversed(list(enumerate(buckets))))
    return (f"CASE {cases} ELSE -1 END" if cases else "-1"), {}
