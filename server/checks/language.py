"""Checks of mixed languages: harmless, or the first sign of damage."""

from __future__ import annotations

from server.checks.base import CheckResult, Finding, answer, cannot
from server.checks.distribution import quality_since
from server.checks.measure import mean_of, moved, reward_fell, reward_range
from server.queries.view import RunView


def mixed_score_as_well(view: RunView, finding: Finding) -> CheckResult:
    """Responses with foreign script are rewarded like the others."""
    mixed, plain = mean_of(view, "fact.script.reward_mixed", 20), mean_of(view, "fact.script.reward_plain", 20)
    if mixed is None or plain is None:
        return cannot("mixed_score_as_well", "prompt", "response", "reward")
    low, high = reward_range(view)
    gap = (mixed - plain) / (high - low)
    note = f"reward {mixed:.2f} with foreign script, {plain:.2f} without"
    return answer("mixed_score_as_well", gap > -0.05, gap < -0.15, {"mixed": mixed, "plain": plain}, note)


def quality_holds(view: RunView, finding: Finding) -> CheckResult:
    """Neither evaluation nor reward has fallen since the onset."""
    evaluation, reward = quality_since(view, finding.onset_step)
    known = [z for z in (evaluation, reward) if z is not None]
    if not known:
        return cannot("quality_holds", "eval.heldout.score", "reward.mean")
    note = f"lowest change of quality {min(known):+.1f} errors"
    return answer("quality_holds", min(known) > -1, min(known) < -2, {"eval_z": evaluation, "reward_z": reward}, note)


def damage_begins(view: RunView, finding: Finding) -> CheckResult:
    """Entropy above its past and the reward falling: gibberish rather than another language."""
    entropy = next((v for m in ("entropy.mean", "entropy.sampled") if (v := moved(view, m, newest=5)) is not None), None)
    if entropy is None:
        return cannot("damage_begins", "entropy.mean")
    fell = reward_fell(view, finding.onset_step) is not None
    note = f"entropy {entropy.z:+.1f} spreads from its past, reward {'fell' if fell else 'holds'}"
    return answer("damage_begins", entropy.z > 4 and fell, entropy.z < 2 and not fell, {"entropy_z": entropy.z, "fell": int(fell)}, note)
