"""RS042 length-collapse."""

from __future__ import annotations

from collections.abc import Sequence

import server.checks.distribution as distribution
import server.checks.endings as endings
import server.checks.sampler as sampler
import server.checks.shape as shape
from server.checks.measure import below_for, finding, finite, fresh, points, reward_fell, warmed_up, window
from server.detectors.baseline import baseline
from server.detectors.middle import median
from server.queries.view import RunView, Series
from server.rules.base import Finding, Hypothesis, Param, Severity, Status, hypothesis
from server.symptoms import SYMPTOMS

_MEDIAN = ("length.response.median", "fact.length.median")


class LengthCollapse:
    """Responses have shrunk to a small part of what they were.

    What it observes:
        Mean length below .3 of the baseline (the last 50 points, or the run's start) at two points in a row, or a median below 16
        tokens where it was three times as long before: warn; critical if the reward fell since. A watch while the reward rises.

    Why it matters:
        Short answers are cheap ones: the policy has found that thinking does not pay, or has lost it.

    Hypotheses:
        H4c a length penalty or quick wins: shorter responses to a prompt get as much reward.
        H4a real gain: the evaluation rises. H4g shorter or easier tasks. H4h the cap was lowered or staged.
        H4d termination: the end comes at once. H3e collapse to one token. H3h the sampler changed. H10e cut samples penalised.
        H4b, H4e, H4f and H4i speak of growth and are refuted where the log allows it.

    When it is wrong:
        Base models that stop to ramble shorten early, with the reward rising. Short answers by nature.

    Sources:
        symptoms 4 and 22 (one of six public collapses, never falsely).
    """

    code = "RS042"
    name = "length-collapse"
    family = "shape"
    status: Status = "preview"
    version = 1
    needs: tuple[tuple[str, ...], ...] = ((*shape.LENGTH, *_MEDIAN),)
    params: tuple[Param, ...] = (
        Param("of_baseline", 0.3, "share", 0.01, 0.9, "symptoms 22"),
        Param("tokens", 16, "tokens", 1, 1000, "symptoms 4"),
        Param(
            "longer_before", 3, "times", 1.5, 100, "default of ours", "for short answers: the median before was so many times that limit"
        ),
        Param("z", 3, "MADN", 0, 30, "symptoms 0.3", "lengths that scatter as wide as they are long have not collapsed"),
        Param("held", 2, "points", 1, 20, "symptoms 4"),
        Param("start_points", 20, "points", 5, 100, "symptoms 0.3"),
    )
    hold_points = 20
    hypotheses: tuple[Hypothesis, ...] = (
        hypothesis("H4c", "trajectories", shape.short_pays),
        hypothesis("H4a", "metrics", shape.gain_is_real),
        hypothesis("H4g", "trajectories", shape.mix_shorter),
        hypothesis("H4h", "metrics", shape.cap_changed),
        hypothesis("H4d", "tokens", endings.end_too_early),
        hypothesis("H3e", "metrics", distribution.one_token, prior=0.9),
        hypothesis("H3h", "tokens", sampler.sampler_changed, prior=0.9),
        hypothesis("H10e", "trajectories", shape.truncated_masked, prior=0.8),
        hypothesis("H4i", "trajectories", shape.reward_prefers_length, prior=0.5),
        hypothesis("H4b", "trajectories", shape.wrong_grow_longer, prior=0.5),
        hypothesis("H4e", "trajectories", shape.tails_repeat, prior=0.5),
        hypothesis("H4f", "metrics", shape.tools_more, prior=0.5),
    )
    next_checks = SYMPTOMS["length-collapse"].next_checks

    def evaluate(self, view: RunView) -> Sequence[Finding]:
        """Mean and median against their own past."""
        p, n = view.params, int(view.params["held"])
        for metrics in (shape.LENGTH, _MEDIAN):
            metric = next((m for m in metrics if view.has(m)), None)
            series = points(view, metric) if metric else None
            if metric is None or series is None or not len(series):
                continue
            now = float(series.values[-n:].max())
            # A median is no more than the largest value: the usual case ends here.
            if now >= 1.2 * p["of_baseline"] * max(series.values[-55:].max(), series.values[: int(p["start_points"])].max()):
                continue
            if not fresh(view, series) or not warmed_up(view, series):
                continue
            usual, spread = self._usual(view, series)
            limit = min(p["of_baseline"] * usual, usual - p["z"] * spread)
            if metric in _MEDIAN and usual > p["longer_before"] * p["tokens"]:
                limit = max(limit, min(p["tokens"], usual - p["z"] * spread))
            if now < limit:
                return (self._finding(view, metric, limit, usual),)
        return ()

    def _usual(self, view: RunView, series: Series) -> tuple[float, float]:
        """The longer of the moving baseline and the run's start, and the spread of the former."""
        start = median(series.values[: int(view.params["start_points"])])
        base = baseline(series.values, window(series, 50, 50), gap=max(5, int(view.params["held"])))
        return (max(start, base.median), base.spread) if base is not None else (start, 0.0)

    def _finding(self, view: RunView, metric: str, limit: float, usual: float) -> Finding:
        onset = below_for(view, metric, limit)
        _, reward = distribution.quality_since(view, onset)
        severity: Severity = "watch" if (reward or 0) > 2 else "warn"
        if reward_fell(view, onset) is not None:
            severity = "critical"
        now = float(finite(view.series(metric)).values[-1])
        summary = f"{metric} is {now:.1f} tokens, {usual:.1f} before; below {limit:.1f} since step {onset}"
        names = ("fact.length.correct.mean", "fact.length.wrong.mean", "entropy.mean", "reward.mean")
        return finding(view, self.name, severity, onset, summary, metric, *names, hard=severity == "critical")
