"""Checks of length and termination: by correctness, by reward, by task, caps, tails, and the metric against the trajectories."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from server.checks.base import CheckResult, Finding, Observed, answer, cannot
from server.checks.distribution import eval_metric, quality_since
from server.checks.levels import since_onset_levels
from server.checks.measure import finite, level, mean_of, moved, points, shift, since_onset
from server.detectors.level import since
from server.detectors.middle import median
from server.queries.view import RunView

LENGTH = ("length.response.mean", "fact.length.mean")
_PENALTIES = ("length_penalty", "overlong", "soft_overlong", "length_cost", "len_penalty", "cosine_length")
"""Parts of configuration keys that name a price on length."""
_METRIC_OFF = 0.05
"""Difference of the logged truncated share to the trajectories' own from which the metric is wrong."""
TRUNCATED = ("length.response.truncated_frac", "fact.truncated_frac")


def length_metric(view: RunView) -> str | None:
    """Mean response length as logged, else of the trajectories."""
    return next((m for m in LENGTH if view.has(m)), None)


def truncated_metric(view: RunView) -> str | None:
    """Truncated share as logged, unless there is none or the trajectories hold clearly more cut responses than it says."""
    logged, own = (view.series(metric).values[-4:] for metric in TRUNCATED)
    if not len(own):
        return TRUNCATED[0] if len(logged) else None
    more = float(own.sum()) / len(own) > _METRIC_OFF + float(logged.sum()) / max(len(logged), 1)
    return TRUNCATED[1] if more or not len(logged) else TRUNCATED[0]


def gain_is_real(view: RunView, finding: Finding) -> CheckResult:
    """Evaluation rises with the length."""
    evaluation, reward = quality_since(view, finding.onset_step)
    if evaluation is None:
        return cannot("gain_is_real", "eval.heldout.score")
    return answer(
        "gain_is_real", evaluation > 2.5, evaluation < 1, {"eval_z": evaluation, "reward_z": reward}, f"evaluation {evaluation:+.1f} errors"
    )


def wrong_grow_longer(view: RunView, finding: Finding) -> CheckResult:
    """Wrong answers lengthen and right ones do not, under a sequence mean."""
    aggregation = view.config.get("loss_aggregation")
    wrong, right = (since_onset_levels(view, (f"fact.length.{m}.mean",), finding.onset_step) for m in ("wrong", "correct"))
    if wrong is None or right is None:
        return cannot("wrong_grow_longer", "reward", "response_tokens")
    more, less = float(wrong[1] / max(wrong[0], 1) - 1), float(right[1] / max(right[0], 1) - 1)
    by_sequence = str(aggregation).lower().replace("_", "-") in ("seq-mean", "sequence-mean", "seq-mean-token-mean", "grpo")
    observed: Observed = {"wrong": more, "right": less, "aggregation": str(aggregation)}
    return answer(
        "wrong_grow_longer",
        by_sequence and more > 0.15 and more > 2 * less,
        not by_sequence or more <= less,
        observed,
        f"wrong {more:+.0%}, right {less:+.0%}, {aggregation}",
    )


def reward_prefers_length(view: RunView, finding: Finding) -> CheckResult:
    """Longer responses get more reward, among the right ones too."""
    within, right = mean_of(view, "fact.length.reward_correlation", 10), mean_of(view, "fact.length.correct_correlation", 10)
    if within is None and right is None:
        return cannot("reward_prefers_length", "reward", "response_tokens", "group_id")
    best = max(x for x in (within, right) if x is not None)
    observed = {"within_groups": within, "among_right": right}
    return answer(
        "reward_prefers_length",
        (right is not None and right > 0.3) or (within or 0) > 0.5,
        best < 0.15,
        observed,
        f"correlation of reward and length {best:.2f}",
    )


def length_paid_since(view: RunView) -> int | None:
    """First step from which right responses are rewarded for their length (correlation above .3 ever since, ten points at least).

    Where right responses all score the same there is no correlation and no point. None where it was there in the 50 steps before
    too, or from the beginning on: then it is how the task is, no change of the reward.
    """
    series = points(view, "fact.length.correct_correlation")
    if len(series) < 10 or series.steps[-1] < view.step - 3 or float(series.values[-10:].mean()) < 0.3:
        return None
    at = since(series.values, 0.3, allowed=2)
    if len(series) - at < 10:
        return None
    start = int(series.steps[at])
    before = series.values[(series.steps < start) & (series.steps >= start - 50)]
    first = view.series(length_metric(view) or LENGTH[0]).steps
    return start if len(first) and start - int(first[0]) >= 20 and int((before > 0.15).sum()) <= 5 else None


def tails_repeat(view: RunView, finding: Finding) -> CheckResult:
    """Responses whose tail repeats itself, and how far tails deflate against before."""
    share = mean_of(view, "fact.repetitive_frac", 5) if view.has("fact.repetitive_frac") else mean_of(view, "response.repetition_frac", 5)
    ratio = since_onset_levels(view, ("fact.tail.compression",), finding.onset_step)
    if share is None:
        return cannot("tails_repeat", "response", note="no response is long enough to tell")
    tighter = ratio is not None and ratio[1] > 2 * ratio[0] and ratio[1] > 4
    observed = {"repetitive_frac": share, "compression_before": ratio[0] if ratio else None, "compression": ratio[1] if ratio else None}
    note = f"{share:.1%} of the responses repeat themselves" + (f", tails deflate {ratio[0]:.1f} to {ratio[1]:.1f} times" if ratio else "")
    return answer("tails_repeat", share > 0.05 or tighter, share < 0.01 and not tighter, observed, note)


def loops_from_start(view: RunView, finding: Finding) -> CheckResult:
    """As many loops in the first five points as now: stop tokens, template or the engine, not learning."""
    found = _first_and_now(view, ("fact.repetitive_frac", "response.repetition_frac"))
    if found is None:
        return cannot("loops_from_start", "response", "response.repetition_frac")
    early, now = found
    note = f"{early:.1%} at first, {now:.1%} now"
    return answer("loops_from_start", early > 0.5 * now and early > 0.02, early < 0.2 * now, {"early": early, "now": now}, note)


def loops_grew(view: RunView, finding: Finding) -> CheckResult:
    """Loops that training brought: hardly any in the first five points, and many now."""
    found = _first_and_now(view, ("fact.repetitive_frac", "response.repetition_frac"))
    if found is None:
        return cannot("loops_grew", "response", "response.repetition_frac")
    early, now = found
    note = f"{early:.1%} at first, {now:.1%} now"
    return answer("loops_grew", now > 0.05 and early < 0.2 * now, early > 0.5 * now, {"early": early, "now": now}, note)


def _first_and_now(view: RunView, metrics: Sequence[str]) -> tuple[float, float] | None:
    metric = next((m for m in metrics if view.has(m)), None)
    series = finite(view.series(metric)) if metric else None
    return (median(series.values[:5]), median(series.values[-5:])) if series is not None and len(series) >= 2 else None


def longer_is_better(view: RunView, finding: Finding) -> CheckResult:
    """Paired by prompt: whether the longer half of a group succeeds more often than its shorter half."""
    series = finite(view.series("fact.length.paired_gain"))
    gains = series.values[series.steps >= finding.onset_step][-30:]
    if len(gains) < 8:
        return cannot("longer_is_better", "group_id", "reward", "response_tokens", note=f"{len(gains)} steps with groups of mixed length")
    mean, error = float(gains.mean()), float(gains.std(ddof=1)) / len(gains) ** 0.5
    z = mean / error if error > 0 else 0.0
    note = f"longer responses to a prompt succeed {mean:+.1%} more often, {z:+.1f} errors"
    return answer("longer_is_better", mean > 0.02 and z > 2, mean < 0.02 and z < 1, {"gain": mean, "z": z}, note)


def mix_longer(view: RunView, finding: Finding) -> CheckResult:
    """Growth by the mix: shares of tasks times their own lengths before, against growth within tasks; or harder tasks."""
    return _by_mix(view, finding, "mix_longer", 1.0)


def mix_shorter(view: RunView, finding: Finding) -> CheckResult:
    """The same for shorter or easier tasks."""
    return _by_mix(view, finding, "mix_shorter", -1.0)


def _by_mix(view: RunView, finding: Finding, name: str, sign: float) -> CheckResult:
    mixed = within = 0.0
    tasks = 0
    for metric in view.matching("fact.mix.task."):
        lengths = f"fact.task.length.{metric.removeprefix('fact.mix.task.')}"
        share, size = (since_onset_levels(view, (m,), finding.onset_step) for m in (metric, lengths))
        if share and size:
            mixed += (share[1] - share[0]) * size[0]
            within += share[1] * (size[1] - size[0])
            tasks += 1
    hard = moved(view, "fact.difficulty", newest=5, floor=0.02)
    if tasks < 2 and hard is None:
        return cannot(name, "task", "difficulty", "response_tokens")
    total = abs(mixed) + abs(within)
    share_of = abs(mixed) / total if total > 0 else 0.0
    other = hard is not None and sign * hard.z > 4
    observed = {"by_mix": mixed, "within_tasks": within, "difficulty_z": hard.z if hard else None}
    note = f"{share_of:.0%} of the change by the mix"
    return answer(name, (share_of > 0.5 and sign * mixed > 0) or other, share_of < 0.3 and not other, observed, note)


def cap_changed(view: RunView, finding: Finding) -> CheckResult:
    """The longest response moved up at once, or an event names the length."""
    near = [
        e
        for e in view.events(finding.onset_step - 10)
        if any(w in f"{e.kind} {e.text}".lower() for w in ("length", "context", "max_new", "tokens", "cap"))
    ]
    found = since_onset_levels(view, ("length.response.max", "fact.length.max"), finding.onset_step)
    if found is None and not near:
        return cannot("cap_changed", "length.response.max")
    return answer("cap_changed", bool(near), not near, {"events": len(near)}, near[0].text[:100] if near else "no event names the length")


def tools_more(view: RunView, finding: Finding) -> CheckResult:
    """Turns or tool calls grow with the length, and loops with them where identical calls are told."""
    metric = next((m for m in ("tools.calls_per_sample", "turns.mean", "fact.turns.calls", "fact.turns.mean") if view.has(m)), None)
    found = since_onset_levels(view, (metric,), finding.onset_step) if metric else None
    if metric is None or found is None:
        return cannot("tools_more", "turns.mean", "tools.calls_per_sample", "turns")
    grew = found[1] / max(found[0], 1e-6) - 1
    loops, length = (since_onset_levels(view, (m,), finding.onset_step) for m in ("fact.turns.loop_frac", length_metric(view) or ""))
    longer = length[1] / max(length[0], 1e-6) - 1 if length else None
    observed = {
        "before": found[0],
        "now": found[1],
        "length_growth": longer,
        "loops_before": loops and loops[0],
        "loops_now": loops and loops[1],
    }
    note = f"{metric} {grew:+.0%}" + (f", {loops[1]:.0%} of the trajectories repeat a call" if loops else "")
    # Growth that turns do not share at least by half lies within turns.
    shared = longer is None or longer <= 0 or grew > 0.5 * longer
    return answer("tools_more", grew > 0.15 and shared, grew < 0.05 or (longer is not None and grew < 0.2 * longer), observed, note)


def cap_too_small(view: RunView, finding: Finding) -> CheckResult:
    """Cut responses score far below others and do not repeat themselves."""
    cut, others = (since_onset(view, f"fact.reward.{m}.mean", finding.onset_step, 5) for m in ("truncated", "terminated"))
    repeated = mean_of(view, "fact.loss_share.repetitive", 5)
    if cut is None or others is None:
        return cannot("cap_too_small", "finish_reason", "reward")
    gap = others - cut
    observed = {"reward_truncated": cut, "reward_others": others, "repetitive_share": repeated}
    return answer(
        "cap_too_small", gap > 0.2 and (repeated or 0) < 0.1, gap < 0.05, observed, f"reward {cut:.2f} cut, {others:.2f} otherwise"
    )


def short_pays(view: RunView, finding: Finding) -> CheckResult:
    """Shorter responses to a prompt get as much reward or more, or a penalty on length is configured."""
    within, gain = mean_of(view, "fact.length.reward_correlation", 10), mean_of(view, "fact.length.paired_gain", 10)
    keys = [key for key in flat_keys(view.run.raw_config) if any(w in key.lower() for w in _PENALTIES)]
    if within is None and gain is None and not keys:
        return cannot("short_pays", "reward", "response_tokens", "group_id")
    pays = (within is not None and within < -0.2) or (gain is not None and gain < -0.1)
    costs = (within is not None and within > 0.2) or (gain is not None and gain > 0.1)
    observed = {"within_groups": within, "paired_gain": gain, "configured": keys[0] if keys else None}
    note = (f"correlation of reward and length within groups {within:+.2f}" if within is not None else "no correlation known") + (
        f", {keys[0]} configured" if keys else ""
    )
    return answer("short_pays", pays or (bool(keys) and not costs), costs and not keys, observed, note)


def flat_keys(config: Mapping[str, object], prefix: str = "") -> Iterator[str]:
    """Dotted names of those values in a configuration that are set (not null, not false, not 0)."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from flat_keys(value, f"{prefix}{key}.")
        elif value:
            yield f"{prefix}{key}"


def metric_differs(view: RunView, finding: Finding) -> CheckResult:
    """The logged share against finish reasons of the trajectories."""
    logged, own = level(view, TRUNCATED[0], 5), level(view, TRUNCATED[1], 5)
    if logged is not None and own is None:
        return _longest_stands(view, logged)
    if logged is None or own is None:
        return cannot("metric_differs", TRUNCATED[0], "finish_reason")
    gap = abs(logged - own)
    return answer(
        "metric_differs",
        gap > _METRIC_OFF,
        gap < 0.02,
        {"logged": logged, "trajectories": own},
        f"logged {logged:.1%}, trajectories {own:.1%}",
    )


def _longest_stands(view: RunView, logged: float) -> CheckResult:
    """Without finish reasons: every batch ends at the same longest response, a cap at work, and none is logged as cut."""
    longest = finite(view.series("length.response.max")).values[-10:]
    if len(longest) < 5:
        return cannot("metric_differs", "finish_reason", "length.response.max")
    stands = float(longest.max()) == float(longest.min())
    note = f"longest response {longest[-1]:g} tokens{' in every batch' if stands else ''}, {logged:.1%} logged as cut"
    return answer(
        "metric_differs", stands and logged == 0, not stands and logged == 0, {"logged": logged, "longest": float(longest[-1])}, note
    )


def truncated_masked(view: RunView, finding: Finding) -> CheckResult:
    """Whether truncated responses carry weight in the loss."""
    kept, share = mean_of(view, "fact.kept_frac", 5), mean_of(view, "fact.loss_share.truncated", 5)
    masked = mean_of(view, "sample.masked_frac", 5)
    if share is None:
        return cannot("truncated_masked", "finish_reason", "kept")
    observed = {"kept_frac": kept, "loss_share": share, "masked_frac": masked}
    return answer(
        "truncated_masked",
        share < 0.01 or (masked or 0) > 0.05,
        share > 0.05,
        observed,
        f"truncated responses hold {share:.1%} of the loss",
    )


def from_first_step(view: RunView, finding: Finding) -> CheckResult:
    """Present from the start: stop tokens, template or attention kernel, not learning."""
    found = _first_and_now(view, TRUNCATED)
    if found is None:
        return cannot("from_first_step", *TRUNCATED)
    early, now = found
    note = f"{early:.1%} at first, {now:.1%} now"
    return answer("from_first_step", early > 0.5 * now and early > 0.1, early < 0.2 * now, {"early": early, "now": now}, note)


def longer_without_gain(view: RunView, onset: int) -> bool:
    """Whether the evaluation has not risen since the onset (beyond two standard errors); False without an evaluation."""
    metric = eval_metric(view)
    if metric is None:
        return False
    span = max(20, view.step - onset)
    found = shift(view, metric, (onset - span, onset - 1), (max(onset, view.step - span), view.step))
    return found is not None and len(points(view, metric)) >= 6 and found.z < 2
