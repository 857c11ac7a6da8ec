"""Reading a run across a resume: where it resumed, what jumped there, and which state the attempt before had left behind."""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import NamedTuple

import numpy as np

from server.checks.measure import finite, reward_metric
from server.detectors.baseline import MADN
from server.detectors.middle import median
from server.queries.view import RunView, Series, Values

KINDS = frozenset({"resume", "restart"})
BEFORE, AFTER = 10, 10
"""Points compared on each side (symptoms 15)."""
PAST = 30
"""Points or steps before a resume that say what is usual."""
_LOG = frozenset({"grad.norm", "kl.ref"})
_NEAR = 5
"""Steps by which a checkpoint's event may lie before the first step of the attempt that it starts."""


class Resume(NamedTuple):
    """A resume: the first step after it. announced False: nothing says so but the data that came again."""

    step: int
    text: str
    announced: bool = True
    distance: int = 0
    """Steps back to where the prompts come from; only of an unannounced one."""


class Jump(NamedTuple):
    """A metric's medians on both sides of a resume and their distance in spreads of a single point."""

    metric: str
    before: float
    after: float
    z: float


def newest(view: RunView) -> Resume | None:
    """The newest resume up to the step, announced or not; None without one."""
    key = ("resumes", view.attempt)
    found: list[Resume] | None = view.data.memo.get(key)
    if found is None:
        found = view.data.memo[key] = _announced(view)
    position = bisect_right(found, view.step, key=lambda r: r.step)
    told = found[position - 1] if position else None
    quiet = _unannounced(view)
    if quiet is None or (told is not None and told.step > quiet.step - PAST):
        return told
    return quiet


def _announced(view: RunView) -> list[Resume]:
    data = view.data
    starts = [
        Resume(start, f"attempt {later} starts at step {start}")
        for later, start in data.attempt_starts.items()
        if data.first_attempt < later <= view.attempt
    ]
    known = [e for e in data.events if e.kind in KINDS and data.on_branch(e.attempt, e.step, view.attempt)]
    planned = view.config.get("planned_events")
    told = [(e.step, e.text) for e in known]
    for event in planned if isinstance(planned, list) else ():
        if isinstance(event, dict) and event.get("kind") in KINDS and isinstance(event.get("step"), int):
            told.append((int(str(event["step"])), str(event.get("text"))))
    others = [Resume(step, text) for step, text in told if not any(0 <= s.step - step <= _NEAR for s in starts)]
    return sorted([*starts, *others])


def _unannounced(view: RunView) -> Resume | None:
    """The newest place at which the prompts of earlier steps came again, step after step in the same order."""
    key = ("prompts again", view.attempt)
    if key not in view.data.memo:
        view.data.memo[key] = _prompts_again(*(view.data.chain(f"fact.repeat.{n}", view.attempt) for n in _REPEATS))
    told, places = view.data.memo[key]
    position = bisect_right(told, view.step)
    return places[position - 1] if position else None


_REPEATS = ("block_frac", "prompts", "prompt_frac", "distance")
_TOGETHER = 0.6
"""Share of a step's prompts that must come from one earlier step; two random steps share a few at most."""
_FEWEST_PROMPTS = 6
_HISTORY = 20


def _prompts_again(block: Series, prompts: Series, seen: Series, distance: Series) -> tuple[list[int], list[Resume]]:
    """Steps at which a repeated stretch is known (its second step), and the stretches; uses nothing after each of them."""
    n = len(block)
    if n <= _HISTORY or not (block.steps.size == prompts.steps.size == seen.steps.size):
        return [], []
    back = np.full(n, np.nan)
    back[np.searchsorted(block.steps, distance.steps)] = distance.values
    whole = block.values >= _TOGETHER
    again = np.zeros(n, bool)
    again[1:] = whole[1:] & whole[:-1] & (back[1:] == back[:-1]) & (prompts.values[1:] + prompts.values[:-1] >= _FEWEST_PROMPTS)
    told: list[int] = []
    places: list[Resume] = []
    for at in np.flatnonzero(again).tolist():
        if at < _HISTORY or again[at - 1]:
            continue
        earlier = slice(max(0, at - 1 - PAST), at - 1)
        repeated = again[earlier]
        fixed_order = repeated.mean() > 0.8 and not (back[earlier][repeated] == back[at]).any()
        if fixed_order or (seen.values[earlier].mean() < 0.5 and not repeated.any()):
            told.append(int(block.steps[at]))
            steps = int(back[at])
            onset = int(block.steps[at - 1])
            places.append(Resume(onset, f"prompts of step {onset - steps} come again at step {onset}", False, steps))
    return told, places


def sides(view: RunView, metric: str, start: int, before: int = BEFORE, after: int = AFTER) -> tuple[Values, Values]:
    """Finite values of the last `before` points before a step and of the first `after` points from it on."""
    series = finite(view.series(metric))
    at = int(np.searchsorted(series.steps, start))
    return series.values[max(0, at - before) : at], series.values[at : at + after]


def spread(values: Values, least: float = 0.0) -> float:
    """Standard deviation of a single point: the larger of that around the median and a floor of 5 % of it."""
    middle = median(values)
    return max(MADN * median(np.abs(values - middle)), 0.05 * abs(middle), least)


def level_metrics(view: RunView) -> list[str]:
    """What is compared across a resume, of what the run has: reward, length, entropy, gradient norm and KL."""
    length = view.first_of("length.response.mean", "fact.length.mean")
    entropy = view.first_of("entropy.mean", "entropy.rollout.mean", "fact.entropy.response")
    named = [reward_metric(view), length and length[0], entropy and entropy[0], "grad.norm", "kl.ref"]
    return [m for m in named if m and view.has(m)]


def jump(view: RunView, metric: str, start: int, fewest: int = 5, after: int = AFTER) -> Jump | None:
    """How far a metric's level moved at a resume; None with too few points on either side."""
    past, new = sides(view, metric, start, PAST, after)
    if metric in _LOG:
        past, new = past[past > 0], new[new > 0]
    if len(past) < BEFORE or len(new) < fewest:
        return None
    scale = (np.log10(past), np.log10(new), 0.04) if metric in _LOG else (past, new, 0.0)
    old, now, least = scale
    width = max(MADN * median(np.abs(old - median(old))), least) if metric in _LOG else spread(old)
    if width == 0:
        width = 1e-9
    z = (median(now) - median(old[-BEFORE:])) / width
    return Jump(metric, median(past[-BEFORE:]), median(new), z)


class Repeats(NamedTuple):
    """Prompts of the first steps after a resume against those of the steps before it."""

    share: float
    """Of their prompts, those that the run had had before."""
    before: float
    """The same share in the steps before."""
    z: float
    """How far the count lies above chance, in standard deviations of a binomial count."""
    together: float
    """Of their prompts, those that come from earlier steps at one and the same distance."""
    distance: int
    steps: int
    prompts: int
    usual: bool
    """Whether prompts came in the order of that very distance before the resume too."""

    @property
    def moved_back(self) -> bool:
        """Whether the steps repeat earlier ones in their order, as they did not before."""
        return self.together > 0.5 and self.prompts >= _FEWEST_PROMPTS and not self.usual


def repeats(view: RunView, start: int, first: int = 5) -> Repeats | None:
    """Prompt repeats of the first steps after a resume; None where prompts are not written on both sides."""
    names = ("prompts", "prompt_frac", "block_frac", "distance")
    prompts, seen, block, back = (finite(view.series(f"fact.repeat.{name}")) for name in names)
    at = int(np.searchsorted(prompts.steps, start))
    old, new = slice(max(0, at - PAST), at), slice(at, at + first)
    if at < BEFORE or not len(prompts.steps[new]) or not (len(prompts) == len(seen) == len(block)):
        return None
    share, count = _share(prompts, seen, new)
    before, known = _share(prompts, seen, old)
    if min(count, known) < 1:
        return None
    chance = min(max(before, 1 / 50), 0.98)
    z = count * (share - before) / math.sqrt(count * chance * (1 - chance))
    together, distance = _one_distance(prompts, block, back, new)
    earlier, usual = _one_distance(prompts, block, back, old)
    return Repeats(share, before, z, together, distance, len(prompts.steps[new]), int(count), earlier > 0.5 and usual == distance)


def _share(prompts: Series, part: Series, where: slice) -> tuple[float, float]:
    total = float(prompts.values[where].sum())
    return float((prompts.values[where] * part.values[where]).sum()) / max(total, 1.0), total


def _one_distance(prompts: Series, block: Series, back: Series, where: slice) -> tuple[float, int]:
    """Share of the prompts that come from the commonest distance, and that distance."""
    steps = prompts.steps[where]
    known = np.isin(back.steps, steps)
    if not known.any():
        return 0.0, 0
    together = (prompts.values * block.values)[np.searchsorted(prompts.steps, back.steps[known])]
    distances, of = np.unique(back.values[known], return_inverse=True)
    totals = np.bincount(of, weights=together)
    best = int(np.argmax(totals))
    return float(totals[best] / prompts.values[where].sum()), int(distances[best])


def off_schedule(view: RunView, start: int) -> tuple[float, float] | None:
    """Expected and logged learning rate at the first point after a resume, where they differ by more than rounding; else None.

    Expected is what an earlier attempt logged at that very step; without one, the line through the ten points before.
    """
    series = finite(view.series("lr"))
    at = int(np.searchsorted(series.steps, start))
    if at >= len(series) or at < 3:
        return None
    step, now = int(series.steps[at]), float(series.values[at])
    other = _earlier_attempt(view, "lr", step)
    if other is not None:
        return (other, now) if abs(now - other) > 0.02 * abs(other) else None
    steps, values = series.steps[max(0, at - BEFORE) : at], series.values[max(0, at - BEFORE) : at]
    slope = float(values[-1] - values[-2]) / float(steps[-1] - steps[-2])
    expected = float(values[-1]) + slope * float(step - steps[-1])
    largest = float(np.max(np.abs(np.diff(values)) / np.diff(steps))) * float(step - steps[-1])
    # A schedule may bend here: as much as its steepest step before, three times, is not told.
    return (expected, now) if abs(now - expected) > max(0.02 * abs(values[-1]), 3 * largest) else None


def _earlier_attempt(view: RunView, metric: str, step: int) -> float | None:
    """What the attempt before logged at a step that the present one has logged again; None where it did not."""
    if view.attempt <= view.data.first_attempt:
        return None
    chain = finite(view.data.chain(metric, view.attempt - 1))
    at = int(np.searchsorted(chain.steps, step))
    return float(chain.values[at]) if at < len(chain) and chain.steps[at] == step else None


def warms_up_again(view: RunView, start: int) -> bool:
    """Whether the learning rate is far below that of before and climbs, as at the start of a run."""
    past, new = sides(view, "lr", start, 3, 10)
    return len(past) > 0 and len(new) > 0 and bool(new[0] < 0.7 * past[-1]) and (len(new) < 2 or bool(new[-1] > new[0]))


_STEP_SIZES = ("kl.old", "clip.frac", "ratio.max", "kl.pre_post.k2", "clip.outside_frac")


def first_updates(view: RunView, start: int) -> dict[str, tuple[float, float, float]]:
    """Size of the first two updates after a resume by metric: usual size, largest of the 30 before, the larger of the two."""
    found = {}
    for metric in _STEP_SIZES:
        past, new = sides(view, metric, start, PAST, 2)
        if len(past) >= BEFORE and len(new):
            less = 1.0 if metric == "ratio.max" else 0.0
            past, new = np.abs(past - less), np.abs(new - less)
            found[metric] = (median(past), float(past.max()), float(new.max()))
    return found


def larger_first_updates(view: RunView, start: int) -> list[str]:
    """Metrics in which the first updates are larger than any of the 30 before and than 2.5 times the usual one."""
    return [m for m, (usual, most, now) in first_updates(view, start).items() if now > 1.2 * most and now > 2.5 * usual]
