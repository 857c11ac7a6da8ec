"""RS032 entropy-collapse."""

from __future__ import annotations

from collections.abc import Sequence

import server.checks.distribution as distribution
from server.checks.measure import below_for, finding, fresh, history, mean_of, points, window
from server.detectors.level import beyond
from server.queries.view import RunView
from server.rules.base import Finding, Hypothesis, Param, Severity, Status, hypothesis
from server.symptoms import SYMPTOMS


class EntropyCollapse:
    """Entropy has fallen to a small part of what it was at the start.

    What it observes:
        Mean entropy (nats per token) below 10 % of the median of points 5 to 20, or below .05 nats after at least .15, at ten points in
        a row: watch. Together with copies (more than half of the responses of a group repeat another): warn, unless evaluation or
        reward still rise. Together with falling pass@G as well: critical.

    Why it matters:
        A policy without entropy samples the same answer again and again: groups carry no signal, and nothing new is found.

    Hypotheses:
        H3a normal sharpening: evaluation and reward still rise.
        H3b many updates per batch. H3c the upper clip holds rare tokens down.
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
    status: Status = "preview"
    version = 1
    needs: tuple[tuple[str, ...], ...] = (("entropy.mean", "entropy.sampled", "entropy.rollout.mean"),)
    params: tuple[Param, ...] = (
        Param("of_start", 0.1, "share of the start", 0.01, 0.9, "symptoms 22"),
        Param("absolute", 0.05, "nats", 0, 1, "symptoms 3"),
        Param("least_start", 0.15, "nats", 0, 5, "default of ours", "start above which the absolute limit counts"),
        Param("held_points", 10, "points", 2, 100, "symptoms 3"),
        Param("held_steps", 10, "steps", 1, 1000, "symptoms 3"),
        Param("duplicate_frac", 0.5, "0..1", 0, 1, "symptoms 22"),
        Param("similarity", 0.8, "0..1", 0, 1, "symptoms 22"),
    )
    hold_points = 20
    hypotheses: tuple[Hypothesis, ...] = (
        hypothesis("H3a", "metrics", distribution.still_learning),
        hypothesis("H3b", "config", distribution.many_updates),
        hypothesis("H3c", "metrics", distribution.clipped_high),
        hypothesis("H3e", "metrics", distribution.one_token),
        hypothesis("H3g", "trajectories", distribution.template, prior=0.8),
        hypothesis("H3h", "metrics", distribution.sampler_changed, prior=0.8),
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
        limit = max(p["of_start"] * start, p["absolute"] if start >= p["least_start"] else 0.0)
        held = window(series, p["held_steps"], p["held_points"], fewest=5)
        if len(series) < held or beyond(-series.values, -limit, held) < held:
            return ()
        onset = below_for(view, metric, limit)
        copies, alike = mean_of(view, "fact.group.duplicate_frac", 5), mean_of(view, "fact.similarity.within", 5)
        if copies is None and view.has("group.unique_frac"):
            copies = 1 - (mean_of(view, "group.unique_frac", 5) or 1.0)
        severity = self._severity(view, copies, alike, onset)
        summary = f"entropy is {mean_of(view, metric, 5):.3g} nats, {start:.3g} at the start; below {limit:.3g} since step {onset}"
        summary += f"; {copies:.0%} of the responses of a group repeat another" if copies is not None else ""
        return (finding(view, self.name, severity, onset, summary, metric, "group.unique_frac", "group.zero_std_frac", "reward.mean"),)

    def _severity(self, view: RunView, copies: float | None, alike: float | None, onset: int) -> Severity:
        p = view.params
        narrow = (copies is not None and copies > p["duplicate_frac"]) or (alike is not None and alike > p["similarity"])
        evaluation, reward = distribution.quality_since(view, onset)
        rising = (evaluation or 0) > 2 or (reward or 0) > 2
        if not narrow or rising:
            return "watch"
        lost = distribution.coverage_lost(view, Finding(self.name, "warn", onset, "")).verdict == "supported"
        return "critical" if lost and ((evaluation or 0) < -2 or (reward or 0) < -2) else "warn"
