"""Ranking the explanations of an incident by the checks that were really computed."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from server.engine.state import observed_json
from server.queries.view import RunView
from server.rules.base import Check, CheckResult, Finding, Hypothesis, Verdict

SUPPORTS, REFUTES = 3.0, 1 / 3
"""Factors of a check on the prior weight (symptoms 21)."""

_ORDER: tuple[Verdict, ...] = ("supported", "inconclusive", "not_checkable", "refuted")
_log = logging.getLogger(__name__)


class CheckFailed(Exception):
    """A check stopped with an error; raised in strict mode only."""


class Question(NamedTuple):
    """One explanation, to be tested on a view of the run for a finding."""

    hypothesis: Hypothesis
    view: RunView
    finding: Finding


def assess(questions: Sequence[Question], *, strict: bool = False) -> list[dict[str, Any]]:
    """The hypotheses in the form of `diagnose --json`, best first, each with the answers of its checks.

    The weight is the prior times 3 for each supporting and 1/3 for each refuting check; it ranks and is not shown, since
    it is no probability. Equals stay in the order asked. strict: an error in a check is raised instead of told as not
    checkable.
    """
    weighed = []
    for position, (hypothesis, view, finding) in enumerate(questions):
        results = [_run(check, view, finding, strict) for check in hypothesis.checks]
        verdict, weight = _verdict(results), _weight(hypothesis, results)
        weighed.append((-weight, _ORDER.index(verdict), position, _json(hypothesis, verdict, results)))
    weighed.sort(key=lambda item: item[:3])
    return [{**told, "rank": rank} for rank, (_, _, _, told) in enumerate(weighed, 1)]


def _run(check: Check, view: RunView, finding: Finding, strict: bool) -> CheckResult:
    try:
        return check(view, finding)
    except Exception as error:
        if strict:
            raise CheckFailed(f"check {_name(check)} of {finding.symptom} at step {view.step}: {error!r}") from error
        _log.exception("check %s of %s failed on run %s at step %s", _name(check), finding.symptom, view.run.run_id, view.step)
        return CheckResult(_name(check), "not_checkable", note=f"the check stopped with an error: {error!r}")


def _name(check: Check) -> str:
    inner = getattr(check, "func", check)
    return str(getattr(inner, "__name__", inner.__class__.__name__))


def _verdict(results: Sequence[CheckResult]) -> Verdict:
    supports = sum(r.verdict == "supported" for r in results)
    refutes = sum(r.verdict == "refuted" for r in results)
    if supports != refutes:
        return "supported" if supports > refutes else "refuted"
    return "inconclusive" if any(r.verdict != "not_checkable" for r in results) else "not_checkable"


def _weight(hypothesis: Hypothesis, results: Sequence[CheckResult]) -> float:
    weight = hypothesis.prior
    for result in results:
        weight *= SUPPORTS if result.verdict == "supported" else REFUTES if result.verdict == "refuted" else 1.0
    return weight


def _json(hypothesis: Hypothesis, verdict: Verdict, results: Sequence[CheckResult]) -> dict[str, Any]:
    checks: list[dict[str, Any]] = [
        {"id": r.id, "verdict": r.verdict, "observed": observed_json(r.observed), "missing": list(r.missing), "note": r.note}
        for r in results
    ]
    if not checks:
        checks = [{"id": "action", "verdict": "not_checkable", "observed": {}, "missing": [], "note": hypothesis.action}]
    return {
        "id": hypothesis.id,
        "title": hypothesis.title,
        "rank": 0,
        "verdict": verdict,
        "computable_from": hypothesis.computable_from,
        "checks": checks,
        "action": hypothesis.action or None,
    }
