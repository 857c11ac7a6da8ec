"""Checks of the verifier: constant, unanswered, contradictory or moved gradings."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from typing import NamedTuple

import numpy as np

from server.checks.base import CheckResult, Finding, Observed, answer, cannot
from server.checks.measure import finite, fresh, level, mean_of, moved, points, reward_metric, reward_range
from server.detectors.level import since
from server.queries.view import RunView, Series

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
    """The newest five points or more (20 groups) against the first half of the run, 50 points at most; None for want of groups.

    The past is the run's beginning, so that a fault that lasts does not become its own past.
    """
    share, counts = points(view, _ACCEPTED), points(view, "fact.group.accepted_n")
    known = np.isin(share.steps, counts.steps)
    share = Series(share.steps[known], share.values[known])
    if len(share) < 15 or not fresh(view, share):
        return None
    n = counts.values[np.searchsorted(counts.steps, share.steps[-20:])]
    newest = max(5, int(np.searchsorted(np.cumsum(n[::-1]), _FEWEST_GROUPS)) + 1)
    m = counts.values[np.searchsorted(counts.steps, share.steps[: min(50, len(share) - newest)])]
    enough = int(np.searchsorted(np.cumsum(m), _FEWEST_GROUPS)) + 1
    first = max(10, enough, min(len(m), len(share) // 2))
    if newest > 20 or first > len(m):
        return None
    m, n = m[:first], n[-newest:]
    if min(float(m.sum()), float(n.sum())) < 1:
        return None
    old, new = float((share.values[:first] * m).sum() / m.sum()), float((share.values[-newest:] * n).sum() / n.sum())
    p = min(max(old, 0.01), 0.99)
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


def constant_parts(view: RunView, points_needed: int) -> list[tuple[str, int, bool]]:
    """Reward components without any spread at the newest points: metric, first step of it, and whether they are 0 from the start.

    A component at the best it has reached is saturated and no fault; a penalty that nobody incurs is 0 by right.
    """
    found = []
    for metric in view.matching("reward.fn.", ".mean"):
        values = finite(view.series(metric))
        if len(values) < points_needed or not fresh(view, values) or _PENALTY.search(metric):
            continue
        newest = values.values[-points_needed:]
        if np.ptp(newest) > 0:
            continue
        always = not np.any(values.values)
        spread = finite(view.series(metric.removesuffix(".mean") + ".std")).tail(points_needed).values
        no_spread = len(spread) == points_needed and not np.any(np.abs(spread) > 1e-9)
        if always or (no_spread and float(newest[-1]) < float(values.values.max()) - 1e-9):
            start = len(values) - 1
            while start > 0 and values.values[start - 1] == newest[-1]:
                start -= 1
            found.append((metric, int(values.steps[start]), always))
    return found


_PENALTY = re.compile(r"penal|cost|repet|overlong|length|kl", re.IGNORECASE)


def never_matched(view: RunView, finding: Finding) -> CheckResult:
    """A reward component that has been exactly 0 from the first step on."""
    parts = view.matching("reward.fn.", ".mean")
    if not parts:
        return cannot("never_matched", "reward.fn.*.mean")
    dead = [metric for metric, _, always in constant_parts(view, 3) if always]
    note = f"always 0: {', '.join(dead[:3])}" if dead else "every component has been above 0"
    return answer("never_matched", bool(dead), not dead, {"components": len(parts), "always_zero": len(dead)}, note)


def one_worker(view: RunView, finding: Finding) -> CheckResult:
    """Failed or lowest gradings that come from one worker, host or rank (of the keys that the writer put with the rows)."""
    rows = view.trajectories(view.step - 10, view.step, ("extra", "reward", "verifier_status"))
    low, high = reward_range(view)
    counts: dict[str, dict[str, list[int]]] = {}
    for extra, reward, status in zip(rows["extra"], rows["reward"], rows["verifier_status"], strict=True):
        value = json.loads(extra) if isinstance(extra, str) else None
        if not isinstance(value, dict) or reward is None:
            continue
        failed = status in ("timeout", "error") or float(reward) <= low + 0.05 * (high - low)
        for key in _WORKERS:
            if key in value:
                counts.setdefault(key, {}).setdefault(str(value[key]), [0, 0])[int(failed)] += 1
    shares = {key: {name: bad / (good + bad) for name, (good, bad) in found.items() if good + bad >= 20} for key, found in counts.items()}
    shares = {key: found for key, found in shares.items() if len(found) > 1}
    if not shares:
        return cannot("one_worker", "extra.worker", note="no worker, host or rank is written with the rows")
    key = max(shares, key=lambda k: max(shares[k].values()) - min(shares[k].values()))
    worst, best = max(shares[key], key=lambda n: shares[key][n]), min(shares[key].values())
    gap = shares[key][worst] - best
    observed: Observed = {"worker": f"{key} {worst}", "worst": shares[key][worst], "best": best}
    note = f"{key} {worst} fails {shares[key][worst]:.0%}, the best one {best:.0%}"
    return answer("one_worker", gap > 0.5, gap < 0.15, observed, note)


_WORKERS = ("worker", "worker_id", "host", "hostname", "rank", "node", "grader", "replica")


def bad_gold(view: RunView, finding: Finding) -> CheckResult:
    """Prompts that fail at every visit although most responses of all visits agree on one answer."""
    rows = view.trajectories(view.step - 200, view.step, ("prompt", "response", "reward"))
    low, high = reward_range(view)
    visits: dict[str, tuple[set[int], Counter[str], float]] = {}
    for step, prompt, response, reward in zip(rows["step"], rows["prompt"], rows["response"], rows["reward"], strict=True):
        if prompt is None or response is None or reward is None:
            continue
        steps, words, best = visits.get(str(prompt), (set(), Counter(), low))
        steps.add(int(step))
        words[_last_word(str(response))] += 1
        visits[str(prompt)] = (steps, words, max(best, float(reward)))
    again = [v for v in visits.values() if len(v[0]) > 1 and v[1].total() >= 8]
    if len(again) < 20:
        return cannot("bad_gold", "prompts seen at several steps", note=f"{len(again)} prompts were seen twice in 200 steps")
    limit = low + 0.05 * (high - low)
    stuck = [words for _, words, best in again if best <= limit and words.most_common(1)[0][1] > 0.75 * words.total()]
    share = len(stuck) / len(again)
    note = f"{len(stuck)} of {len(again)} prompts seen again always fail although three in four responses agree"
    return answer("bad_gold", share > 0.02 and len(stuck) >= 3, not stuck, {"prompts": len(again), "stuck": len(stuck)}, note)


def _last_word(text: str) -> str:
    found = re.findall(r"[^\W_]+", text[-64:])
    return found[-1] if found else ""


def failures_repeat(view: RunView, finding: Finding) -> CheckResult:
    """Failure reasons (parser messages) that come back with the same prompts: the gold answer cannot be read."""
    rows = view.trajectories(view.step - 200, view.step, ("prompt", "failure_type"))
    seen: dict[str, tuple[int, int]] = {}
    for prompt, failure in zip(rows["prompt"], rows["failure_type"], strict=True):
        if prompt is not None:
            failed, n = seen.get(str(prompt), (0, 0))
            seen[str(prompt)] = (failed + (failure is not None), n + 1)
    often = [failed / n for failed, n in seen.values() if n >= 8]
    total = sum(failed for failed, _ in seen.values())
    if total < 20 or len(often) < 20:
        return cannot("failures_repeat", "failure_type", note="too few failures with a reason, or too few prompts seen often")
    always, rest = sum(share > 0.9 for share in often), [share for share in often if share <= 0.9]
    calm = sum(rest) / len(rest) if rest else 1.0
    note = f"{always} of {len(often)} prompts fail for a stated reason nearly every time, the others {calm:.0%}"
    return answer("failures_repeat", always >= 2 and calm < 0.2, always == 0, {"always": always, "prompts": len(often)}, note)


def slow_gradings(view: RunView, finding: Finding) -> CheckResult:
    """Gradings without an answer take far longer than the others: they ran into a limit."""
    rows = view.trajectories(view.step - 10, view.step, ("verifier_seconds", "verifier_status", "response_tokens"))
    names = ("verifier_seconds", "verifier_status")
    late = [float(s) for s, status in zip(*(rows[n] for n in names), strict=True) if s is not None and status in ("timeout", "error")]
    fine = [float(s) for s, status in zip(*(rows[n] for n in names), strict=True) if s is not None and status not in ("timeout", "error")]
    if len(fine) < 20:
        return cannot("slow_gradings", "verifier.seconds", "verifier.status")
    usual = float(np.median(fine))
    if len(late) < 5:
        tail = float(np.quantile(fine, 0.99))
        return answer("slow_gradings", False, tail < 10 * max(usual, 1e-3), {"median": usual, "p99": tail}, f"99th percentile {tail:.3g} s")
    waited = float(np.median(late))
    observed = {"median": usual, "unanswered_median": waited}
    note = f"unanswered gradings took {waited:.3g} s, the others {usual:.3g} s"
    return answer("slow_gradings", waited > 3 * usual, waited < 1.5 * usual, observed, note)


def version_changed(view: RunView, finding: Finding) -> CheckResult:
    """Another version of the verifier in the rows, or an event near the onset that names grader, verifier or reward."""
    words = ("grader", "verifier", "reward", "judge")
    near = [e for e in view.events(finding.onset_step - 10) if any(word in f"{e.kind} {e.text}".lower() for word in words)]
    rows = view.trajectories(finding.onset_step - 10, view.step, ("verifier_name", "verifier_version"))
    pairs = zip(rows["step"], rows["verifier_name"], rows["verifier_version"], strict=True)
    written = [(int(step), f"{name} {version}") for step, name, version in pairs if name is not None or version is not None]
    before = {name for step, name in written if step < finding.onset_step}
    since_then = {name for step, name in written if step >= finding.onset_step}
    new = sorted(since_then - before) if before else []
    observed = {"events": len(near), "new_versions": len(new)}
    note = near[0].text[:120] if near else f"new in the rows: {', '.join(new)}" if new else "no event and no row names another version"
    return answer("version_changed", bool(near or new), bool(before and since_then and not new and not near), observed, note)


def policy_stood(view: RunView, finding: Finding) -> CheckResult:
    """Whether entropy, length and KL stayed where they were at the onset: then the grader moved, and not the policy."""
    known = policy_moved(view.at(min(view.step, finding.onset_step + 5)))
    if len(known) < 2:
        return cannot("policy_stood", "entropy.mean", "length.response.mean", "kl.ref")
    largest = max(known.values())
    metric = reward_metric(view)
    change = moved(view.at(min(view.step, finding.onset_step + 5)), metric, newest=3) if metric else None
    jumped = change is not None and abs(change.z) > 4
    note = f"largest move of the policy {largest:.1f} spreads" + (f", of the reward {change.z:+.1f}" if change else "")
    return answer("policy_stood", largest < 2 and jumped, largest > 5, known, note)


def accepts_different(view: RunView, finding: Finding) -> CheckResult:
    """Different answers to one prompt get full reward, which a grader that reads the whole answer does not give."""
    found = acceptance(view)
    if found is None:
        return cannot("accepts_different", "response", "group_id", "reward")
    observed = {"before": found.before, "now": found.now, "groups": found.groups, "variety_rise": found.variety}
    note = f"different last words all got full reward in {found.now:.1%} of {found.groups} groups, {found.before:.1%} before"
    return answer("accepts_different", found.rose, found.now < 0.01, observed, note)
