"""RS091 zero-variance-groups."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import server.checks.distribution as distribution
import server.checks.groups as groups
import server.checks.verifier as verifier
from server.checks.engine import reward_trend
from server.checks.measure import below_for, beyond_for, finding, fresh, history, level, points, reward_metric, reward_range, window
from server.checks.parting import scatter
from server.queries.view import RunView, Series
from server.rules.base import Finding, Hypothesis, Param, Severity, Status, hypothesis
from server.symptoms import SYMPTOMS

_FEWEST = 10
"""Points below which there is no median worth the name."""
_METRICS = ("group.zero_std_frac", "fact.group.zero_std_frac")

_KEPT = ("fact.kept_frac", "group.filtered_frac")
_ROUNDS = ("train/num_gen_batches", "num_gen_batches", "dynamic_sampling_num_gen_batches")
"""Generation rounds of one step under the names that trainers with dynamic sampling log; the vocabulary has none."""
_MOST_ROUNDS = "max_num_gen_batches"


class ZeroVarianceGroups:
    """Most groups have equal rewards, so that no gradient comes from them.

    What it observes:
        Median over 20 points of the share of groups whose rewards are all equal: above .5 watch, above .8 warn if the reward does not
        rise over them and as many before, and the groups are not mastered with the evaluation at its best; above .95 at ten points with
        the reward at its minimum critical. A single point says nothing: healthy runs with small groups pass .8 now and then. Above .5
        after a step up while the responses are likelier than the policy's entropy allows: warn. Less than ten points, all of them
        above .5: info. Less than half of what is generated is trained: watch, less than a quarter or three rounds of generation a
        step: warn, as many rounds as are allowed: critical.

    Why it matters:
        The effective batch is (1 - share) times the prompts; generation and grading of the rest are wasted.

    Hypotheses:
        H9a too hard: groups fail altogether. H9b too easy or mastered: groups are solved by every member.
        H9c identical samples: copies among wrong answers too, or members agree more than responses of other groups of the prompt.
        H9d variance only between prompts: rewards spread, and not within groups. H9e the grader gives one value.
        H9f wrong groups: ids with one member or several prompts. H9g the filter keeps groups of equal rewards.
        H3h the sampler was changed: drawn tokens are likelier than the policy's entropy says.

    When it is wrong:
        A share that rises with the reward is success. Rewards of a model are never equal. Filters before logging hide the share.

    Sources:
        symptoms 9 and 22: measured on public collapses (6 of 6, none false, but late); DAPO recipe.
    """

    code = "RS091"
    name = "zero-variance-groups"
    family = "groups"
    status: Status = "stable"
    version = 1
    needs: tuple[tuple[str, ...], ...] = ((*_METRICS, *_KEPT, *_ROUNDS),)
    params: tuple[Param, ...] = (
        Param("watch", 0.5, "0..1", 0, 1, "symptoms 22"),
        Param("warn", 0.8, "0..1", 0, 1, "symptoms 22"),
        Param("critical", 0.95, "0..1", 0, 1, "symptoms 22"),
        Param("window_points", 20, "points", 5, 100, "symptoms 22"),
        Param("window_steps", 20, "steps", 5, 1000, "symptoms 22"),
        Param("kept_watch", 0.5, "share", 0, 1, "symptoms 22", "of what is generated"),
        Param("kept_warn", 0.25, "share", 0, 1, "symptoms 22"),
        Param("rounds", 3, "rounds of generation", 1, 100, "symptoms 9"),
        Param("step", 0.2, "0..1", 0, 1, "default of ours", "rise of the share within the window that is a step; mastery comes gradually"),
        Param("sharpened", 0.5, "ratio", 0.05, 1, "default of ours", "likelihood of the responses against the policy's entropy"),
        Param("minimum", 0.05, "share of the range", 0, 0.5, "symptoms 9", "reward counts as at its minimum below it"),
    )
    hold_points = 20
    hypotheses: tuple[Hypothesis, ...] = (
        hypothesis("H3h", "tokens", distribution.sampler_changed),
        hypothesis("H9b", "metrics", groups.too_easy),
        hypothesis("H9a", "metrics", groups.too_hard),
        hypothesis("H9e", "metrics", groups.grader_constant),
        hypothesis("H9c", "trajectories", groups.identical_samples, groups.more_equal_than_chance),
        hypothesis("H9d", "metrics", groups.between_prompts_only, prior=0.8),
        hypothesis("H9f", "trajectories", groups.wrong_groups),
        hypothesis("H9g", "trajectories", groups.filter_misses, action="Compare the filter's condition with the metric."),
    )
    next_checks = SYMPTOMS["zero-variance-groups"].next_checks

    def evaluate(self, view: RunView) -> Sequence[Finding]:
        """Equal groups, else what the filter that removes them costs."""
        return self._equal(view) or self._cost(view)

    def _equal(self, view: RunView) -> Sequence[Finding]:
        """The median share over the window against its limits."""
        p = view.params
        metric = next((m for m in _METRICS if view.has(m)), None)
        if metric is None:
            return ()
        series = points(view, metric)
        size = window(series, p["window_steps"], p["window_points"])
        part = series.tail(size)
        if not fresh(view, series):
            return ()
        if len(part) < _FEWEST:
            return self._from_the_start(view, metric, part)
        share = sorted(part.values.tolist())[len(part) // 2]
        if share <= p["watch"]:
            return ()
        severity: Severity = "watch"
        limit = p["watch"]
        graded = not verifier.in_doubt(view)  # else what is equal may be failed gradings
        if graded and share > p["warn"] and len(part) >= size and self._without_success(view):
            # A shorter history cannot say whether the reward rises.
            severity, limit = "warn", p["warn"]
            if bool((part.tail(10).values > p["critical"]).all()) and self._at_minimum(view):
                severity, limit = "critical", p["critical"]
        elif graded and self._sampler_narrowed(view):
            severity, limit = "warn", self._halfway(series, size)
        onset = beyond_for(view, metric, limit, allowed=4)
        summary = f"{share:.0%} of the groups have equal rewards (median of {len(part)} points), above {limit:.0%} since step {onset}"
        names = ("group.solve_all_frac", "group.solve_none_frac", "grad.norm", "reward.mean")
        return (finding(view, self.name, severity, onset, summary, metric, *names, hard=severity == "critical"),)

    def _cost(self, view: RunView) -> Sequence[Finding]:
        """Share of what was generated that is trained, and rounds of generation a step, medians over the window."""
        p = view.params
        rounds = next((m for m in _ROUNDS if view.has(m)), None)
        if rounds is not None and (now := self._median(view, rounds)) is not None:
            most = _find(view.run.raw_config, _MOST_ROUNDS)
            if most and now >= most:
                summary = (
                    f"{now:g} rounds of generation a step, the most that are allowed: the trainer stops when they do not fill the batch"
                )
                return (finding(view, self.name, "critical", beyond_for(view, rounds, most - 0.5), summary, rounds, *_KEPT, hard=True),)
            if now >= p["rounds"]:
                summary = f"{now:g} rounds of generation a step are needed to fill the batch"
                return (finding(view, self.name, "warn", beyond_for(view, rounds, p["rounds"] - 0.5), summary, rounds, *_KEPT),)
        metric = next((m for m in _KEPT if view.has(m)), None)
        share = self._median(view, metric) if metric else None
        if metric is None or share is None:
            return ()
        kept = share if metric == "fact.kept_frac" else 1 - share
        if kept >= p["kept_watch"]:
            return ()
        severity: Severity = "warn" if kept < p["kept_warn"] else "watch"
        limit = p["kept_warn"] if severity == "warn" else p["kept_watch"]
        onset = below_for(view, metric, limit) if metric == "fact.kept_frac" else beyond_for(view, metric, 1 - limit)
        cost = f"{1 / kept:.1f} times as much is generated and graded" if kept > 0 else "nothing that is generated is trained"
        summary = f"{kept:.0%} of what is generated is trained: {cost}"
        return (finding(view, self.name, severity, onset, summary, metric, "group.zero_std_frac", "tokens.generated", "tokens.trained"),)

    def _median(self, view: RunView, metric: str) -> float | None:
        """Median of the window; None without a fresh point or below ten points."""
        series = points(view, metric)
        part = series.tail(window(series, view.params["window_steps"], view.params["window_points"]))
        return sorted(part.values.tolist())[len(part) // 2] if fresh(view, series) and len(part) >= _FEWEST else None

    def _from_the_start(self, view: RunView, metric: str, part: Series) -> Sequence[Finding]:
        """A run too short for a median: noted where no step so far had more than half of its groups with different rewards."""
        least = float(part.values.min())
        dead = least >= 1 and level(view, "grad.norm", 1) == 0
        if least <= view.params["watch"] or (len(part) < 2 and not dead):
            return ()
        onset = int(part.steps[0])
        summary = f"at least {least:.0%} of the groups have equal rewards at all {len(part)} points so far"
        summary += ", and the gradient is exactly 0" if dead else ""
        return (finding(view, self.name, "info", onset, summary, metric, "grad.norm", "reward.mean"),)

    def _without_success(self, view: RunView) -> bool:
        if reward_trend(view, 2 * view.params["window_steps"]) > 0:
            return False
        return self._stepped_up(view) or not groups.mastered(view)

    def _stepped_up(self, view: RunView) -> bool:
        """Whether the share rose at once: tasks are mastered one by one, and data or samples that changed show together."""
        series = points(view, next(m for m in _METRICS if view.has(m)))
        size = window(series, view.params["window_steps"], view.params["window_points"])
        before, now = series.values[-4 * size : -2 * size], series.values[-size:]
        if len(before) < 10:
            return False
        rise = float(now.mean() - before.mean())
        if rise <= view.params["step"]:
            return False
        error = scatter(series.values[-4 * size :]) * math.sqrt(1 / len(now) + 1 / len(before))
        return rise > 4 * error

    def _halfway(self, series: Series, size: int) -> float:
        return float(series.values[-4 * size : -2 * size].mean() + series.values[-size // 2 :].mean()) / 2

    def _sampler_narrowed(self, view: RunView) -> bool:
        """The share stepped up while the responses became likelier than the policy's entropy allows: samples from another distribution."""
        ratio = groups.sharpened(view) if self._stepped_up(view) else None
        return ratio is not None and ratio < view.params["sharpened"]

    def _at_minimum(self, view: RunView) -> bool:
        metric = reward_metric(view)
        low, high = reward_range(view)
        series = history(view, metric).tail(10) if metric else None
        return series is not None and len(series) > 0 and float(series.values.max()) < low + view.params["minimum"] * (high - low)


def _find(config: Mapping[str, object], name: str) -> float | None:
    """A number in a nested or dotted configuration by the last part of its key."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            found = _find(value, name)
            if found is not None:
                return found
        elif key.rsplit(".", 1)[-1] == name and isinstance(value, (int, float)):
            return float(value)
    return None
