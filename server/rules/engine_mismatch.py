"""RS071 engine-mismatch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import server.checks.engine as engine
from server.checks.measure import beyond_for, finding, fresh, level, mean_of, points, trend_of
from server.detectors.level import beyond
from server.queries.view import RunView
from server.rules.base import SEVERITIES, Finding, Hypothesis, Param, Severity, Status, hypothesis
from server.symptoms import SYMPTOMS


class _Limit(NamedTuple):
    metric: str
    watch: float
    warn: float
    critical: float
    text: str


# symptoms 22; where the metric falls instead of rising its sign is turned.
_LIMITS = (
    _Limit("mismatch.logprob_diff.mean", 0.02, 0.05, 0.2, "mean absolute log-prob difference"),
    _Limit("mismatch.prob_diff.mean", 0.005, 0.01, 0.03, "mean probability difference"),
    _Limit("mismatch.mult_prob_error.mean", 1.05, 1.1, 1.3, "token_mult_prob_error"),
    _Limit("mismatch.kl_k3", 1e-3, 1e-2, 0.1, "k3 of trainer and engine"),
    _Limit("mismatch.kl", 0.02, 0.1, 0.5, "k1 of trainer and engine"),
    _Limit("mismatch.chi2.token", 0.5, 1.0, 10.0, "chi-square of the token weights"),
    _Limit("fact.mismatch.lag0", 0.02, 0.05, 0.2, "mean absolute log-prob difference of samples of lag 0"),
    _Limit("fact.mismatch.policy", 0.02, 0.05, 0.2, "mean absolute log-prob difference in token rows"),
)
_LOW_LIMITS = (
    _Limit("is.ess", 0.6, 0.3, 0.1, "effective sample size"),
    _Limit("mismatch.pearson", 0.99, 0.95, 0.8, "correlation of token probabilities"),
)


class EngineMismatch:
    """Trainer and inference engine give different log-probs to the same tokens on the same weights.

    What it observes:
        The mismatch metrics against fixed limits, two of the last three points: mean absolute log-prob difference above .02 watch, .05
        warn, .2 critical; probability difference .005, .01, .03; k3 .001, .01, .1; k1 .1 warn; effective sample size below .3 warn, .1
        critical; importance weight outside .5 to 2 warn. From the first step on. A growth of log10 by more than .15 per 100 steps
        (Theil-Sen, Mann-Kendall p < .01) is a watch, by eight times within the window a warn. With stale samples only those of lag 0
        count. From token arrays: trajectories whose log-probs are unrelated or right only when moved by one token, and
        samples of another origin.

    Why it matters:
        The loss weighs tokens by a ratio that is partly error. Growing mismatch is the best known early sign of a collapse.

    Hypotheses:
        H7a accumulated numerics: small at first and growing with training in the policy's own samples.
        H7g misaligned rows: log-probs of single trajectories do not correlate, or only when moved by one token.
        H7i another context: the mismatch sits in samples that the policy did not write by itself.
        H7b, H7c, H7d: present from the start; H7d with a temperature or top_p other than 1 and a constant sign.
        H7f wrong weights: large at once with a synchronisation or restart.
        H6a staleness: older samples deviate more and those of lag 0 do not. H7x: entropy or truncation broke first.

    When it is wrong:
        Single spikes that return. Truncated sampling with its correction already applied. verl's metric is a difference of
        probabilities, not nats, and has its own limits.

    Sources:
        symptoms 7 and 22: verl FAQ and rollout_corr, NeMo-RL guide, slime and AReaL tests, vime issue 64.
    """

    code = "RS071"
    name = "engine-mismatch"
    family = "engine"
    status: Status = "preview"
    version = 1
    needs: tuple[tuple[str, ...], ...] = (
        (*(limit.metric for limit in _LIMITS), *(limit.metric for limit in _LOW_LIMITS), "is.weight.mean", "fact.mismatch.unrelated_frac"),
    )
    params: tuple[Param, ...] = (
        Param("points", 3, "points", 1, 20, "default of ours", "newest points looked at"),
        Param("held", 2, "points", 1, 20, "default of ours", "of these, beyond the limit"),
        Param("slope", 0.15, "decades per 100 steps", 0.01, 2, "symptoms 7", "growth that is a watch"),
        Param("times", 8, "ratio", 2, 100, "default of ours", "growth within the window by which it is a warn"),
        Param("slope_level", 0.005, "nats", 0, 1, "default of ours", "growth below this level is not told"),
        Param("unrelated_frac", 0.1, "0..1", 0, 1, "default of ours", "mean of three points"),
        Param("shifted_frac", 0.3, "0..1", 0, 1, "default of ours", "mean of three points"),
    )
    hold_points = 20
    hypotheses: tuple[Hypothesis, ...] = (
        hypothesis("H7a", "metrics", engine.grows_from_small),
        hypothesis("H7g", "tokens", engine.rows_misaligned),
        hypothesis("H7i", "tokens", engine.other_context),
        hypothesis("H7d", "config", engine.sampling_transform, engine.present_from_start, prior=0.9),
        hypothesis("H7b", "metrics", engine.present_from_start, prior=0.8),
        hypothesis("H7f", "metrics", engine.weights_stale),
        hypothesis("H7x", "metrics", engine.text_broke_first, prior=0.8),
        hypothesis("H7c", "action", action="Compare token ids of one prompt in engine and trainer, position by position."),
        hypothesis("H7e", "action", action="Make micro-batches of log-prob pass and update equal and look whether the difference stays."),
        hypothesis("H7h", "action", action="Repeat on a dense model, or replay the engine's routing in the trainer."),
    )
    next_checks = SYMPTOMS["engine-mismatch"].next_checks

    def evaluate(self, view: RunView) -> Sequence[Finding]:
        """The gravest limit that is passed."""
        found = max(self._signs(view), key=lambda f: SEVERITIES.index(f.severity), default=None)
        return () if found is None else (found,)

    def _signs(self, view: RunView) -> Iterator[Finding]:
        yield from self._misaligned(view)
        stale = engine.lagging(view)
        for limit in _LIMITS:
            if not stale or limit.metric == "fact.mismatch.lag0":
                yield from self._beyond(view, limit, 1.0)
        if stale:
            return
        for limit in _LOW_LIMITS:
            yield from self._beyond(view, limit, -1.0)
        yield from self._weight(view)
        yield from self._growth(view)

    def _beyond(self, view: RunView, limit: _Limit, sign: float) -> Iterator[Finding]:
        series, p = points(view, limit.metric), view.params
        if not fresh(view, series):
            return
        reached: tuple[Severity, float] | None = None
        levels: tuple[tuple[Severity, float], ...] = (("watch", limit.watch), ("warn", limit.warn), ("critical", limit.critical))
        for severity, value in levels:
            if beyond(sign * series.values, sign * value, int(p["points"])) >= p["held"]:
                reached = (severity, value)
        if reached is None:
            return
        now = level(view, limit.metric) or 0.0
        onset = beyond_for(view, limit.metric, reached[1]) if sign > 0 else view.step
        side = "above" if sign > 0 else "below"
        summary = f"{limit.text} is {now:.3g}, {side} {reached[1]:g} since step {onset}"
        hard = reached[0] == "critical"
        yield finding(view, self.name, reached[0], onset, summary, limit.metric, "clip.frac", "reward.mean", hard=hard)

    def _weight(self, view: RunView) -> Iterator[Finding]:
        series = points(view, "is.weight.mean").tail(int(view.params["points"]))
        if not fresh(view, series):
            return
        if int(((series.values < 0.5) | (series.values > 2)).sum()) >= view.params["held"]:
            summary = f"mean importance weight is {series.values[-1]:.3g}, outside 0.5 to 2"
            yield finding(view, self.name, "warn", int(series.steps[0]), summary, "is.weight.mean", "reward.mean")

    def _growth(self, view: RunView) -> Iterator[Finding]:
        metric = next((m for m in ("mismatch.logprob_diff.mean", "mismatch.prob_diff.mean") if view.has(m)), None)
        if metric is None or (level(view, metric, 5) or 0.0) < view.params["slope_level"]:
            return
        found, part = trend_of(view, metric, log=True)
        if found.p < 0.01 and found.slope * 100 > view.params["slope"] and found.points >= 20:
            onset = int(part.steps[0])
            now, early = (
                level(view, metric, 5) or 0.0,
                level(view.at(max(onset, view.data.attempt_starts.get(view.attempt, onset))), metric, 10) or 0.0,
            )
            severity: Severity = "warn" if early > 0 and now > view.params["times"] * early else "watch"
            summary = f"{metric} grows by {found.slope * 100:.2f} decades per 100 steps: {early:.3g} to {now:.3g}"
            yield finding(view, self.name, severity, onset, summary, metric, "clip.frac", "reward.mean")

    def _misaligned(self, view: RunView) -> Iterator[Finding]:
        p, unrelated, shifted = view.params, mean_of(view, "fact.mismatch.unrelated_frac"), mean_of(view, "fact.mismatch.shifted_frac")
        if shifted is not None and shifted > p["shifted_frac"]:
            onset = beyond_for(view, "fact.mismatch.shifted_frac", p["shifted_frac"])
            summary = f"log-probs of {shifted:.0%} of the trajectories fit the engine's only when moved by one token, since step {onset}"
            yield finding(
                view, self.name, "critical", onset, summary, "fact.mismatch.shifted_frac", "mismatch.logprob_diff.mean", hard=True
            )
        elif unrelated is not None and unrelated > p["unrelated_frac"]:
            onset = beyond_for(view, "fact.mismatch.unrelated_frac", p["unrelated_frac"])
            summary = f"log-probs of {unrelated:.0%} of the fresh trajectories do not follow the engine's, since step {onset}"
            yield finding(view, self.name, "warn", onset, summary, "fact.mismatch.unrelated_frac", "mismatch.logprob_diff.mean")
