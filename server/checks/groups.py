"""Checks of groups: difficulty, copies, expectation from pass rates, sizes."""

from __future__ import annotations

import math
from collections import Counter
from itertools import combinations

import numpy as np

from server.checks.base import CheckResult, Finding, answer, cannot
from server.checks.distribution import eval_metric
from server.checks.measure import fresh, history, level, mean_of, moved, points, reward_metric, reward_range
from server.checks.parting import scatter
from server.queries.view import RunView


def all_fail(view: RunView, newest: int = 10) -> float | None:
    """Share of groups without a success, logged or from trajectories."""
    return mean_of(view, "group.solve_none_frac" if view.has("group.solve_none_frac") else "fact.group.all_low_frac", newest)


def all_pass(view: RunView, newest: int = 10) -> float | None:
    """Share of groups solved by every member."""
    return mean_of(view, "group.solve_all_frac" if view.has("group.solve_all_frac") else "fact.group.all_high_frac", newest)


def mastered(view: RunView) -> bool:
    """Success and no fault: groups are mostly solved and the evaluation stands at the best it has reached, as far as its scatter tells."""
    metric = eval_metric(view)
    scores = history(view, metric).values if metric else None
    if scores is None or len(scores) < 4 or (all_pass(view) or 0.0) <= 2 * (all_fail(view) or 0.0):
        return False
    size = min(10, max(3, len(scores) // 4))
    means = np.convolve(scores, np.full(size, 1 / size), mode="valid")
    # The best of many noisy means lies above what was really reached; the scatter says by how much.
    margin = 2.5 * scatter(scores[-100:]) / math.sqrt(size) if len(scores) >= 20 else 0.0
    return bool(means[-1] > means.max() - max(0.02, margin))


def sharpened(view: RunView, newest: int = 4) -> float | None:
    """How the responses' own log-probs fell short of the policy's entropy: newest ratio over the median of the ratios before.

    Both agree (1) when the engine samples from the policy as it is; a lower temperature or a narrower top_p takes it down. None
    without 10 points of both.
    """
    sampled, full = points(view, "fact.logprob.rollout"), points(view, "entropy.mean")
    if len(sampled) < 10 + newest or not fresh(view, sampled):
        return None
    sampled = sampled.tail(60)
    at = np.searchsorted(full.steps, sampled.steps)
    known = at < len(full)
    known[known] &= (full.steps[at[known]] == sampled.steps[known]) & (full.values[at[known]] > 1e-6)
    ratios = -sampled.values[known] / full.values[at[known]]
    if len(ratios) < 10 + newest:
        return None
    before = float(np.median(ratios[:-newest]))
    return float(ratios[-newest:].mean()) / before if before > 0 else None


def too_hard(view: RunView, finding: Finding) -> CheckResult:
    """Most groups without variance fail altogether."""
    none, every = all_fail(view), all_pass(view)
    if none is None:
        metric = reward_metric(view)
        low, high = reward_range(view)
        now = level(view, metric, 10) if metric and (high <= 1 or view.has("reward.max")) else None
        if now is None:
            return cannot("too_hard", "group.solve_none_frac", "group_id")
        place = (now - low) / (high - low)
        return answer("too_hard", place < 0.2, place > 0.5, {"reward": now}, f"mean reward {now:.3g} of {low:g} to {high:g}")
    other = every or 0.0
    constant = (level(view, "fact.reward.distinct", 5) or 2) <= 1
    observed = {"all_fail": none, "all_pass": other}
    return answer(
        "too_hard",
        none > 0.5 and none > 2 * other and not constant,
        none < 0.3 or other > none,
        observed,
        f"{none:.0%} of the groups fail altogether",
    )


def too_easy(view: RunView, finding: Finding) -> CheckResult:
    """Most groups without variance are solved by every member."""
    every, none = all_pass(view), all_fail(view)
    if every is None:
        metric = reward_metric(view)
        low, high = reward_range(view)
        now = level(view, metric, 10) if metric and (high <= 1 or view.has("reward.max")) else None
        if now is None:
            return cannot("too_easy", "group.solve_all_frac", "group_id")
        place = (now - low) / (high - low)
        return answer("too_easy", place > 0.8, place < 0.5, {"reward": now}, f"mean reward {now:.3g} of {low:g} to {high:g}")
    observed = {"all_pass": every, "all_fail": none}
    return answer(
        "too_easy", every > 0.5 and every > 2 * (none or 0), every < 0.3, observed, f"{every:.0%} of the groups are solved by every member"
    )


def identical_samples(view: RunView, finding: Finding) -> CheckResult:
    """Members of a group are copies, among wrong answers too."""
    copies, wrong = mean_of(view, "fact.group.duplicate_frac", 10), mean_of(view, "fact.group.duplicate_wrong_frac", 10)
    if copies is None and view.has("group.unique_frac"):
        copies = 1 - (mean_of(view, "group.unique_frac", 10) or 1.0)
    if copies is None:
        return cannot("identical_samples", "response", "group_id", "group.unique_frac")
    observed = {"duplicate_frac": copies, "wrong_duplicate_frac": wrong}
    solved = (all_pass(view) or 0.0) > 0.5
    return answer(
        "identical_samples",
        copies > 0.7 and (wrong or 0) > 0.6 and not solved,
        copies < 0.3,
        observed,
        f"{copies:.0%} of a group's responses are copies",
    )


def between_prompts_only(view: RunView, finding: Finding) -> CheckResult:
    """Rewards differ between prompts and not within groups, or groups of four and fewer."""
    size = view.config.get("group_size") or level(view, "fact.group.size.median")
    within, zero = level(view, "group.reward_std.mean", 10), level(view, finding.metric or "group.zero_std_frac", 10)
    parts = [value for m in view.matching("reward.fn.", ".std") if (value := level(view, m, 10)) is not None]
    spread = level(view, "reward.std", 10) if view.has("reward.std") else level(view, "fact.reward.std", 10)
    spread = max([*parts, *([spread] if spread is not None else [])], default=None)
    known = float(size) if isinstance(size, (int, float)) else None
    if known is None and spread is None:
        return cannot("between_prompts_only", "config.group_size", "group_id", "reward.std")
    equal = (within is not None and within < 1e-9) or (zero or 0) >= 1
    apart = spread is not None and spread > 1e-6 and equal
    small = known is not None and known <= 4 and (spread or 0) > 0.1
    observed = {"group_size": known, "spread": spread, "within_groups": within}
    note = f"rewards spread by {spread or 0:.3g}, within groups by {within if within is not None else 1 - (zero or 0):.3g}"
    if known is not None:
        note += f", groups of {known:g}"
    return answer("between_prompts_only", apart or small, not apart and known is not None and known >= 8, observed, note)


def more_equal_than_chance(view: RunView, finding: Finding) -> CheckResult:
    """Whether two responses of one group agree in reward more often than two responses of different groups of the same prompt.

    Independent samples agree as often, whatever the prompt's pass rate; copies and equal seeds do not.
    """
    rows = view.trajectories(view.step - 100, view.step, ("group_id", "prompt", "reward"))
    prompts: dict[str, dict[tuple[int, str], Counter[float]]] = {}
    for step, group, prompt, reward in zip(rows["step"], rows["group_id"], rows["prompt"], rows["reward"], strict=True):
        if group is not None and prompt is not None and reward is not None and np.isfinite(reward):
            prompts.setdefault(str(prompt), {}).setdefault((int(step), str(group)), Counter())[float(reward)] += 1
    inside, across = [], []
    for groups in prompts.values():
        counts = [c for c in groups.values() if c.total() > 1]
        if len(counts) < 2:
            continue
        inside += [sum(n * (n - 1) for n in c.values()) / (c.total() * (c.total() - 1)) for c in counts]
        pairs = [sum(n * d[value] for value, n in c.items()) / (c.total() * d.total()) for c, d in combinations(counts[:6], 2)]
        across += [float(np.mean(pairs))] * len(counts)
    if len(inside) < 20:
        return cannot("more_equal_than_chance", "prompts seen in several groups", note=f"only {len(inside)} groups can be compared")
    within, between = float(np.mean(inside)), float(np.mean(across))
    gap = np.array(inside) - np.array(across)
    error = float(gap.std(ddof=1)) / math.sqrt(len(gap))
    observed = {"within": within, "between": between, "groups": len(inside)}
    note = f"two of a group agree in {within:.0%}, two of different groups of a prompt in {between:.0%} of pairs ({len(inside)} groups)"
    more = within - between
    return answer("more_equal_than_chance", more > 0.15 and more > 4 * error, more < 0.05 + error, observed, note)


def filter_misses(view: RunView, finding: Finding) -> CheckResult:
    """Groups that a filter kept although all their rewards are equal: it looks at another reward or threshold than the metric."""
    rows = view.trajectories(view.step - 10, view.step, ("group_id", "reward", "kept"))
    kept: dict[tuple[int, str], list[float]] = {}
    dropped = 0
    for step, group, reward, flag in zip(rows["step"], rows["group_id"], rows["reward"], rows["kept"], strict=True):
        if group is None or flag is None or reward is None:
            continue
        if flag:
            kept.setdefault((int(step), str(group)), []).append(float(reward))
        dropped += not flag
    judged = [rewards for rewards in kept.values() if len(rewards) > 1]
    if not dropped or len(judged) < 10:
        return cannot("filter_misses", "kept", note="no filter is seen at work in ten steps")
    share = sum(max(rewards) - min(rewards) < 1e-9 for rewards in judged) / len(judged)
    note = f"{share:.0%} of {len(judged)} groups that were kept have equal rewards"
    return answer("filter_misses", share > 0.2, share < 0.02, {"kept_equal_frac": share, "dropped": dropped}, note)


def grader_constant(view: RunView, finding: Finding) -> CheckResult:
    """One single reward value over the whole batch, while the policy is what it was.

    Where entropy or KL left their past too, equal rewards may be answers that are all wrong: neither supported nor refuted.
    """
    distinct, spread = level(view, "fact.reward.distinct", 5), level(view, "reward.std", 5)
    if distinct is None and spread is None:
        return cannot("grader_constant", "reward", "reward.std")
    one = (distinct is not None and distinct <= 1) or (spread is not None and spread < 1e-9)
    found = {m: moved(view, m) for m in ("entropy.mean", "kl.ref", "length.response.mean")} if one else {}
    policy = {m: abs(v.z) for m, v in found.items() if v is not None and abs(v.z) > 5}
    note = f"{distinct or 0:.0f} different rewards" + ("; the policy moved too" if policy else "")
    return answer("grader_constant", one and not policy, not one, {"distinct": distinct, "std": spread, **policy}, note)


def wrong_groups(view: RunView, finding: Finding) -> CheckResult:
    """Group ids with one member, or with several prompts."""
    size, mixed = level(view, "fact.group.size.median"), level(view, "fact.group.mixed_prompt_frac")
    if size is None:
        return cannot("wrong_groups", "group_id")
    wrong = size <= 1 or (mixed or 0) > 0
    return answer("wrong_groups", wrong, not wrong, {"group_size": size, "mixed_prompt_frac": mixed}, f"median group of {size:g}")
