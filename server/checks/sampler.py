"""Checks of the sampler: whether tokens are drawn from the distribution that the engine reports, and from the same one as before."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from server.checks.base import CheckResult, Finding, answer, cannot
from server.checks.levels import since_onset_levels
from server.checks.measure import finite, moved
from server.queries.view import RunView


class Surprise(NamedTuple):
    """Sampled minus full entropy of the same tokens before and since an onset, in nats, and the standard errors of both means."""

    before: float
    since: float
    error_before: float
    error_since: float

    @property
    def z(self) -> float:
        """The change in standard errors."""
        return (self.since - self.before) / max(math.hypot(self.error_before, self.error_since), 1e-9)


def surprise(view: RunView, onset: int) -> Surprise | None:
    """How much rarer the drawn tokens are than the reported distribution says, before and since an onset.

    Since: over the newer half of its steps. An onset lies where a curve began to bend, which may be well before a sampler changed.
    At a lower temperature drawn tokens vary less, so the error since the onset is at least that of as many steps before it. None
    with fewer than three steps before or two since.
    """
    values, errors = finite(view.series("fact.entropy.surprise")), finite(view.series("fact.entropy.surprise_error"))
    if len(values) != len(errors):
        return None
    early, late = values.steps < onset, values.steps >= onset
    newer = min(30, max(2, (int(late.sum()) + 1) // 2))
    a, b = values.values[early][-30:], values.values[late][-newer:]
    if len(a) < 3 or len(b) < 2:
        return None
    error_a, error_b = errors.values[early][-30:], errors.values[late][-newer:]
    usual = float(np.sqrt(np.mean(error_a[-8:] ** 2)))  # of the entropy just before, not of that at the start
    since = max(float(np.sqrt(np.mean(error_b**2))), usual) / math.sqrt(len(b))
    before = float(np.sqrt(np.mean(error_a**2))) / math.sqrt(len(a))
    return Surprise(float(a.mean()), float(b.mean()), before, since)


def sampler_changed(view: RunView, finding: Finding) -> CheckResult:
    """Another temperature or truncation than before: as written with the trajectories, or as the drawn tokens show.

    Minus the log-prob of a drawn token has the entropy as its mean where the engine draws from the distribution that it reports.
    Without token entropies the logged sampled and full entropy are compared.
    """
    for name in ("temperature", "top_p"):
        written = since_onset_levels(view, (f"fact.sampling.{name}",), finding.onset_step)
        if written is not None and abs(written[1] - written[0]) > 0.01:
            return answer(
                "sampler_changed", True, False, {f"{name}_before": written[0], name: written[1]}, f"{name} {written[0]:g} to {written[1]:g}"
            )
    found = surprise(view, finding.onset_step)
    if found is not None:
        observed = {"before": found.before, "since": found.since, "z": found.z}
        note = f"drawn tokens are {_rarer(found.since)} than the entropy says, {found.before:+.3f} before"
        return answer("sampler_changed", abs(found.z) > 3, abs(found.z) < 2, observed, note)
    return _sampled_moved(view)


def _rarer(nats: float) -> str:
    return f"{abs(nats):.3f} nats {'rarer' if nats > 0 else 'likelier'}"


def _sampled_moved(view: RunView) -> CheckResult:
    sampled = next((m for m in ("entropy.sampled", "entropy.rollout.mean") if view.has(m)), None)
    if sampled is None or not view.has("entropy.mean"):
        return cannot("sampler_changed", "rollout_logprobs", "entropies", "entropy.sampled")
    one, both = moved(view, sampled, newest=3), moved(view, "entropy.mean", newest=3)
    if one is None or both is None:
        return cannot("sampler_changed", sampled, note="no baseline yet")
    # An engine that reports the entropy of its own full distribution does not show a change of its sampler.
    only_sampled = abs(one.z) > 6 and abs(both.z) < 2
    refutes = sampled == "entropy.sampled" and abs(one.z - both.z) < 3
    note = f"sampled {one.z:+.1f}, full {both.z:+.1f} spreads"
    return answer("sampler_changed", only_sampled, refutes, {"sampled_z": one.z, "full_z": both.z}, note)


def sampler_hidden(view: RunView, finding: Finding) -> CheckResult:
    """Log-probs before the sampling transform: the engine draws from another distribution than the one whose log-probs it reports."""
    found = surprise(view, finding.onset_step)
    if found is None:
        return cannot("sampler_hidden", "rollout_logprobs", "entropies")
    far = abs(found.since) > max(0.02, 4 * found.error_since)
    observed = {"before": found.before, "since": found.since, "error": found.error_since}
    note = f"drawn tokens are {_rarer(found.since)} than reported, error {found.error_since:.3f}"
    return answer("sampler_hidden", far, abs(found.since) < 2 * found.error_since, observed, note)
