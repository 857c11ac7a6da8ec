"""RS203 language-mixing."""

from __future__ import annotations

from collections.abc import Sequence

import server.checks.distribution as distribution
import server.checks.language as language
import server.checks.sampler as sampler
from server.checks.measure import beyond_for, finding, finite, fresh, mean_of, points, trend_of
from server.detectors.level import beyond
from server.queries.view import RunView
from server.rules.base import Finding, Hypothesis, Param, Severity, Status, hypothesis
from server.symptoms import SYMPTOMS

_METRIC = "fact.script.foreign_frac"


class LanguageMixing:
    """Responses hold letters of a script that their prompts do not have.

    What it observes:
        Letters of a response by Unicode block against the scripts of its prompt, mean over up to 64 responses a step. Digits,
        punctuation, code, formulae, addresses and tags do not count, and in prompts without Latin letters only words of three Latin
        letters and more. Above 5 % at three of five points and well above the run's start: watch; above 20 %, or above 5 % and
        rising (Mann-Kendall p < .01): warn.

    Why it matters:
        Mixing can be harmless, and it can be the first sign that rare tokens gain weight.

    Hypotheses:
        H20f harmless: mixed responses score like others and quality holds.
        H20g damage: entropy rises and the reward falls. H3d negative or off-policy tokens. H3h the sampler changed.

    When it is wrong:
        Translation and multilingual tasks: a share that was there from the start counts only where it grows.

    Sources:
        symptoms 20; DeepSeek-R1 on language mixing.
    """

    code = "RS203"
    name = "language-mixing"
    family = "distribution"
    status: Status = "preview"
    version = 1
    needs: tuple[tuple[str, ...], ...] = ((_METRIC,),)
    params: tuple[Param, ...] = (
        Param("watch", 0.05, "0..1", 0, 1, "symptoms 20"),
        Param("warn", 0.2, "0..1", 0, 1, "symptoms 20"),
        Param("p", 0.01, "probability", 0.0001, 0.2, "symptoms 20"),
        Param("over_start", 0.05, "0..1", 0, 1, "default of ours", "how far above the mean of the first ten points"),
        Param("of", 5, "points", 3, 50, "default of ours"),
    )
    hold_points = 20
    hypotheses: tuple[Hypothesis, ...] = (
        hypothesis("H20f", "trajectories", language.mixed_score_as_well, language.quality_holds),
        hypothesis("H20g", "metrics", language.damage_begins),
        hypothesis("H3d", "metrics", distribution.negatives_or_drift, prior=0.9),
        hypothesis("H3h", "tokens", sampler.sampler_changed, prior=0.8),
    )
    next_checks = SYMPTOMS["language-mixing"].next_checks

    def evaluate(self, view: RunView) -> Sequence[Finding]:
        """The share against its limits and the run's start."""
        p, n = view.params, int(view.params["of"])
        series = points(view, _METRIC)
        need = -(-3 * n // 5)
        if not fresh(view, series) or len(series) < n or beyond(series.values, p["watch"], n) < need:
            return ()
        whole = finite(view.series(_METRIC))
        share, start = mean_of(view, _METRIC, n) or 0.0, float(whole.values[:10].mean())
        if len(whole) < 10 + n or share < start + p["over_start"]:
            return ()
        # Around a bend the long window is no straight line; the short one sees a rise that has just begun.
        trends = [trend_of(view, _METRIC, steps, steps)[0] for steps in (60, 20)]
        rising = any(found.p < p["p"] and found.slope > 0 for found in trends)
        limit = p["warn"] if beyond(series.values, p["warn"], n) >= need else p["watch"]
        severity: Severity = "warn" if rising or limit == p["warn"] else "watch"
        onset = beyond_for(view, _METRIC, p["watch"])
        switches = mean_of(view, "fact.script.switches", n)
        summary = f"{share:.0%} of the letters are of another script than the prompt's, {start:.0%} at the start; since step {onset}"
        summary += f"; {switches:.1f} changes of script per 1,000 characters" if switches is not None else ""
        names = ("fact.script.mixed_frac", "fact.script.reward_mixed", "fact.script.reward_plain", "entropy.mean", "reward.mean")
        return (finding(view, self.name, severity, onset, summary, _METRIC, *names),)
