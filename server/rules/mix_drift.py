"""RS192 mix-drift."""

from __future__ import annotations

from collections.abc import Sequence

import server.checks.mix as mix
import server.checks.slices as slices
from server.checks.measure import finding
from server.queries.view import RunView
from server.rules.base import Finding, Hypothesis, Param, Severity, Status, hypothesis
from server.symptoms import SYMPTOMS


class MixDrift:
    """The prompts are no longer the mix that the run began with.

    What it observes:
        Shares of tasks, difficulties, origins, prompt lengths (half octaves) and, where it is written which responses are kept, of the
        kept tasks: population stability index of the newest 20 steps (200 prompts at least) against the first 50, less what sampling
        alone gives for so many prompts; it counts only beyond four of its standard deviations. Above .1 at three points: watch; above
        .25: warn (kept tasks never above watch: a filter is meant to follow what is learnt). A planned event begins a new baseline.
        The change of the reward is split into the tasks' own rewards and the mix; where the mix is more than half, the summary says so.

    Why it matters:
        A mean over another mix is another quantity: it rises or falls without any learning.

    Hypotheses:
        H19a sampler or curriculum: an event of the data, or the issued tasks moved. H19b filtering or completion order: kept tasks are not
        those that were issued. H19c real regression: the tasks' own rewards fell. H19d labels or source ids: prompts return under another
        task. H19e data order: an epoch begins. H19f the evaluation's prompts are longer than those trained on now.

    When it is wrong:
        A new task that was added on purpose, sampling that adapts to difficulty. Batches of one source differ from step to step; the
        noise is taken from the first steps for that.

    Sources:
        symptoms 19 and 22 (common practice for the limits of the index).
    """

    code = "RS192"
    name = "mix-drift"
    family = "groups"
    status: Status = "preview"
    version = 1
    needs: tuple[tuple[str, ...], ...] = (
        ("fact.mix.task.*", "fact.mix.difficulty.*", "fact.mix.origin.*", "fact.mix.prompt_length.*", "fact.mix.kept_task.*"),
    )
    params: tuple[Param, ...] = (
        Param("watch", 0.1, "index", 0, 5, "symptoms 22"),
        Param("warn", 0.25, "index", 0, 5, "symptoms 22"),
        Param("points", 3, "points", 1, 50, "default of ours", "points in a row above the limit"),
        Param("mix_share", 0.5, "0..1", 0, 1, "symptoms 19", "part of the reward's change above which it is the mix"),
    )
    hold_points = 20
    hypotheses: tuple[Hypothesis, ...] = (
        hypothesis("H19a", "trajectories", mix.sampler_moved),
        hypothesis("H19b", "trajectories", mix.kept_differs),
        hypothesis("H19d", "trajectories", mix.source_ids_changed),
        hypothesis("H19e", "metrics", slices.epoch_boundary),
        hypothesis("H19c", "trajectories", mix.values_fell, prior=0.8),
        hypothesis("H19f", "trajectories", mix.lengths_part, prior=0.8),
    )
    next_checks = SYMPTOMS["mix-drift"].next_checks

    def evaluate(self, view: RunView) -> Sequence[Finding]:
        """The mix that drifted most."""
        p = view.params
        points = int(p["points"])
        if view.step not in mix.loud_steps(view, p["watch"], points):
            return ()
        found = [one for kind in mix.mixes(view).values() if (one := mix.drifted(view, kind, p["watch"], points)) is not None]
        if not found:
            return ()
        # The warn is of a mix that may warn, also where a kept mix moved further.
        loud = [one for one in found if one.of.kind != "kept_task" and one.excess > p["warn"]]
        loud = [one for one in loud if mix.drifted(view, one.of, p["warn"], points) is not None]
        worst = max(loud or found, key=lambda one: one.excess)
        severity: Severity = "warn" if loud else "watch"
        summary = (
            f"the mix of {mix.KINDS[worst.of.kind]} moved by an index of {worst.excess:.2f} since step {worst.onset}: "
            f"{worst.label} from {worst.before:.0%} to {worst.after:.0%}"
        )
        parts = mix.decomposition(view, worst.first, worst.newest)
        if parts is not None:
            label = " (mix)" if parts.share > p["mix_share"] else ""
            summary += f"; the reward moved {parts.total:+.3f}, of it {parts.mix:+.3f} by the mix of tasks{label}"
        metric = f"fact.mix.{worst.of.kind}.{worst.label}"
        if not view.has(metric):
            metric = f"fact.mix.{worst.of.kind}.{worst.of.labels[0]}"
        return (finding(view, self.name, severity, worst.onset, summary, metric, "fact.reward.fixed_mix", "reward.mean", newest=20),)
