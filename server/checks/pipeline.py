"""Where a step's time goes: stages, waiting, overlap, stragglers and discarded work, and the checks of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from server.checks.base import CheckResult, Finding, answer, cannot
from server.checks.measure import finite, level, mean_of
from server.detectors.baseline import rolling
from server.detectors.middle import median
from server.queries.view import EMPTY, RunView, Series, Steps, Values

STAGES: dict[str, tuple[str, ...]] = {
    "generation": ("time.rollout_s", "timing_s/gen"),
    "rewards": ("time.verify_s",),
    "old log-probs": ("time.logprob_old_s",),
    "reference log-probs": ("time.logprob_ref_s",),
    "values": ("time.value_s",),
    "the policy update": ("time.update_s", "time.fwd_bwd_s"),
    "the critic update": ("time.update_critic_s",),
    "weight synchronisation": ("time.sync_s",),
    "waiting for rollouts": ("time.wait_batch_s",),
    "waiting for weights": ("time.wait_policy_s",),
}
"""Stages of a step by what they are, with the metrics that log them. `timing_s/gen` is verl's generation where its generation of the
trainer is unknown; it is wall clock within the step in all of them."""
MASKED = ("time.eval_s", "time.ckpt_s")
"""Evaluation and checkpoints come every now and then and belong to no step's normal time."""
_WAITS = "waiting"
NEWEST = 5
LASTING = 10
SLOWER = 1.3
"""Ratio of a step's time to its baseline above which it is slow (symptoms 16)."""


class StepTimes(NamedTuple):
    """Seconds of every step without evaluation and checkpoint, and of its stages."""

    steps: Steps
    total: Values
    names: tuple[str, ...]
    """Stages that are logged, of STAGES."""
    seconds: Values
    """[stages, steps]; NaN where a stage has no value at a step."""
    logged: bool
    """Whether the total was logged itself; else it is the sum of the stages."""
    times: Values
    """Total over its baseline; NaN without one."""
    lasting: Values
    """Points in a row, up to each, with a total above the limit."""


def step_times(view: RunView, limit: float) -> StepTimes | None:
    """The times up to the step; None where neither a total nor two stages are logged. limit: ratio to the baseline that is slow."""
    start = view.baseline_start
    key = ("step times", view.attempt, start, limit)
    if key not in view.data.memo:
        view.data.memo[key] = _make(view, start, limit)
    made: StepTimes | None = view.data.memo[key]
    end = 0 if made is None else int(np.searchsorted(made.steps, view.step, side="right"))
    if made is None or end == 0:
        return None
    return StepTimes(
        made.steps[:end], made.total[:end], made.names, made.seconds[:, :end], made.logged, made.times[:end], made.lasting[:end]
    )


def _make(view: RunView, start: int, limit: float) -> StepTimes | None:
    chains = {name: _chain(view, start, *metrics) for name, metrics in STAGES.items()}
    chains = {name: chain for name, chain in chains.items() if len(chain)}
    total = _chain(view, start, "time.step_s")
    logged = len(total) > 0
    if not logged and len(chains) < 2:
        return None
    steps = total.steps if logged else max(chains.values(), key=len).steps
    seconds = np.array([_on(steps, chain) for chain in chains.values()]).reshape(len(chains), len(steps))
    if logged:
        values = total.values - sum(np.nan_to_num(_on(steps, _chain(view, start, metric))) for metric in MASKED)
    else:
        values = np.nan_to_num(seconds[[not name.startswith(_WAITS) for name in chains]]).sum(axis=0)
    middle, _ = rolling(values)
    with np.errstate(invalid="ignore", divide="ignore"):
        times = values / middle
    above = times > limit
    at = np.arange(len(values))
    lasting = at - np.maximum.accumulate(np.where(above, -1, at))
    return StepTimes(steps, values, tuple(chains), seconds, logged, times, np.where(above, lasting, 0))


def _chain(view: RunView, start: int, *metrics: str) -> Series:
    for metric in metrics:
        chain = finite(view.data.chain(metric, view.attempt).since(start))
        if len(chain):
            return chain
    return EMPTY


def _on(steps: Steps, chain: Series) -> Values:
    values = np.full(len(steps), np.nan)
    at = np.searchsorted(steps, chain.steps)
    inside = (at < len(steps)) & (steps[np.minimum(at, len(steps) - 1)] == chain.steps)
    values[at[inside]] = chain.values[inside]
    return values


def shares(times: StepTimes, newest: int = NEWEST) -> dict[str, float]:
    """Share of the step's time by stage, median of the newest points (the lower one of two)."""
    if not times.names:
        return {}
    with np.errstate(invalid="ignore", divide="ignore"):
        part = np.sort(times.seconds[:, -newest:] / times.total[-newest:], axis=1)  # NaN come last
    known = np.isfinite(part).sum(axis=1)
    return {name: float(part[at, (known[at] - 1) // 2]) for at, name in enumerate(times.names) if known[at]}


def overlap(times: StepTimes) -> float | None:
    """How much of what could run side by side does: 0 one after the other, 1 all within the longest stage; None: not to be told."""
    parts = [at for at, name in enumerate(times.names) if not name.startswith(_WAITS)]
    if not times.logged or len(parts) < 2 or len(times.total) < LASTING:
        return None
    stages = np.nan_to_num(times.seconds[parts, -LASTING:])
    together, total = stages.sum(axis=0), times.total[-LASTING:]
    room = together - stages.max(axis=0)
    keep = room > 0.1 * together
    return median((together - total)[keep] / room[keep]) if keep.any() else None


def growth(times: StepTimes, onset: int) -> dict[str, tuple[float, float, float]]:
    """By stage, its share of the growth of the step's time since an onset, and its seconds before and since; empty without growth."""
    at = int(np.searchsorted(times.steps, onset))
    old, new = slice(max(0, at - 50), at), slice(at, at + LASTING)
    if at == 0 or at >= len(times.steps):
        return {}
    total = median(times.total[new]) - median(times.total[old])
    found = {}
    for name, values in zip(times.names, times.seconds, strict=True):
        before, after = (values[part][np.isfinite(values[part])] for part in (old, new))
        if total > 0 and len(before) and len(after):
            found[name] = ((median(after) - median(before)) / total, median(before), median(after))
    return found


def waiting(view: RunView, found: Mapping[str, float], side: str) -> float | None:
    """0..1, share of the step in which trainer or engine waits, of the newest points; None where nothing tells it. found: shares()."""
    idle, stage = ("idle.trainer_frac", "waiting for rollouts") if side == "trainer" else ("idle.rollout_frac", "waiting for weights")
    return level(view, idle, NEWEST) if view.has(idle) else found.get(stage)


def discarded(view: RunView) -> tuple[str, float] | None:
    """The metric that tells it and the share of generated work that is not trained on, median of the newest LASTING points."""
    for metric, kept in (("tokens.trained_over_generated", True), ("group.filtered_frac", False), ("fact.kept_frac", True)):
        key = ("discarded", metric, view.attempt, view.baseline_start)
        if key not in view.data.memo:
            chain = finite(view.data.chain(metric, view.attempt).since(view.baseline_start))
            course = np.median(sliding_window_view(chain.values, LASTING), axis=1) if len(chain) >= LASTING else np.empty(0)
            view.data.memo[key] = chain.steps[LASTING - 1 :], course
        steps, course = view.data.memo[key]
        at = int(np.searchsorted(steps, view.step, side="right")) - 1
        if at >= 0:
            return metric, max(0.0, 1 - float(course[at]) if kept else float(course[at]))
    return None


def slowed(times: StepTimes, finding: Finding) -> bool:
    """Whether the finding is that steps take longer than they did."""
    return bool(times.lasting[times.steps >= finding.onset_step].max(initial=0) >= LASTING)


def _share_or_growth(view: RunView, finding: Finding, stage: str) -> tuple[float, str] | None:
    """A stage's share of the step's time, or of its growth where the finding is that the step takes longer."""
    times = step_times(view, SLOWER)
    if times is None or stage not in times.names:
        return None
    if slowed(times, finding):
        onset = _slow_since(times)
        found = growth(times, onset).get(stage)
        return None if found is None else (found[0], f"{found[0]:.0%} of the growth: {found[1]:.3g} s before, {found[2]:.3g} s since")
    share = shares(times).get(stage)
    return None if share is None else (share, f"{share:.0%} of the step's time")


def _slow_since(times: StepTimes) -> int:
    """First step of the newest stretch of slow steps that lasted."""
    end = int(np.flatnonzero(times.lasting >= LASTING)[-1])
    return int(times.steps[end - int(times.lasting[end]) + 1])


def _shares(view: RunView) -> dict[str, float]:
    times = step_times(view, SLOWER)
    return {} if times is None else shares(times)


def _blame(id: str, view: RunView, finding: Finding, stage: str) -> CheckResult:
    found = _share_or_growth(view, finding, stage)
    if found is None:
        return cannot(id, STAGES[stage][0], "time.step_s")
    return answer(id, found[0] > 0.5, found[0] < 0.2, {"share": found[0]}, f"{stage}: {found[1]}")


def generation_bound(view: RunView, finding: Finding) -> CheckResult:
    """Generation: most of the step's time or of its growth, or a trainer that waits for rollouts."""
    idle = waiting(view, _shares(view), "trainer")
    if idle is not None and idle > 0.3:
        return answer("generation_bound", True, False, {"trainer_waits": idle}, f"the trainer waits for {idle:.0%} of the step")
    return _blame("generation_bound", view, finding, "generation")


def verifier_blocks(view: RunView, finding: Finding) -> CheckResult:
    """Rewards: most of the step's time or of its growth."""
    return _blame("verifier_blocks", view, finding, "rewards")


def synchronisation(view: RunView, finding: Finding) -> CheckResult:
    """Weight synchronisation: most of the step's time or of its growth, or an engine that waits for weights."""
    idle = waiting(view, _shares(view), "engine")
    if idle is not None and idle > 0.3:
        return answer("synchronisation", True, False, {"engine_waits": idle}, f"the engine waits for {idle:.0%} of the step")
    return _blame("synchronisation", view, finding, "weight synchronisation")


def stragglers(view: RunView, finding: Finding) -> CheckResult:
    """Stragglers: the slowest response takes many times the usual one's time, or generation follows the longest response alone."""
    tail, last = mean_of(view, "fact.seconds.rollout.tail", NEWEST), mean_of(view, "fact.seconds.rollout.last_tenth", NEWEST)
    if tail is None and view.has("time.traj_rollout.max", "time.traj_rollout.mean"):
        most, usual = level(view, "time.traj_rollout.max", NEWEST), level(view, "time.traj_rollout.mean", NEWEST)
        tail = most / usual if most is not None and usual else None
    if tail is not None:
        note = f"slowest response {tail:.1f} times the usual one" + (f", last tenth {last:.0%} of the time" if last is not None else "")
        return answer("stragglers", tail > 4 or (last or 0) > 0.4, tail < 2, {"slowest_over_usual": tail, "last_tenth": last}, note)
    longest, mean = _follows(view, "length.response.max"), _follows(view, "length.response.mean")
    if longest is None or mean is None:
        return cannot("stragglers", "seconds", "time.traj_rollout.max", "length.response.max")
    note = f"time of generation follows the longest response with {longest:.2f}, the mean length with {mean:.2f}"
    supports = longest > 0.6 and longest - mean > 0.3
    return answer("stragglers", supports, mean > 0.5 and mean >= longest, {"longest": longest, "mean": mean}, note)


def _follows(view: RunView, metric: str) -> float | None:
    """Correlation over the newest 50 common points of generation's time with a metric."""
    times, series = step_times(view, SLOWER), finite(view.series(metric))
    if times is None or "generation" not in times.names:
        return None
    values = times.seconds[times.names.index("generation")]
    _, a, b = np.intersect1d(times.steps, series.steps, return_indices=True)
    x, y = values[a][-50:], series.values[b][-50:]
    keep = np.isfinite(x)
    x, y = x[keep], y[keep]
    return float(np.corrcoef(x, y)[0, 1]) if len(x) >= 20 and np.ptp(x) > 0 and np.ptp(y) > 0 else None


def engine_short_of_cache(view: RunView, finding: Finding) -> CheckResult:
    """Preemptions, or a cache that is full while requests wait."""
    preempted, cache, queued = (level(view, m, NEWEST) for m in ("engine.preemptions_rate", "engine.kv_cache_frac", "engine.waiting"))
    if preempted is None and cache is None:
        return cannot("engine_short_of_cache", "engine.preemptions_rate", "engine.kv_cache_frac")
    full = (cache or 0) > 0.95 and (queued is None or queued > 0)
    parts = ((preempted, "preemptions a second {:.2g}"), (cache, "cache in use {:.0%}"))
    note = "; ".join(text.format(value) for value, text in parts if value is not None)
    calm = (preempted is None or preempted == 0) and (cache is None or cache < 0.8)
    return answer("engine_short_of_cache", (preempted or 0) > 0.1 or full, calm, {"preemptions": preempted, "cache": cache}, note)


def work_discarded(view: RunView, finding: Finding) -> CheckResult:
    """Much of what is generated is not trained on."""
    found = discarded(view)
    if found is None:
        return cannot("work_discarded", "tokens.trained_over_generated", "kept", "group.filtered_frac")
    return answer("work_discarded", found[1] > 0.5, found[1] < 0.25, {found[0]: found[1]}, f"{found[1]:.0%} is discarded ({found[0]})")


def environment_slow(view: RunView, finding: Finding) -> CheckResult:
    """Tools and environments take much of the generation's time, or rollouts fail and are tried again."""
    share, failed = mean_of(view, "fact.seconds.environment.share", NEWEST), level(view, "errors.rollout_frac", NEWEST)
    if share is None and failed is None:
        return cannot("environment_slow", "seconds", "errors.rollout_frac")
    parts = ((share, "environment {:.0%} of the rollouts' time"), (failed, "{:.0%} of the rollouts fail"))
    note = "; ".join(text.format(value) for value, text in parts if value is not None)
    slow = (share or 0) > 0.5 or (failed or 0) > 0.1
    return answer("environment_slow", slow, (share or 0) < 0.2 and (failed or 0) < 0.02, {"share": share, "failed": failed}, note)


def ranks_uneven(view: RunView, finding: Finding) -> CheckResult:
    """Workers wait for the one with the most tokens."""
    idle = level(view, "imbalance.tokens_frac", NEWEST)
    if idle is None:
        return cannot("ranks_uneven", "imbalance.tokens_frac")
    return answer(
        "ranks_uneven", idle > 0.25, idle < 0.1, {"idle_by_imbalance": idle}, f"{idle:.0%} of the workers' time is idle by imbalance"
    )
