"""RS202 format-only-gain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import server.checks.evaluation as evaluation
import server.checks.held_out as held_out
import server.checks.parts as parts
import server.checks.reward as reward
from server.checks.measure import finding, finite, fresh, points, reward_metric, reward_range, spacing
from server.queries.view import RunView
from server.rules.base import Finding, Hypothesis, Param, Status, hypothesis
from server.symptoms import SYMPTOMS


class _Gain(NamedTuple):
    explained: parts.Explained
    onset: int
    old: tuple[int, int]


class FormatOnlyGain:
    """The reward rises by its parts of format and style, and its accuracy does not.

    What it observes:
        Parts of the reward (reward.fn.* or reward_parts), told apart by their names. The newest 20, 40 and 80 steps against as many
        before: the reward rose by more than three standard errors and 3 % of its range, parts of format and style (tags, structure,
        length, language) make up more than 70 % of the rise by their weights, and no part of accuracy rose: warn. The first 50 steps are
        left out.

    Why it matters:
        The curve that everyone looks at goes up while the model solves nothing more.

    Hypotheses:
        H20c gain in format only: its parts make up the rise, accuracy is flat or falls. H13c a pattern that never matches: accuracy was
        never earned. H1c truncation before the answer. H1a tasks too hard: whole groups fail. H2a the grader is exploited. H20b fault of
        the harness.

    When it is wrong:
        A planned phase that teaches the format first. Names that do not say what a part rewards: parts of neither kind count as others.

    Sources:
        symptoms 20.
    """

    code = "RS202"
    name = "format-only-gain"
    family = "verifier"
    status: Status = "preview"
    version = 1
    needs: tuple[tuple[str, ...], ...] = (
        ("reward.mean", "reward.generated.mean", "fact.reward.mean"),
        ("reward.fn.*", "fact.reward.part.*"),
    )
    params: tuple[Param, ...] = (
        Param("share", 0.7, "0..1", 0, 1, "symptoms 20", "part of the rise that comes from format and style"),
        Param("reward_z", 3, "standard errors", 1, 10, "default of ours", "noise of symptoms 0.3"),
        Param("reward_gain", 0.03, "share of the range", 0, 1, "default of ours"),
        Param("warm_up", 50, "steps", 0, 1000, "symptoms 20", "a format is learnt in the first tens of steps"),
    )
    hold_points = 20
    hypotheses: tuple[Hypothesis, ...] = (
        hypothesis("H20c", "metrics", parts.format_explains),
        hypothesis("H13c", "metrics", parts.accuracy_never_earned),
        hypothesis("H1c", "trajectories", reward.cut_before_answer),
        hypothesis("H1a", "trajectories", reward.signal_exists, prior=0.8),
        hypothesis("H2a", "trajectories", held_out.grader_exploited, prior=0.5),
        hypothesis("H20b", "metrics", evaluation.harness_failed, prior=0.5),
    )
    next_checks = SYMPTOMS["format-only-gain"].next_checks

    def evaluate(self, view: RunView) -> Sequence[Finding]:
        """The gain over the shortest span that shows it."""
        known = parts.parts_of(view)
        if not {"format", "accuracy"} <= {part.kind for part in known}:
            return ()
        gain = next(self._gains(view), None)
        if gain is None:
            return ()
        told = gain.explained
        accuracy = ", ".join(f"{name} {move.before:.3f} to {move.after:.3f}" for name, move in told.accuracy.items())
        rise = f"the reward went from {told.reward.before:.3f} to {told.reward.after:.3f} since step {gain.onset}"
        summary = f"{rise}, {min(told.share, 1):.0%} of it by {', '.join(told.formats)}; {accuracy}"
        metrics = [part.metric for part in known if part.kind != "other"]
        return (finding(view, self.name, "warn", gain.onset, summary, metrics[0], *metrics[1:], reward_metric(view) or ""),)

    def _gains(self, view: RunView) -> Iterator[_Gain]:
        p, metric = view.params, reward_metric(view)
        series = points(view, metric) if metric else None
        if metric is None or series is None or not fresh(view, series):
            return
        start = int(finite(view.series(metric)).steps[0]) + p["warm_up"]
        low, high = reward_range(view)
        for span in (20, 40, 80):
            steps = int(span * max(1.0, spacing(series)))
            old, new = (view.step - 2 * steps + 1, view.step - steps), (view.step - steps + 1, view.step)
            if old[0] < max(start, view.baseline_start):
                return
            # The reward alone is asked first: it settles most steps.
            inside = series.since(old[0])
            newer = inside.values[inside.steps > old[1]]
            if len(newer) < 5 or float(newer.mean() - inside.values[inside.steps <= old[1]].mean()) < p["reward_gain"] * (high - low):
                continue
            found = parts.explained(view, old, new)
            if found is None or found.reward.z < p["reward_z"] or found.share <= p["share"]:
                continue
            if all(move.change <= 0 for move in found.accuracy.values()):
                yield _Gain(found, new[0], old)
