"""Drift of shares: the population stability index of newest steps against the first ones, less what sampling alone gives."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from server.detectors.baseline import Floats

_NOISE_ERRORS = 4
"""The index must lie so many of its standard deviations above its expectation before it counts at all."""


class Drift(NamedTuple):
    """For every point, [n]: the index above its expectation under sampling; NaN without enough, 0 within its noise.

    first_n: points of the first window. start [n]: position at which the newest window of each point begins.
    dispersion: variance of the shares from step to step over that of independent draws, at least 1.
    """

    excess: Floats
    first_n: int
    start: Floats
    dispersion: float


def drift(shares: Floats, draws: Floats, first_n: int, least_points: int, least_draws: float) -> Drift:
    """Drift of shares [k, n] made of so many draws each [n], causal; the first window is the first `first_n` points.

    The newest window of a point is the shortest that has both the least points and the least draws. A half is added to
    every count, so that a label that vanishes gives a finite index. Where steps differ from each other by more than
    independent draws would (batches of one source), draws count for as much less.
    """
    k, n = shares.shape
    excess, start = np.full(n, np.nan), np.zeros(n)
    if n <= first_n or k < 2:
        return Drift(excess, first_n, start, 1.0)
    counts = np.concatenate((np.zeros((k, 1)), np.cumsum(shares * draws, axis=1)), axis=1)
    total = np.concatenate(([0.0], np.cumsum(draws)))
    first = counts[:, first_n]
    usual = first / max(first.sum(), 1e-9)
    present = usual > 0
    expected = usual[present, None] * draws[:first_n]
    squares = ((shares[present, :first_n] * draws[:first_n] - expected) ** 2 / expected).sum(axis=0)
    dispersion = max(1.0, float(squares.mean()) / max(int(present.sum()) - 1, 1))
    last = np.arange(n)
    begin = np.searchsorted(total, total[last + 1] - least_draws * dispersion * (1 - 1e-9), side="right") - 1
    begin = np.minimum(begin, last - least_points + 1)
    valid = begin >= first_n
    begin = np.maximum(begin, 0)
    new = counts[:, last + 1] - counts[:, begin]
    # A label counts from its first draw on: one that is still to come must not widen the noise before it.
    seen = counts[:, last + 1] > 0
    labels = seen.sum(axis=0)
    old_share = (first[:, None] + 0.5 * seen) / (first.sum() + 0.5 * labels)
    new_share = (new + 0.5 * seen) / (new.sum(axis=0) + 0.5 * labels)
    ratio = np.where(seen, new_share, 1.0) / np.where(seen, old_share, 1.0)
    index = ((new_share - old_share) * np.log(ratio)).sum(axis=0)
    with np.errstate(divide="ignore"):
        unit = dispersion * (1 / max(total[first_n], 1e-9) + 1 / np.maximum(total[last + 1] - total[begin], 1e-9))
    noise = np.sqrt(2 * np.maximum(labels - 1, 0)) * unit
    surplus = index - (labels - 1) * unit
    excess = np.where(valid, np.where(surplus > _NOISE_ERRORS * noise, surplus, 0.0), np.nan)
    return Drift(excess, first_n, begin.astype(np.float64), dispersion)
