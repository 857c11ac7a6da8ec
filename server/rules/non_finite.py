"""RS052 non-finite."""

from __future__ import annotations

from collections.abc import Sequence

import server.checks.integrity as integrity
import server.checks.optimiser as optimiser
import server.checks.repeats as repeats
import server.checks.tokens as tokens
from server.checks.measure import finding
from server.queries.view import RunView
from server.rules.base import Finding, Hypothesis, Param, Status, hypothesis
from server.symptoms import SYMPTOMS


class NonFinite:
    """A loss, gradient norm, KL, ratio or entropy is NaN or infinite.

    What it observes:
        Every logged value of the losses, gradient norms, KLs, ratios, entropies and the reward. One that is NaN or infinite is
        enough; there is no window. In the first two steps it is a fault of the set-up.

    Why it matters:
        An update with NaN destroys the weights; if the trainer skips it, the batch is lost and the cause stays. A run can go on
        for hours with a dead policy whose metrics are constant.

    Hypotheses:
        H5d numerics: the value breaks off without growth before it; the first metric that is not finite says where.
        H5a step size: gradient norm or KL had left their bands before. H5b off-policy reuse, H5c few extreme tokens.
        H5e degenerate batch: one response holds most of the loss, no group has any variance, or nothing was trained at all.
        H5f data outlier: one prompt in every step that breaks. H5g change of scale: an event. H5h the critic's loss jumped first.

    When it is wrong:
        A trainer that writes NaN for "not measured". Such series are NaN from the first step on and are named in the summary.

    Sources:
        symptoms 5; verl issue 721 (old log-probs NaN before the update); reports of scores constant at "!!!!" afterwards.
    """

    code = "RS052"
    name = "non-finite"
    family = "integrity"
    status: Status = "stable"
    version = 1
    needs: tuple[tuple[str, ...], ...] = (("loss.policy", "loss.total", "loss.value", "grad.norm", "kl.old", "kl.ref", "entropy.mean"),)
    params: tuple[Param, ...] = (Param("setup_steps", 2, "steps", 0, 20, "symptoms 5", "up to here it is called a fault of the set-up"),)
    hold_points = 20
    hypotheses: tuple[Hypothesis, ...] = (
        hypothesis("H5d", "metrics", integrity.born_suddenly, integrity.born_in_log_probs),
        hypothesis("H5a", "metrics", integrity.grew_before, optimiser.rate_rose),
        hypothesis("H5e", "trajectories", optimiser.degenerate_batch, integrity.nothing_trained),
        hypothesis("H5b", "config", optimiser.batch_reused, prior=0.5),
        hypothesis("H5c", "tokens", tokens.few_tokens, prior=0.5),
        hypothesis("H5g", "metrics", optimiser.scale_changed, prior=0.8),
        hypothesis("H5h", "metrics", optimiser.critic_first, prior=0.8),
        hypothesis(
            "H5f", "trajectories", repeats.same_prompt, action="Look whether the same prompt ids are in every step that breaks.", prior=0.8
        ),
    )
    next_checks = SYMPTOMS["non-finite"].next_checks

    def evaluate(self, view: RunView) -> Sequence[Finding]:
        """Critical at a step with a value that is not finite."""
        bad = optimiser.not_finite_at(view)
        if not bad:
            return ()
        onset = min(first for _, first in bad)
        names = [name for name, first in bad if first == onset] or [name for name, _ in bad]
        early = view.step - optimiser.first_step(view) < view.params["setup_steps"]
        summary = f"{', '.join(sorted(names)[:4])} not finite at step {view.step}, since step {onset}"
        summary += "; at the very start this is a fault of the set-up" if early else ""
        return (finding(view, self.name, "critical", onset, summary, sorted(names)[0], "grad.norm", "kl.old", "loss.policy", hard=True),)
