"""What a run that stands still was already waiting for."""

from __future__ import annotations

from typing import Any

import pytest

import server.checks.stall as stall
from server.queries.view import RunView
from server.rules.base import Check, Finding

FINDING = Finding("run-stalled", "critical", 40, "nothing for 20 min")


@pytest.mark.parametrize(
    ("check", "metric"),
    [(stall.verifier_slowing, "time.verify_s"), (stall.generation_slowing, "time.rollout_s"), (stall.sync_slowing, "time.sync_s")],
)
@pytest.mark.parametrize(("late", "verdict"), [(30.0, "supported"), (10.0, "refuted"), (13.0, "inconclusive")])
def test_a_stage_that_had_slowed_is_the_likely_cause(make_run: Any, check: Check, metric: str, late: float, verdict: str) -> None:
    told = check(RunView(make_run({metric: [10.0] * 37 + [late] * 3}), 1, 40), FINDING)
    assert told.verdict == verdict


def test_without_the_times_of_the_stage_it_cannot_be_told(make_run: Any) -> None:
    told = stall.verifier_slowing(RunView(make_run({"reward.mean": [0.5] * 40}), 1, 40), FINDING)
    assert (told.verdict, told.missing) == ("not_checkable", ("time.verify_s",))
