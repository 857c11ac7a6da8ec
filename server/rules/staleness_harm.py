"""RS061 staleness-harm."""

from __future__ import annotations

from collections.abc import Sequence

import server.checks.engine as engine
import server.checks.optimiser as optimiser
import server.checks.repeats as repeats
import server.checks.second as second
import server.checks.tokens as tokens
from server.checks.measure import beyond_for, finding, level, mean_of, points, reward_fell
from server.queries.view import RunView
from server.rules.base import Finding, Hypothesis, Param, Severity, Status, hypothesis
from server.symptoms import SYMPTOMS


class StalenessHarm:
    """Samples are older than allowed, or their age does visible harm.

    What it observes:
        The largest policy lag against the configured bound (versions): above half of it watch, above it critical. Besides, with a mean
        lag of at least two versions: mean absolute log-prob difference above .1 nats and three times that of fresh samples (of lag 0,
        or of earlier steps with a lower lag), effective sample size below .3, mean behaviour ratio off by more than .1, or three times
        as many clipped tokens that rise with age within the same steps, or, where a second run is chosen, a lower evaluation than its
        at equal samples: warn; with a falling reward critical.

    Why it matters:
        The loss treats old samples as the policy's own. Age itself is no fault: what counts is whether ratio and quality suffer.

    Hypotheses:
        H6a stale data hurts: older samples deviate more, the reward fell, stale negatives deviate more than stale positives.
        H6b engine mismatch instead: samples of lag 0 deviate as much.
        H6c the trained mix shifted: task shares before and after, and what was dropped against what was kept.
        H6d trajectories of several versions without log-probs per segment: the difference jumps where the version changes.
        H6e the clip is centred on a stale policy: the engine's log-probs serve as old ones.
        H6f seed noise, H6g fewer samples: against a second run, at equal samples and at equal steps.

    When it is wrong:
        Asynchronous runs with a corrected loss often end as well as synchronous ones; a single old sample proves nothing. A bound given
        as a share of the batch is not a number of versions and is not judged.

    Sources:
        symptoms 6 and 22: AReaL, prime-rl and verl documentation.
    """

    code = "RS061"
    name = "staleness-harm"
    family = "engine"
    status: Status = "stable"
    version = 1
    needs: tuple[tuple[str, ...], ...] = (("lag.policy.max", "lag.policy.mean", "fact.lag.max"),)
    params: tuple[Param, ...] = (
        Param("least_lag", 2, "versions", 1, 64, "default of ours", "mean lag from which an effect is looked for"),
        Param("mismatch", 0.1, "nats", 0.01, 2, "symptoms 6", "mean absolute log-prob difference of stale samples"),
        Param("times_fresh", 3, "ratio", 1, 100, "default of ours"),
        Param("ess", 0.3, "0..1", 0, 1, "symptoms 22"),
        Param("ratio_off", 0.1, "ratio", 0.01, 1, "symptoms 6"),
        Param("clip_times", 3, "ratio", 1, 100, "symptoms 6", "clipped tokens against those while samples were fresh"),
        Param("clip_least", 0.05, "0..1", 0, 1, "default of ours", "a smaller share of clipped tokens is no effect"),
        Param("lag_correlation", 0.3, "0..1", 0, 1, "symptoms 6", "rank correlation of lag and mismatch within the same steps"),
        Param("reference_z", 3, "standard errors", 1, 20, "symptoms 6", "worse than a second run at equal samples; 2 there, for one look"),
        Param("bound_points", 3, "points", 1, 20, "default of ours", "newest points of which two pass the bound"),
    )
    hold_points = 20
    hypotheses: tuple[Hypothesis, ...] = (
        hypothesis("H6a", "metrics", engine.grows_with_lag, engine.quality_fell, engine.old_negatives),
        hypothesis("H6b", "tokens", engine.lag_zero_floor),
        hypothesis("H6c", "trajectories", engine.mix_shifted, repeats.dropped_differ),
        hypothesis("H6d", "tokens", engine.mixed_versions, tokens.jumps_at_versions),
        hypothesis("H6e", "config", engine.stale_anchor, prior=0.8),
        hypothesis("H6f", "second_run", second.no_separable_effect, action="Compare with the spread of three seeds.", prior=0.5),
        hypothesis(
            "H6g",
            "second_run",
            second.fewer_samples,
            action="Compare with a synchronous run at equal samples, not at equal steps.",
            prior=0.5,
        ),
    )
    next_checks = SYMPTOMS["staleness-harm"].next_checks

    def evaluate(self, view: RunView) -> Sequence[Finding]:
        """A passed bound, else an effect of age."""
        found = self._bound(view)
        if found is None or found.severity == "watch":
            found = self._effect(view) or found
        return () if found is None else (found,)

    def _bound(self, view: RunView) -> Finding | None:
        limit = view.config.get("lag_limit")
        metric = "lag.policy.max" if view.has("lag.policy.max") else "fact.lag.max"
        series = points(view, metric).tail(int(view.params["bound_points"]))
        # A bound below 1 is a share of stale samples (verl), 0 a synchronous set-up or no bound.
        if not isinstance(limit, (int, float)) or limit < 1 or not len(series):
            return None
        over = int((series.values > limit).sum()) >= 2
        half = limit >= 4 and int((series.values > limit / 2).sum()) >= 2
        if not over and not half:
            return None
        onset = beyond_for(view, metric, limit if over else limit / 2)
        severity: Severity = "critical" if over else "watch"
        summary = (
            f"samples are up to {series.values.max():g} versions old, {'above' if over else 'more than half of'} the bound of {limit:g}"
        )
        return finding(view, self.name, severity, onset, summary, metric, "lag.policy.mean", engine.ABSOLUTE, "reward.mean", hard=over)

    def _effect(self, view: RunView) -> Finding | None:
        p = view.params
        metric = "lag.policy.mean" if view.has("lag.policy.mean") else "fact.lag.mean"
        lag = level(view, metric, 5)
        if lag is None or lag < p["least_lag"]:
            return None
        text = self._ratio(view) or self._weights(view) or self._clipped(view) or self._reference(view)
        if text is None:
            return None
        onset = beyond_for(view, metric, p["least_lag"] / 2)
        fell = reward_fell(view, onset)
        summary = f"samples are {lag:.1f} versions old on average and {text}"
        summary += f"; the reward fell from {fell.before:.3f} to {fell.after:.3f}" if fell else ""
        severity: Severity = "critical" if fell else "warn"
        return finding(
            view, self.name, severity, onset, summary, metric, engine.ABSOLUTE, "clip.frac", "reward.mean", hard=fell is not None
        )

    def _ratio(self, view: RunView) -> str | None:
        p = view.params
        now = level(view, engine.ABSOLUTE, 5) if view.has(engine.ABSOLUTE) else mean_of(view, "fact.mismatch.lagged", 3)
        if now is None or now < p["mismatch"]:
            return None
        fresh = mean_of(view, "fact.mismatch.lag0", 5) if view.has("fact.mismatch.lag0") else None
        if fresh is None:
            fresh = self._while_fresh(view, engine.ABSOLUTE)
        if fresh is not None and now < p["times_fresh"] * fresh:
            return None
        return f"differ by {now:.3f} nats a token" + (f" ({fresh:.4f} when fresh)" if fresh is not None else "")

    def _weights(self, view: RunView) -> str | None:
        p, ess, ratio = view.params, level(view, "is.ess", 5), level(view, "is.weight.mean", 5)
        if ess is not None and ess < p["ess"]:
            return f"their effective sample size is {ess:.2f}"
        if ratio is not None and abs(ratio - 1) > p["ratio_off"]:
            return f"their mean weight is {ratio:.2f}"
        return None

    def _clipped(self, view: RunView) -> str | None:
        """More clipped than while samples were fresh, and the more the older they are within the same steps."""
        p, now = view.params, level(view, "clip.frac", 5)
        if now is None or now < p["clip_least"] or optimiser.clips_sequences(view):
            return None
        fresh = self._while_fresh(view, "clip.frac")
        by_lag = mean_of(view, "fact.mismatch.lag_correlation", 5)
        if fresh is None or by_lag is None or now < p["clip_times"] * max(fresh, 1e-4) or by_lag < p["lag_correlation"]:
            return None
        return f"{now:.1%} of tokens are clipped ({fresh:.2%} when fresh), more with age (rank correlation {by_lag:.2f})"

    def _reference(self, view: RunView) -> str | None:
        """Worse than the second run at equal samples, where a person chose one that holds the same evaluation or reward."""
        metric = second.quality_metric(view) if view.second_run is not None else None
        found = second.at_equal_samples(view, metric) if metric is not None else None
        if found is None or found.z > -view.params["reference_z"]:
            return None
        return f"{metric} is {found.own:.3f}, {found.other:.3f} in the second run at equal samples"

    def _while_fresh(self, view: RunView, metric: str) -> float | None:
        """Median of a metric over the points with a lag below half of the least; None with fewer than five."""
        series, lags = points(view, metric), points(view, "lag.policy.mean")
        low = set(lags.steps[lags.values < view.params["least_lag"] / 2].tolist())
        values = [v for s, v in zip(series.steps.tolist(), series.values.tolist(), strict=True) if s in low]
        return sorted(values)[len(values) // 2] if len(values) >= 5 else None
