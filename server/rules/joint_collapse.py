"""RS081 joint-collapse."""

from __future__ import annotations

from collections.abc import Sequence

import server.checks.collapse as collapse
import server.checks.repeats as repeats
import server.checks.second as second
from server.queries.view import RunView
from server.rules.base import Finding, Hypothesis, Param, Status, hypothesis
from server.symptoms import SYMPTOMS


class JointCollapse:
    """At least three of the five families leave their limits within ten steps, quality among them.

    What it observes:
        The findings of the other rules at warn and above, by family: quality (reward, evaluation), distribution (entropy, KL), shape
        (length, truncation), optimiser (gradient, ratio, clipping), engine (mismatch, staleness). The engine puts them together; this
        rule declares it. The parts are listed in the order in which they began. It lasts while its part of quality lasts: a run whose
        gradients are calm again and whose reward stays down has not recovered.

    Why it matters:
        Runs seldom recover from it, and afterwards everything looks wrong at once. What moved first is the likely beginning.

    Hypotheses:
        Those of the family whose onset leads by more than five steps: engine first points to mismatch, shape first to truncation,
        distribution first to entropy, optimiser first to the step size, quality alone to the grader; all at one step to a resume, a
        configuration event or NaN. These stand for H8a mismatch spiral, H8b truncation spiral and H8c negative samples. Besides, of its
        own: H8d KL brake of the wrong sign: KL grows faster with a larger coefficient. H8e death by NaN. H8f epoch boundary or
        repeated data. H8g resume or event near the onset. H8h reward hacking before it.

    When it is wrong:
        Curriculum stages, planned changes of the cap, resets of the reference, short dips that recover.

    Sources:
        symptoms 8, 0.3 and 21: five of six public collapses, 5 to 15 steps after the onset.
    """

    code = "RS081"
    name = "joint-collapse"
    family = "joint"
    status: Status = "stable"
    version = 1
    needs: tuple[tuple[str, ...], ...] = (("reward.generated.mean", "reward.mean", "fact.reward.mean"),)
    params: tuple[Param, ...] = ()
    hold_points = 20
    hypotheses: tuple[Hypothesis, ...] = (
        hypothesis("H8g", "metrics", collapse.event_near, prior=0.8),
        hypothesis("H8e", "metrics", collapse.death_by_nan, prior=0.8),
        hypothesis("H8d", "second_run", second.brake_reversed, action="Double the KL coefficient: KL must grow more slowly.", prior=0.8),
        hypothesis("H8f", "trajectories", collapse.epoch_border, repeats.duplicated, prior=0.8),
        hypothesis("H8h", "metrics", collapse.hacked_before, prior=0.8),
    )
    next_checks = SYMPTOMS["joint-collapse"].next_checks

    def evaluate(self, view: RunView) -> Sequence[Finding]:
        """Nothing by itself: the engine composes it from the others' findings."""
        return ()
