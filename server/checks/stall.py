"""Checks of a run that stands still: what its newest steps were already waiting for."""

from __future__ import annotations

from server.checks.base import CheckResult, Finding, answer, cannot
from server.checks.measure import moved
from server.queries.view import RunView

LONGER = 1.5
"""A part of the step that takes this many times its own past was already waiting."""
_VERIFIER = ("time.verify_s", "fact.verifier.seconds.mean")


def verifier_slowing(view: RunView, finding: Finding) -> CheckResult:
    """The verifier took longer and longer in the steps before, or stopped answering."""
    return _slowing(view, "verifier_slowing", _VERIFIER, "verifier")


def generation_slowing(view: RunView, finding: Finding) -> CheckResult:
    """Generation took longer and longer in the steps before: long or hanging requests."""
    return _slowing(view, "generation_slowing", ("time.rollout_s",), "generation")


def sync_slowing(view: RunView, finding: Finding) -> CheckResult:
    """The transfer of weights took longer and longer in the steps before."""
    return _slowing(view, "sync_slowing", ("time.sync_s",), "weight synchronisation")


def _slowing(view: RunView, id: str, metrics: tuple[str, ...], what: str) -> CheckResult:
    metric = next((m for m in metrics if view.has(m)), None)
    found = moved(view, metric, newest=3, floor=0.1) if metric else None
    if metric is None or found is None:
        return cannot(id, metrics[0])
    factor = found.now / found.base.median if found.base.median > 0 else 1.0
    note = f"{what} {found.now:.3g} s in the newest steps, {found.base.median:.3g} s before"
    return answer(id, factor > LONGER and found.z > 6, factor < 1.1, {metric: found.now, "before": found.base.median}, note)
