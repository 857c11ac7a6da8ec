"""Checks of a joint collapse as a whole: NaN, repeated data, events, reward hacking before it."""

from __future__ import annotations

import numpy as np

from server.checks.base import CheckResult, Finding, answer, cannot
from server.checks.distribution import eval_metric
from server.checks.measure import finite, level, reward_metric, shift
from server.checks.optimiser import NO_CHANGE
from server.queries.view import RunView

_NEAR_STEPS = 10
_BEFORE_STEPS = 60
_DEAD_ENTROPY = 1e-3
_WATCHED = ("loss.policy", "loss.total", "grad.norm", "kl.old", "kl.ref", "entropy.mean")


def death_by_nan(view: RunView, finding: Finding) -> CheckResult:
    """A value that was not finite up to ten steps before the onset, or a policy of one token: no entropy, responses at the cap."""
    broken = []
    for metric in _WATCHED:
        series = view.series(metric).since(finding.onset_step - _NEAR_STEPS)
        if len(series) and not np.isfinite(series.values).all():
            broken.append(metric)
    entropy, cut = level(view, "entropy.mean"), level(view, "length.response.truncated_frac")
    if not broken and not view.has(*_WATCHED):
        return cannot("death_by_nan", *_WATCHED[:3])
    dead = entropy is not None and entropy < _DEAD_ENTROPY and (cut or 0.0) > 0.9
    note = f"not finite: {', '.join(broken)}" if broken else "every value stayed finite"
    note += f"; entropy {entropy:.2g}" if entropy is not None else ""
    observed = {"not_finite": len(broken), "entropy": entropy, "truncated_frac": cut}
    return answer("death_by_nan", bool(broken) or dead, not broken and not dead, observed, note)


def epoch_border(view: RunView, finding: Finding) -> CheckResult:
    """An epoch that began within ten steps of the onset, by the logged epoch or by an event."""
    near = [e for e in view.events(finding.onset_step - _NEAR_STEPS) if e.kind in ("epoch", "data") and e.step <= finding.onset_step + 1]
    epoch = finite(view.series("epoch"))
    part = epoch.values[(epoch.steps >= finding.onset_step - _NEAR_STEPS - 1) & (epoch.steps <= finding.onset_step + 1)]
    if not near and len(part) < 2:
        return cannot("epoch_border", "epoch")
    passed = len(part) >= 2 and np.floor(part[-1]) > np.floor(part[0])
    where = f"epoch {part[0]:.2f} to {part[-1]:.2f} around the onset" if len(part) >= 2 else near[0].text[:120]
    return answer("epoch_border", bool(near) or bool(passed), not near and not passed, {"events": len(near)}, where)


def event_near(view: RunView, finding: Finding) -> CheckResult:
    """A resume, a change of the configuration or of the data within ten steps before the onset."""
    first, last = finding.onset_step - _NEAR_STEPS, finding.onset_step + 1
    near = [f"{e.kind} at step {e.step}" for e in view.events(first) if e.step <= last and e.kind not in NO_CHANGE]
    starts = [step for attempt, step in view.data.attempt_starts.items() if view.data.first_attempt < attempt <= view.attempt]
    near += [f"an attempt that starts at step {step}" for step in starts if first <= step <= last]
    return answer("event_near", bool(near), not near, {"events": len(near)}, near[0] if near else "no event and no resume near the onset")


def hacked_before(view: RunView, finding: Finding) -> CheckResult:
    """The end of reward hacking: before the onset the reward had risen for long while the evaluation had not."""
    reward, evaluation = reward_metric(view), eval_metric(view)
    if reward is None or evaluation is None:
        return cannot("hacked_before", "reward.mean", "eval.heldout.score")
    end, middle = finding.onset_step - 1, finding.onset_step - _BEFORE_STEPS // 2
    spans = (finding.onset_step - _BEFORE_STEPS, middle - 1), (middle, end)
    up, follows = shift(view, reward, *spans), shift(view, evaluation, *spans)
    if up is None or follows is None:
        return cannot("hacked_before", evaluation, note=f"too few evaluations in the {_BEFORE_STEPS} steps before the onset")
    note = f"before the onset the reward moved by {up.z:+.1f} errors and the evaluation by {follows.z:+.1f}"
    observed = {"reward_z": up.z, "eval_z": follows.z}
    return answer("hacked_before", up.z > 4 and follows.z < 0, up.z < 2 or follows.z > 2, observed, note)
