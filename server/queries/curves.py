"""Curves of a run: one value a step with its extremes, the newest attempt first, older ones apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ingest.store.connection import Store

Steps = NDArray[np.int64]
Values = NDArray[np.float64]

MOST_POINTS = 2000
"""A curve with more steps is drawn in bins that keep their smallest and largest value."""


@dataclass(frozen=True)
class Superseded:
    """What an older attempt had logged at steps that a newer one did again. steps [n], values [n]."""

    attempt: int
    steps: Steps
    values: Values


@dataclass(frozen=True)
class Curve:
    """One series, one row a step (or a bin of steps), ascending.

    steps [n]: the step, or the first of the bin. mean, low, high [n]: of the finite values, NaN where there is none.
    n [n]: how many values, non-finite ones too. nonfinite_steps [m]: steps with a NaN or an infinity. smooth [n]:
    debiased exponential mean (see smoothed), or empty. bin_steps: steps a row stands for. superseded: older attempts.
    metric: canonical id, null for an unknown key. attempt: the newest attempt in it.
    """

    key: str
    metric: str | None
    unit: str | None
    attempt: int
    steps: Steps
    mean: Values
    low: Values
    high: Values
    n: Steps
    nonfinite_steps: Steps
    smooth: Values
    bin_steps: int = 1
    superseded: tuple[Superseded, ...] = ()

    def since(self, step: int) -> Curve:
        """The rows from `step` on."""
        first = int(np.searchsorted(self.steps, step))
        return replace(
            self, steps=self.steps[first:], mean=self.mean[first:], low=self.low[first:], high=self.high[first:], n=self.n[first:],
            smooth=self.smooth[first:], nonfinite_steps=self.nonfinite_steps[self.nonfinite_steps >= step],
        )  # fmt: skip

    @property
    def last(self) -> float | None:
        """The newest finite value."""
        finite = np.flatnonzero(np.isfinite(self.mean))
        return float(self.mean[finite[-1]]) if finite.size else None


@dataclass(frozen=True, slots=True)
class SeriesInfo:
    """One series of a run as the list of all series shows it. metric: null for an unknown key."""

    series_id: int
    key: str
    metric: str | None
    unit: str | None
    points: int
    last_step: int | None
    last_value: float | None


def series_list(store: Store, run_id: str) -> list[SeriesInfo]:
    """Every series of a run, unknown keys too, in name order, with its newest value."""
    rows = store.rows(
        """SELECT s.series_id, s.source_key, s.metric, s.unit, count(p.step), max(p.step), arg_max(p.value, p.step)
           FROM series s LEFT JOIN point p USING (series_id) WHERE s.run_id = ? GROUP BY ALL ORDER BY s.source_key""",
        [run_id],
    )
    return [SeriesInfo(*row) for row in rows]


def metrics_of(store: Store, run_id: str) -> dict[str, str]:
    """Canonical metric to the source key that carries it (of several the one first seen)."""
    rows = store.rows("SELECT metric, source_key FROM series WHERE run_id = ? AND metric IS NOT NULL ORDER BY series_id DESC", [run_id])
    return dict(rows)


def curve(store: Store, run_id: str, metric_or_key: str, attempt: int | None = None) -> Curve | None:
    """One curve at full resolution, or None if the run never logged it."""
    return curves(store, run_id, [metric_or_key], attempt=attempt).get(metric_or_key)


def curves(
    store: Store,
    run_id: str,
    metrics_or_keys: Sequence[str],
    *,
    attempt: int | None = None,
    weight: float = 0.0,
    logarithm: Sequence[str] = (),
) -> dict[str, Curve]:
    """Curves by the name they were asked for (a canonical metric, else a source key); what was never logged is absent.

    attempt: only that one; default all, each step from the newest attempt that has it. weight: of the smoothing, 0 for
    none. logarithm: names whose logarithm is smoothed.
    """
    wanted = _series_of(store, run_id, metrics_or_keys)
    if not wanted:
        return {}
    table = store.columns(
        """SELECT series_id, attempt, step, avg(value) FILTER (isfinite(value)) AS mean, min(value) FILTER (isfinite(value)) AS low,
                  max(value) FILTER (isfinite(value)) AS high, count(*) AS n, count(*) FILTER (NOT isfinite(value)) AS bad
           FROM point WHERE list_contains(?, series_id) AND (? IS NULL OR attempt = ?)
           GROUP BY ALL ORDER BY series_id, attempt, step""",
        [[row[0] for row in wanted.values()], attempt, attempt],
    )
    found: dict[str, Curve] = {}
    for name, (series_id, key, metric, unit) in wanted.items():
        first, last = np.searchsorted(table["series_id"], [series_id, series_id + 1])
        if first < last:
            part = {column: values[first:last] for column, values in table.items()}
            made = _merged(part, key, metric, unit)
            smooth = smoothed(made.mean, weight, name in logarithm) if weight else np.empty(0)
            found[name] = replace(made, smooth=smooth)
    return found


def _series_of(store: Store, run_id: str, names: Sequence[str]) -> dict[str, tuple[int, str, str | None, str | None]]:
    rows = store.rows(
        """SELECT series_id, source_key, metric, unit FROM series
           WHERE run_id = ? AND (list_contains(?, metric) OR list_contains(?, source_key)) ORDER BY series_id DESC""",
        [run_id, list(names), list(names)],
    )
    by_metric = {row[2]: row for row in rows if row[2] is not None}
    by_key = {row[1]: row for row in rows}
    return {name: found for name in names if (found := by_metric.get(name) or by_key.get(name))}


def _merged(part: dict[str, NDArray[Any]], key: str, metric: str | None, unit: str | None) -> Curve:
    """Each step from the newest attempt that reached it; what older attempts logged there is kept apart."""
    attempts = part["attempt"]
    steps = part["step"].astype(np.int64)
    newest = int(attempts[-1])
    start = np.iinfo(np.int64).max
    keep = np.zeros(steps.size, bool)
    superseded: list[Superseded] = []
    for number in sorted(set(attempts.tolist()), reverse=True):
        mine = attempts == number
        current = mine & (steps < start)
        keep |= current
        old = mine & (steps >= start)
        if old.any():
            superseded.append(Superseded(int(number), steps[old], part["mean"][old].astype(np.float64)))
        start = min(start, int(steps[mine][0]))
    order = np.flatnonzero(keep)[np.argsort(steps[keep], kind="stable")]
    chosen = {name: values[order] for name, values in part.items()}
    return Curve(
        key, metric, unit, newest, chosen["step"].astype(np.int64), chosen["mean"].astype(np.float64), chosen["low"].astype(np.float64),
        chosen["high"].astype(np.float64), chosen["n"].astype(np.int64), chosen["step"][chosen["bad"] > 0].astype(np.int64), np.empty(0), 1,
        tuple(superseded),
    )  # fmt: skip


def smoothed(values: Values, weight: float, logarithm: bool = False) -> Values:
    """Debiased exponential mean with that weight of the past; gaps stay gaps. Of the logarithm where asked (values above 0).

    Formula: m_t = w m_(t-1) + (1 - w) x_t, divided by 1 - w^k after k values.
    """
    if logarithm:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(np.exp(smoothed(np.where(values > 0, np.log(np.maximum(values, 1e-300)), np.nan), weight)))
    result = np.full(values.size, np.nan)
    mean, mass = 0.0, 0.0
    for index, value in enumerate(values.tolist()):
        if value == value and abs(value) != np.inf:
            mean = weight * mean + (1 - weight) * value
            mass = weight * mass + (1 - weight)
            result[index] = mean / mass
    return result


def thinned(curve: Curve, most: int = MOST_POINTS) -> Curve:
    """A curve in bins of a power of two steps, so that a growing run keeps its bins; each keeps smallest and largest."""
    if curve.steps.size <= most:
        return curve
    span = int(curve.steps[-1] - curve.steps[0]) + 1
    width = 1
    while span / width > most / 2:
        width *= 2
    bins = curve.steps // width
    starts = np.flatnonzero(np.r_[True, bins[1:] != bins[:-1]])
    ends = np.r_[starts[1:], bins.size] - 1
    finite = np.where(np.isfinite(curve.mean), curve.mean, 0.0)
    held = np.isfinite(curve.mean).astype(np.int64)
    counts = np.add.reduceat(held, starts)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.add.reduceat(finite, starts) / counts
    return replace(
        curve, steps=bins[starts] * width, mean=mean, low=np.fmin.reduceat(curve.low, starts), high=np.fmax.reduceat(curve.high, starts),
        n=np.add.reduceat(curve.n, starts), smooth=curve.smooth[ends] if curve.smooth.size else curve.smooth, bin_steps=width,
    )  # fmt: skip


def sparklines(store: Store, metrics: Sequence[str], bins: int = 60) -> dict[tuple[str, str], tuple[Steps, Values]]:
    """(run_id, metric) to steps [n] and means [n] of at most `bins` bins of the newest attempt's span; all runs at once."""
    rows = store.columns(
        """WITH chosen AS (SELECT run_id, metric, min(series_id) AS series_id FROM series WHERE list_contains(?, metric) GROUP BY ALL),
                span AS (SELECT c.run_id, c.metric, c.series_id, min(p.step) AS first, max(p.step) AS last
                         FROM chosen c JOIN point p USING (series_id) GROUP BY ALL)
           SELECT s.run_id, s.metric, max(p.step) AS step, avg(p.value) FILTER (isfinite(p.value)) AS mean
           FROM span s JOIN point p USING (series_id)
           GROUP BY s.run_id, s.metric, ((p.step - s.first) * ? / (s.last - s.first + 1))::BIGINT ORDER BY 1, 2, 3""",
        [list(metrics), bins],
    )
    found: dict[tuple[str, str], tuple[Steps, Values]] = {}
    position = 0
    for (run_id, metric), group in groupby(zip(rows["run_id"].tolist(), rows["metric"].tolist(), strict=True)):
        size = sum(1 for _ in group)
        part = slice(position, position + size)
        found[(run_id, metric)] = (rows["step"][part].astype(np.int64), rows["mean"][part].astype(np.float64))
        position += size
    return found


def eval_metrics(store: Store) -> dict[str, list[str]]:
    """Run to its metric ids of evaluations."""
    rows = store.rows("SELECT run_id, list(DISTINCT metric) FROM series WHERE metric LIKE 'eval.%' GROUP BY run_id")
    return dict(rows)


@dataclass(frozen=True, slots=True)
class RunEvent:
    """Something that happened: resume, checkpoint, config, weight_sync, curriculum, eval, restart, crash, note."""

    step: int
    attempt: int
    kind: str
    text: str


def events(store: Store, run_id: str, most: int = 200) -> list[RunEvent]:
    """The newest events of a run in step order."""
    rows = store.rows(
        "SELECT * FROM (SELECT step, attempt, kind, text FROM event WHERE run_id = ? ORDER BY step DESC LIMIT ?) ORDER BY step",
        [run_id, most],
    )
    return [RunEvent(*row) for row in rows]
