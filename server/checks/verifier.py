"""Checks of the verifier: constant, unanswered, contradictory or moved gradings."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from server.checks.base import CheckResult, Finding, answer, cannot
from server.checks.measure import finite, fresh, level, mean_of, moved, points, reward_metric
from server.detectors.level import since
from server.queries.view import RunView

_POLICY = ("entropy.mean", "length.response.mean", "kl.ref")
_TASKS = ("fact.difficulty", "fact.prompt.length", "length.prompt.mean")


def unanswered_share(view: RunView, newest: int = 3) -> float | None:
    """Share of trajectories whose verifier timed out or failed, mean of the newest points; None where no status is written."""
    late, failed = mean_of(view, "fact.verifier.timeout_frac", newest), mean_of(view, "fact.verifier.error_frac", newest)
    return None if late is None and failed is None else (late or 0.0) + (failed or 0.0)


def in_doubt(view: RunView) -> bool:
    """Whether more than 5 % of the gradings fail now: what rests on rewards is then a matter for the verifier first (symptoms 21)."""
    return (unanswered_share(view, 5) or 0.0) > 0.05


def policy_moved(view: RunView, newest: int = 3) -> dict[str, float]:
    """How far entropy, length and KL have left their baselines, in spreads, for those that the run has."""
    found = {metric: moved(view, metric, newest=newest, floor=0.05) for metric in _POLICY}
    return {metric: abs(value.z) for metric, value in found.items() if value is not None}


def tasks_moved(view: RunView, newest: int = 3) -> dict[str, float]:
    """The same for prompts and difficulty: easier or harder tasks move the reward too."""
    found = {metric: moved(view, metric, newest=newest, floor=0.02) for metric in _TASKS}
    return {metric: abs(value.z) for metric, value in found.items() if value is not None}


class Acceptance(NamedTuple):
    """Share of groups in which different answers to one prompt all got full reward, before and now."""

    before: float
    now: float
    error: float
    """Standard error of the difference, had nothing changed."""
    variety: float
    """Rise of the different answers per group: a policy that answers in another form raises both."""
    groups: int
    onset: int

    @property
    def rose(self) -> bool:
        """By more than four errors and five points from almost none, while answers did not become more various."""
        return self.before < 0.05 and self.now - self.before > max(0.05, 4 * self.error) and self.variety < 0.1


_ACCEPTED = "fact.group.accepted_differ_frac"
_FEWEST_GROUPS = 20


def acceptance(view: RunView) -> Acceptance | None:
    """The newest five points or more (20 groups) against the first hundred; None where either holds too few groups.

    The past is the run's beginning, so that a fault that lasts does not become its own past.
    """
    share, counts = points(view, _ACCEPTED), points(view, "fact.group.accepted_n")
    if len(share) < 15 or not fresh(view, share):
        return None
    n = counts.values[np.searchsorted(counts.steps, share.steps[-20:])]
    newest = max(5, int(np.searchsorted(np.cumsum(n[::-1]), _FEWEST_GROUPS)) + 1)
    first = min(100, len(share) - newest)
    if newest > 20 or first < 10:
        return None
    m = counts.values[np.searchsorted(counts.steps, share.steps[:first])]
    if float(m.sum()) < _FEWEST_GROUPS:
        return None
    n = n[-newest:]
    old, new = float((share.values[:first] * m).sum() / m.sum()), float((share.values[-newest:] * n).sum() / n.sum())
    p = max(old, 0.01)
    error = math.sqrt(p * (1 - p) * (1 / float(n.sum()) + 1 / float(m.sum())))
    at = since(share.values, max(0.02, 2 * old), allowed=max(4, newest // 2))
    rise = _variety_rise(view, int(share.steps[first - 1]), int(share.steps[-newest]))
    return Acceptance(old, new, error, rise, int(n.sum()), int(share.steps[min(at, len(share) - 1)]))


def _variety_rise(view: RunView, until: int, since: int) -> float:
    variety = points(view, "fact.group.answer_frac")
    before, now = variety.values[variety.steps <= until], variety.values[variety.steps >= since]
    return float(now.mean() - before.mean()) if len(before) and len(now) else 0.0


def grader_constant(view: RunView, finding: Finding) -> CheckResult:
    """One reward for every response, after different ones, while the policy stays where it was."""
    spread = level(view, "reward.std") if view.has("reward.std") else level(view, "fact.reward.std")
    if spread is None:
        return cannot("grader_constant", "reward.std")
    unanswered = unanswered_share(view) or 0.0
    calm = max(policy_moved(view.at(max(finding.onset_step, view.data.attempt_starts.get(1, finding.onset_step)))).values(), default=0.0)
    constant = spread < 1e-9 and unanswered < 0.05
    observed = {"reward_std": spread, "policy_moved": calm}
    return answer("grader_constant", constant, spread > 1e-6, observed, f"standard deviation of rewards {spread:.3g}")


def timeouts_counted(view: RunView, finding: Finding) -> CheckResult:
    """Unanswered gradings enter as the lowest reward, most often those of long responses."""
    share, zero = unanswered_share(view), mean_of(view, "fact.verifier.zero_frac")
    if share is None:
        return cannot("timeouts_counted", "verifier.status")
    ratio = level(view, "fact.verifier.length_ratio")
    observed = {"unanswered_frac": share, "zero_frac": zero, "length_ratio": ratio}
    note = f"{share:.1%} unanswered, {zero or 0:.1%} scored lowest"
    return answer("timeouts_counted", share > 0.01 and (zero or 0) > 0.5 * share, share < 0.002, observed, note)


def judge_contradicts(view: RunView, finding: Finding) -> CheckResult:
    """Equal responses to one prompt with different rewards, but far fewer than chance would give."""
    conflict, twins = mean_of(view, "fact.reward.conflict_frac", 5), mean_of(view, "fact.reward.twin_n", 5)
    if conflict is None:
        return cannot("judge_contradicts", "response", "prompt")
    observed = {"conflict_frac": conflict, "twin_n": twins}
    return answer("judge_contradicts", 0.02 < conflict < 0.2, conflict < 0.005, observed, f"{conflict:.1%} of equal responses disagree")


def rewards_shuffled(view: RunView, finding: Finding) -> CheckResult:
    """Equal responses whose rewards disagree as often as if rewards were dealt out at random."""
    conflict = mean_of(view, "fact.reward.conflict_frac", 5)
    if conflict is None:
        return cannot("rewards_shuffled", "response", "prompt")
    return answer(
        "rewards_shuffled", conflict > 0.25, conflict < 0.1, {"conflict_frac": conflict}, f"{conflict:.1%} of equal responses disagree"
    )


def never_matched(view: RunView, finding: Finding) -> CheckResult:
    """A reward component that has been exactly 0 from the first step on."""
    parts = view.matching("reward.fn.", ".mean")
    if not parts:
        return cannot("never_matched", "reward.fn.*.mean")
    dead = [m for m in parts if len(s := finite(view.series(m))) >= 5 and not np.any(s.values)]
    return answer("never_matched", bool(dead), not dead, {"components": len(parts), "always_zero": len(dead)}, ", ".join(dead[:3]))


def accepts_different(view: RunView, finding: Finding) -> CheckResult:
    """Different answers to one prompt get full reward, which a grader that reads the whole answer does not give."""
    found = acceptance(view)
    if found is None:
        return cannot("accepts_different", "response", "group_id", "reward")
    observed = {"before": found.before, "now": found.now, "groups": found.groups, "variety_rise": found.variety}
    note = f"different last words all got full reward in {found.now:.1%} of {found.groups} groups, {found.before:.1%} before"
    return answer("accepts_different", found.rose, found.now < 0.01, observed, note)


def version_changed(view: RunView, finding: Finding) -> CheckResult:
    """An event near the onset that names the grader, the verifier or the reward."""
    words = ("grader", "verifier", "reward", "judge")
    near = [e for e in view.events(finding.onset_step - 10) if any(word in f"{e.kind} {e.text}".lower() for word in words)]
    metric = reward_metric(view)
    change = moved(view, metric, newest=5) if metric else None
    observed = {"events": len(near), "reward_z": change.z if change else None}
    if near:
        return answer("version_changed", True, False, observed, near[0].text[:120])
    return answer("version_changed", False, False, observed, "no event names the grader")
