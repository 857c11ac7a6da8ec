"""RS071 engine-mismatch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import server.checks.engine as engine
import server.checks.second as second
import server.checks.tokens as tokens
from server.checks.measure import below_for, beyond_for, finding, fresh, level, mean_of, points, trend_of
from server.detectors.level import beyond
from server.detectors.middle import median
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
_TOKEN_WEIGHTS: tuple[tuple[Severity, float, float], ...] = (("warn", 0.5, 2.0), ("watch", 0.8, 1.25))
_SEQUENCE_WEIGHTS: tuple[tuple[Severity, float, float], ...] = (("critical", 0.1, 1.9), ("warn", 0.5, 1.5), ("watch", 0.7, 1.3))
"""Gravest first: symptoms 22, mean sequence ratio (TRL): off by more than .3, .5, .9 at two points."""
_KL = ("mismatch.kl_k3", "mismatch.kl")
_GROWING = ("mismatch.logprob_diff.mean", "mismatch.prob_diff.mean", *_KL)


class EngineMismatch:
    """Trainer and inference engine give different log-probs to the same tokens on the same weights.

    What it observes:
        The mismatch metrics against fixed limits, two of the last three points: mean absolute log-prob difference above .02 watch, .05
        warn, .2 critical; probability difference .005, .01, .03; token_mult_prob_error 1.05, 1.1, 1.3; k3 .001, .01, .1; k1 .1 warn;
        correlation of probabilities below .99 watch, .95 warn; chi-square above 1 warn; effective sample size below .3 warn, .1
        critical; mean importance weight outside .8 to 1.25 watch, .5 to 2 warn, its spread above 1 warn; TRL's sequence weight off by .3
        watch, .5 warn, .9 critical. From the first step on. A growth of log10 by more than .15 per 100 steps (Theil-Sen, Mann-Kendall
        p < .01) is a watch, by eight times within the window a warn; a KL beyond its warn limit that has grown tenfold and still rises
        is critical. With stale samples only those of lag 0 count. From token arrays: trajectories whose log-probs are unrelated or
        right only when moved by one token, and samples of another origin.

    Why it matters:
        The loss weighs tokens by a ratio that is partly error. Growing mismatch is the best known early sign of a collapse.

    Hypotheses:
        H7a accumulated numerics: small at first and growing, differences of either sign on unlikely tokens.
        H7g misaligned rows: log-probs of single trajectories do not correlate, or only when moved by one token.
        H7i another context: the mismatch sits in samples that the policy did not write by itself.
        H7d sampling transform: every token lower by a kept mass, or a difference that hangs on the log-prob alone, from the start on.
        H7f wrong weights: large at once with a synchronisation or restart, or tokens that the engine is sure of and the trainer excludes.
        H7c template or tokenisation: agreement up to one position or the first tool output, disagreement from there on.
        H7b topology or backend: present from the start; a second run with another set-up has far less.
        H7e trainer against itself: its own log-probs differ on the first update. H7h routing of experts, against a dense second run.
        H7x consequence: entropy or truncation broke first.

    When it is wrong:
        Single spikes that return. Truncated sampling with its correction already applied. verl's metric is a difference of
        probabilities, not nats, and has its own limits.

    Sources:
        symptoms 7 and 22: verl FAQ and rollout_corr, NeMo-RL guide, slime and AReaL tests, vime issue 64.
    """

    code = "RS071"
    name = "engine-mismatch"
    family = "engine"
    status: Status = "stable"
    version = 1
    needs: tuple[tuple[str, ...], ...] = (
        (*(limit.metric for limit in (*_LIMITS, *_LOW_LIMITS)), "is.weight.mean", "is.weight.std", "fact.mismatch.unrelated_frac"),
    )
    params: tuple[Param, ...] = (
        Param("points", 3, "points", 1, 20, "default of ours", "newest points looked at"),
        Param("held", 2, "points", 1, 20, "default of ours", "of these, beyond the limit"),
        Param("slope", 0.15, "decades per 100 steps", 0.01, 2, "symptoms 7", "growth that is a watch"),
        Param("times", 8, "ratio", 2, 100, "default of ours", "growth within the window by which it is a warn"),
        Param("slope_level", 0.005, "nats", 0, 1, "default of ours", "growth below this level is not told; squared for a KL"),
        Param("times_kl", 10, "ratio", 2, 1000, "symptoms 7", "the same for a KL, and critical beyond its warn limit"),
        Param("weight_std", 1, "ratio", 0.1, 10, "symptoms 22", "standard deviation of the importance weights"),
        Param("unrelated_frac", 0.1, "0..1", 0, 1, "default of ours", "mean of three points"),
        Param("shifted_frac", 0.3, "0..1", 0, 1, "default of ours", "mean of three points"),
    )
    hold_points = 20
    hypotheses: tuple[Hypothesis, ...] = (
        hypothesis("H7a", "metrics", engine.grows_from_small, tokens.tail_of_rare_tokens),
        hypothesis("H7g", "tokens", engine.rows_misaligned),
        hypothesis("H7i", "tokens", engine.other_context),
        hypothesis("H7d", "tokens", engine.sampling_transform, engine.present_from_start, tokens.sampling_shape, prior=0.9),
        hypothesis("H7f", "tokens", engine.weights_stale, tokens.disagrees_confidently),
        hypothesis("H7c", "tokens", tokens.differs_from_a_border),
        hypothesis("H7b", "second_run", engine.present_from_start, second.other_set_up, prior=0.8),
        hypothesis("H7x", "metrics", engine.text_broke_first, prior=0.8),
        hypothesis(
            "H7e",
            "metrics",
            engine.trainer_disagrees,
            action="Make micro-batches of log-prob pass and update equal and look whether the difference stays.",
            prior=0.8,
        ),
        hypothesis(
            "H7h", "second_run", second.routing, action="Repeat on a dense model, or replay the engine's routing in the trainer.", prior=0.8
        ),
    )
    next_checks = SYMPTOMS["engine-mismatch"].next_checks

    def evaluate(self, view: RunView) -> Sequence[Finding]:
        """The gravest limit that is passed."""
        found = max(self._signs(view), key=lambda f: SEVERITIES.index(f.severity), default=None)
        return () if found is None else (found,)

    def _signs(self, view: RunView) -> Iterator[Finding]:
        yield from self._misaligned(view)
        stale = engine.lagging(view)
        for limit, sign in self._written(view):
            if not stale or limit.metric == "fact.mismatch.lag0":
                yield from self._beyond(view, limit, sign)
        if stale:
            return
        yield from self._weight(view)
        yield from self._growth(view)

    def _written(self, view: RunView) -> tuple[tuple[_Limit, float], ...]:
        """The limits of metrics that the run has, with the sign that makes beyond mean above."""
        key = ("limits", self.code)
        if key not in view.data.memo:
            known = set(view.data.metrics())
            signed = (*((limit, 1.0) for limit in _LIMITS), *((limit, -1.0) for limit in _LOW_LIMITS))
            view.data.memo[key] = tuple(pair for pair in signed if pair[0].metric in known)
        found: tuple[tuple[_Limit, float], ...] = view.data.memo[key]
        return found

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
        onset = (beyond_for if sign > 0 else below_for)(view, limit.metric, reached[1])
        side = "above" if sign > 0 else "below"
        summary = f"{limit.text} is {now:.3g}, {side} {reached[1]:g} since step {onset}"
        hard = reached[0] == "critical"
        yield finding(view, self.name, reached[0], onset, summary, limit.metric, "clip.frac", "reward.mean", hard=hard)

    def _weight(self, view: RunView) -> Iterator[Finding]:
        """Mean and spread of the importance weights. TRL's are of whole sequences, whose mean strays far more."""
        p, series = view.params, points(view, "is.weight.mean")
        if fresh(view, series):
            last = series.values[-int(p["points"]) :]
            limits = _SEQUENCE_WEIGHTS if view.run.framework == "trl" else _TOKEN_WEIGHTS
            for severity, low, high in limits:
                outside = (last < low) | (last > high)
                if int(outside.sum()) >= p["held"]:
                    onset = int(series.steps[-len(last) :][outside.argmax()])
                    summary = f"mean importance weight is {last[outside][-1]:.3g}, outside {low:g} to {high:g}"
                    yield finding(view, self.name, severity, onset, summary, "is.weight.mean", "reward.mean", hard=severity == "critical")
                    break
        spread = points(view, "is.weight.std")
        if fresh(view, spread) and beyond(spread.values, p["weight_std"], int(p["points"])) >= p["held"]:
            onset = beyond_for(view, "is.weight.std", p["weight_std"])
            summary = f"importance weights scatter by {spread.values[-1]:.3g} around their mean since step {onset}"
            yield finding(view, self.name, "warn", onset, summary, "is.weight.std", "is.ess", "reward.mean")

    def _growth(self, view: RunView) -> Iterator[Finding]:
        metric = next((m for m in _GROWING if view.has(m)), None)
        p = view.params
        if metric is None or (level(view, metric, 5) or 0.0) < (p["slope_level"] ** 2 if metric in _KL else p["slope_level"]):
            return
        found, part = trend_of(view, metric, log=True)
        if found.p < 0.01 and found.slope * 100 > p["slope"] and found.points >= 20:
            now, early = median(points(view, metric).values[-5:]), 10 ** median(part.values[:10])
            times = now / early
            severity: Severity = "warn" if times > (p["times_kl"] if metric in _KL else p["times"]) else "watch"
            onset = beyond_for(view, metric, 2 * early) if times > 2 else int(part.steps[0])
            summary = f"{metric} grows by {found.slope * 100:.2f} decades per 100 steps: {early:.3g} to {now:.3g}"
            yield finding(view, self.name, severity, onset, summary, metric, "clip.frac", "reward.mean")
        yield from self._still_rising(view)

    def _still_rising(self, view: RunView) -> Iterator[Finding]:
        """KL of trainer and engine ten times its past beyond the warn limit, and still rising."""
        metric = next((m for m in _KL if view.has(m)), None)
        limit = next((x.warn for x in _LIMITS if x.metric == metric), 0.0)
        if metric is None or (level(view, metric, 5) or 0.0) < limit:
            return
        found, part = trend_of(view, metric, log=True)
        if not len(part) or found.p >= 0.01 or found.slope <= 0 or found.points < 20:
            return
        now, early = median(points(view, metric).values[-5:]), 10 ** median(part.values[:10])
        if now > view.params["times_kl"] * early:
            onset = beyond_for(view, metric, 2 * early)
            summary = f"{metric} is {now / early:.0f} times what it was and still rises: {early:.3g} to {now:.3g} since step {onset}"
            yield finding(view, self.name, "critical", onset, summary, metric, "clip.frac", "reward.mean")

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
