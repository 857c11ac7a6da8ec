"""RS041 length-growth."""

from __future__ import annotations

from collections.abc import Sequence

import server.checks.endings as endings
import server.checks.sampler as sampler
import server.checks.shape as shape
from server.checks.measure import Moved, finding, fresh, level, moved, points, shift, trend_of, warmed_up, window
from server.detectors.baseline import Baseline, median_spread, robust_z
from server.detectors.level import since
from server.detectors.trend import trend
from server.queries.view import RunView, Series
from server.rules.base import Finding, Hypothesis, Param, Severity, Status, hypothesis
from server.symptoms import SYMPTOMS


class LengthGrowth:
    """Responses keep growing.

    What it observes:
        Theil-Sen slope of the mean length over 60 or 30 points above 20 % of the baseline per 100 steps (Mann-Kendall p < .01), and
        the newest points at least 20 % and four spreads above what they were when the window began: watch. Warn if the evaluation does
        not rise over the same span, or truncation is above 5 % and rising, or wrong answers grow more than twice as fast as right ones.
        Where right responses began to be rewarded for length (correlation above .3, not so before), growth of 3 % and three errors since
        then is a warn.
        Critical if more than half of the responses are cut as well.

    Why it matters:
        Growth can be longer reasoning or a reward for length. Tokens are the cost of the run, and the cap ends it.

    Hypotheses:
        H4a real gain: the evaluation rises with it. H4i the reward prefers length: correlation among right responses and within groups.
        H4b length by averaging: only wrong answers grow, under a sequence mean.
        H4d, H10b lost termination: answers go on behind their end. H7d the engine draws from another distribution than it reports.
        H4c is the opposite and refuted where long responses pay. H4e repetition loops;
        H4f tool loops; H4g a mix of longer tasks; H4h a raised cap.

    When it is wrong:
        Growth of R1-Zero-like runs is often a real gain. Growth after a raised cap is planned.

    Sources:
        symptoms 4 and 22; AReaL acts at 5 % truncation.
    """

    code = "RS041"
    name = "length-growth"
    family = "shape"
    status: Status = "stable"
    version = 1
    needs: tuple[tuple[str, ...], ...] = (shape.LENGTH,)
    params: tuple[Param, ...] = (
        Param("slope", 0.2, "share per 100 steps", 0.01, 5, "symptoms 22"),
        Param("p", 0.01, "probability", 0.0001, 0.2, "symptoms 4"),
        Param("window_points", 60, "points", 10, 240, "symptoms 0.3"),
        Param("window_steps", 60, "steps", 10, 2000, "symptoms 0.3"),
        Param("least_growth", 0.2, "share", 0.01, 5, "default of ours"),
        Param("paid_growth", 0.03, "share", 0.005, 5, "default of ours", "where right answers get more reward for length than before"),
        Param("paid_z", 3, "standard errors", 1, 10, "symptoms 0.3"),
        Param("truncated", 0.05, "0..1", 0, 1, "symptoms 4"),
        Param("cut", 0.5, "0..1", 0, 1, "symptoms 22"),
    )
    hold_points = 20
    hypotheses: tuple[Hypothesis, ...] = (
        hypothesis("H4i", "trajectories", shape.reward_prefers_length),
        hypothesis("H4a", "metrics", shape.gain_is_real, shape.longer_is_better),
        hypothesis("H4b", "trajectories", shape.wrong_grow_longer),
        hypothesis("H4d", "trajectories", endings.answer_before_cut, endings.right_keep_length, endings.end_token_rarer),
        hypothesis("H10b", "trajectories", endings.answer_before_cut, endings.cut_are_rewarded, prior=0.9),
        hypothesis("H4e", "trajectories", shape.tails_repeat),
        hypothesis("H4g", "trajectories", shape.mix_longer),
        hypothesis("H7d", "tokens", sampler.sampler_hidden),
        hypothesis("H4f", "metrics", shape.tools_more, prior=0.9),
        hypothesis("H4h", "metrics", shape.cap_changed, prior=0.9),
        hypothesis("H4c", "trajectories", shape.short_pays, prior=0.5),
    )
    next_checks = SYMPTOMS["length-growth"].next_checks

    def evaluate(self, view: RunView) -> Sequence[Finding]:
        """Growth over the window, graded by what comes with it."""
        p = view.params
        metric = next(m for m in shape.LENGTH if view.has(m))
        series = points(view, metric)
        if not fresh(view, series) or not warmed_up(view, series):
            return ()
        part = series.tail(window(series, p["window_steps"], p["window_points"]))
        paid = self._paid(view, metric)
        if paid is not None:
            return (paid,)
        change = moved(view, metric, newest=5)
        if change is None or change.now < (1 + p["least_growth"]) * change.base.median or change.z < 4:
            change = self._slowly(series, part)
        if change is None:
            return ()
        # The half window sees growth that has just begun; around a bend the whole one is no straight line.
        trends = [trend(some.steps, some.values) for some in (part, part.tail(max(10, len(part) // 2)))]
        found = next((t for t in trends if t.p < p["p"] and t.slope * 100 > p["slope"] * change.base.median), None)
        if found is None:
            return ()
        severity = self._severity(view, change.onset)
        before = change.base.median
        text = f"{metric} grows by {found.slope * 100 / before:.0%} per 100 steps: {before:.1f} to {change.now:.1f} tokens"
        names = (
            shape.truncated_metric(view) or "fact.length.p95",
            "eval.heldout.score",
            "fact.length.correct.mean",
            "fact.length.wrong.mean",
        )
        return (finding(view, self.name, severity, change.onset, f"{text} since step {change.onset}", metric, *names),)

    def _paid(self, view: RunView, metric: str) -> Finding | None:
        """Growth since right answers get more reward for length: the price is seen at once, so that any growth after it tells."""
        start = shape.length_paid_since(view)
        if start is None:
            return None
        # The reward of a run that was paid for length throughout the last 150 steps has become how the task is.
        found = shift(view, metric, (start - 50, start - 1), (max(start, view.step - 30), view.step)) if view.step - start <= 150 else None
        if found is None or found.z < view.params["paid_z"] or found.change < view.params["paid_growth"] * found.before:
            return None
        severity: Severity = "critical" if self._severity(view, start) == "critical" else "warn"
        summary = (
            f"{metric} is {found.after:.1f} tokens, {found.before:.1f} before right answers were rewarded for length, since step {start}"
        )
        names = (shape.truncated_metric(view) or "fact.length.p95", "fact.length.correct_correlation", "eval.heldout.score")
        return finding(view, self.name, severity, start, summary, metric, *names)

    def _slowly(self, series: Series, part: Series) -> Moved | None:
        """Growth too slow to leave a baseline that moves with it: the newest points against the window's first ones."""
        if len(part) < 20:
            return None
        early, spread = median_spread(part.values[:10])
        now = sorted(part.values[-5:].tolist())[2]
        base = Baseline(early, spread, 0, 9)
        if now < 1.2 * early or robust_z(now, base) < 4:
            return None
        at = since(part.values, early + 2 * spread, allowed=3)
        onset = int(part.steps[min(at, len(part) - 1)])
        return Moved(now, base, robust_z(now, base), (int(part.steps[0]), int(part.steps[9])), onset)

    def _severity(self, view: RunView, onset: int) -> Severity:
        cut = shape.truncated_metric(view)
        share = level(view, cut, 3) if cut else None
        rising = cut is not None and trend_of(view, cut)[0].slope > 0
        if share is not None and share > view.params["cut"]:
            return "critical"
        wrong, right = (trend_of(view, f"fact.length.{m}.mean")[0] for m in ("wrong", "correct"))
        apart = wrong.p < 0.01 and wrong.slope > 2 * max(right.slope, 0) and wrong.slope > 0
        if (share is not None and share > view.params["truncated"] and rising) or apart or shape.longer_without_gain(view, onset):
            return "warn"
        return "watch"
