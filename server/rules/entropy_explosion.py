"""RS033 entropy-explosion."""

from __future__ import annotations

from collections.abc import Sequence

import server.checks.distribution as distribution
import server.checks.sampler as sampler
from server.checks.engine import reward_trend
from server.checks.measure import beyond_for, finding, fresh, moved, points, reward_fell, reward_metric, warmed_up
from server.detectors.level import beyond
from server.queries.view import RunView
from server.rules.base import Finding, Hypothesis, Param, Severity, Status, hypothesis
from server.symptoms import SYMPTOMS


class EntropyExplosion:
    """Entropy grows beyond anything the run has seen.

    What it observes:
        Mean entropy above 1 nat at two of three points where the baseline is below .5: warn, from the first step on for runs that
        began below .5. Above twice the baseline and six of its spreads: watch; warn if length or truncation rise with it and the
        reward is lower than before (three standard errors). Above 2 nats after a baseline below 1, or doubled within 20 steps and
        above .5: critical.

    Why it matters:
        Rising entropy predicted collapses in public logs, falling entropy did not: the policy gives weight to tokens it should not.

    Hypotheses:
        H3d negatives or off-policy tokens: many negative advantages, or trainer and engine drifted apart.
        H3f an entropy bonus or wider upper clip. H3h the sampler changed: only sampled entropy moved.
        H3i averaging artefact: the entropy of the policy's own tokens did not move. H5a step size; H14d a coefficient of the wrong sign.
        H3a, H3b, H3e and H3g as for a collapse; H3c is refuted where entropy rose.

    When it is wrong:
        Harder tasks raise entropy at once and it falls again. Qwen3-like models fall, then rise. Agent runs go through cycles.
        Another aggregation after an upgrade looks like a jump.

    Sources:
        symptoms 3, 0.5 and 22 (entropy above 1 nat: no false alarm in 18 runs); rllm issue 116.
    """

    code = "RS033"
    name = "entropy-explosion"
    family = "distribution"
    status: Status = "stable"
    version = 1
    needs: tuple[tuple[str, ...], ...] = (("entropy.mean", "entropy.sampled", "entropy.rollout.mean"),)
    params: tuple[Param, ...] = (
        Param("absolute", 1.0, "nats", 0.1, 10, "symptoms 22"),
        Param("absolute_baseline", 0.5, "nats", 0.05, 5, "symptoms 3"),
        Param("critical", 2.0, "nats", 0.1, 20, "symptoms 22"),
        Param("times", 2, "ratio", 1.1, 20, "symptoms 22"),
        Param("z", 6, "MADN", 2, 30, "symptoms 0.5"),
        Param("double_least", 0.5, "nats", 0.05, 5, "default of ours", "a doubling below it is never critical"),
    )
    hold_points = 20
    hypotheses: tuple[Hypothesis, ...] = (
        hypothesis("H3d", "metrics", distribution.negatives_or_drift),
        hypothesis("H3f", "config", distribution.entropy_bonus),
        hypothesis("H3h", "tokens", sampler.sampler_changed),
        hypothesis("H3i", "tokens", distribution.averaging_artefact),
        hypothesis("H5a", "metrics", distribution.rate_rose_before, distribution.rate_or_kl, prior=0.9),
        hypothesis("H14d", "config", distribution.coefficient_negative, prior=0.9),
        hypothesis("H3a", "metrics", distribution.still_learning, prior=0.8),
        hypothesis("H3b", "config", distribution.many_updates, prior=0.8),
        hypothesis("H3c", "metrics", distribution.entropy_fell, prior=0.5),
        hypothesis("H3e", "metrics", distribution.one_token, prior=0.8),
        hypothesis("H3g", "trajectories", distribution.template, prior=0.5),
    )
    next_checks = SYMPTOMS["entropy-explosion"].next_checks

    def evaluate(self, view: RunView) -> Sequence[Finding]:
        """High entropy, absolute or against the run's own past."""
        p = view.params
        metric = next(m for m in self.needs[0] if view.has(m))
        series = points(view, metric)
        if not fresh(view, series):
            return ()
        change = moved(view, metric, newest=3) if warmed_up(view, series) else None
        base = change.base.median if change is not None else sorted(series.values[:3].tolist())[len(series.values[:3]) // 2]
        severity: Severity | None = None
        limit = p["absolute"]
        if change is not None and change.now > p["times"] * base and change.z > p["z"]:
            # Below 1 nat it comes and goes without harm; a message needs the reward to go with it.
            harm = self._shape(view) and self._reward_lower(view, change.onset)
            severity, limit = ("warn" if harm else "watch"), p["times"] * base
        if base < p["absolute_baseline"] and beyond(series.values, p["absolute"], 3) >= 2:
            severity, limit = "warn", p["absolute"]
        if base < p["critical"] / 2 and beyond(series.values, p["critical"], 3) >= 2:
            severity, limit = "critical", p["critical"]
        if change is not None and severity == "warn" and change.now > p["double_least"] and self._doubled(view, metric):
            severity = "critical"
        if severity is None:
            return ()
        onset = beyond_for(view, metric, limit)
        summary = f"entropy is {series.values[-1]:.3g} nats against {base:.3g} before, above {limit:.3g} since step {onset}"
        return (finding(view, self.name, severity, onset, summary, metric, "length.response.mean", "kl.ref", "reward.mean"),)

    def _shape(self, view: RunView) -> bool:
        """Length or truncation rise too and the reward does not."""
        high = [
            moved(view, m, newest=3, least=0.01) for m in ("length.response.mean", "length.response.truncated_frac", "fact.truncated_frac")
        ]
        return any(v is not None and v.z > 4 for v in high) and reward_trend(view) <= 0

    def _reward_lower(self, view: RunView, onset: int) -> bool:
        """The reward fell since the onset, or there is none to tell."""
        return reward_metric(view) is None or reward_fell(view, onset) is not None

    def _doubled(self, view: RunView, metric: str) -> bool:
        series = points(view, metric)
        before = series.values[(series.steps <= view.step - 20) & (series.steps > view.step - 40)]
        return len(before) > 0 and float(series.values[-3:].min()) > 2 * float(before.mean())
