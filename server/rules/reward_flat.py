"""RS011 reward-flat."""

from __future__ import annotations

import math
from collections.abc import Sequence

import server.checks.reward as reward
import server.checks.verifier as verifier
from server.checks.distribution import eval_metric
from server.checks.measure import (
    block_means,
    finding,
    fresh,
    history,
    level,
    noise,
    points,
    reward_metric,
    reward_range,
    shift,
    window,
)
from server.detectors.trend import trend
from server.queries.view import RunView, Series
from server.rules.base import Finding, Hypothesis, Param, Severity, Status, hypothesis
from server.symptoms import SYMPTOMS

_MOST_BLOCKS = 240


class RewardFlat:
    """The reward has no trend while steps and tokens accumulate.

    What it observes:
        Over 60 points after the warm-up Mann-Kendall p > .05 and a change below one standard deviation of the step noise or .02 of the
        reward's range: watch. Over 120 points or 20 % of the planned steps without any rise since the start: warn. With more than 95 %
        of the groups without variance for ten points: critical. Above 95 % of the range, or flat after a rise: info. So noisy a curve
        that three errors of its rise exceed .1 of the range stays a watch, as do rewards whose gradings fail. A run too short for a
        trend whose KL to the reference stays near 0: info.

    Why it matters:
        Nothing is learnt, or the grader cannot see it.

    Hypotheses:
        H1a too hard: groups fail altogether, and pass@G is no higher than the mean. H1b constant or broken grader: one value,
        contradictions, or failures of one kind. H1c truncation before the answer, scored lower than the rest.
        H1d updates too small: KL stays near 0. H1e no gradient although groups have variance, or an engine whose weights stand still.
        H1f wrong advantages: an identity is broken. H1g ceiling: little entropy is left, or pass@G no higher than in a second run.
        H1h slices against each other.

    When it is wrong:
        Dynamic sampling holds the reward of trained groups near .5 by construction; an adaptive curriculum does too. The first 50 to 100
        steps of long reasoning runs are often flat. A plateau after a rise is told as info.

    Sources:
        symptoms 1 and 22; AReaL best practices.
    """

    code = "RS011"
    name = "reward-flat"
    family = "quality"
    status: Status = "stable"
    version = 1
    needs: tuple[tuple[str, ...], ...] = (("reward.generated.mean", "reward.mean", "fact.reward.mean"),)
    params: tuple[Param, ...] = (
        Param("window_points", 60, "points", 20, 240, "symptoms 1"),
        Param("window_steps", 60, "steps", 20, 5000, "symptoms 1"),
        Param("warn_points", 120, "points", 30, 2000, "symptoms 1"),
        Param("planned_share", 0.2, "share", 0.05, 1, "symptoms 1", "of the planned steps, for runs that log seldom"),
        Param("standing_points", 8, "points", 4, 60, "default of ours", "without growth of kl.ref, before there are enough for a trend"),
        Param("p", 0.05, "probability", 0.001, 0.5, "symptoms 1"),
        Param("effect", 0.02, "share of the range", 0.001, 0.5, "symptoms 1"),
        Param("detectable", 0.1, "share of the range", 0.01, 1, "symptoms 0.3", "a rise that the points must be able to show"),
        Param("ceiling", 0.95, "share of the range", 0.5, 1, "symptoms 1"),
        Param("zero", 0.95, "0..1", 0.5, 1, "symptoms 1"),
    )
    hold_points = 20
    hypotheses: tuple[Hypothesis, ...] = (
        hypothesis("H1a", "metrics", reward.signal_exists),
        hypothesis("H1b", "trajectories", reward.few_values, reward.failures_alike),
        hypothesis("H1c", "trajectories", reward.cut_before_answer),
        hypothesis("H1d", "metrics", reward.policy_stands),
        hypothesis("H1e", "metrics", reward.no_gradient),
        hypothesis("H1f", "trajectories", reward.advantages_wrong),
        hypothesis("H1h", "metrics", reward.slices_oppose),
        hypothesis("H1g", "second_run", reward.low_entropy_ceiling, reward.base_covers, prior=0.8),
    )
    next_checks = SYMPTOMS["reward-flat"].next_checks

    def evaluate(self, view: RunView) -> Sequence[Finding]:
        """Flatness of the window, graded by what came before it."""
        p, metric = view.params, reward_metric(view)
        series = points(view, metric) if metric else None
        if metric is None or series is None or not fresh(view, series):
            return ()
        size = window(series, p["window_steps"], p["window_points"], fewest=20)
        if len(series) < size + 5:
            return self._standing(view, metric, series)
        part = series.tail(size)
        low, high = reward_range(view)
        found = trend(part.steps, part.values)
        rise = abs(found.slope) * (int(part.steps[-1]) - int(part.steps[0]))
        if found.p <= p["p"] or rise >= max(noise(view, metric), p["effect"] * (high - low)):
            return ()
        middle = sorted(part.values.tolist())[size // 2]
        if self._settled(view, metric, series, middle > low + p["ceiling"] * (high - low)):
            summary = f"{metric} stays at {middle:.3g} since step {int(part.steps[0])}, after a rise or near its best value"
            return (finding(view, self.name, "info", int(part.steps[0]), summary, metric),)
        severity = self._severity(view, series)
        onset = int(series.steps[0]) if severity != "watch" else int(part.steps[0])
        summary = f"{metric} has no trend over {len(series) if severity != 'watch' else size} points (p = {found.p:.2f}), at {middle:.3g}"
        names = ("group.zero_std_frac", "grad.norm", "kl.ref", "eval.heldout.score")
        return (finding(view, self.name, severity, onset, summary, metric, *names, hard=severity == "critical"),)

    def _standing(self, view: RunView, metric: str, series: Series) -> Sequence[Finding]:
        """Too short for a trend: noted where the KL to the reference is constant near 0 at a rate that is past its ramp."""
        kl, rate = points(view, "kl.ref"), points(view, "lr")
        if len(series) < view.params["standing_points"] or len(kl) < view.params["standing_points"] or not reward.standing(kl):
            return ()
        if not len(rate) or float(rate.values[-1]) > float(rate.values[0]) or trend(series.steps, series.values).p <= view.params["p"]:
            return ()
        summary = f"the policy does not move: kl.ref stays at {float(kl.values[-1]):.2g} over {len(kl)} points, {metric} has no trend"
        return (finding(view, self.name, "info", int(series.steps[0]), summary, metric, "kl.ref", "grad.norm", "lr"),)

    def _settled(self, view: RunView, metric: str, series: Series, high: bool) -> bool:
        """Solved, risen before, or the evaluation still rises: a plateau and no fault."""
        first = int(history(view, metric).steps[0])
        span = max(10, (view.step - first) // 6)
        for name in (metric, eval_metric(view)):
            whole = history(view, name) if name else None
            if name and whole is not None and len(whole) >= 8:
                found = shift(view, name, (first, first + span), (view.step - span, view.step))
                if found is not None and found.z > 3 and found.change > 0.02:
                    return True
        return high

    def _rose_and_fell(self, view: RunView, series: Series) -> bool:
        """Levels of six equal parts that differ beyond their noise: a run that lost what it had is not flat."""
        size = len(series) // 6
        levels = [float(series.values[i * size : (i + 1) * size].mean()) for i in range(6)]
        metric = reward_metric(view)
        error = noise(view, metric, 240) * (2 / size) ** 0.5 if metric else 0.0
        return max(levels) - min(levels) > max(3 * error, 0.03)

    def _severity(self, view: RunView, series: Series) -> Severity:
        p, planned = view.params, view.config.get("planned_steps")
        first = int(series.steps[0])
        enough = len(series) >= p["warn_points"]
        if isinstance(planned, (int, float)) and planned > 0 and len(series) < p["warn_points"]:
            enough = view.step - first >= max(p["planned_share"] * float(planned), p["warn_points"])
        if not enough:
            return "watch"
        # The cost of a trend grows with the square of its points: a long run is judged by the means of blocks.
        whole = block_means(series, max(1, (view.step - first) // _MOST_BLOCKS), view.step)
        if self._rose_and_fell(view, series) or trend(whole.steps, whole.values).p <= p["p"]:
            return "watch"
        # What the scatter hides cannot be called flat: a rise of that size must stand out by three of its errors (symptoms 0.3).
        low, high = reward_range(view)
        blur = 3 * noise(view, reward_metric(view) or "", 240) * math.sqrt(12 / len(series))
        if blur > p["detectable"] * (high - low) or verifier.in_doubt(view):
            return "watch"
        zero = points(view, "group.zero_std_frac").tail(10)
        dead = len(zero) == 10 and float(zero.values.min()) > p["zero"] and (level(view, "group.zero_std_frac") is not None)
        return "critical" if dead else "warn"
