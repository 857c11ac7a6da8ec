"""RS082 reward-drop."""

from __future__ import annotations

from collections.abc import Sequence

import server.checks.reward as reward
from server.checks.measure import block_means, finding, fresh, points, reward_metric, reward_range
from server.detectors.baseline import Floats, baseline
from server.detectors.drift import ewma, ewma_limit, page_hinkley
from server.queries.view import RunView
from server.rules.base import Finding, Hypothesis, Param, Severity, Status, hypothesis
from server.symptoms import SYMPTOMS

_FEWEST_MEANS = 6


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
        low rewards; H19a harder prompts.

    When it is wrong:
        Curriculum, data stages and reward versions restart the baseline where they are announced; silent ones look like a drop.

    Sources:
        symptoms 8, 0.3, 0.5 and 22: found 6 of 6 public collapses within 15 steps, two false in 18 runs.
    """

    code = "RS082"
    name = "reward-drop"
    family = "quality"
    status: Status = "preview"
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
        hypothesis("H9a", "trajectories", reward.harder_tasks, prior=0.8),
        hypothesis("H8g", "action", action="Compare configuration and events of the steps around the onset.", prior=0.8),
    )
    next_checks = SYMPTOMS["reward-drop"].next_checks

    def evaluate(self, view: RunView) -> Sequence[Finding]:
        """The fall of five-step means."""
        p, metric = view.params, reward_metric(view)
        series = points(view, metric) if metric else None
        if metric is None or series is None or not fresh(view, series):
            return ()
        steps, values = block_means(series, int(p["mean_steps"]), view.step)
        if len(values) < _FEWEST_MEANS:
            return ()
        low, high = reward_range(view)
        scaled = (values - low) / (high - low)
        best = max(sorted(scaled[i : i + 6].tolist())[3] for i in range(len(scaled) - 5))
        now = float(scaled[-2:].max())
        statistic = page_hinkley(scaled, p["slack"])
        severity: Severity | None = None
        if now < best - p["now_below"] and statistic[-1] > p["alarm"]:
            severity = "warn"
        elif self._below_band(view, scaled, best):
            severity = "watch"
        if now < p["of_best"] * best and (severity == "warn" or best > 0.2):
            severity = "critical"
        if severity is None:
            return ()
        start = len(statistic) - 1
        while start > 0 and statistic[start - 1] > 0:
            start -= 1
        onset = int(steps[start])
        highest = low + best * (high - low)
        summary = f"{metric} is {values[-1]:.3g} over {p['mean_steps']:g} steps, {highest:.3g} at its best; falling since step {onset}"
        names = ("eval.heldout.score", "entropy.mean", "length.response.mean", "grad.norm")
        return (finding(view, self.name, severity, onset, summary, metric, *names),)

    def _below_band(self, view: RunView, scaled: Floats, best: float) -> bool:
        p = view.params
        base = baseline(scaled, 12, 2, fewest=6, least=0.02)
        if base is None or float(scaled[-1]) > best - p["now_below"]:
            return False
        return float(ewma(scaled, p["ewma_weight"])[-1]) < base.median - ewma_limit(base.spread, p["ewma_width"], p["ewma_weight"])
