"""Slices of a run: which tasks fall while the others hold, and what explains it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr

from server.checks.base import CheckResult, Finding, answer, cannot
from server.checks.measure import Shift, finite, reward_metric, shift
from server.checks.slice_rows import Pairs, heads, pairs, rows_of
from server.checks.slice_series import Slice, eval_slices, mean_between, position, training_slices
from server.detectors.falls import discoveries, split_at
from server.queries.row_columns import PROMPT_SIZE
from server.queries.view import RunView

__all__ = ["eval_slices", "training_slices"]

Kind = Callable[[RunView], list[Slice]]
_STAGES = ("curriculum", "data", "data_mix", "stage")


class Falling(NamedTuple):
    """A slice whose newest samples lie below older ones."""

    of: Slice
    z: float
    change: float
    before: float
    after: float
    onset: int
    old: tuple[int, int]
    """Steps of the older samples."""
    new: tuple[int, int]

    @property
    def samples(self) -> str:
        """How many samples the comparison rests on, in words."""
        counted = bool((self.of.samples > 1).any())
        parts = [mean_between(self.of, *steps) for steps in (self.old, self.new)]
        old, new = (part[1] if part else 0 for part in parts)
        return f"{new:.0f} {'responses' if counted else 'points'} against {old:.0f}"


def falling(view: RunView, kind: Kind, errors: float, points: int, rate: float) -> list[Falling]:
    """Slices whose fall is beyond so many standard errors at their last points and a discovery over all slices at the rate."""
    known = kind(view)
    if len(known) < 2 or view.step not in _loud_steps(view, kind, known, errors, points):
        return []
    at = [position(one, view.step) for one in known]
    if sum(i >= 0 for i in at) < 2:
        return []
    found = discoveries([float(one.falls.p[i]) if i >= 0 else float("nan") for one, i in zip(known, at, strict=True)], rate)
    limit = float(ndtr(-errors))
    result = []
    for one, i, discovered in zip(known, at, found, strict=True):
        last = one.falls.p[max(0, i - points + 1) : i + 1]
        if discovered and len(last) == points and bool((last < limit).all()):
            result.append(_falling(one, i))
    return result


def _loud_steps(view: RunView, kind: Kind, known: Sequence[Slice], errors: float, points: int) -> frozenset[int]:
    """Steps at which any slice is beyond the limit at so many points in a row: the rest of a run costs one look-up a step."""
    key = ("loud", kind, view.attempt, view.baseline_start, errors, points)
    found: frozenset[int] | None = view.data.memo.get(key)
    if found is None:
        steps: set[int] = set()
        limit = float(ndtr(-errors))
        for one in known:
            loud = one.falls.p < limit
            for back in range(1, points):
                loud[back:] &= one.falls.p[:-back] < limit
            loud[: points - 1] = False
            steps.update(one.series.steps[loud].tolist())
        found = view.data.memo[key] = frozenset(steps)
    return found


def _falling(one: Slice, at: int) -> Falling:
    steps, values = one.series
    found = one.falls
    first, last, new = (int(a[at]) for a in (found.old_first, found.old_last, found.new_first))
    # Between the windows may lie a gap: the step at which it fell is looked for in all of it, from the old window's middle on.
    start = (first + last) // 2
    onset = start + split_at(values[start : at + 1], one.samples[start : at + 1])
    old_steps, new_steps = (int(steps[first]), int(steps[last])), (int(steps[new]), int(steps[at]))
    before, after = (mean_between(one, *part) for part in (old_steps, new_steps))
    return Falling(
        one, float(found.z[at]), float(found.change[at]), before[0] if before else 0.0, after[0] if after else 0.0,
        int(steps[onset]), old_steps, new_steps,
    )  # fmt: skip


def others_change(view: RunView, kind: Kind, one: Falling) -> float | None:
    """Change of the other slices together over the same steps, each with its own share of samples; None where none has both."""
    changes, weights = [], []
    for other in kind(view):
        old, new = mean_between(other, *one.old), mean_between(other, *one.new)
        if other.name != one.of.name and old is not None and new is not None:
            changes.append(new[0] - old[0])
            weights.append(old[1])
    return float(np.average(changes, weights=weights)) if changes else None


class Paradox(NamedTuple):
    """The aggregate rises while most of it falls."""

    onset: int
    gain: Shift
    metric: str
    tasks: list[str]
    share: float


def paradox(view: RunView, share: float, errors: float = 2.0) -> Paradox | None:
    """Simpson: the reward rises by three errors while tasks with at least this share of the responses fall by two each."""
    metric, known = reward_metric(view), [one for one in training_slices(view) if bool((one.samples > 1).any())]
    if metric is None or len(known) < 2 or view.step not in _paradox_steps(view, known, share, errors):
        return None
    at = [(one, i) for one in known if (i := position(one, view.step)) >= 0]
    down = [(one, i) for one, i in at if one.falls.z[i] < -errors]
    if not down:
        return None
    first = max(int(one.series.steps[one.falls.new_first[i]]) for one, i in down)
    old = min(int(one.series.steps[one.falls.old_first[i]]) for one, i in down)
    last = min(int(one.series.steps[one.falls.old_last[i]]) for one, i in down)
    gain = shift(view, metric, (old, last), (first, view.step))
    if gain is None or gain.z < 3:
        return None
    weight = {one.name: part[1] for one, _ in at if (part := mean_between(one, first, view.step)) is not None}
    told = sum(weight.get(one.name, 0.0) for one, _ in down) / max(sum(weight.values()), 1e-9)
    return Paradox(first, gain, metric, [one.name for one, _ in down], told) if told >= share else None


def _paradox_steps(view: RunView, known: Sequence[Slice], share: float, errors: float) -> frozenset[int]:
    key = ("paradox", view.attempt, view.baseline_start, share, errors)
    found: frozenset[int] | None = view.data.memo.get(key)
    if found is None:
        grid = np.unique(np.concatenate([one.series.steps for one in known]))
        down, total = np.zeros(len(grid)), np.zeros(len(grid))
        for one in known:
            at = np.searchsorted(one.series.steps, grid, side="right") - 1
            weight = np.where(at >= 0, np.cumsum(one.samples)[np.maximum(at, 0)], 0.0)
            total += weight
            down += weight * (one.falls.z[np.maximum(at, 0)] < -errors)
        # Half of it, because shares move; the exact share is asked at the steps that remain.
        found = view.data.memo[key] = frozenset(grid[down >= share / 2 * total].tolist())
    return found


def eval_metric_of(view: RunView, name: str) -> str | None:
    """The evaluation of a slice; None: it has none."""
    return next((one.metric for one in eval_slices(view) if one.name == name), None)


def _spans(view: RunView, finding: Finding) -> tuple[tuple[int, int], tuple[int, int]]:
    """Steps before and since the onset that are compared, as many before as since, at least 30."""
    span = max(30, view.step - finding.onset_step + 1)
    return (finding.onset_step - span, finding.onset_step - 1), (finding.onset_step, view.step)


def _both(view: RunView, finding: Finding) -> tuple[Shift | None, Shift | None]:
    """Change since the onset of the slice's training reward and of its evaluation."""
    trained = next((one.metric for one in training_slices(view) if one.name == finding.slice), None)
    held_out = eval_metric_of(view, finding.slice or "")
    old, new = _spans(view, finding)
    return shift(view, trained, old, new) if trained else None, shift(view, held_out, old, new) if held_out else None


def evaluation_fell(view: RunView, finding: Finding) -> CheckResult:
    """A real regression: training reward and evaluation of the slice fall together."""
    trained, held_out = _both(view, finding)
    own, other = (held_out, trained) if (finding.metric or "").startswith("eval.") else (trained, held_out)
    if own is None or other is None:
        return cannot("evaluation_fell", "eval.{task}.score", "reward.task.{task}.mean")
    name = "training reward" if own is held_out else "evaluation"
    fell = other.z < -3 or (other.z < -2 and other.change < 0.5 * own.change)
    observed = {"own_change": own.change, "other_change": other.change, "other_z": other.z}
    note = f"its {name} went from {other.before:.3f} to {other.after:.3f} ({other.z:+.1f} errors)"
    return answer("evaluation_fell", fell, other.z > -1 or other.change > 0.2 * own.change, observed, note)


def _pairs(view: RunView, finding: Finding) -> Pairs | None:
    key = ("pairs", finding.slice, finding.onset_step)
    if key not in view.scratch:
        view.scratch[key] = pairs(view, finding.slice, finding.onset_step)
    found: Pairs | None = view.scratch[key]
    return found


def same_pairs_hold(view: RunView, finding: Finding) -> CheckResult:
    """Equal responses to the same prompts score as before, so that it is the responses that changed."""
    found = _pairs(view, finding)
    if found is None:
        return cannot("same_pairs_hold", "response", "prompt", "task")
    return answer("same_pairs_hold", found.agree, found.disagree, found.observed, found.note)


def labels_contradict(view: RunView, finding: Finding) -> CheckResult:
    """Wrong labels: equal responses score otherwise than before or contradict each other, or only the training reward fell.

    An evaluation that holds while the training reward falls says it too, where the slice's prompts stayed as they were and
    its gradings were answered; so does an evaluation that falls while the training reward rises.
    """
    found, (trained, held_out) = _pairs(view, finding), _both(view, finding)
    if found is None and (trained is None or held_out is None):
        return cannot("labels_contradict", "response", "eval.{task}.score")
    parted, note = False, ""
    if trained is not None and held_out is not None:
        holds = trained.z < -3 and held_out.z > -1.5 and held_out.change > 0.25 * trained.change
        against = trained.z > 3 and held_out.z < -3
        parted = (holds or against) and _prompts_moved(view, finding) < 3 and (_unanswered(view, finding) or (0.0, 0.0))[1] < 0.02
        note = f"training reward {trained.change:+.3f}, evaluation {held_out.change:+.3f}"
    supports = parted or (found is not None and found.disagree)
    observed = {**(found.observed if found else {}), "evaluation_parted": int(parted)}
    told = "; ".join(filter(None, (found.note if found else "", note)))
    return answer("labels_contradict", supports, found is not None and found.agree and not parted, observed, told)


def _unanswered(view: RunView, finding: Finding) -> tuple[float, float] | None:
    """Share of the slice's gradings that timed out or failed, before and since the onset; None: no status is written."""
    old, new = _spans(view, finding)
    rows = rows_of(view, finding.slice, old[0], new[1], ("verifier_status",))
    status = rows["verifier_status"]
    before = rows["step"] < finding.onset_step
    known = np.array([isinstance(value, str) for value in status], dtype=bool)
    failed = np.isin(status.astype(str), ("timeout", "error"))
    if not (known & before).any() or not (known & ~before).any():
        return None
    return float(failed[known & before].mean()), float(failed[known & ~before].mean())


def gradings_unanswered(view: RunView, finding: Finding) -> CheckResult:
    """Gradings of the slice time out or fail more often than before."""
    found = _unanswered(view, finding)
    if found is None:
        return cannot("gradings_unanswered", "verifier.status")
    before, now = found
    note = f"{before:.1%} of its gradings unanswered before, {now:.1%} since"
    return answer("gradings_unanswered", now > 0.05 and now > 2 * before, now < 0.01, {"before": before, "now": now}, note)


def _prompts_moved(view: RunView, finding: Finding) -> float:
    """How far the slice's difficulty or prompt length moved since the onset, in standard errors; 0 where neither is written."""
    old, new = _spans(view, finding)
    found = (shift(view, f"fact.task.{name}.{finding.slice}", old, new) for name in ("difficulty", "prompt_length"))
    return max((abs(one.z) for one in found if one is not None), default=0.0)


def harder_prompts(view: RunView, finding: Finding) -> CheckResult:
    """A sampler or curriculum: the slice's prompts became harder or longer, or an event of the data lies near the onset."""
    old, new = _spans(view, finding)
    found = {name: shift(view, f"fact.task.{name}.{finding.slice}", old, new) for name in ("difficulty", "prompt_length")}
    known = {name: one for name, one in found.items() if one is not None}
    stages = [e for e in view.events(finding.onset_step - 10) if e.kind in _STAGES and e.step <= finding.onset_step + 10]
    if not known and not stages:
        return cannot("harder_prompts", "difficulty", "prompt_tokens")
    highest = max((one.z for one in known.values()), default=0.0)
    notes = [f"{name.replace('_', ' ')} {one.before:.3g} before, {one.after:.3g} since" for name, one in known.items()]
    notes += [f"step {e.step}: {e.kind} {e.text}"[:80] for e in stages[:1]]
    observed = {name: one.z for name, one in known.items()}
    still = all(abs(one.z) < 2.5 for one in known.values())
    return answer("harder_prompts", highest > 4 or bool(stages), still and not stages, observed, "; ".join(notes))


def other_prompts(view: RunView, finding: Finding) -> CheckResult:
    """Source ids changed: prompts that had another task before, or a kind of prompt under the slice's name that it did not have."""
    found = heads(view, finding.slice, finding.onset_step)
    if found is None:
        return cannot("other_prompts", "prompt", "task")
    moved = found.renamed_n >= 5 and found.renamed > 0.2
    usual = found.usual >= 0.8
    supports = moved or (usual and found.known < 0.5 * found.usual)
    observed = {"known_kind": found.known, "usual": found.usual, "renamed": found.renamed, "renamed_n": found.renamed_n}
    note = (
        f"{found.known:.0%} of its prompts begin as earlier ones did ({found.usual:.0%} before); "
        f"{found.renamed:.0%} of {found.renamed_n} returning prompts had another task"
    )
    return answer("other_prompts", supports, usual and found.known > 0.9 * found.usual and not moved, observed, note)


def kept_otherwise(view: RunView, finding: Finding) -> CheckResult:
    """Filtering: another share of the slice's responses is kept than before."""
    old, new = _spans(view, finding)
    rows = rows_of(view, finding.slice, old[0], new[1], ("kept",))
    kept = np.array([np.nan if value is None or value is np.ma.masked else float(value) for value in rows["kept"]])
    before = rows["step"] < finding.onset_step
    parts = [kept[part & ~np.isnan(kept)] for part in (before, ~before)]
    if not len(parts[0]) or not len(parts[1]):
        return cannot("kept_otherwise", "kept")
    was, now = float(parts[0].mean()), float(parts[1].mean())
    note = f"{was:.0%} of its responses kept before, {now:.0%} since"
    return answer("kept_otherwise", abs(now - was) > 0.1, abs(now - was) < 0.03, {"before": was, "now": now}, note)


def epoch_boundary(view: RunView, finding: Finding) -> CheckResult:
    """Data order: an epoch begins within 10 steps of the onset."""
    named = [e for e in view.events(finding.onset_step - 10) if e.kind == "epoch" and e.step <= finding.onset_step + 10]
    epoch = next((s for m in ("training/epoch", "train/epoch", "data.epoch", "epoch") if len(s := finite(view.series(m)))), None)
    if epoch is None and not named:
        return cannot("epoch_boundary", "training/epoch")
    turns = [] if epoch is None else epoch.steps[1:][np.diff(np.floor(epoch.values)) > 0].tolist()
    nearest = min([*turns, *(e.step for e in named)], key=lambda s: abs(s - finding.onset_step), default=None)
    near = nearest is not None and abs(nearest - finding.onset_step) <= 10
    note = "no epoch has ended" if nearest is None else f"an epoch begins at step {nearest}"
    return answer("epoch_boundary", near, not near, {"boundary": nearest, "onset": finding.onset_step}, note)


def evaluation_longer(view: RunView, finding: Finding) -> CheckResult:
    """Training and evaluation differ in length: the evaluation's prompts of the slice are longer than those trained on."""
    if not (finding.metric or "").startswith("eval."):
        return answer("evaluation_longer", False, True, {}, "the training reward of the slice fell itself")
    old, new = _spans(view, finding)
    sizes = []
    for split in ("train", "eval"):
        rows = rows_of(view, finding.slice, old[0], new[1], (PROMPT_SIZE,), split=split)
        size = rows["size"].astype(np.float64)
        size = size[np.isfinite(size)]
        if not len(size):
            return cannot("evaluation_longer", "prompt_tokens", note="needs rows of training and of evaluation")
        sizes.append(float(size.mean()))
    ratio = sizes[1] / max(sizes[0], 1e-9)
    note = f"prompts of {sizes[1]:.0f} tokens in the evaluation, {sizes[0]:.0f} in training"
    return answer("evaluation_longer", ratio > 1.25, ratio < 1.1, {"training": sizes[0], "evaluation": sizes[1]}, note)
