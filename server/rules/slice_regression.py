"""RS191 slice-regression."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import server.checks.integrity as integrity
import server.checks.slices as slices
from server.checks.measure import finding, fresh, reward_range
from server.queries.view import RunView
from server.rules.base import Finding, Hypothesis, Param, Status, hypothesis
from server.symptoms import SYMPTOMS


class SliceRegression:
    """One task gets worse while the others hold, so that the aggregate hides it.

    What it observes:
        Training reward and evaluation of every task by itself. The newest samples (200 responses or 30 prompts; 20 points where nothing
        says how many responses a point has; 4 evaluations; and four times as much, for slow falls) against 50 older points, taken
        directly before, 50 and 200 points earlier. A fall beyond four standard errors and 5 % of the range at three points of the task,
        that is a discovery over all tasks at a false discovery rate of .1, while the other tasks together fall by less than a quarter
        of it: warn, one incident a task. Simpson: the reward rises while tasks with at least 60 % of the responses fall: warn.

    Why it matters:
        A task of one tenth of the prompts can be lost without a trace in the mean, and what replaces it is what was rewarded instead.

    Hypotheses:
        H19c real regression: the task's evaluation falls too, and equal responses score as before.
        H13b wrong labels or grading of the task: equal responses score otherwise than before, or contradict each other, or the task's
        evaluation holds while its training reward falls. H14d advantages of the task have the wrong sign.
        H13e unanswered gradings of the task. H19a sampler or curriculum: its prompts became harder or longer. H19b filtering: other rows
        of it are kept. H19d labels or source ids: the prompts under its name are others. H19e data order: an epoch ends at the onset.
        H19f training and evaluation differ in length.

    When it is wrong:
        Small tasks, a task that is new, sampling that adapts to difficulty. Where no row says how many responses a point has, points count.

    Sources:
        symptoms 19; Benjamini and Hochberg 1995.
    """

    code = "RS191"
    name = "slice-regression"
    family = "quality"
    status: Status = "stable"
    version = 1
    needs: tuple[tuple[str, ...], ...] = (("fact.task.reward.*", "reward.task.*.mean", "eval.*.score", "eval.*.mean@*"),)
    params: tuple[Param, ...] = (
        Param("errors", 4, "standard errors", 2, 20, "symptoms 19", "a fall counts beyond them"),
        Param("fall", 0.05, "share of the range", 0, 1, "default of ours", "smaller falls are of no interest however certain"),
        Param("points", 3, "points", 1, 20, "default of ours", "points of the task in a row at which it holds"),
        Param("discovery_rate", 0.1, "0..1", 0.001, 0.5, "symptoms 19", "Benjamini and Hochberg, over the tasks"),
        Param("others", 0.25, "share of the fall", 0, 1, "default of ours", "the other tasks hold while they fall by less"),
        Param("simpson_share", 0.6, "0..1", 0.5, 1, "symptoms 19", "responses of tasks that move against the aggregate"),
    )
    hold_points = 20
    hypotheses: tuple[Hypothesis, ...] = (
        hypothesis("H19c", "metrics", slices.evaluation_fell, slices.same_pairs_hold),
        hypothesis("H13b", "trajectories", slices.labels_contradict),
        hypothesis("H14d", "trajectories", integrity.sign_reversed, integrity.update_wrong_way, prior=0.8),
        hypothesis("H13e", "trajectories", slices.gradings_unanswered, prior=0.8),
        hypothesis("H19d", "trajectories", slices.other_prompts, prior=0.8),
        hypothesis("H19a", "trajectories", slices.harder_prompts, prior=0.8),
        hypothesis("H19b", "trajectories", slices.kept_otherwise, prior=0.8),
        hypothesis("H19e", "metrics", slices.epoch_boundary, prior=0.8),
        hypothesis("H19f", "trajectories", slices.evaluation_longer, prior=0.8),
    )
    next_checks = SYMPTOMS["slice-regression"].next_checks

    def evaluate(self, view: RunView) -> Sequence[Finding]:
        """Every task that falls while the others hold, and the paradox over all."""
        found = [*self._falling(view)]
        return found or tuple(self._simpson(view))

    def _falling(self, view: RunView) -> Iterator[Finding]:
        p = view.params
        told: set[str] = set()
        for kind in (slices.training_slices, slices.eval_slices):
            for one in slices.falling(view, kind, p["errors"], int(p["points"]), p["discovery_rate"]):
                if one.of.name in told or not fresh(view, one.of.series):
                    continue
                low, high = reward_range(view)
                others = slices.others_change(view, kind, one)
                if -one.change < p["fall"] * (high - low) or others is None or others < p["others"] * one.change:
                    continue
                told.add(one.of.name)
                where = "training reward" if kind is slices.training_slices else "evaluation"
                summary = (
                    f"{where} of {one.of.name} went from {one.before:.3f} to {one.after:.3f} ({one.z:.1f} errors, {one.samples}) "
                    f"since step {one.onset}; the other tasks together {others:+.3f}"
                )
                beside = (slices.eval_metric_of(view, one.of.name) or "", f"fact.mix.task.{one.of.name}", "reward.mean")
                yield finding(view, self.name, "warn", one.onset, summary, one.of.metric, *beside, slice=one.of.name)

    def _simpson(self, view: RunView) -> Iterator[Finding]:
        paradox = slices.paradox(view, view.params["simpson_share"])
        if paradox is not None:
            summary = (
                f"the reward went from {paradox.gain.before:.3f} to {paradox.gain.after:.3f} since step {paradox.onset} while "
                f"{', '.join(paradox.tasks)} fell, with {paradox.share:.0%} of the responses: the mix moved, not the policy"
            )
            yield finding(view, self.name, "warn", paradox.onset, summary, paradox.metric, "fact.reward.fixed_mix")
