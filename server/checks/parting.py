"""Reward and evaluation side by side: how both moved over the same evaluations, and whether one followed the other before."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from server.checks.measure import Shift, evaluations, finite, points, unfilled
from server.queries.view import RunView, Values

_FEWEST_JUMPS = 4


def scatter(values: Values) -> float:
    """Standard deviation of one value around its course, from neighbours' differences; infinite below four of them.

    Few differences underestimate it as often as not, which is why it grows as they become fewer.
    """
    jumps = np.diff(values)
    if len(jumps) < _FEWEST_JUMPS:
        return math.inf
    centred = jumps - np.median(jumps)
    robust = 1.4826 * float(np.median(np.abs(centred)))
    return max(robust, 0.7 * float(np.std(jumps))) / math.sqrt(2) * (1 + 2 / len(jumps))


class Followed(NamedTuple):
    """Points of evaluation that came with one point of reward so far, and the standard error of that."""

    slope: float
    error: float


class Course:
    """Evaluations since the newest planned event and the reward of the steps that led to them, both up to the judged step."""

    def __init__(self, view: RunView, trained: str, held_out: str) -> None:
        self.steps, self.values = evaluations(view, held_out)
        self.rewards = points(view, trained)
        # An event moves a level and not the scatter around it, so that all of the run tells about the scatter.
        self.error = max(scatter(unfilled(finite(view.series(held_out))).tail(100).values), _sampling_error(view, self.values))
        self.reward_error = scatter(finite(view.series(trained)).tail(200).values)

    def shift(self, old: tuple[int, int], new: tuple[int, int]) -> tuple[Shift | None, Shift | None]:
        """How reward and evaluation moved from evaluations old to new (positions, the end left out); None without points."""
        scores = [self.values[first:end] for first, end in (old, new)]
        return _shift([self._rewards(*old), self._rewards(*new)], self.reward_error), _shift(scores, self.error)

    def newest(self, count: int, before: int) -> tuple[Shift | None, Shift | None]:
        """The newest `count` evaluations against the `before` ones just before them."""
        n = len(self.steps)
        return self.shift((n - count - before, n - count), (n - count, n))

    def followed(self, end: int) -> Followed | None:
        """How the evaluation followed the reward over the first `end` evaluations.

        None where the reward did not clearly rise by then, or the evaluation did not clearly rise with it.
        """
        third = end // 3
        if third < 2:
            return None
        reward, score = self.shift((0, third), (end - third, end))
        if reward is None or score is None or reward.z < 4 or score.z < 3:
            return None
        slope = min(score.change / reward.change, 1.0)
        return Followed(slope, slope * math.hypot(score.error / score.change, reward.error / reward.change))

    def reached(self, end: int, count: int) -> float:
        """Best mean reward over `count` evaluations in a row among the first `end`."""
        means = [float(part.mean()) for i in range(max(1, end - count + 1)) if len(part := self._rewards(i, min(i + count, end)))]
        return max(means, default=-math.inf)

    def _rewards(self, first: int, end: int) -> Values:
        after = int(self.steps[first - 1]) if first > 0 else int(self.steps[0]) - 1
        start, stop = np.searchsorted(self.rewards.steps, (after, int(self.steps[end - 1])), side="right")
        return self.rewards.values[start:stop]


def evaluated(view: RunView) -> float | None:
    """Items of one evaluation, where the configuration says so; None: not known."""
    names = ("eval_n", "eval_samples", "eval_size", "num_eval_samples", "eval.n", "val_size")
    found = (view.run.raw_config.get(name) for name in names)
    return next((float(v) for v in found if isinstance(v, (int, float)) and v > 0), None)


def _sampling_error(view: RunView, values: Values) -> float:
    """Half of the binomial error of one evaluation of n items: items that are always or never solved take the rest away."""
    n = evaluated(view)
    if n is None or not len(values):
        return 0.0
    p = min(max(float(values[-20:].mean()), 0.05), 0.95)
    return 0.5 * math.sqrt(p * (1 - p) / n)


def _shift(parts: list[Values], one: float) -> Shift | None:
    old, new = parts
    if not len(old) or not len(new):
        return None
    error = one * math.sqrt(1 / len(old) + 1 / len(new))
    before, after = float(old.mean()), float(new.mean())
    return Shift(after - before, error, before, after)
