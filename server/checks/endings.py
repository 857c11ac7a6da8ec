"""Checks of how responses end: lost termination, answers that were complete before the cut, the cap and the end token."""

from __future__ import annotations

from server.checks.base import CheckResult, Finding, answer, cannot
from server.checks.levels import since_onset_levels
from server.checks.measure import finite, mean_of, reward_metric, reward_range, since_onset
from server.checks.shape import TRUNCATED
from server.queries.endings import complete_before_cut
from server.queries.view import RunView

_WINDOW_STEPS = 20
_LOOK_BACK_STEPS = 60
_LEAST_COMPARED = 8
"""Cut responses below which a share says nothing."""


def answer_before_cut(view: RunView, finding: Finding) -> CheckResult:
    """Cut responses that hold a rewarded answer to their prompt before they go on: the end was lost, not the answer."""
    first = max(finding.onset_step, view.step - _WINDOW_STEPS)
    found = complete_before_cut(view, first, view.step, _LOOK_BACK_STEPS)
    if found.compared < _LEAST_COMPARED:
        return cannot(
            "answer_before_cut", "response", "finish_reason", note=f"{found.compared} cut responses to prompts with a rewarded answer"
        )
    share = found.complete / found.compared
    observed = {"compared": found.compared, "complete": found.complete}
    note = f"{share:.0%} of {found.compared} cut responses already hold a rewarded answer"
    return answer("answer_before_cut", share > 0.3, share < 0.05, observed, note)


def cut_are_rewarded(view: RunView, finding: Finding) -> CheckResult:
    """Whether cut responses get reward: as the trajectories say, else as the mean over all forces.

    With a share c of responses cut and a mean m of a reward from low to high, the others account for (1 - c) (high - low) at most;
    what is above it, cut responses got.
    """
    cut = since_onset_levels(view, TRUNCATED, finding.onset_step)
    scored, others = (since_onset(view, f"fact.reward.{m}.mean", finding.onset_step, 5) for m in ("truncated", "terminated"))
    low, high = reward_range(view)
    if scored is not None:
        place = (scored - low) / (high - low)
        beside = (others - low) / (high - low) if others is not None else None
        kept = place > 0.2 and (beside is None or place > 0.7 * beside)
        note = f"cut responses score {scored:.2f}" + (f", others {others:.2f}" if others is not None else "")
        return answer("cut_are_rewarded", kept, False, {"reward_truncated": scored, "reward_others": others}, note)
    metric = reward_metric(view)
    now = mean_of(view, metric, 5) if metric else None
    if cut is None or now is None:
        return cannot("cut_are_rewarded", "finish_reason", "reward", *TRUNCATED)
    share = cut[1]
    least = ((now - low) / (high - low) - (1 - share)) / share if share > 0.05 else 0.0
    note = f"{share:.0%} cut and a mean reward of {now:.2f}: cut responses score {max(least, 0.0):.2f} or more"
    return answer("cut_are_rewarded", least > 0.3, False, {"truncated_frac": share, "reward": now, "least": least}, note)


def right_keep_length(view: RunView, finding: Finding) -> CheckResult:
    """More responses are cut while those that end, or that are right, are as long as before: length did not grow into the cap."""
    cut = since_onset_levels(view, TRUNCATED, finding.onset_step)
    own = since_onset_levels(view, ("fact.length.correct.mean", "length.response.terminated.mean"), finding.onset_step)
    if cut is None or own is None:
        return cannot("right_keep_length", *TRUNCATED, "fact.length.correct.mean", "length.response.terminated.mean")
    if own[1] <= 0:  # trainers write 0 where no response ended
        return cannot("right_keep_length", "length.response.terminated.mean", note="no response ended by itself")
    more, grew = cut[1] - cut[0], own[1] / max(own[0], 1.0) - 1
    entropy = since_onset_levels(view, ("entropy.mean", "entropy.sampled"), finding.onset_step)
    # Text that falls apart does not end either; then the length of what still ends says nothing about the end.
    apart = entropy is not None and entropy[1] > 2 * entropy[0] and entropy[1] > 0.5
    observed = {"truncated_before": cut[0], "truncated_now": cut[1], "growth": grew, "entropy": entropy[1] if entropy else None}
    note = f"truncated {cut[0]:.1%} to {cut[1]:.1%}, length of right or ended responses {grew:+.0%}"
    note += f", entropy rose to {entropy[1]:.2f} nats" if apart and entropy else ""
    return answer("right_keep_length", more > 0.1 and grew < 0.15 and not apart, more < 0.02 or grew > 0.4, observed, note)


def end_token_rarer(view: RunView, finding: Finding) -> CheckResult:
    """The log-prob of the end token where responses end by themselves, against before.

    A policy that has lost the end gives it less; a stop condition that the engine does not apply leaves it as it was.
    """
    found = since_onset_levels(view, ("fact.logprob.end",), finding.onset_step)
    if found is None:
        return cannot("end_token_rarer", "rollout_logprobs", "finish_reason")
    fell = found[0] - found[1]
    note = f"end token at {found[1]:.3f} nats, {found[0]:.3f} before"
    return answer("end_token_rarer", fell > 0.1 and fell > abs(found[0]), False, {"before": found[0], "now": found[1]}, note)


def cap_above_need(view: RunView, finding: Finding) -> CheckResult:
    """The cap against the 95th percentile of all responses: at a cap far above it, cut responses did not need more room."""
    cap, long = view.config.get("max_response_tokens"), finite(view.series("fact.length.correct.p99"))
    before = long.values[long.steps < finding.onset_step][-20:]
    if not isinstance(cap, (int, float)) or len(before) < 3:
        return cannot("cap_above_need", "config.max_response_tokens", "response_tokens")
    times = float(cap) / max(sorted(before.tolist())[len(before) // 2], 1.0)
    note = f"the cap is {times:.1f} times the longest right responses of before"
    return answer("cap_above_need", times < 1.2, times > 2, {"cap": float(cap), "times": times}, note)


def end_too_early(view: RunView, finding: Finding) -> CheckResult:
    """Responses end at once because the end token is drawn where it was rare: the engine or the policy ends too early."""
    found = since_onset_levels(view, ("fact.logprob.end",), finding.onset_step)
    if found is None:
        return cannot("end_too_early", "rollout_logprobs", "finish_reason")
    note = f"end token at {found[1]:.3f} nats, {found[0]:.3f} before"
    # An end that the policy itself has come to expect is no fault of termination.
    return answer("end_too_early", found[1] < found[0] - 1, found[1] > found[0] - 0.2, {"before": found[0], "now": found[1]}, note)
