"""RS111 negative-samples-dominate."""

from __future__ import annotations

from collections.abc import Sequence

import server.checks.groups as groups
import server.checks.negatives as negatives
from server.checks.distribution import negative_mass
from server.checks.engine import reward_trend
from server.checks.measure import beyond_for, finding, finite, fresh, level, mean_of, moved, points, reward_metric, reward_range, window
from server.detectors.level import beyond
from server.queries.view import RunView, Series
from server.rules.base import Finding, Hypothesis, Param, Severity, Status, hypothesis
from server.symptoms import SYMPTOMS

MASS = "fact.advantage.negative_mass_frac"
TOKENS = "fact.advantage.negative_token_frac"


class NegativeSamplesDominate:
    """Almost all of the loss pushes probability away from responses, hardly any pushes it towards one.

    What it observes:
        N/P, the sum of abs(advantage) over trained tokens with negative advantage against that with positive one (1 in a sound group
        of equal lengths), and the share of trained tokens with negative advantage. N/P above 3 at eight of ten points while less
        than a tenth of the reward's range is reached, or more than 85 % negative tokens at eight of ten points with N/P above 1.5:
        warn. N/P above 10 at five points in a row: warn, whatever the success. Critical with entropy above its past or falling
        log-probs of positive samples. A watch only while the reward rises.

    Why it matters:
        Pushing down says where not to go and nothing about where to go: log-probs of right answers can fall with the others.

    Hypotheses:
        H11a negatives push probability to nowhere: entropy rises, positive samples lose log-prob.
        H11b the opposite: positives weigh too much and entropy falls. H11c harmless: the evaluation rises.
        H11d long wrong answers make the imbalance. H11e tasks too hard: most groups fail, or the difficulty rose.
        H3d off-policy tokens: trainer and engine drifted apart, or stale negatives without a second clip.

    When it is wrong:
        After all-fail groups are filtered, one success in eight still leaves 87 % negative tokens, in balance (N/P of 1). The same
        holds for advantages normalised over the batch. Low success with a rising trend is learning.

    Sources:
        symptoms 11 and 3 (6 of 15 public runs with a positive weight of 1 or less collapsed, none of 12 with 1.5 or more).
    """

    code = "RS111"
    name = "negative-samples-dominate"
    family = "optimiser"
    status: Status = "stable"
    version = 1
    needs: tuple[tuple[str, ...], ...] = ((MASS, "adv.abs_mean"),)
    params: tuple[Param, ...] = (
        Param("ratio", 3, "N/P", 1, 100, "symptoms 11"),
        Param("success", 0.1, "share of the range", 0, 1, "symptoms 11"),
        Param("tokens", 0.85, "0..1", 0.3, 1, "symptoms 11"),
        Param("balance", 1.5, "N/P", 1, 10, "default of ours", "negative tokens do not count below it: the sums are in balance"),
        Param("extreme", 10, "N/P", 2, 1000, "default of ours", "no length or clipping makes it; half as many points suffice"),
        Param("points", 10, "points", 4, 100, "symptoms 11"),
    )
    hold_points = 20
    hypotheses: tuple[Hypothesis, ...] = (
        hypothesis("H11a", "metrics", negatives.probability_leaks, negatives.positives_fall),
        hypothesis("H11e", "trajectories", groups.too_hard, negatives.tasks_harder),
        hypothesis("H11d", "trajectories", negatives.wrong_are_long),
        hypothesis("H11c", "metrics", negatives.no_harm, prior=0.9),
        hypothesis("H3d", "metrics", negatives.off_policy, prior=0.9),
        hypothesis("H11b", "metrics", negatives.positives_overweighted, prior=0.8),
    )
    next_checks = SYMPTOMS["negative-samples-dominate"].next_checks

    def evaluate(self, view: RunView) -> Sequence[Finding]:
        """Mass and tokens against their limits, held for some time."""
        p = view.params
        series = self._mass(view)
        if series is None or not fresh(view, series) or series.values[-1] <= p["balance"] / (1 + p["balance"]):
            return ()
        held = window(series, p["points"], p["points"], fewest=5)
        need, short = -(-4 * held // 5), max(3, held // 2)
        found = self._reached(view, series, held, need, short)
        if found is None:
            return ()
        limit, metric = found
        onset = beyond_for(view, metric, limit) if metric != "adv.abs_mean" else int(series.steps[-held:][0])
        mass = negative_mass(view) or float(series.values[-1])
        tokens = mean_of(view, TOKENS, 5)
        summary = (
            f"negative advantages hold {mass:.1%} of the mass, {mass / max(1 - mass, 1e-3):.0f} times the positive, since step {onset}"
        )
        summary += f"; {tokens:.0%} of the trained tokens are negative" if tokens is not None else ""
        names = (TOKENS, "adv.neg_frac", "entropy.mean", "fact.update.positive", "reward.mean")
        return (finding(view, self.name, self._severity(view), onset, summary, metric, *names),)

    def _mass(self, view: RunView) -> Series | None:
        """0..1, negative share of the mass at every point; of the logged mean and mean absolute value without trajectories."""
        if view.has(MASS):
            return points(view, MASS)
        size, mean = points(view, "adv.abs_mean"), points(view, "adv.mean")
        if len(size) != len(mean) or not (size.values > 1e-6).any():
            return None
        keep = size.values > 1e-6
        return Series(size.steps[keep], ((size.values - mean.values) / (2 * size.values))[keep].clip(0, 1))

    def _reached(self, view: RunView, series: Series, held: int, need: int, short: int) -> tuple[float, str] | None:
        p = view.params
        metric = MASS if view.has(MASS) else "adv.abs_mean"
        extreme = p["extreme"] / (1 + p["extreme"])
        if len(series) >= short and beyond(series.values, extreme, short) == short:
            return extreme, metric
        if len(series) < held:
            return None
        ratio = p["ratio"] / (1 + p["ratio"])
        if beyond(series.values, ratio, held) >= need and self._success(view) < p["success"]:
            return ratio, metric
        tokens = points(view, TOKENS)
        balance = p["balance"] / (1 + p["balance"])
        if beyond(tokens.values, p["tokens"], held) >= need and beyond(series.values, balance, held) >= need:
            return p["tokens"], TOKENS
        return None

    def _success(self, view: RunView) -> float:
        metric = reward_metric(view)
        low, high = reward_range(view)
        now = level(view, metric, int(view.params["points"])) if metric else None
        return 1.0 if now is None else (now - low) / (high - low)

    def _severity(self, view: RunView) -> Severity:
        if reward_trend(view, 40) > 0:
            return "watch"
        entropy = next((v for m in negatives.ENTROPY if (v := moved(view, m, newest=5)) is not None), None)
        positive = finite(points(view, "fact.update.positive")).values[-10:]
        falls = len(positive) >= 5 and float(positive.mean()) < -2 * float(positive.std()) / len(positive) ** 0.5
        return "critical" if (entropy is not None and entropy.z > 4) or falls else "warn"
