"""Checks of a reward that does not move or falls: signal, grader, truncation, updates, advantages, ceiling, what moved first."""

from __future__ import annotations

import math
from collections import Counter

from server.checks.base import CheckResult, Finding, Observed, answer, cannot, wants_second_run
from server.checks.groups import all_fail
from server.checks.measure import finite, level, mean_of, moved, points, reward_metric, reward_range, shift
from server.detectors.middle import median
from server.queries.view import RunView, Series

_FEWEST_KL = 5


def signal_exists(view: RunView, finding: Finding) -> CheckResult:
    """Too hard: most groups fail altogether, so that pass@G is near 0; a pass@G far above the mean reward speaks against it."""
    none = all_fail(view)
    if none is None:
        return cannot("signal_exists", "group.solve_none_frac", "group_id")
    distinct = level(view, "fact.reward.distinct", 5)
    constant = distinct is not None and distinct <= 1
    metric = reward_metric(view)
    low, high = reward_range(view)
    mean = mean_of(view, metric, 10) if metric else None
    place = (mean - low) / (high - low) if mean is not None else None
    reaches = place is not None and 1 - none > place + 0.2
    note = f"{none:.0%} of the groups fail altogether: pass@G {1 - none:.2f}" + (f", mean {place:.2f}" if place is not None else "")
    return answer("signal_exists", none > 0.8 and not constant, none < 0.5 or reaches, {"all_fail": none, "mean": place}, note)


def few_values(view: RunView, finding: Finding) -> CheckResult:
    """A constant grader: one reward value, or equal texts graded differently."""
    distinct, spread = level(view, "fact.reward.distinct", 10), level(view, "reward.std", 10)
    conflict = mean_of(view, "fact.reward.conflict_frac", 10)
    if distinct is None and spread is None:
        return cannot("few_values", "reward", "reward.std")
    constant = (distinct is not None and distinct <= 1) or (spread is not None and spread < 1e-9)
    broken = constant or (conflict or 0) > 0.1
    observed = {"distinct": distinct, "std": spread, "conflict_frac": conflict}
    note = f"{distinct or 0:.0f} different rewards, {conflict or 0:.1%} of equal responses disagree"
    return answer("few_values", broken, not constant and (conflict or 0) < 0.02, observed, note)


def failures_alike(view: RunView, finding: Finding) -> CheckResult:
    """Low rewards that share one reason of failure (parser, format, verifier): the grader or its input, not the answers."""
    rows = view.trajectories(view.step - 10, view.step, ("reward", "failure_type"))
    low, high = reward_range(view)
    pairs = zip(rows["reward"], rows["failure_type"], strict=True)
    failed = [kind for reward, kind in pairs if isinstance(reward, float) and reward <= low + 0.05 * (high - low)]
    named = [str(kind) for kind in failed if kind is not None]
    if len(named) < 20:
        return cannot("failures_alike", "failure_type", note="fewer than 20 failures with a reason in ten steps")
    kind, count = Counter(named).most_common(1)[0]
    share = count / len(failed)
    observed: Observed = {"failures": len(failed), "most_frequent": kind, "share": share}
    return answer("failures_alike", share > 0.9, share < 0.5, observed, f"{share:.0%} of {len(failed)} failures are {kind}")


def cut_before_answer(view: RunView, finding: Finding) -> CheckResult:
    """Truncation before the answer: more than half are cut, and these score nothing."""
    share = mean_of(view, "length.response.truncated_frac", 10) if view.has("length.response.truncated_frac") else None
    share = share if share is not None else mean_of(view, "fact.truncated_frac", 10)
    cut, others = mean_of(view, "fact.reward.truncated.mean", 10), mean_of(view, "fact.reward.terminated.mean", 10)
    if share is None:
        return cannot("cut_before_answer", "length.response.truncated_frac", "finish_reason")
    worse = cut is None or others is None or cut < 0.5 * others
    equal = cut is not None and others is not None and cut > 0.9 * others > 0
    note = f"{share:.0%} of the responses are cut"
    if cut is not None and others is not None:
        note += f", rewarded {cut:.2f} against {others:.2f} of the others"
    observed = {"truncated_frac": share, "reward_cut": cut, "reward_others": others}
    return answer("cut_before_answer", share > 0.5 and worse, share < 0.1 or equal, observed, note)


def policy_stands(view: RunView, finding: Finding) -> CheckResult:
    """Updates too small: KL to the reference stays near 0 and does not grow, although there is a gradient.

    A loss that is printed as 0 says nothing: on-policy it is 0 by construction.
    """
    series, gradient = points(view, "kl.ref"), level(view, "grad.norm", 10)
    if len(series) < _FEWEST_KL:
        return cannot("policy_stands", "kl.ref")
    now, early = median(series.values[-10:]), median(series.values[: max(3, len(series) // 4)])
    rate = level(view, "lr", 10)
    observed = {"kl_ref": now, "at_start": early, "grad_norm": gradient, "lr": rate}
    still = standing(series)
    note = f"reference KL {now:.2g} nats after {len(series)} points, {early:.2g} at the start"
    return answer(
        "policy_stands", still and (gradient is None or gradient > 1e-4), now > 0.02 or now > 10 * max(early, 1e-5), observed, note
    )


def standing(series: Series) -> bool:
    """Whether a KL is so small and so constant that the policy cannot have moved: an order of 1e-4 without growth."""
    if len(series) < _FEWEST_KL:
        return False
    now, early = median(series.values[-10:]), median(series.values[: max(3, len(series) // 4)])
    return -1e-4 < now < 2e-3 and now < 1.5 * max(early, 1e-4)


def no_gradient(view: RunView, finding: Finding) -> CheckResult:
    """A gradient of exactly 0 although rewards differ within groups, or an engine whose weights do not advance."""
    gradient, zero = level(view, "grad.norm", 10), level(view, "group.zero_std_frac", 10)
    spread = level(view, "group.reward_std.mean", 10)
    lag = points(view, "lag.policy.mean" if view.has("lag.policy.mean") else "fact.lag.mean").tail(10)
    if gradient is None and len(lag) < 10:
        return cannot("no_gradient", "grad.norm", "policy_lag")
    dead = gradient is not None and gradient < 1e-8
    differs = (zero is not None and zero < 0.9) or (zero is None and (spread or 0) > 1e-6)
    # The engine's weights stand still where the lag grows by one with every step.
    stuck = len(lag) == 10 and float(lag.values[-1] - lag.values[0]) >= int(lag.steps[-1] - lag.steps[0]) > 0
    observed = {"grad_norm": gradient, "zero_std_frac": zero, "within_groups": spread, "engine_stuck": int(stuck)}
    note = f"gradient norm {gradient:.3g}" if gradient is not None else f"policy lag {lag.values[-1]:g}"
    if zero is not None:
        note += f", {zero:.0%} of the groups without variance"
    return answer("no_gradient", (dead and differs) or stuck, not dead and not stuck, observed, note)


def advantages_wrong(view: RunView, finding: Finding) -> CheckResult:
    """Advantages that break an identity: do not sum to 0 in a group, exceed their bound, or lie against the reward."""
    names = ("fact.advantage.off_frac", "fact.advantage.excess", "fact.advantage.reversed_frac", "fact.advantage.correlation")
    off, excess, reversed_frac, correlation = (level(view, name, 5) for name in names)
    if off is None and correlation is None:
        return cannot("advantages_wrong", "advantage", "group_id")
    wrong = (reversed_frac or 0) > 0.2 or (correlation is not None and correlation < 0.5) or (excess or 0) > 1.05
    observed = {"off_frac": off, "excess": excess, "reversed_frac": reversed_frac, "correlation": correlation}
    right = (off or 0) < 0.01 and not wrong and (correlation is None or correlation > 0.9)
    note = f"correlation of reward and advantage in groups {correlation if correlation is not None else math.nan:.2f}, {off or 0:.0%} off"
    return answer("advantages_wrong", wrong, right, observed, note)


def low_entropy_ceiling(view: RunView, finding: Finding) -> CheckResult:
    """Ceiling of exploration: little entropy is left and groups agree."""
    entropy = finite(view.series("entropy.mean"))
    if len(entropy) < 20:
        return cannot("low_entropy_ceiling", "entropy.mean")
    start, now = median(entropy.values[:15]), median(entropy.values[-10:])
    return answer(
        "low_entropy_ceiling",
        now < 0.15 * start,
        now > 0.5 * start,
        {"at_start": start, "now": now},
        f"entropy {start:.3f} at the start, {now:.3f} now",
    )


def base_covers(view: RunView, finding: Finding) -> CheckResult:
    """Ceiling of the base model: pass@G of the trained policy is no higher than that of the run it is compared with."""
    other = view.second_run
    if other is None:
        return wants_second_run("base_covers", "a run that samples the base model in groups of the same size")
    mine, theirs = all_fail(view, 20), all_fail(other, 20)
    if mine is None or theirs is None:
        return cannot("base_covers", "group.solve_none_frac", "group_id")
    gain = theirs - mine
    observed = {"pass_at_g": 1 - mine, "second_run": 1 - theirs}
    return answer("base_covers", gain < 0.01, gain > 0.05, observed, f"pass@G {1 - mine:.2f}, {1 - theirs:.2f} in the second run")


def slices_oppose(view: RunView, finding: Finding) -> CheckResult:
    """Tasks that rise and tasks that fall cancel each other."""
    first, last = finding.onset_step, view.step
    third = max(5, (last - first) // 3)
    rises = []
    for metric in view.matching("reward.task.", ".mean") or view.matching("fact.task.reward."):
        found = shift(view, metric, (first, first + third), (last - third, last))
        if found is not None:
            rises.append(found.z)
    if len(rises) < 2:
        return cannot("slices_oppose", "reward.task.*.mean", "task")
    up, down = max(rises), min(rises)
    return answer(
        "slices_oppose",
        up > 3 and down < -3,
        up < 2 or down > -2,
        {"up": up, "down": down},
        f"best task {up:+.1f}, worst {down:+.1f} errors",
    )


def _at_onset(view: RunView, finding: Finding) -> RunView:
    """The run ten steps behind the onset: later, what moved has become its own past."""
    return view.at(min(view.step, finding.onset_step + 10))


def grader_moved(view: RunView, finding: Finding) -> CheckResult:
    """Quality alone: the reward moved while entropy, length and KL stayed."""
    then = _at_onset(view, finding)
    found = {m: moved(then, m, newest=3) for m in ("entropy.mean", "length.response.mean", "kl.ref")}
    known = {m: abs(v.z) for m, v in found.items() if v is not None}
    if len(known) < 2:
        return cannot("grader_moved", "entropy.mean", "length.response.mean", "kl.ref")
    largest = max(known.values())
    return answer("grader_moved", largest < 2, largest > 5, known, f"largest move of the policy {largest:.1f} spreads")


def harder_tasks(view: RunView, finding: Finding) -> CheckResult:
    """The prompts became harder or longer."""
    then = _at_onset(view, finding)
    found = {m: moved(then, m, newest=3, floor=0.02) for m in ("fact.difficulty", "fact.prompt.length", "length.prompt.mean")}
    known = {m: v.z for m, v in found.items() if v is not None}
    if not known:
        return cannot("harder_tasks", "difficulty", "length.prompt.mean")
    largest = max(known.values())
    return answer("harder_tasks", largest > 5, largest < 2, known, f"prompts {largest:+.1f} spreads from their past")


def unanswered(view: RunView, finding: Finding) -> CheckResult:
    """Gradings that fail count as low rewards."""
    share = mean_of(view, "fact.verifier.zero_frac", 5)
    if share is None:
        return cannot("unanswered", "verifier.status")
    return answer("unanswered", share > 0.05, share < 0.005, {"zero_frac": share}, f"{share:.1%} of gradings failed and count as lowest")
