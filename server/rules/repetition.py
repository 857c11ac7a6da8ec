"""RS102 repetition."""

from __future__ import annotations

from collections.abc import Sequence

import server.checks.distribution as distribution
import server.checks.endings as endings
import server.checks.sampler as sampler
import server.checks.shape as shape
from server.checks.measure import beyond_for, finding, finite, fresh, level, mean_of, points, reward_fell
from server.detectors.level import beyond
from server.queries.fact_trajectories import weighs_by_tokens
from server.queries.view import RunView
from server.rules.base import Finding, Hypothesis, Param, Severity, Status, hypothesis
from server.symptoms import SYMPTOMS

_METRICS = ("fact.repetitive_frac", "response.repetition_frac")


class Repetition:
    """Responses end in loops.

    What it observes:
        Share of responses whose tail repeats itself: the last 2,000 characters deflate by more than ten, more than 60 % of their
        four-word runs were there before, or one period covers the last 256 characters; without text the share that the trainer
        logs. Above 5 % at three of four points: watch; above 20 %: warn, critical if the reward has fallen since. Loops that hold
        more than 30 % of the loss under token mean: warn. It says whether it was there from the first steps on.

    Why it matters:
        A loop runs to the cap, so that under token mean a few of them outweigh all other responses.

    Hypotheses:
        H10d degenerate text, H4e loops: tails deflate further. H10b termination lost: an answer was complete before the loop.
        H10f stop tokens or template, or a fault of the engine: there from the first step.
        H10a cap too small. H10c the metric is wrong. H10e truncated samples are masked: nothing holds against loops.
        H3e collapse to one token. H3h the sampler changed.

    When it is wrong:
        Tables, lists and code repeat by nature. Shares below 256 characters are not measured.

    Sources:
        symptoms 10 and 0.2: slime (ten times over 10,000 characters), MiniMax-M1.
    """

    code = "RS102"
    name = "repetition"
    family = "shape"
    status: Status = "preview"
    version = 1
    needs: tuple[tuple[str, ...], ...] = (_METRICS,)
    params: tuple[Param, ...] = (
        Param("watch", 0.05, "0..1", 0, 1, "symptoms 10"),
        Param("warn", 0.2, "0..1", 0, 1, "symptoms 10"),
        Param("loss_share", 0.3, "0..1", 0, 1, "symptoms 10"),
        Param("from_start", 0.5, "share of now", 0.05, 1, "default of ours", "of the first five points: it is the set-up"),
    )
    hold_points = 20
    hypotheses: tuple[Hypothesis, ...] = (
        hypothesis("H10d", "trajectories", shape.tails_repeat),
        hypothesis("H10f", "trajectories", shape.loops_from_start),
        hypothesis("H10b", "trajectories", endings.answer_before_cut, endings.right_keep_length),
        hypothesis("H4e", "trajectories", shape.loops_grew, prior=0.9),
        hypothesis("H10a", "trajectories", shape.cap_too_small, endings.cap_above_need, prior=0.8),
        hypothesis("H10c", "trajectories", shape.metric_differs, prior=0.8),
        hypothesis("H10e", "trajectories", shape.truncated_masked, prior=0.5),
        hypothesis("H3e", "metrics", distribution.one_token, prior=0.9),
        hypothesis("H3h", "tokens", sampler.sampler_changed, prior=0.9),
    )
    next_checks = SYMPTOMS["repetition"].next_checks

    def evaluate(self, view: RunView) -> Sequence[Finding]:
        """The share of loops, or their weight in the loss."""
        p = view.params
        metric = next(m for m in _METRICS if view.has(m))
        series = points(view, metric)
        if not fresh(view, series):
            return ()
        weight = mean_of(view, "fact.loss_share.repetitive", 4) if weighs_by_tokens(view.data) is not False else None
        # A batch of 64 has one loop at 1.6 %: three of four points above 5 % are no accident.
        severity: Severity | None = "watch" if beyond(series.values, p["watch"], 4) >= 3 else None
        limit = p["watch"]
        if beyond(series.values, p["warn"], 4) >= 3:
            severity, limit = "warn", p["warn"]
        elif severity and weight is not None and weight > p["loss_share"]:
            severity = "warn"
        if severity is None:
            return ()
        onset = beyond_for(view, metric, limit)
        if severity == "warn" and reward_fell(view, onset) is not None:
            severity = "critical"
        early, now = float(finite(view.series(metric)).values[:5].mean()), level(view, metric, 4) or 0.0
        summary = f"{now:.0%} of the responses end in loops, above {limit:.0%} since step {onset}"
        summary += f", with {weight:.0%} of the loss" if weight is not None else ""
        summary += "; from the first steps on, so look at the set-up" if early > p["from_start"] * now else ""
        names = ("fact.loss_share.repetitive", "fact.tail.compression", "length.response.truncated_frac", "reward.mean")
        return (finding(view, self.name, severity, onset, summary, metric, *names, hard=severity == "critical"),)
