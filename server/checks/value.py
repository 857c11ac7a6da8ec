"""Checks of the critic: never learnt, changed returns, low variance, truncation, scale."""

from __future__ import annotations

import numpy as np

from server.checks.base import CheckResult, Finding, answer, cannot
from server.checks.measure import finite, level, mean_of, moved, reward_metric, shift
from server.detectors.baseline import Floats
from server.detectors.middle import median
from server.queries.view import RunView

EXPLAINED = "value.explained_var"


def reached(values: Floats, held: int, level: float) -> list[bool]:
    """For each whole block of `held` values whether the median of it or of one before lies above a level."""
    blocks = len(values) // held
    medians = np.sort(values[: blocks * held].reshape(blocks, held), axis=1)[:, held // 2]
    found: list[bool] = np.logical_or.accumulate(medians > level).tolist()
    return found


def never_learnt(view: RunView, finding: Finding) -> CheckResult:
    """Explained variance was never above .1, median of any ten points."""
    series = finite(view.series(EXPLAINED))
    if len(series) < 10:
        return cannot("never_learnt", EXPLAINED)
    best = max(median(series.values[i : i + 10]) for i in range(len(series) - 9))
    return answer("never_learnt", best < 0.1, best > 0.2, {"best": best}, f"best median of ten points {best:.2f}")


def returns_changed(view: RunView, finding: Finding) -> CheckResult:
    """The reward's level or its spread changed at the onset."""
    metric = reward_metric(view)
    span = (finding.onset_step - 30, finding.onset_step - 1), (finding.onset_step, min(view.step, finding.onset_step + 30))
    found = shift(view, metric, *span) if metric else None
    if found is None:
        return cannot("returns_changed", "reward.mean")
    near = [e for e in view.events(finding.onset_step - 5) if e.step <= finding.onset_step + 5]
    observed = {"reward_z": found.z, "events": len(near)}
    return answer(
        "returns_changed",
        abs(found.z) > 4 or bool(near),
        abs(found.z) < 2 and not near,
        observed,
        f"reward {found.z:+.1f} errors at the onset",
    )


def variance_low(view: RunView, finding: Finding) -> CheckResult:
    """Hardly any variance of returns: explained variance means nothing then."""
    spread = level(view, "reward.std", 10)
    if spread is None:
        spread = level(view, "fact.reward.std", 10)
    if spread is None:
        return cannot("variance_low", "reward.std")
    return answer("variance_low", spread < 0.05, spread > 0.2, {"reward_std": spread}, f"standard deviation of rewards {spread:.3f}")


def cut_as_end(view: RunView, finding: Finding) -> CheckResult:
    """Truncated responses whose end is taken for the end of the task: many of them, and more since the onset."""
    metric = next((m for m in ("length.response.truncated_frac", "fact.truncated_frac") if view.has(m)), None)
    share = mean_of(view, metric, 10) if metric else None
    if metric is None or share is None:
        return cannot("cut_as_end", "length.response.truncated_frac", "finish_reason")
    before = finite(view.series(metric))
    earlier = before.values[before.steps < finding.onset_step][-30:]
    usual = float(earlier.mean()) if len(earlier) >= 5 else None
    rose = usual is not None and share > 2 * usual
    note = f"{share:.1%} of the responses are cut" + (f", {usual:.1%} before" if usual is not None else "")
    return answer("cut_as_end", share > 0.2 and rose, share < 0.02, {"truncated_frac": share, "before": usual}, note)


def rewards_conflict(view: RunView, finding: Finding) -> CheckResult:
    """Conflicting rewards: the same text to the same prompt is scored differently, which no critic can explain."""
    conflict, twins = mean_of(view, "fact.reward.conflict_frac", 10), mean_of(view, "fact.reward.twin_n", 10)
    if conflict is None or (twins or 0.0) < 4:
        return cannot("rewards_conflict", "response", "prompt", "reward", note="too few equal responses to one prompt")
    note = f"{conflict:.1%} of the responses with an equal twin have another reward than it"
    return answer("rewards_conflict", conflict > 0.2, conflict < 0.02, {"conflict_frac": conflict, "twins": twins}, note)


def scale_differs(view: RunView, finding: Finding) -> CheckResult:
    """Predicted values far from the rewards, or a critic's loss that grows."""
    value, metric = level(view, "value.mean", 10), reward_metric(view)
    reward = level(view, metric, 10) if metric else None
    spread = level(view, "reward.std", 10) or 0.5
    loss = moved(view, "loss.value", newest=5, floor=0.1)
    if value is None or reward is None:
        return cannot("scale_differs", "value.mean", "reward.mean")
    off = abs(value - reward) / max(spread, 1e-6)
    grown = loss is not None and loss.z > 6
    observed = {"value": value, "reward": reward, "loss_z": loss.z if loss else None}
    return answer("scale_differs", off > 1 or grown, off < 0.3 and not grown, observed, f"mean value {value:.2f}, mean reward {reward:.2f}")


def was_good(view: RunView, finding: Finding) -> CheckResult:
    """Divergence: it had explained something before, and its loss left its band."""
    loss = moved(view, "loss.value", newest=5, floor=0.1)
    if loss is None:
        return cannot("was_good", "loss.value")
    return answer("was_good", loss.z > 6, loss.z < 3, {"loss_z": loss.z}, f"critic's loss {loss.z:+.1f} spreads from its past")
