"""Checks of reward and evaluation: signal, updates, exploitation, narrowing, saturation, what moved first."""

from __future__ import annotations

import numpy as np

from server.checks.base import CheckResult, Finding, answer, cannot
from server.checks.distribution import eval_metric
from server.checks.groups import all_fail
from server.checks.measure import finite, level, mean_of, moved, points, reward_metric, shift
from server.detectors.middle import median
from server.queries.view import RunView


def signal_exists(view: RunView, finding: Finding) -> CheckResult:
    """Too hard: most groups fail altogether, so that pass@G is near 0."""
    none = all_fail(view)
    if none is None:
        return cannot("signal_exists", "group.solve_none_frac", "group_id")
    distinct = level(view, "fact.reward.distinct", 5)
    constant = distinct is not None and distinct <= 1
    return answer("signal_exists", none > 0.8 and not constant, none < 0.5, {"all_fail": none}, f"{none:.0%} of the groups fail altogether")


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


def cut_before_answer(view: RunView, finding: Finding) -> CheckResult:
    """Truncation before the answer: more than half are cut, and these score nothing."""
    share = mean_of(view, "length.response.truncated_frac", 10) if view.has("length.response.truncated_frac") else None
    share = share if share is not None else mean_of(view, "fact.truncated_frac", 10)
    cut, others = mean_of(view, "fact.reward.truncated.mean", 10), mean_of(view, "fact.reward.terminated.mean", 10)
    if share is None:
        return cannot("cut_before_answer", "length.response.truncated_frac", "finish_reason")
    worse = cut is None or others is None or cut < 0.5 * others
    return answer(
        "cut_before_answer", share > 0.5 and worse, share < 0.1, {"truncated_frac": share}, f"{share:.0%} of the responses are cut"
    )


def policy_stands(view: RunView, finding: Finding) -> CheckResult:
    """Updates too small: KL to the reference does not grow and the ratio is 1, with a gradient."""
    series, gradient = points(view, "kl.ref"), level(view, "grad.norm", 10)
    if len(series) < 20:
        return cannot("policy_stands", "kl.ref")
    now = median(series.values[-10:])
    observed = {"kl_ref": now, "grad_norm": gradient}
    still = now < 2e-3
    return answer(
        "policy_stands",
        still and (gradient is None or gradient > 1e-4),
        now > 0.02,
        observed,
        f"reference KL {now:.2g} nats after {len(series)} points",
    )


def no_gradient(view: RunView, finding: Finding) -> CheckResult:
    """No gradient although groups have variance."""
    gradient, zero = level(view, "grad.norm", 10), level(view, "group.zero_std_frac", 10)
    if gradient is None:
        return cannot("no_gradient", "grad.norm")
    dead = gradient < 1e-8
    return answer(
        "no_gradient", dead and (zero or 0) < 0.9, not dead, {"grad_norm": gradient, "zero_std_frac": zero}, f"gradient norm {gradient:.3g}"
    )


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


def grader_disagrees(view: RunView, finding: Finding) -> CheckResult:
    """The grader is exploited: equal responses graded differently, or wrong-length answers rewarded, while reward and evaluation part."""
    series = finite(view.series("fact.reward.conflict_frac"))
    metric = eval_metric(view)
    gap = None
    if metric and (reward := reward_metric(view)):
        span = max(30, view.step - finding.onset_step)
        old, new = (finding.onset_step - span, finding.onset_step - 1), (finding.onset_step, view.step)
        a, b = shift(view, reward, old, new), shift(view, metric, old, new)
        gap = (a.change - b.change) / max((a.error**2 + b.error**2) ** 0.5, 1e-9) if a and b else None
    length = moved(view, "length.response.mean", newest=5, floor=0.02)
    conflict_rose = len(series) >= 20 and float(series.values[-20:].mean()) > 0.005 and float(series.values[:10].mean()) < 0.002
    if gap is None and len(series) < 20:
        return cannot("grader_disagrees", "eval.heldout.score", "response")
    observed = {"gap_z": gap, "conflict_rose": int(conflict_rose), "length_z": length.z if length else None}
    note = f"reward left the evaluation by {gap or 0:.1f} errors; contradictory gradings {'rose' if conflict_rose else 'did not rise'}"
    feature = length is not None and abs(length.z) > 6
    supports = (gap is not None and gap > 3) or conflict_rose or feature
    return answer("grader_disagrees", supports, gap is not None and gap < 1 and not conflict_rose, observed, note)


def prompts_repeat(view: RunView, finding: Finding) -> CheckResult:
    """Over-fitting: the same training prompts come back (epoch > 1)."""
    epoch = next((s for m in ("epoch", "train/epoch", "data.epoch") if len(s := finite(view.series(m)))), None)
    if epoch is None:
        return cannot("prompts_repeat", "epoch")
    value = float(epoch.values[-1])
    return answer("prompts_repeat", value > 2, value <= 1, {"epoch": value}, f"epoch {value:.2f}")


def sharpening_only(view: RunView, finding: Finding) -> CheckResult:
    """Coverage lost: more groups without a success while the mean rises, with falling entropy."""
    none = points(view, "group.solve_none_frac" if view.has("group.solve_none_frac") else "fact.group.all_low_frac")
    entropy = moved(view, "entropy.mean", newest=5)
    if len(none) < 30:
        return cannot("sharpening_only", "group.solve_none_frac", "group_id")
    before, now = float(none.values[-60:-20].mean()), float(none.values[-20:].mean())
    observed = {"all_fail_before": before, "all_fail_now": now, "entropy_z": entropy.z if entropy else None}
    return answer(
        "sharpening_only", now > before + 0.05, now <= before, observed, f"groups without a success {before:.0%} before, {now:.0%} now"
    )


def eval_changed(view: RunView, finding: Finding) -> CheckResult:
    """The evaluation is constant to all digits, or an event names it."""
    metric = eval_metric(view)
    series = finite(view.series(metric)) if metric else None
    near = [e for e in view.events(finding.onset_step - 30) if "eval" in f"{e.kind} {e.text}".lower()]
    if series is None or len(series) < 4:
        return cannot("eval_changed", "eval.heldout.score")
    frozen = float(np.ptp(series.values[-4:])) == 0
    return answer(
        "eval_changed",
        frozen or bool(near),
        not frozen and not near,
        {"events": len(near)},
        near[0].text[:100] if near else "it varies as before",
    )


def filtered(view: RunView, finding: Finding) -> CheckResult:
    """Filtering or a curriculum inflates the reward of trained groups."""
    kept, dropped = mean_of(view, "fact.kept_frac", 10), mean_of(view, "group.filtered_frac", 10)
    hard = moved(view, "fact.difficulty", newest=5, floor=0.02)
    if kept is None and dropped is None and hard is None:
        return cannot("filtered", "kept", "group.filtered_frac", "difficulty")
    easier = hard is not None and hard.z < -4
    much = (kept is not None and kept < 0.8) or (dropped or 0) > 0.2
    return answer(
        "filtered",
        easier or much,
        not easier and not much,
        {"kept_frac": kept, "difficulty_z": hard.z if hard else None},
        "easier prompts" if easier else "kept share and difficulty",
    )


def grader_moved(view: RunView, finding: Finding) -> CheckResult:
    """Quality alone: the reward moved while entropy, length and KL stayed."""
    found = {m: moved(view, m, newest=3) for m in ("entropy.mean", "length.response.mean", "kl.ref")}
    known = {m: abs(v.z) for m, v in found.items() if v is not None}
    if len(known) < 2:
        return cannot("grader_moved", "entropy.mean", "length.response.mean", "kl.ref")
    largest = max(known.values())
    return answer("grader_moved", largest < 2, largest > 5, known, f"largest move of the policy {largest:.1f} spreads")


def harder_tasks(view: RunView, finding: Finding) -> CheckResult:
    """The prompts became harder or longer."""
    found = {m: moved(view, m, newest=3, floor=0.02) for m in ("fact.difficulty", "fact.prompt.length", "length.prompt.mean")}
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
