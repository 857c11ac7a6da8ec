"""RS031 near-identical-responses."""

from __future__ import annotations

from collections.abc import Sequence

import server.checks.distribution as distribution
import server.checks.sampler as sampler
from server.checks.measure import beyond_for, finding, history, mean_of, points, reward_metric, reward_range
from server.queries.view import RunView
from server.rules.base import Finding, Hypothesis, Param, Severity, Status, hypothesis
from server.symptoms import SYMPTOMS


class NearIdenticalResponses:
    """Responses of a group are copies of each other, or one text answers many prompts.

    What it observes:
        For free-form responses (100 characters or more on average) the share of copies within groups above .5, or the similarity of
        5-character shingles above .8, mean of five points: warn. For short answers right ones are naturally equal, so only wrong ones
        count: copies above .7 among them, at least twice the start. For both, responses that also answer another prompt of the step:
        more than half, at least twice the start: warn. A watch while the reward stands above its start; nothing once the task is solved.

    Why it matters:
        A group of copies has no variance and teaches nothing; one text for all prompts means the prompt is no longer read.

    Hypotheses:
        H3a sharpening: evaluation and reward still rise.
        H3g template: similarity across prompts grew. H9c the sampler copies: copies although the entropy is not low.
        H3b many updates per batch. H3c the upper clip holds rare tokens down. H3e one token. H3h the sampler changed.
        H3i other tokens in the mean. H5a step size; H14d a coefficient of the wrong sign. H3d, H3f: explosions, refuted where entropy fell.

    When it is wrong:
        Short answers, tool calls and JSON are alike by nature.

    Sources:
        symptoms 3 and 22; RAGEN-2 on template collapse.
    """

    code = "RS031"
    name = "near-identical-responses"
    family = "distribution"
    status: Status = "stable"
    version = 1
    needs: tuple[tuple[str, ...], ...] = (("fact.group.duplicate_frac", "fact.similarity.within", "fact.duplicate.across_frac"),)
    params: tuple[Param, ...] = (
        Param("duplicate_frac", 0.5, "0..1", 0, 1, "symptoms 3"),
        Param("similarity", 0.8, "0..1", 0, 1, "symptoms 3"),
        Param("free_form", 100, "characters", 10, 10000, "default of ours", "mean length from which answers are free-form"),
        Param("wrong_duplicate_frac", 0.7, "0..1", 0, 1, "default of ours"),
        Param("across_frac", 0.5, "0..1", 0, 1, "default of ours"),
        Param("points", 5, "points", 1, 50, "default of ours"),
        Param("start_points", 10, "points", 3, 100, "default of ours"),
    )
    hold_points = 20
    hypotheses: tuple[Hypothesis, ...] = (
        hypothesis("H3a", "metrics", distribution.still_learning, distribution.coverage_kept),
        hypothesis("H3b", "config", distribution.many_updates, distribution.holds_with_fewer_updates, prior=0.8),
        hypothesis("H3c", "metrics", distribution.clipped_high, prior=0.9),
        hypothesis("H3d", "metrics", distribution.entropy_rose, prior=0.5),
        hypothesis("H3e", "metrics", distribution.one_token, prior=0.8),
        hypothesis("H3f", "metrics", distribution.entropy_rose, prior=0.5),
        hypothesis("H3g", "trajectories", distribution.template),
        hypothesis("H3h", "tokens", sampler.sampler_changed),
        hypothesis("H3i", "tokens", distribution.averaging_artefact, prior=0.9),
        hypothesis("H5a", "metrics", distribution.rate_rose_before, distribution.rate_or_kl),
        hypothesis("H14d", "config", distribution.coefficient_negative, prior=0.9),
        hypothesis("H9c", "trajectories", distribution.same_seed),
    )
    next_checks = SYMPTOMS["near-identical-responses"].next_checks

    def evaluate(self, view: RunView) -> Sequence[Finding]:
        """Copies within groups, or across prompts."""
        p, n = view.params, int(view.params["points"])
        size = mean_of(view, "fact.length.characters", n)
        if size is None:
            return ()
        signs = [("fact.duplicate.across_frac", p["across_frac"], True, "of the responses also answer another prompt")]
        if size >= p["free_form"]:
            signs += [
                ("fact.group.duplicate_frac", p["duplicate_frac"], False, "of the responses of a group repeat another"),
                ("fact.similarity.within", p["similarity"], False, "similarity between responses to one prompt"),
            ]
        else:
            signs.append(
                ("fact.group.duplicate_wrong_frac", p["wrong_duplicate_frac"], True, "of the wrong responses of a group repeat another")
            )
        for metric, limit, relative, text in signs:
            share, series = mean_of(view, metric, n), points(view, metric)
            if share is None or len(series) < n or share <= limit:
                continue
            start = float(view.series(metric).values[: int(p["start_points"])].mean())
            if relative and (len(series) < 2 * n or share < 2 * start):
                continue
            if distribution.solved(view):
                continue
            onset = beyond_for(view, metric, limit)
            summary = f"{share:.0%} {text}, {start:.0%} at the start; since step {onset}"
            severity: Severity = "watch" if self._learnt(view) else "warn"
            return (finding(view, self.name, severity, onset, summary, metric, "entropy.mean", "reward.mean"),)
        return ()

    def _learnt(self, view: RunView) -> bool:
        """The reward stands well above where it began: likeness is the price of what was learnt, until quality falls."""
        metric = reward_metric(view)
        if metric is None:
            return False
        values = history(view, metric).values
        low, high = reward_range(view)
        return len(values) >= 20 and float(values[-10:].mean()) > float(values[:10].mean()) + 0.05 * (high - low)
