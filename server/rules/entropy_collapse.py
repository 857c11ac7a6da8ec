"""RS032 entropy-collapse."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import server.checks.distribution as distribution
import server.checks.sampler as sampler
from server.checks.measure import below_for, finding, fresh, history, log_trend, mean_of, points, reward_metric, window
from server.detectors.baseline import Floats
from server.detectors.level import beyond
from server.detectors.middle import median
from server.queries.view import RunView, Series
from server.rules.base import Finding, Hypothesis, Param, Severity, Status, hypothesis
from server.symptoms import SYMPTOMS


class EntropyCollapse:
    """Entropy has fallen to a small part of what it was at the start.

    What it observes:
        Half of it lost within less than 50 steps (Theil-Sen of log10 over 30 points, Mann-Kendall p < .01, the newest below .6 of the
        window's beginning) while the reward did not rise, at three points in a row, with groups not yet solved: warn. Or mean
        entropy (nats per token) below 10 % of the median of points 5 to 20, or below .05 nats after at least .15, at ten points in a
        row: watch. Together with copies (more than half of the responses of a group repeat another): warn, unless evaluation or
        reward still rise. Together with falling pass@G as well: critical.

    Why it matters:
        A policy without entropy samples the same answer again and again: groups carry no signal, and nothing new is found.

    Hypotheses:
        H3a normal sharpening: evaluation and reward still rise.
        H5a step size: the learning rate or the KL rose before it. H14d a coefficient of the wrong sign.
        H3b many updates per batch. H3c the upper clip holds rare tokens down. H3i other tokens in the mean.
        H3d and H3f are explosions, refuted where entropy fell. H3g a template.
        H3e one token or a loop: entropy 0 and all responses at the cap. H3h the sampler changed.

    When it is wrong:
        The early fall is part of learning: in 18 public runs that stayed good entropy alone predicted nothing. Tool calls and JSON have
        low entropy by nature, and a solved task ends with none. Instruct models start at .1 to .3.

    Sources:
        symptoms 3, 0.5 and 22; verl documentation on entropy; Skywork-OR1.
    """

    code = "RS032"
    name = "entropy-collapse"
    family = "distribution"
    status: Status = "stable"
    version = 1
    needs: tuple[tuple[str, ...], ...] = (("entropy.mean", "entropy.sampled", "entropy.rollout.mean"),)
    params: tuple[Param, ...] = (
        Param("of_start", 0.1, "share of the start", 0.01, 0.9, "symptoms 22"),
        Param("absolute", 0.05, "nats", 0, 1, "symptoms 3"),
        Param("least_start", 0.15, "nats", 0, 5, "default of ours", "start above which the absolute limit counts"),
        Param("held_points", 10, "points", 2, 100, "symptoms 3"),
        Param("held_steps", 10, "steps", 1, 1000, "symptoms 3"),
        Param("half_life", 50, "steps", 5, 1000, "symptoms 3"),
        Param("half_points", 30, "points", 12, 200, "default of ours", "window in which the half-life is measured"),
        Param("half_steps", 30, "steps", 12, 2000, "default of ours", "the same in steps; twelve points at least"),
        Param("p", 0.01, "probability", 0.0001, 0.2, "symptoms 0.3"),
        Param("fallen_to", 0.6, "share", 0.1, 0.95, "default of ours", "of the window's beginning: half of it within the half-life"),
        Param("duplicate_frac", 0.5, "0..1", 0, 1, "symptoms 22"),
        Param("similarity", 0.8, "0..1", 0, 1, "symptoms 22"),
    )
    hold_points = 20
    hypotheses: tuple[Hypothesis, ...] = (
        hypothesis("H3a", "metrics", distribution.still_learning, distribution.coverage_kept),
        hypothesis("H3b", "config", distribution.many_updates, distribution.holds_with_fewer_updates, prior=0.8),
        hypothesis("H3c", "metrics", distribution.clipped_high),
        hypothesis("H3d", "metrics", distribution.entropy_rose, prior=0.5),
        hypothesis("H3e", "metrics", distribution.one_token),
        hypothesis("H3f", "metrics", distribution.entropy_rose, prior=0.5),
        hypothesis("H3g", "trajectories", distribution.template, prior=0.8),
        hypothesis("H3h", "tokens", sampler.sampler_changed),
        hypothesis("H3i", "tokens", distribution.averaging_artefact, prior=0.9),
        hypothesis("H5a", "metrics", distribution.rate_rose_before, distribution.rate_or_kl),
        hypothesis("H14d", "config", distribution.coefficient_negative, prior=0.9),
    )
    next_checks = SYMPTOMS["entropy-collapse"].next_checks

    def evaluate(self, view: RunView) -> Sequence[Finding]:
        """Low entropy that held, graded by diversity and coverage."""
        p = view.params
        metric = next(m for m in self.needs[0] if view.has(m))
        whole, series = history(view, metric), points(view, metric)
        if len(whole) < 20 or not fresh(view, series):
            return ()
        start = sorted(whole.values[4:20].tolist())[8]
        if start <= 0:  # an estimate that began at 0 or below says nothing about a share of it
            return ()
        quick = self._quickly(view, metric, series)
        limit = max(p["of_start"] * start, p["absolute"] if start >= p["least_start"] else 0.0)
        held = window(series, p["held_steps"], p["held_points"], fewest=5)
        if len(series) < held or beyond(-series.values, -limit, held) < held:
            return (quick,) if quick is not None else ()
        onset = below_for(view, metric, limit)
        copies, alike = mean_of(view, "fact.group.duplicate_frac", 5), mean_of(view, "fact.similarity.within", 5)
        if copies is None and view.has("group.unique_frac"):
            copies = 1 - (mean_of(view, "group.unique_frac", 5) or 1.0)
        severity = self._severity(view, copies, alike, onset)
        if severity == "watch" and quick is not None:
            return (quick,)
        summary = f"entropy is {mean_of(view, metric, 5):.3g} nats, {start:.3g} at the start; below {limit:.3g} since step {onset}"
        summary += f"; {copies:.0%} of the responses of a group repeat another" if copies is not None else ""
        return (finding(view, self.name, severity, onset, summary, metric, "group.unique_frac", "group.zero_std_frac", "reward.mean"),)

    def _quickly(self, view: RunView, metric: str, series: Series) -> Finding | None:
        """A fall that is quick and buys nothing, at this point and the two before it: the early, useful fall comes with reward."""
        p = view.params
        size = window(series, p["half_steps"], p["half_points"], fewest=12)
        ends = range(len(series) - 2, len(series) + 1)
        if len(series) < size + 2 or not all(self._lower(series.values[end - size : end]) < p["fallen_to"] for end in ends):
            return None
        parts = [Series(series.steps[end - size : end], series.values[end - size : end]) for end in ends]
        if not all(self._halves(part, p) and not self._bought(view, part) for part in parts) or distribution.solved(view):
            return None
        part = parts[-1]
        early = median(part.values[:7])
        onset = below_for(view, metric, 0.85 * early)
        text = f"entropy fell from {early:.3g} to {median(part.values[-5:]):.3g} nats within {int(part.steps[-1] - part.steps[0])} steps"
        summary = f"{text} while the reward did not rise; below {0.85 * early:.3g} since step {onset}"
        names = ("group.unique_frac", "group.zero_std_frac", "kl.ref", "lr", "reward.mean")
        return finding(view, self.name, "warn", onset, summary, metric, *names)

    def _lower(self, values: Floats) -> float:
        """Level at the window's end over that at its beginning; infinite where the logarithm has no meaning."""
        early = median(values[:7])
        return median(values[-7:]) / early if early > 0 and float(values.min()) > 0 else math.inf

    def _halves(self, part: Series, p: Mapping[str, float]) -> bool:
        found = log_trend(part)
        return found.p < p["p"] and found.slope < -math.log10(2) / p["half_life"]

    def _bought(self, view: RunView, part: Series) -> bool:
        """Whether the reward of the window's second half is above that of its first; True where no reward tells."""
        metric = reward_metric(view)
        reward = points(view, metric) if metric else None
        if reward is None:
            return True
        inside = Series(*(x[(reward.steps >= part.steps[0]) & (reward.steps <= part.steps[-1])] for x in reward))
        half = len(inside) // 2
        return half < 4 or float(inside.values[half:].mean()) > float(inside.values[:half].mean())

    def _severity(self, view: RunView, copies: float | None, alike: float | None, onset: int) -> Severity:
        p = view.params
        narrow = (copies is not None and copies > p["duplicate_frac"]) or (alike is not None and alike > p["similarity"])
        evaluation, reward = distribution.quality_since(view, onset)
        rising = (evaluation or 0) > 2 or (reward or 0) > 2
        if not narrow or rising:
            return "watch"
        lost = distribution.coverage_lost(view, Finding(self.name, "warn", onset, "")).verdict == "supported"
        return "critical" if lost and ((evaluation or 0) < -2 or (reward or 0) < -2) else "warn"
