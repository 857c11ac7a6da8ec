"""RS082 reward-drop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import server.checks.collapse as collapse
import server.checks.reward as reward
from server.checks.measure import block_chain, finding, fresh, points, reward_metric, reward_range
from server.detectors.baseline import Floats, baseline
from server.detectors.drift import best_so_far, ewma, ewma_limit, page_hinkley
from server.queries.view import RunView, Series
from server.rules.base import Finding, Hypothesis, Param, Severity, Status, hypothesis
from server.symptoms import SYMPTOMS

_FEWEST_MEANS = 6


class _Course(NamedTuple):
    """The means over a whole chain in the reward's range, and what detectors make of them; all [n] and causal."""

    means: Series
    low: float
    high: float
    scaled: Floats
    best: Floats
    statistic: Floats
    smooth: Floats


class RewardDrop:
    """The reward has fallen from what the run had reached.

    What it observes:
        Means over five steps, divided by the reward's range. An EWMA (weight .2) more than five of its own deviations below the
        baseline: watch. Page-Hinkley downward with slack .05 above 1.0: warn. Below half of the best median of six means at two means
        in a row, with another family beyond its limits: critical.

    Why it matters:
        It is the effect that all other symptoms are feared for. The order in which other families moved names the cause.

    Hypotheses:
        Those of the family that moved first. Without one: H13g the grader moved while the policy did not; H13e failed gradings count as
        low rewards; H1c truncation; H19a harder prompts; H8g an event near the onset; H8h the end of an exploited grader: the evaluation
        fell while the reward still rose.

    When it is wrong:
        Curriculum, data stages and reward versions restart the baseline where they are announced; silent ones look like a drop.

    Sources:
        symptoms 8, 0.3, 0.5 and 22: found 6 of 6 public collapses within 15 steps, two false in 18 runs.
    """

    code = "RS082"
    name = "reward-drop"
    family = "quality"
    status: Status = "stable"
    version = 1
    needs: tuple[tuple[str, ...], ...] = (("reward.generated.mean", "reward.mean", "fact.reward.mean"),)
    params: tuple[Param, ...] = (
        Param("mean_steps", 5, "steps", 1, 100, "symptoms 8"),
        Param("slack", 0.05, "share of the range", 0.005, 0.5, "symptoms 22"),
        Param("alarm", 1.0, "share of the range", 0.1, 20, "symptoms 22"),
        Param("ewma_weight", 0.2, "share", 0.01, 1, "symptoms 0.3"),
        Param("ewma_width", 5, "MADN", 1, 20, "symptoms 22"),
        Param("of_best", 0.5, "share", 0.1, 0.95, "symptoms 22"),
        Param("now_below", 0.05, "share of the range", 0, 0.5, "default of ours", "the newest means must still lie so far below"),
    )
    hold_points = 20
    hypotheses: tuple[Hypothesis, ...] = (
        hypothesis("H13g", "metrics", reward.grader_moved),
        hypothesis("H13e", "trajectories", reward.unanswered),
        hypothesis("H1c", "trajectories", reward.cut_before_answer, prior=0.8),
        hypothesis("H19a", "trajectories", reward.harder_tasks, prior=0.8),
        hypothesis("H8g", "metrics", collapse.event_near, prior=0.8),
        hypothesis("H8h", "metrics", collapse.hacked_before, prior=0.8),
    )
    next_checks = SYMPTOMS["reward-drop"].next_checks

    def evaluate(self, view: RunView) -> Sequence[Finding]:
        """The fall of five-step means."""
        p, metric = view.params, reward_metric(view)
        series = points(view, metric) if metric else None
        if metric is None or series is None or not fresh(view, series):
            return ()
        means, n = block_chain(view, metric, int(p["mean_steps"]))
        if n < _FEWEST_MEANS:
            return ()
        low, high = reward_range(view)
        course = self._course(view, metric, means, low, high)
        best, now = float(course.best[n - 1]), max(course.scaled[n - 2 : n].tolist())
        statistic = course.statistic[:n]
        severity: Severity | None = None
        if now < best - p["now_below"] and statistic[-1] > p["alarm"]:
            severity = "warn"
        elif float(course.scaled[n - 1]) <= best - p["now_below"] and self._below_band(
            view, course.scaled[:n], float(course.smooth[n - 1])
        ):
            severity = "watch"
        if now < p["of_best"] * best and (severity == "warn" or best > 0.2):
            severity = "critical"
        if severity is None:
            return ()
        start = len(statistic) - 1
        while start > 0 and statistic[start - 1] > 0:
            start -= 1
        onset = int(means.steps[start])
        highest = low + best * (high - low)
        summary = (
            f"{metric} is {means.values[n - 1]:.3g} over {p['mean_steps']:g} steps, {highest:.3g} at its best; falling since step {onset}"
        )
        names = ("eval.heldout.score", "entropy.mean", "length.response.mean", "grad.norm")
        return (finding(view, self.name, severity, onset, summary, metric, *names),)

    def _course(self, view: RunView, metric: str, means: Series, low: float, high: float) -> _Course:
        """Made once for a whole chain, and anew where the reward's range has changed."""
        p = view.params
        key = ("reward course", metric, view.attempt, view.baseline_start, p["slack"], p["ewma_weight"])
        found: _Course | None = view.data.memo.get(key)
        if found is None or found.means is not means or (found.low, found.high) != (low, high):
            scaled = (means.values - low) / (high - low)
            statistic, smooth = page_hinkley(scaled, p["slack"]), ewma(scaled, p["ewma_weight"])
            found = view.data.memo[key] = _Course(means, low, high, scaled, best_so_far(scaled, 6, 3), statistic, smooth)
        return found

    def _below_band(self, view: RunView, scaled: Floats, smooth: float) -> bool:
        p = view.params
        base = baseline(scaled, 12, 2, fewest=6, least=0.02)
        return base is not None and smooth < base.median - ewma_limit(base.spread, p["ewma_width"], p["ewma_weight"])
