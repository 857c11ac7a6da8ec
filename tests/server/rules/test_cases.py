"""Rule cases are data: cases/<rule>.yaml, run step by step as a live run would be.

A series is a list of segments laid end to end: start, increment (per point), count, noise (standard deviation, with a seed), value
(the same number throughout) and gap (points left out). `every` is the distance of logged steps. `fires` names the first step at
which the rule reaches the severity, and `verdicts` what its explanations are found to be at its last finding; `quiet` holds for the
severity and everything above it; `cannot` names what is missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from ingest.store.connection import Store
from server.engine.assess import Question, assess
from server.engine.needs import missing
from server.queries.view import Event, RunData, RunFacts, RunView
from server.rules import RULES
from server.rules.base import SEVERITIES, Finding, Rule

FOLDER = Path(__file__).parent / "cases"
BY_NAME = {rule.name: rule for rule in RULES}


def _cases() -> Iterator[Any]:
    for path in sorted(FOLDER.glob("*.yaml")):
        for case in yaml.safe_load(path.read_text(encoding="utf-8")):
            yield pytest.param(BY_NAME[path.stem], case, id=f"{path.stem}: {case['name']}")


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    opened = Store(None)
    yield opened
    opened.close()


def _values(segments: list[dict[str, Any]]) -> list[float | None]:
    values: list[float | None] = []
    for segment in segments:
        count = int(segment.get("count", 1))
        if "gap" in segment:
            values += [None] * int(segment["gap"])
            continue
        base = float(segment.get("value", segment.get("start", 0.0))) + float(segment.get("increment", 0.0)) * np.arange(count)
        noise = np.random.default_rng(int(segment.get("seed", 0))).normal(0, float(segment.get("noise", 0.0)), count)
        values += (base + noise).tolist()
    return values


def _run(store: Store, case: dict[str, Any]) -> RunData:
    config = case.get("config", {})
    facts = RunFacts("case", "cases", case["name"], "native", None, config, case.get("raw_config", config))
    events = tuple(Event(1, e["step"], e["kind"], e.get("text", "")) for e in case.get("events", []))
    data = RunData(store, facts, events, {1: 1})
    every = int(case.get("every", 1))
    for metric, segments in case["series"].items():
        values = _values([segments] if isinstance(segments, dict) else segments)
        kept = [(1 + every * at, value) for at, value in enumerate(values) if value is not None]
        data.add(metric, [1] * len(kept), [step for step, _ in kept], [value for _, value in kept])
    return data


def _found(rule: Rule, data: RunData, case: dict[str, Any]) -> Iterator[tuple[int, Finding]]:
    params = {p.name: p.default for p in rule.params} | case.get("params", {})
    for attempt, step in data.judge_order():
        view = RunView(data, attempt, step, params)
        if not missing(rule, view):
            for finding in rule.evaluate(view):
                yield step, finding


def _verdicts(rule: Rule, data: RunData, step: int, finding: Finding) -> dict[str, str]:
    attempt = next(attempt for attempt, judged in data.judge_order() if judged == step)
    view = RunView(data, attempt, step, {p.name: p.default for p in rule.params})
    return {told["id"]: told["verdict"] for told in assess([Question(h, view, finding) for h in rule.hypotheses], strict=True)}


@pytest.mark.parametrize(("rule", "case"), list(_cases()))
def test_case(rule: Rule, case: dict[str, Any], store: Store) -> None:
    data = _run(store, case)
    least = SEVERITIES.index(case.get("severity", "watch"))
    loud = [(step, finding) for step, finding in _found(rule, data, case) if SEVERITIES.index(finding.severity) >= least]
    if "cannot" in case:
        attempt, step = data.judge_order()[-1]
        assert case["cannot"] in missing(rule, RunView(data, attempt, step))
        assert not loud
    elif "fires" in case:
        assert loud, "it stays quiet"
        step, finding = loud[0]
        assert (step, finding.severity) == (case["fires"], case.get("severity", "watch"))
        assert finding.symptom == rule.name
        assert finding.onset_step <= step
        assert finding.summary
        assert finding.slice == case.get("slice")
        if "onset" in case:
            assert finding.onset_step == case["onset"]
        if "metric" in case:
            assert finding.metric == case["metric"]
        told = _verdicts(rule, data, *loud[-1]) if "verdicts" in case else {}
        assert {name: told[name] for name in case.get("verdicts", {})} == case.get("verdicts", {})
    else:
        assert case["quiet"] is True
        assert not loud, f"{loud[0][1].severity} at step {loud[0][0]}: {loud[0][1].summary}"


def test_rules_equal_the_files_on_disk() -> None:
    files = {path.stem for path in (Path(__file__).parents[3] / "server" / "rules").glob("*.py")} - {"__init__", "base", "document"}
    assert {rule.name.replace("-", "_") for rule in RULES} == files
    assert len({rule.code for rule in RULES}) == len(RULES) == len(files)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_rule_has_cases_that_fire_that_are_quiet_and_that_cannot_tell(rule: Rule) -> None:
    cases = yaml.safe_load((FOLDER / f"{rule.name}.yaml").read_text(encoding="utf-8"))
    kinds = [kind for case in cases for kind in ("fires", "quiet", "cannot") if kind in case]
    assert len(kinds) == len(cases)
    if rule.family == "joint":  # the engine composes it; alone it never fires
        assert set(kinds) == {"quiet", "cannot"}
        return
    assert set(kinds) == {"fires", "quiet", "cannot"}
    assert len(cases) >= 6
    assert kinds.count("quiet") + kinds.count("cannot") >= kinds.count("fires")


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.family != "joint"], ids=lambda rule: rule.name)
def test_every_rule_has_competing_explanations_that_a_log_can_decide(rule: Rule) -> None:
    computable = [h for h in rule.hypotheses if h.checks]
    assert len(computable) >= 2
    assert all(h.action for h in rule.hypotheses if not h.checks)
    assert len({h.id for h in rule.hypotheses}) == len(rule.hypotheses)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_parameters_lie_in_their_ranges_and_say_where_they_come_from(rule: Rule) -> None:
    for param in rule.params:
        assert param.low <= param.default <= param.high
        assert param.source
