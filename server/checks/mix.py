"""The mix of a run: how far its shares have drifted, what that did to the reward, and what explains it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from server.checks.base import CheckResult, Finding, answer, cannot
from server.checks.measure import finite, spacing
from server.checks.slice_rows import heads, rows_of
from server.detectors.baseline import Floats
from server.detectors.falls import split_at
from server.detectors.mix import Drift, drift
from server.queries.fact_mix import FIRST_STEPS, aligned
from server.queries.row_columns import PROMPT_SIZE
from server.queries.view import RunView, Series

KINDS = {
    "task": "tasks",
    "difficulty": "difficulties",
    "origin": "origins",
    "prompt_length": "prompt lengths",
    "kept_task": "tasks that are kept",
}
_NEWEST_POINTS, _NEWEST_PROMPTS = 20, 200
"""The newest window; symptoms 19 wants 30 prompts a slice, which 200 give to shares of 15 %."""
_FEWEST_FIRST = 10
_PLANNED = ("curriculum", "data", "data_mix", "stage")


class Mix(NamedTuple):
    """Shares of one kind since the planned event. shares [k, n]; draws [n]: prompts of each step."""

    kind: str
    labels: list[str]
    steps: np.ndarray
    shares: Floats
    draws: Floats
    drift: Drift


class Drifted(NamedTuple):
    """A mix at a step at which it has drifted."""

    of: Mix
    excess: float
    label: str
    """The label whose share moved most."""
    before: float
    after: float
    onset: int
    first: tuple[int, int]
    newest: tuple[int, int]


def mixes(view: RunView) -> dict[str, Mix]:
    """Every kind of mix that the run has, over the whole chain; causal point by point."""
    key = ("mixes", view.attempt, view.baseline_start)
    found: dict[str, Mix] | None = view.data.memo.get(key)
    if found is None:
        made = {kind: _mix(view, kind) for kind in KINDS}
        found = view.data.memo[key] = {kind: mix for kind, mix in made.items() if mix is not None}
    return found


def _chain(view: RunView, metric: str) -> Series:
    return finite(view.data.chain(metric, view.attempt).since(view.baseline_start))


def _mix(view: RunView, kind: str) -> Mix | None:
    prefix = f"fact.mix.{kind}."
    labels = [m.removeprefix(prefix) for m in view.data.metrics() if m.startswith(prefix)]
    chains = [_chain(view, prefix + label) for label in labels]
    if not any(len(chain) for chain in chains):
        return None
    steps, shares = aligned(chains)
    rest = np.clip(1 - shares.sum(axis=0), 0, 1)
    if rest.max() > 1e-6:
        labels, shares = [*labels, "all others"], np.vstack([shares, rest])
    prompts = next((s for m in ("fact.prompt.n", "fact.group.n", "fact.n") if len(s := _chain(view, m))), None)
    if prompts is None:
        return None
    at = np.clip(np.searchsorted(prompts.steps, steps, side="right") - 1, 0, None)
    draws = prompts.values[at]
    # From the first points, which do not change while a run goes on.
    every = spacing(Series(steps[:50], shares[0, :50]))
    first_n = max(_FEWEST_FIRST, int(np.searchsorted(steps, steps[0] + max(FIRST_STEPS, every))))
    newest = max(5, round(_NEWEST_POINTS / every))
    return Mix(kind, labels, steps, shares, draws, drift(shares, draws, first_n, newest, _NEWEST_PROMPTS))


def loud_steps(view: RunView, limit: float, points: int) -> frozenset[int]:
    """Steps at which any mix lies beyond the limit at so many points in a row."""
    key = ("loud mix", view.attempt, view.baseline_start, limit, points)
    found: frozenset[int] | None = view.data.memo.get(key)
    if found is None:
        steps: set[int] = set()
        for mix in mixes(view).values():
            loud = mix.drift.excess > limit
            for back in range(1, points):
                loud[back:] &= mix.drift.excess[:-back] > limit
            loud[: points - 1] = False
            steps.update(mix.steps[loud].tolist())
        found = view.data.memo[key] = frozenset(steps)
    return found


def drifted(view: RunView, mix: Mix, limit: float, points: int) -> Drifted | None:
    """How a mix has drifted at the judged step; None: it is not beyond the limit at so many points in a row."""
    at = int(np.searchsorted(mix.steps, view.step, side="right")) - 1
    last = mix.drift.excess[max(0, at - points + 1) : at + 1]
    if at < 0 or mix.steps[at] != view.step or len(last) < points or not bool((last > limit).all()):
        return None
    begin, first_n = int(mix.drift.start[at]), mix.drift.first_n
    before, after = (_pooled(mix, *part) for part in ((0, first_n), (begin, at + 1)))
    moved = (after - before) * np.log((after + 1e-3) / (before + 1e-3))
    top = int(np.argmax(moved))
    onset = int(mix.steps[_onset(mix, at, top, limit, rises=after[top] > before[top])])
    spans = [(int(mix.steps[a]), int(mix.steps[b])) for a, b in ((0, first_n - 1), (begin, at))]
    return Drifted(mix, float(mix.drift.excess[at]), mix.labels[top], float(before[top]), float(after[top]), onset, *spans)


def _onset(mix: Mix, at: int, label: int, limit: float, *, rises: bool) -> int:
    """Position at which the label's share splits, around the window that first exceeded the limit; never in the first window."""
    quiet = np.flatnonzero(~(mix.drift.excess[: at + 1] > limit))
    loud = int(quiet[-1]) + 1 if len(quiet) else at
    width = loud + 1 - int(mix.drift.start[loud])
    first, end = max(mix.drift.first_n, loud + 1 - 2 * width), min(at, loud + width) + 1
    return first + split_at((-1.0 if rises else 1.0) * mix.shares[label, first:end], mix.draws[first:end])


def _pooled(mix: Mix, first: int, end: int) -> Floats:
    weight = mix.draws[first:end]
    return np.asarray((mix.shares[:, first:end] * weight).sum(axis=1) / max(float(weight.sum()), 1e-9))


class Decomposition(NamedTuple):
    """Change of the mean reward: what the tasks' own rewards did at the old shares, and what the shares did."""

    total: float
    values: float
    mix: float

    @property
    def share(self) -> float:
        """0..1, the mix term's part of the sum of both absolute terms."""
        return abs(self.mix) / max(abs(self.mix) + abs(self.values), 1e-12)


def decomposition(view: RunView, first: tuple[int, int], newest: tuple[int, int]) -> Decomposition | None:
    """The change of the mean reward between two spans of steps; None without rewards of the tasks in both."""
    tasks = mixes(view).get("task")
    if tasks is None:
        return None
    shares, rewards = [], []
    for span in (first, newest):
        here = (tasks.steps >= span[0]) & (tasks.steps <= span[1])
        weight = tasks.shares[:, here] * tasks.draws[here]
        shares.append(weight.sum(axis=1) / max(float(weight.sum()), 1e-9))
        rewards.append(np.array([_reward(view, label, tasks.steps[here], row) for label, row in zip(tasks.labels, weight, strict=True)]))
    # A task that one span lacks has one reward only: all its change is a change of its share.
    both = [np.where(np.isnan(a), b, a) for a, b in (rewards, rewards[::-1])]
    known = ~np.isnan(both[0])
    if not known.any():
        return None
    values = float((shares[0] * (both[1] - both[0]))[known].sum())
    mixed = float(((shares[1] - shares[0]) * both[1])[known].sum())
    return Decomposition(values + mixed, values, mixed)


def _reward(view: RunView, task: str, steps: np.ndarray, weight: Floats) -> float:
    chain = _chain(view, f"fact.task.reward.{task}")
    at = np.searchsorted(chain.steps, steps)
    found = (at < len(chain)) & (weight > 0)
    found[found] = chain.steps[at[found]] == steps[found]
    total = float(weight[found].sum())
    return float((chain.values[at[found]] * weight[found]).sum() / total) if total > 0 else float("nan")


def _spans(view: RunView, finding: Finding) -> tuple[tuple[int, int], tuple[int, int]]:
    """The first steps since the planned event, and those since the onset."""
    start = min((int(mix.steps[0]) for mix in mixes(view).values()), default=finding.onset_step)
    return (start, min(start + FIRST_STEPS, finding.onset_step) - 1), (finding.onset_step, view.step)


def sampler_moved(view: RunView, finding: Finding) -> CheckResult:
    """A sampler or curriculum: an event of the data lies near the onset, or what was issued moved before any filter."""
    near = [e for e in view.events(finding.onset_step - 10) if e.kind in _PLANNED and e.step <= finding.onset_step + 10]
    found = mixes(view)
    issued, kept = (_excess(view, found.get(kind)) for kind in ("task", "kept_task"))
    if issued is None and not near:
        return cannot("sampler_moved", "task", "kept")
    moved = issued is not None and kept is not None and issued > 0.1
    still = kept is not None and issued is not None and issued < 0.05 < kept
    note = f"step {near[0].step}: {near[0].kind} {near[0].text}"[:90] if near else f"index of the issued tasks {issued:.2f}"
    return answer("sampler_moved", bool(near) or moved, still and not near, {"issued": issued, "kept": kept, "events": len(near)}, note)


def _excess(view: RunView, mix: Mix | None) -> float | None:
    """The drift of a mix at its newest point."""
    at = int(np.searchsorted(mix.steps, view.step, side="right")) - 1 if mix is not None else -1
    value = float(mix.drift.excess[at]) if mix is not None and at >= 0 else float("nan")
    return value if value == value else None


def kept_differs(view: RunView, finding: Finding) -> CheckResult:
    """Filtering or completion order: the tasks that are trained on are not those that were issued, more than at first."""
    found = mixes(view)
    issued, kept = found.get("task"), found.get("kept_task")
    if issued is None or kept is None:
        return cannot("kept_differs", "kept", "task")
    gaps = []
    for span in _spans(view, finding):
        parts = []
        for mix in (issued, kept):
            here = (mix.steps >= span[0]) & (mix.steps <= span[1])
            pooled = dict(zip(mix.labels, (mix.shares[:, here] * mix.draws[here]).sum(axis=1), strict=True))
            row = np.array([pooled.get(label, 0.0) for label in issued.labels]) + 0.5
            parts.append(row / row.sum())
        gaps.append(float(((parts[1] - parts[0]) * np.log(parts[1] / parts[0])).sum()))
    note = f"index of kept against issued tasks {gaps[1]:.2f}, {gaps[0]:.2f} at first"
    return answer("kept_differs", gaps[1] > 0.1 and gaps[1] > 2 * gaps[0], gaps[1] < 0.03, {"at_first": gaps[0], "now": gaps[1]}, note)


def values_fell(view: RunView, finding: Finding) -> CheckResult:
    """A real regression: the tasks' own rewards fell, at the old shares."""
    found = decomposition(view, *_spans(view, finding))
    if found is None:
        return cannot("values_fell", "task", "reward")
    note = f"tasks' own rewards {found.values:+.3f}, mix {found.mix:+.3f}"
    observed = {"values": found.values, "mix": found.mix}
    return answer("values_fell", found.values < -0.02 and found.share < 0.5, found.values > -0.01, observed, note)


def source_ids_changed(view: RunView, finding: Finding) -> CheckResult:
    """Labels or source ids: prompts return under another task, or those of the task that moved are of another kind."""
    metric = finding.metric or ""
    if not metric.startswith("fact.mix.task."):
        return cannot("source_ids_changed", "task", note="another mix than that of the tasks drifted")
    found = heads(view, metric.removeprefix("fact.mix.task."), finding.onset_step)
    if found is None:
        return cannot("source_ids_changed", "prompt", "task")
    renamed = found.renamed_n >= 5 and found.renamed > 0.2
    other = found.usual >= 0.8 and found.known < 0.5 * found.usual
    alike = found.usual >= 0.8 and found.known > 0.9 * found.usual
    note = f"{found.renamed:.0%} of {found.renamed_n} returning prompts had another task; {found.known:.0%} begin as earlier ones did"
    observed = {"renamed": found.renamed, "renamed_n": found.renamed_n, "known_kind": found.known}
    return answer("source_ids_changed", renamed or other, alike and not renamed, observed, note)


def lengths_part(view: RunView, finding: Finding) -> CheckResult:
    """Training and evaluation differ in length: the evaluation's prompts are longer than those now trained on, unlike at first."""
    ratios = []
    for span in _spans(view, finding):
        means = []
        for split in ("train", "eval"):
            found = rows_of(view, None, *span, (PROMPT_SIZE,), split=split)["size"].astype(np.float64)
            found = found[np.isfinite(found)]
            if not len(found):
                return cannot("lengths_part", "prompt_tokens", note="needs rows of training and of evaluation")
            means.append(float(found.mean()))
        ratios.append(means[1] / max(means[0], 1e-9))
    note = f"evaluation prompts {ratios[1]:.2f} times as long as those trained on, {ratios[0]:.2f} at first"
    parted = ratios[1] > 1.25 and ratios[1] > 1.15 * ratios[0]
    return answer("lengths_part", parted, 0.9 < ratios[1] < 1.1, {"at_first": ratios[0], "now": ratios[1]}, note)
