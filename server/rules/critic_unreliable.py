"""RS121 critic-unreliable."""

from __future__ import annotations

from collections.abc import Sequence

import server.checks.value as value
from server.checks.measure import (
    below_for,
    beyond_for,
    finding,
    finite_chain,
    fresh,
    history,
    level,
    moved,
    points,
    reward_metric,
    warmed_up,
    window,
)
from server.queries.view import RunView
from server.rules.base import Finding, Hypothesis, Param, Severity, Status, hypothesis
from server.symptoms import SYMPTOMS


class CriticUnreliable:
    """The critic explains nothing of the returns, or is biased.

    What it observes:
        Explained variance 1 - Var(R - V) / Var(R) after 50 steps: median of ten points below 0 warn, below .1 over 50 points watch,
        below .2 after a median above .5 warn. Mean value off the mean reward by more than one standard deviation of rewards, median of
        ten points: warn. The critic's loss six spreads and three times above its past, or more than half of the value predictions
        clipped: watch. Steps without variance of rewards are left out.

    Why it matters:
        A critic below zero makes advantages noisier than no critic would.

    Hypotheses:
        H12a never learnt: explained variance was never above .1. H12b returns changed under it: the reward's level at the onset.
        H12d the metric: hardly any variance of rewards. H12e truncation taken for the end: many cut responses, and more than before.
        H12f conflicting rewards: equal responses to one prompt are scored differently. H12g scale: values far from rewards or a
        growing critic's loss. H12c horizon: by position in the response, for a person to plot.

    When it is wrong:
        Rewards near all 0 or all 1, early steps, tiny batches, averages over micro-batches.

    Sources:
        symptoms 12 and 22; VAPO on value pre-training; RLinf issue 1297.
    """

    code = "RS121"
    name = "critic-unreliable"
    family = "value"
    status: Status = "stable"
    version = 1
    needs: tuple[tuple[str, ...], ...] = ((value.EXPLAINED, "loss.value", "clip.value_frac", "value.mean"),)
    params: tuple[Param, ...] = (
        Param("warm_up", 50, "steps", 0, 1000, "symptoms 12"),
        Param("negative", 0.0, "share", -5, 0.5, "symptoms 22"),
        Param("low", 0.1, "share", -1, 1, "symptoms 22"),
        Param("was", 0.5, "share", 0, 1, "symptoms 12"),
        Param("fell", 0.2, "share", -1, 1, "symptoms 12"),
        Param("held_points", 10, "points", 3, 100, "symptoms 22"),
        Param("low_points", 50, "points", 10, 500, "symptoms 22"),
        Param("loss_z", 6, "spreads", 3, 30, "symptoms 12"),
        Param("loss_times", 3, "ratio", 1, 100, "default of ours", "median of five points against the run's past"),
        Param("clipped", 0.5, "0..1", 0, 1, "symptoms 12", "value predictions that are clipped, median of ten points"),
        Param("bias", 1.0, "standard deviations", 0.1, 10, "symptoms 12"),
    )
    hold_points = 20
    hypotheses: tuple[Hypothesis, ...] = (
        hypothesis("H12g", "metrics", value.scale_differs, value.was_good),
        hypothesis("H12a", "metrics", value.never_learnt),
        hypothesis("H12b", "metrics", value.returns_changed),
        hypothesis("H12d", "metrics", value.variance_low),
        hypothesis("H12e", "metrics", value.cut_as_end),
        hypothesis("H12c", "action", action="Plot predicted value against return by position in the response."),
        hypothesis(
            "H12f",
            "trajectories",
            value.rewards_conflict,
            action="Sample the same prompts many times: variance within a state bounds what can be explained.",
            prior=0.9,
        ),
    )
    next_checks = SYMPTOMS["critic-unreliable"].next_checks

    def evaluate(self, view: RunView) -> Sequence[Finding]:
        """Explained variance, else bias."""
        p, metric = view.params, value.EXPLAINED
        series = points(view, metric)
        spread = level(view, "reward.std", 10)
        if spread is not None and spread < 0.02:
            return ()
        if not fresh(view, series) or not warmed_up(view, series, p["warm_up"]):
            return self._bias(view) or self._loss(view)
        held = window(series, p["held_points"], p["held_points"], fewest=5)
        now = sorted(series.values[-held:].tolist())[held // 2]
        severity: Severity | None = None
        limit = p["low"]
        long = series.values[-int(p["low_points"]) :]
        if len(long) >= p["low_points"] and float((long < p["low"]).mean()) > 0.8:
            severity = "watch"
        if self._had(view, series, held) and now < p["fell"]:
            severity, limit = "warn", p["fell"]
        if now < p["negative"]:
            severity, limit = "warn", p["negative"]
        if severity is None:
            return self._bias(view) or self._loss(view)
        onset = below_for(view, metric, limit)
        summary = f"explained variance is {now:.2f} (median of {held} points), below {limit:g} since step {onset}"
        return (finding(view, self.name, severity, onset, summary, metric, "loss.value", "value.mean", "reward.mean"),)

    def _had(self, view: RunView, series: object, held: int) -> bool:
        """Whether the median of as many points was ever above what counts as good."""
        whole = history(view, value.EXPLAINED)
        blocks = len(range(0, len(whole) - held, held))
        key = ("critic had", view.attempt, held, view.params["was"])
        reached: list[bool] | None = view.data.memo.get(key)
        if reached is None:
            reached = view.data.memo[key] = value.reached(finite_chain(view, value.EXPLAINED, None).values, held, view.params["was"])
        return blocks > 0 and reached[blocks - 1]

    def _bias(self, view: RunView) -> Sequence[Finding]:
        reward = reward_metric(view)
        mean, spread = level(view, "value.mean", 10), level(view, "reward.std", 10)
        actual = level(view, reward, 10) if reward else None
        if not warmed_up(view, points(view, "value.mean"), view.params["warm_up"]):
            return ()
        if mean is None or actual is None or spread is None or abs(mean - actual) <= view.params["bias"] * spread:
            return ()
        onset = int(points(view, "value.mean").tail(10).steps[0])
        summary = f"mean value {mean:.2f} is more than a standard deviation off the mean reward {actual:.2f}"
        return (finding(view, self.name, "warn", onset, summary, "value.mean", reward or "reward.mean", "loss.value"),)

    def _loss(self, view: RunView) -> Sequence[Finding]:
        """The critic's loss far above its past, or most of its predictions clipped: a watch, for both come and go in sound runs."""
        p, series = view.params, points(view, "loss.value")
        if fresh(view, series) and warmed_up(view, series, p["warm_up"]):
            found = moved(view, "loss.value", newest=5, floor=0.1)
            if found is not None and found.z > p["loss_z"] and found.now > p["loss_times"] * found.base.median:
                summary = f"the critic's loss is {found.now:.3g} against {found.base.median:.3g} before, since step {found.onset}"
                return (finding(view, self.name, "watch", found.onset, summary, "loss.value", value.EXPLAINED, "reward.mean"),)
        clipped = level(view, "clip.value_frac", 10)
        if clipped is not None and clipped > p["clipped"] and warmed_up(view, points(view, "clip.value_frac"), p["warm_up"]):
            onset = beyond_for(view, "clip.value_frac", p["clipped"])
            summary = f"{clipped:.0%} of the value predictions are clipped since step {onset}"
            return (finding(view, self.name, "watch", onset, summary, "clip.value_frac", "loss.value", value.EXPLAINED),)
        return ()
