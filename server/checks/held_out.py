"""Why an evaluation does not follow the reward: exploitation, repeats, sharpening, sampling, parts, filters, a small evaluation."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from ingest.store.connection import Columns
from server.checks.base import CheckResult, Finding, answer, cannot
from server.checks.distribution import eval_metric
from server.checks.measure import finite, mean_of, moved, points, reward_metric, shift
from server.checks.parting import Course, evaluated
from server.checks.verifier import acceptance
from server.queries.view import RunView, Values

_ACCURACY = re.compile(r"acc|correct|answer|exact|outcome|solve|pass|match|gold", re.IGNORECASE)
_ROWS = 4000
"""Responses that a check reads of one window at most."""
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "max_tokens")


def spans(view: RunView, finding: Finding, steps: int = 40) -> tuple[tuple[int, int], tuple[int, int]]:
    """Steps before the onset and newest steps, as long as each other, both inclusive."""
    onset = min(finding.onset_step, view.step)
    return (onset - steps - 10, onset - 11), (max(onset, view.step - steps + 1), view.step)


def grader_exploited(view: RunView, finding: Finding) -> CheckResult:
    """Signs of a grader that is exploited: different answers accepted, contradictory gradings, a surface feature that now earns reward."""
    accepted = acceptance(view)
    conflict = finite(view.series("fact.reward.conflict_frac"))
    features = surface_features(view, finding)
    if accepted is None and len(conflict) < 20 and features is None:
        return cannot("grader_exploited", "response", "group_id", "reward")
    contradicts = len(conflict) >= 30 and float(conflict.values[-20:].mean()) > 0.01 and float(conflict.values[:10].mean()) < 0.002
    name, before, now, moved_by = features or ("", 0.0, 0.0, 0.0)
    earns = features is not None and ((abs(now) > 0.3 and abs(now - before) > 0.25) or abs(moved_by) > 1)
    lenient = accepted is not None and accepted.rose
    observed = {
        "accepted_differ": accepted.now if accepted else None,
        "conflict_frac": float(conflict.values[-20:].mean()) if len(conflict) else None,
        "feature": name or None,
        "feature_before": before if features else None,
        "feature_now": now if features else None,
        "feature_moved": moved_by if features else None,
    }
    notes = []
    if accepted is not None:
        notes.append(f"different answers accepted in {accepted.now:.1%} of groups, {accepted.before:.1%} at the start")
    if features is not None:
        notes.append(f"{name} moved by {moved_by:+.1f} spreads and correlates with reward by {now:+.2f}, {before:+.2f} before")
    if contradicts:
        notes.append("equal responses are graded differently")
    still = features is not None and abs(moved_by) < 0.3 and abs(now - before) < 0.15
    calm = accepted is not None and accepted.now < 0.01 and still and not contradicts
    return answer("grader_exploited", lenient or contradicts or earns, calm, observed, "; ".join(notes) or "no response to compare")


def surface_features(view: RunView, finding: Finding) -> tuple[str, float, float, float] | None:
    """The surface feature that changed most: its name, its correlation with the reward within prompts before and now, and how far
    its mean moved in standard deviations of before.

    Length, digits, marks and lines of a response, and whether it begins as the most frequent one does. None without responses in
    both spans.
    """
    old, new = (_features(view, span) for span in spans(view, finding))
    if old is None or new is None:
        return None
    changes = {name: (old[name][0], new[name][0], (new[name][1] - old[name][1]) / max(old[name][2], 0.05)) for name in new}
    name = max(changes, key=lambda key: abs(changes[key][1] - changes[key][0]) + abs(changes[key][2]) / 4)
    return name, *changes[name]


def _features(view: RunView, span: tuple[int, int]) -> dict[str, tuple[float, float, float]] | None:
    """Correlation with the reward within prompts, mean and standard deviation of every feature."""
    rows = view.trajectories(*span, ("prompt", "group_id", "response", "reward"))
    known = [
        i for i, (text, reward) in enumerate(zip(rows["response"], rows["reward"], strict=True)) if text is not None and _number(reward)
    ]
    known = known[-_ROWS:]
    if len(known) < 200:
        return None
    texts = [str(rows["response"][i]) for i in known]
    keys = [(int(rows["step"][i]), str(rows["group_id"][i] or rows["prompt"][i])) for i in known]
    reward = np.array([float(rows["reward"][i]) for i in known])
    heads = [text[:12] for text in texts]
    common, _ = Counter(heads).most_common(1)[0]
    values = {
        "length": np.array([len(t) for t in texts], float),
        "share of digits": np.array([sum(c.isdigit() for c in t) / max(len(t), 1) for t in texts]),
        "share of marks": np.array([sum(not c.isalnum() and not c.isspace() for c in t) / max(len(t), 1) for t in texts]),
        "lines": np.array([t.count("\n") for t in texts], float),
        "the common beginning": np.array([h == common for h in heads], float),
    }
    return {name: (within(keys, value, reward) or 0.0, float(value.mean()), float(value.std())) for name, value in values.items()}


def within(keys: Sequence[object], one: Values, other: Values) -> float | None:
    """Correlation of two values around their means of each key; None where either does not vary within keys."""
    _, of = np.unique([str(key) for key in keys], return_inverse=True)
    size = np.bincount(of)
    a, b = (v - (np.bincount(of, weights=v) / size)[of] for v in (one, other))
    spread = math.sqrt(float((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / spread if spread > 1e-9 else None


def repeats_gain(view: RunView, finding: Finding) -> CheckResult:
    """Over-fitting: prompts seen before score higher than fresh ones of the same task, difficulty and length in the same steps."""
    rows = view.trajectories(view.step - 200, view.step, ("prompt", "reward", "task", "difficulty"))
    if not len(rows["step"]) or all(p is None for p in rows["prompt"][-200:]):
        return cannot("repeats_gain", "prompt", "reward")
    means = [row for row in _prompt_means(rows) if row[0] > view.step - 50]
    strata: dict[object, tuple[list[float], list[float]]] = {}
    for _, kind, mean, seen in means:
        strata.setdefault(kind, ([], []))[seen].append(mean)
    both = [(np.array(fresh), np.array(again)) for fresh, again in strata.values() if len(fresh) > 1 and len(again) > 1]
    repeated = sum(seen for *_, seen in means)
    observed: dict[str, float | int | str | None] = {"repeated": repeated, "fresh": len(means) - repeated}
    if sum(len(again) for _, again in both) < 20:
        never = len(means) >= 50 and repeated < 0.02 * len(means)
        note = f"{repeated} of {len(means)} of the newest prompts had been seen in 200 steps"
        return answer("repeats_gain", False, never, observed, note)
    weights = np.array([len(again) for _, again in both], float)
    gains = np.array([again.mean() - fresh.mean() for fresh, again in both])
    errors = np.array([again.var(ddof=1) / len(again) + fresh.var(ddof=1) / len(fresh) for fresh, again in both])
    gain = float((weights * gains).sum() / weights.sum())
    error = math.sqrt(float((weights**2 * errors).sum())) / float(weights.sum())
    z = gain / error if error > 0 else 0.0
    observed |= {"gain": gain, "z": z}
    note = f"prompts seen before score {gain:+.3f} against fresh ones of the same kind ({z:+.1f} errors)"
    return answer("repeats_gain", gain > 0.05 and z > 4, z < 2 and error < 0.05, observed, note)


def _prompt_means(rows: Columns) -> list[tuple[int, object, float, bool]]:
    """Step, kind (task, difficulty, length), mean reward and whether it had come before, of every prompt of every step."""
    rewards: dict[tuple[int, str], list[float]] = {}
    kinds: dict[str, object] = {}
    for step, prompt, reward, task, hard in zip(
        rows["step"], rows["prompt"], rows["reward"], rows["task"], rows["difficulty"], strict=True
    ):
        if prompt is not None and _number(reward):
            text = str(prompt)
            rewards.setdefault((int(step), text), []).append(float(reward))
            kinds[text] = (str(task), str(hard), len(text) if len(text) < 20 else round(2 * math.log2(len(text))))
    first: dict[str, int] = {}
    found = []
    for step, prompt in sorted(rewards):
        values = rewards[step, prompt]
        found.append((step, kinds[prompt], sum(values) / len(values), first.setdefault(prompt, step) < step))
    return found


def prompts_repeat(view: RunView, finding: Finding) -> CheckResult:
    """The same training prompts come back (epoch above 1)."""
    epoch = next((s for m in ("epoch", "train/epoch", "data.epoch") if len(s := finite(view.series(m)))), None)
    if epoch is None:
        return cannot("prompts_repeat", "epoch")
    value = float(epoch.values[-1])
    return answer("prompts_repeat", value > 2, value <= 1, {"epoch": value}, f"epoch {value:.2f}")


def sharpening_only(view: RunView, finding: Finding) -> CheckResult:
    """Coverage lost: more groups without a success (pass@G falls) while the mean rises."""
    none = points(view, "group.solve_none_frac" if view.has("group.solve_none_frac") else "fact.group.all_low_frac")
    if len(none) < 30:
        return cannot("sharpening_only", "group.solve_none_frac", "group_id")
    before, now = float(none.values[-60:-20].mean()), float(none.values[-20:].mean())
    entropy = moved(view, "entropy.mean", newest=5)
    observed = {"all_fail_before": before, "all_fail_now": now, "entropy_z": entropy.z if entropy else None}
    note = f"groups without a success {before:.0%} before, {now:.0%} now"
    return answer("sharpening_only", now > before + 0.05, now <= before, observed, note)


def sampling_differs(view: RunView, finding: Finding) -> CheckResult:
    """Temperature, truncation or cap of evaluation rows against training rows, before the onset and now."""
    old, new = (_settings(view, span) for span in spans(view, finding))
    if not new.get("train") or not new.get("eval"):
        return cannot("sampling_differs", "sampling", note="needs sampling settings in rows of both splits")
    differ = sorted(key for key in _SAMPLING if new["train"].get(key) != new["eval"].get(key))
    moved_keys = sorted(
        {key for split in ("train", "eval") for key in _SAMPLING if split in old and old[split].get(key) != new[split].get(key)}
    )
    observed = {"differ": ", ".join(differ), "changed": ", ".join(moved_keys)}
    note = f"settings that differ: {', '.join(differ) or 'none'}; changed since the onset: {', '.join(moved_keys) or 'none'}"
    return answer("sampling_differs", bool(differ and moved_keys), not differ, observed, note)


def _settings(view: RunView, span: tuple[int, int]) -> dict[str, dict[str, object]]:
    """Settings of the newest row that has some, by split."""
    rows = view.trajectories(*span, ("split", "sampling"), split=None)
    found: dict[str, dict[str, object]] = {}
    for split, sampling in zip(rows["split"][::-1], rows["sampling"][::-1], strict=True):
        name = str(split or "train")
        if name not in found and isinstance(sampling, str):
            value = json.loads(sampling)
            if isinstance(value, dict) and value:
                found[name] = value
        if len(found) == 2:
            break
    return found


def eval_changed(view: RunView, finding: Finding) -> CheckResult:
    """The evaluation is constant to all digits, jumped at one evaluation and stayed, or an event names it."""
    metric = eval_metric(view)
    series = finite(view.series(metric)) if metric else None
    if series is None or len(series) < 4:
        return cannot("eval_changed", "eval.heldout.score")
    near = [e for e in view.events(finding.onset_step - 30) if "eval" in f"{e.kind} {e.text}".lower()]
    frozen = float(np.ptp(series.values[-4:])) == 0
    jump = _jump(series.values[-24:])
    observed = {"events": len(near), "frozen": int(frozen), "jump_z": jump}
    note = near[0].text[:100] if near else "the same to all digits" if frozen else f"largest lasting step {jump:.1f} times the scatter"
    return answer("eval_changed", frozen or bool(near) or jump > 6, not frozen and not near and jump < 3.5, observed, note)


def _jump(values: Values) -> float:
    """Largest difference of neighbours in units of the others' scatter, where the level before and behind it differs as much."""
    best = 0.0
    jumps = np.diff(values)
    for at in range(3, len(values) - 2):
        others = np.delete(jumps, at - 1)
        spread = float(np.std(others))
        stays = abs(float(values[at:].mean() - values[:at].mean())) > 0.6 * abs(float(jumps[at - 1]))
        if spread > 0 and stays:
            best = max(best, abs(float(jumps[at - 1])) / spread)
    return best


def other_parts_gain(view: RunView, finding: Finding) -> CheckResult:
    """Format or other components of the reward rose while the one that stands for right answers did not."""
    old, new = spans(view, finding)
    parts = {m: found for m in view.matching("reward.fn.", ".mean") if (found := shift(view, m, old, new)) is not None}
    right = {m: f for m, f in parts.items() if _ACCURACY.search(m)}
    if not right or len(parts) == len(right):
        return cannot("other_parts_gain", "reward.fn.*.mean", note="needs a part for accuracy and another one")
    others = max((f for m, f in parts.items() if m not in right), key=lambda f: f.z)
    accuracy = max(right.values(), key=lambda f: f.z)
    observed = {"accuracy_z": accuracy.z, "other_z": others.z}
    note = f"accuracy {accuracy.change:+.3f} ({accuracy.z:+.1f} errors), the best other part {others.change:+.3f} ({others.z:+.1f})"
    return answer("other_parts_gain", others.z > 3 and accuracy.z < 1, accuracy.z > 3, observed, note)


def filtered(view: RunView, finding: Finding) -> CheckResult:
    """Filtering or easier prompts inflate the reward of what is trained: the reward of all that was generated did not rise."""
    kept, dropped = mean_of(view, "fact.kept_frac", 10), mean_of(view, "group.filtered_frac", 10)
    hard = moved(view, "fact.difficulty", newest=5, floor=0.02)
    old, new = spans(view, finding)
    whole = shift(view, "reward.generated.mean", old, new) if view.has("reward.generated.mean", "reward.mean") else None
    trained = shift(view, "reward.mean", old, new)
    if kept is None and dropped is None and hard is None and whole is None:
        return cannot("filtered", "kept", "group.filtered_frac", "difficulty", "reward.generated.mean")
    easier = hard is not None and hard.z < -4
    much = (kept is not None and kept < 0.8) or (dropped or 0) > 0.2
    apart = whole is not None and trained is not None and trained.z > 3 and whole.z < 1
    real = whole is not None and whole.z > 3
    observed = {"kept_frac": kept, "difficulty_z": hard.z if hard else None, "generated_z": whole.z if whole else None}
    note = "easier prompts" if easier else f"reward of everything generated {whole.z:+.1f} errors" if whole else "kept share and difficulty"
    return answer("filtered", easier or apart or (much and not real), not easier and not apart and (real or not much), observed, note)


def eval_small(view: RunView, finding: Finding) -> CheckResult:
    """Whether the evaluation could show the gain at all: half-width of its interval against the reward's gain."""
    metric, trained = eval_metric(view), reward_metric(view)
    if metric is None or trained is None:
        return cannot("eval_small", "eval.heldout.score")
    course = Course(view, trained, metric)
    behind = int((course.steps >= finding.onset_step).sum())
    before = min(len(course.steps) - behind, max(behind, 4))
    if behind < 1 or before < 1:
        return cannot("eval_small", metric, note="no evaluation before or behind the onset")
    gain, change = course.newest(behind, before)
    if gain is None or change is None or not math.isfinite(change.error):
        return cannot("eval_small", metric, note="too few evaluations to see their scatter")
    half = 1.96 * change.error
    n = evaluated(view)
    note = f"interval of the evaluation's change +-{half:.3f}, gain of the reward {gain.change:+.3f}" + (f"; {n:g} items" if n else "")
    return answer("eval_small", half > gain.change, half < 0.5 * gain.change, {"half_width": half, "gain": gain.change, "items": n}, note)


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(float(value))
