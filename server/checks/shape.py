"""Checks of length and termination: by correctness, by reward, by task, caps, tails, and the metric against the trajectories."""

from __future__ import annotations

from server.checks.base import CheckResult, Finding, Observed, answer, cannot
from server.checks.distribution import eval_metric, quality_since
from server.checks.measure import finite, level, mean_of, moved, points, shift
from server.detectors.middle import median
from server.queries.view import RunView

LENGTH = ("length.response.mean", "fact.length.mean")
TRUNCATED = ("length.response.truncated_frac", "fact.truncated_frac")


def length_metric(view: RunView) -> str | None:
    """Mean response length as logged, else of the trajectories."""
    return next((m for m in LENGTH if view.has(m)), None)


def truncated_metric(view: RunView) -> str | None:
    """Truncated share as logged, else of the trajectories."""
    return next((m for m in TRUNCATED if view.has(m)), None)


def _since(view: RunView, metric: str, onset: int) -> tuple[float, float] | None:
    """Median of at most 50 points before an onset, and of the newest 5."""
    series = finite(view.series(metric))
    before = series.values[series.steps < onset][-50:]
    return (median(before), median(series.values[-5:])) if len(before) >= 3 else None


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
    wrong, right = _since(view, "fact.length.wrong.mean", finding.onset_step), _since(view, "fact.length.correct.mean", finding.onset_step)
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


def termination_lost(view: RunView, finding: Finding) -> CheckResult:
    """The truncated share grows while terminated responses keep their length, or cut responses are rewarded like others."""
    cut = next((v for m in TRUNCATED if view.has(m) and (v := _since(view, m, finding.onset_step))), None)
    if cut is None:
        return cannot("termination_lost", *TRUNCATED)
    own = _since(view, "length.response.terminated.mean", finding.onset_step)
    grew = own[1] / max(own[0], 1) - 1 if own else None
    scored, others = mean_of(view, "fact.reward.truncated.mean", 5), mean_of(view, "fact.reward.terminated.mean", 5)
    kept = scored is not None and others is not None and others > 0 and scored > 0.7 * others
    more = cut[1] - cut[0]
    observed = {
        "truncated_before": cut[0],
        "truncated_now": cut[1],
        "terminated_growth": grew,
        "reward_truncated": scored,
        "reward_others": others,
    }
    return answer(
        "termination_lost",
        more > 0.05 and (kept or (grew is not None and grew < 0.1)),
        more < 0.02,
        observed,
        f"truncated {cut[0]:.1%} to {cut[1]:.1%}",
    )


def tails_repeat(view: RunView, finding: Finding) -> CheckResult:
    """Responses whose tail repeats itself."""
    share = mean_of(view, "fact.repetitive_frac", 5) if view.has("fact.repetitive_frac") else mean_of(view, "response.repetition_frac", 5)
    if share is None:
        return cannot("tails_repeat", "response", note="no response is long enough to tell")
    return answer(
        "tails_repeat", share > 0.05, share < 0.01, {"repetitive_frac": share}, f"{share:.1%} of long responses repeat themselves"
    )


def mix_longer(view: RunView, finding: Finding) -> CheckResult:
    """Growth by the mix: shares of tasks times their own lengths before, against growth within tasks."""
    mixed = within = 0.0
    tasks = 0
    for metric in view.matching("fact.mix.task."):
        task = metric.removeprefix("fact.mix.task.")
        share, size = _since(view, metric, finding.onset_step), _since(view, f"fact.task.length.{task}", finding.onset_step)
        if share and size:
            mixed += (share[1] - share[0]) * size[0]
            within += share[1] * (size[1] - size[0])
            tasks += 1
    hard = moved(view, "fact.difficulty", newest=5, floor=0.02)
    if tasks < 2:
        return cannot("mix_longer", "task", "response_tokens")
    total = abs(mixed) + abs(within)
    share_of = abs(mixed) / total if total > 0 else 0.0
    harder = hard is not None and hard.z > 4
    observed = {"by_mix": mixed, "within_tasks": within}
    return answer(
        "mix_longer",
        (share_of > 0.5 and mixed > 0) or harder,
        share_of < 0.3 and not harder,
        observed,
        f"{share_of:.0%} of the change by the mix",
    )


def cap_changed(view: RunView, finding: Finding) -> CheckResult:
    """The longest response moved up at once, or an event names the length."""
    near = [
        e
        for e in view.events(finding.onset_step - 10)
        if any(w in f"{e.kind} {e.text}".lower() for w in ("length", "context", "max_new", "tokens", "cap"))
    ]
    found = _since(view, "length.response.max", finding.onset_step)
    if found is None and not near:
        return cannot("cap_changed", "length.response.max")
    return answer("cap_changed", bool(near), not near, {"events": len(near)}, near[0].text[:100] if near else "no event names the length")


def tools_more(view: RunView, finding: Finding) -> CheckResult:
    """Turns or tool calls grow with the length, and loops with them where identical calls are told."""
    metric = next((m for m in ("tools.calls_per_sample", "turns.mean", "fact.turns.calls", "fact.turns.mean") if view.has(m)), None)
    found = _since(view, metric, finding.onset_step) if metric else None
    if metric is None or found is None:
        return cannot("tools_more", "turns.mean", "tools.calls_per_sample", "turns")
    grew = found[1] / max(found[0], 1e-6) - 1
    loops, length = (_since(view, m, finding.onset_step) for m in ("fact.turns.loop_frac", length_metric(view) or ""))
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
    cut, others = mean_of(view, "fact.reward.truncated.mean", 5), mean_of(view, "fact.reward.terminated.mean", 5)
    repeated = mean_of(view, "fact.loss_share.repetitive", 5)
    if cut is None:
        return cannot("cap_too_small", "finish_reason", "reward")
    gap = (others or 0) - cut
    observed = {"reward_truncated": cut, "reward_others": others, "repetitive_share": repeated}
    return answer(
        "cap_too_small", gap > 0.2 and (repeated or 0) < 0.1, gap < 0.05, observed, f"reward {cut:.2f} cut, {others or 0:.2f} otherwise"
    )


def metric_differs(view: RunView, finding: Finding) -> CheckResult:
    """The logged share against finish reasons of the trajectories."""
    logged, own = level(view, TRUNCATED[0], 5), level(view, TRUNCATED[1], 5)
    if logged is None or own is None:
        return cannot("metric_differs", TRUNCATED[0], "finish_reason")
    gap = abs(logged - own)
    return answer(
        "metric_differs", gap > 0.05, gap < 0.02, {"logged": logged, "trajectories": own}, f"logged {logged:.1%}, trajectories {own:.1%}"
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
    metric = truncated_metric(view)
    series = finite(view.series(metric)) if metric else None
    if series is None or len(series) < 2:
        return cannot("from_first_step", *TRUNCATED)
    early, now = median(series.values[:5]), median(series.values[-5:])
    return answer(
        "from_first_step",
        early > 0.5 * now and early > 0.1,
        early < 0.2 * now,
        {"early": early, "now": now},
        f"{early:.1%} at first, {now:.1%} now",
    )


def longer_without_gain(view: RunView, onset: int) -> bool:
    """Whether the evaluation has not risen since the onset (beyond two standard errors); False without an evaluation."""
    metric = eval_metric(view)
    if metric is None:
        return False
    span = max(20, view.step - onset)
    found = shift(view, metric, (onset - span, onset - 1), (max(onset, view.step - span), view.step))
    return found is not None and len(points(view, metric)) >= 6 and found.z < 2
