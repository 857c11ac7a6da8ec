"""RS151 resume-discontinuity."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import server.checks.resume as resume
import server.checks.resume_causes as causes
from server.checks.measure import finding, reward_metric
from server.checks.resume import Jump, Resume
from server.detectors.middle import median
from server.queries.view import RunView
from server.rules.base import SEVERITIES, Finding, Hypothesis, Param, Severity, Status, hypothesis
from server.symptoms import SYMPTOMS


class ResumeDiscontinuity:
    """Something jumps where the run was resumed: state was lost, or data comes again.

    What it observes:
        A resume is the first step of a later attempt or an event of kind resume or restart. Across it: the learning rate against its
        schedule, or against the same step of the earlier attempt (critical); medians of ten points on both sides of reward, length,
        entropy, gradient norm and KL, apart by more than four spreads (two of them, or the reward falling, warn; one, watch); the share
        of prompts of the first five steps that the run had had before, against the share before the resume (more than 5 points
        above it and beyond chance, or whole earlier steps in their order: warn); trajectory ids twice in a step (warn); the KL to
        the reference falling to 0 (warn). Without any sign of a resume: earlier steps' prompts that come again in the same order, an
        info; a warn where the first updates there are several times their usual size, the learning rate leaves its schedule, or
        prompts had also repeated at random before, so that this is no new epoch.

    Why it matters:
        A lost optimiser state, cursor or seed is a different run than the one configured, and curves alone seldom show it.

    Hypotheses:
        H15c data cursor: earlier steps' prompts again. H15b optimiser: warm-up again, or first updates of several times the usual size.
        H15d seeds: the same texts in the same places. H14g duplicates after a resume: ids twice in a step.
        H15a older weights: levels of an earlier time. H15e engine not synchronised: large mismatch in the first batches.
        H15f stale rollouts: a jump of the lag. H15g configuration changed. H15h other hardware: another level of mismatch for good.

    When it is wrong:
        A new epoch in the same order that begins at the resume. A batch of unusual composition. A learning rate that a person
        changed on purpose, without an event that says so.

    Sources:
        symptoms 15; verl issue 3754 and open-r1 issue 450 (jumps at a resume).
    """

    code = "RS151"
    name = "resume-discontinuity"
    family = "integrity"
    status: Status = "stable"
    version = 1
    needs: tuple[tuple[str, ...], ...] = (
        (
            "reward.mean",
            "fact.reward.mean",
            "fact.repeat.prompt_frac",
            "fact.repeat.duplicate_frac",
            "lr",
            "entropy.mean",
            "grad.norm",
            "kl.ref",
        ),
    )
    params: tuple[Param, ...] = (
        Param("spreads", 4, "spreads", 2, 20, "symptoms 15", "difference of the medians that is a jump"),
        Param("overlap", 0.05, "0..1", 0, 1, "symptoms 15", "prompts repeated more often than before"),
        Param("chance", 4, "standard deviations", 2, 10, "default of ours", "by which repeats must exceed chance"),
        Param("watched_steps", 20, "steps", 5, 100, "default of ours", "steps after a resume in which it is judged"),
        Param(
            "random_repeats", 3, "prompts", 1, 100, "default of ours", "repeats in the 30 steps before by which a stretch is no new epoch"
        ),
    )
    hold_points = 20
    hypotheses: tuple[Hypothesis, ...] = (
        hypothesis("H15c", "trajectories", causes.cursor_reset),
        hypothesis("H15b", "metrics", causes.optimiser_lost),
        hypothesis("H15d", "trajectories", causes.seeds_reset),
        hypothesis("H14g", "trajectories", causes.duplicated_rows),
        hypothesis("H15a", "metrics", causes.weights_of_older),
        hypothesis("H15e", "metrics", causes.engine_unsynchronised),
        hypothesis("H15f", "trajectories", causes.rollouts_reused),
        hypothesis("H15g", "config", causes.config_changed),
        hypothesis("H15h", "metrics", causes.hardware_changed, prior=0.8),
    )
    next_checks = SYMPTOMS["resume-discontinuity"].next_checks

    def evaluate(self, view: RunView) -> Sequence[Finding]:
        """The gravest sign at the newest resume, while it is recent."""
        at = resume.newest(view)
        if at is None or not self._recent(view, at):
            return ()
        signs = self._announced(view, at) if at.announced else self._unannounced(view, at)
        found = max(signs, key=lambda f: SEVERITIES.index(f.severity), default=None)
        return () if found is None else (found,)

    def _recent(self, view: RunView, at: Resume) -> bool:
        """Within the steps watched, or, where metrics come rarely, within ten of their points."""
        if view.step - at.step <= view.params["watched_steps"]:
            return True
        metric = reward_metric(view)
        return metric is not None and len(view.series(metric).since(at.step)) <= resume.AFTER

    def _announced(self, view: RunView, at: Resume) -> Iterator[Finding]:
        yield from self._learning_rate(view, at)
        yield from self._duplicates(view, at)
        yield from self._prompts(view, at)
        yield from self._reference(view, at)
        yield from self._levels(view, at)

    def _learning_rate(self, view: RunView, at: Resume) -> Iterator[Finding]:
        found = resume.off_schedule(view, at.step)
        if found is None or any(e.kind in ("config", "config_change") for e in view.events(at.step - 5)):
            return
        summary = f"the learning rate is {found[1]:.3g} at the first step after the resume, {found[0]:.3g} by its schedule ({at.text})"
        yield finding(view, self.name, "critical", at.step, summary, "lr", "reward.mean", "kl.old", hard=True)

    def _duplicates(self, view: RunView, at: Resume) -> Iterator[Finding]:
        past, new = resume.sides(view, "fact.repeat.duplicate_frac", at.step, resume.PAST, 3)
        if len(past) and len(new) and past.max() == 0 and new.min() > 0:
            summary = f"{new[0]:.0%} of the trajectories are twice in their step since step {at.step}, none was before ({at.text})"
            yield finding(
                view, self.name, "warn", at.step, summary, "fact.repeat.duplicate_frac", "fact.n", "tokens.trained_over_generated"
            )

    def _prompts(self, view: RunView, at: Resume) -> Iterator[Finding]:
        found, p = resume.repeats(view, at.step), view.params
        if found is None:
            return
        more = found.share - found.before > p["overlap"] and found.z > p["chance"]
        if not more and not found.moved_back:
            return
        # Everything seen before, in another order: an epoch that ends here looks the same.
        severity: Severity = "warn" if found.moved_back or found.share < 0.95 else "watch"
        where = f", those of {found.distance} steps earlier in the same order" if found.moved_back else ""
        summary = (
            f"{found.share:.0%} of the prompts of the {found.steps} steps since step {at.step} had come before{where}; "
            f"{found.before:.0%} in the steps before ({at.text})"
        )
        yield finding(view, self.name, severity, at.step, summary, "fact.repeat.prompt_frac", "fact.repeat.block_frac", "reward.mean")

    def _reference(self, view: RunView, at: Resume) -> Iterator[Finding]:
        past, new = resume.sides(view, "kl.ref", at.step, resume.BEFORE, 3)
        if len(past) < resume.BEFORE or len(new) < 2:
            return
        if past.min() > 1e-3 and new.max() < 0.1 * past.min():
            summary = f"the KL to the reference falls from {median(past):.3g} to {median(new):.3g} at step {at.step} ({at.text})"
            yield finding(view, self.name, "warn", at.step, summary, "kl.ref", "reward.mean", "entropy.mean")

    def _levels(self, view: RunView, at: Resume) -> Iterator[Finding]:
        found = [j for m in resume.level_metrics(view) if (j := resume.jump(view, m, at.step)) is not None]
        jumped = [j for j in found if abs(j.z) > view.params["spreads"]]
        if not jumped:
            return
        reward = reward_metric(view)
        fell = any(j.metric == reward and j.z < 0 for j in jumped)
        severity: Severity = "warn" if len(jumped) > 1 or fell else "watch"
        first = max(jumped, key=lambda j: abs(j.z))
        summary = f"at step {at.step} {'; '.join(map(_told, jumped))} ({at.text})"
        yield finding(view, self.name, severity, at.step, summary, first.metric, *(j.metric for j in jumped if j is not first))

    def _unannounced(self, view: RunView, at: Resume) -> Iterator[Finding]:
        larger = resume.larger_first_updates(view, at.step)
        off = resume.off_schedule(view, at.step)
        prompts, _ = resume.sides(view, "fact.repeat.prompts", at.step, resume.PAST)
        seen, _ = resume.sides(view, "fact.repeat.prompt_frac", at.step, resume.PAST)
        again = round(float((prompts * seen).sum()))
        random = view.params["random_repeats"] <= again <= 0.5 * float(prompts.sum())
        signs = []
        if len(larger) >= 2:
            signs.append(f"{' and '.join(larger[:2])} of the first updates there are larger than in the {resume.PAST} steps before")
        if off is not None:
            signs.append(f"the learning rate is {off[1]:.3g} instead of {off[0]:.3g}")
        if random:
            signs.append(f"{again} prompts had repeated at random in the {resume.PAST} steps before, so it is no new epoch")
        severity: Severity = "warn" if signs else "info"
        summary = (
            f"prompts of {at.distance} steps earlier come again in the same order since step {at.step}, without a resume that is logged"
        )
        text = "; ".join([summary, *(signs or ["a new epoch in the same order looks like this"])])
        yield finding(view, self.name, severity, at.step, text, "fact.repeat.block_frac", "fact.repeat.prompt_frac", "kl.old")


def _told(jump: Jump) -> str:
    return f"{jump.metric} goes from {jump.before:.3g} to {jump.after:.3g}, {abs(jump.z):.1f} spreads"
