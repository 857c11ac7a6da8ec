"""RS201 eval-budget-changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import server.checks.evaluation as evaluation
import server.checks.parts as parts
from server.checks.measure import finding
from server.queries.view import RunView
from server.rules.base import SEVERITIES, Finding, Hypothesis, Param, Severity, Status, hypothesis
from server.symptoms import SYMPTOMS


class EvalBudgetChanged:
    """The evaluation is no longer the one it was, so that its values cannot be compared across the change.

    What it observes:
        Rows of the evaluations (split eval): token budget, temperature, top_p, top_k, responses an item and grader, each equal before
        and another now: warn. Their prompts, where three evaluations had the same ones: less than 90 % of them again is critical for
        every comparison. The number of responses as logged. The truncated share of the evaluation moved by more than .1 and six times
        its scatter at one evaluation while training's did not: warn; the length of its responses by more than 25 %: watch. Where an
        event names the evaluation, all of these are a watch: announced, but not comparable. The primary score equal to 4 digits at
        three evaluations (as many as chance does not explain), or exactly 0 or 1 while the training reward says otherwise: warn.

    Why it matters:
        A smaller budget looks like a loss and a larger one like a gain, and decisions about checkpoints are taken by it.

    Hypotheses:
        H20a budget: settings, or length and truncation of the evaluation alone. H20b fault of the harness: a score that stands still,
        or breaks down while training holds. H20d other items: prompts compared. H20e contamination: one evaluation rises far more than
        its siblings. H20c gain in format only: parts of the reward. H13g another version of the grader.

    When it is wrong:
        Rows that hold another sample of the items at each evaluation (told by their overlap), sets of a few items, scores at their bound.

    Sources:
        symptoms 20; pytorch/torchtitan 3602.
    """

    code = "RS201"
    name = "eval-budget-changed"
    family = "integrity"
    status: Status = "stable"
    version = 1
    needs: tuple[tuple[str, ...], ...] = (("eval.*", "fact.eval.*"),)
    params: tuple[Param, ...] = (
        Param("overlap", 0.9, "0..1", 0, 1, "default of ours", "prompts that come again, below which the items are others"),
        Param("truncated", 0.1, "0..1", 0, 1, "default of ours", "step in the truncated share"),
        Param("length", 0.25, "share", 0, 5, "symptoms 20", "step in the length of responses"),
    )
    hold_points = 6
    hypotheses: tuple[Hypothesis, ...] = (
        hypothesis("H20a", "trajectories", evaluation.budget_moved),
        hypothesis("H20d", "trajectories", evaluation.items_differ),
        hypothesis("H20b", "metrics", evaluation.harness_failed),
        hypothesis("H13g", "trajectories", evaluation.grader_moved, prior=0.8),
        hypothesis("H20e", "metrics", evaluation.contaminated, prior=0.8),
        hypothesis("H20c", "metrics", parts.format_explains, prior=0.8),
    )
    next_checks = SYMPTOMS["eval-budget-changed"].next_checks

    def evaluate(self, view: RunView) -> Sequence[Finding]:
        """The gravest of what changed at the newest evaluations; nothing between two of them."""
        if not evaluation.evaluated(view):
            return ()
        found = max((*self._changes(view), *self._frozen(view)), key=lambda f: SEVERITIES.index(f.severity), default=None)
        return () if found is None else (found,)

    def _changes(self, view: RunView) -> Iterator[Finding]:
        p, score = view.params, evaluation.eval_metric(view) or "fact.eval.score"
        for change in evaluation.changes(view):
            if change.kind == "items" and change.after >= p["overlap"]:
                continue
            if change.kind == "truncated" and abs(change.after - change.before) <= p["truncated"]:
                continue
            if change.kind == "length" and abs(change.after - change.before) <= p["length"] * abs(change.before):
                continue
            event = evaluation.announced(view, change)
            severity: Severity = "critical" if change.kind == "items" else "watch" if change.kind == "length" else "warn"
            if event is not None:
                severity = "watch"
            summary = f"{evaluation.described(change)} between the evaluations of steps {change.since} and {change.step}"
            summary += f"; announced: {event.text}" if event is not None else ", without an event"
            yield finding(
                view,
                self.name,
                severity,
                change.step,
                summary,
                change.metric,
                score,
                "reward.mean",
                hard=change.kind in ("setting", "items"),
            )

    def _frozen(self, view: RunView) -> Iterator[Finding]:
        still = evaluation.frozen(view)
        if still is not None:
            summary = f"{still.metric} is {still.value:.4g} at {still.n} evaluations in a row, since step {still.step}"
            yield finding(view, self.name, "warn", still.step, summary, still.metric, "reward.mean")
