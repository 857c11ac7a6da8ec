"""Cut responses against rewarded answers to the same prompts, on rows written through the native reader."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ingest.discover import discover
from ingest.load import identify, load_run
from ingest.store.connection import Store
from server.checks.base import CheckResult, Finding
from server.checks.endings import answer_before_cut
from server.queries.run_data import load_run as read_run
from server.queries.view import RunView

Ask = Callable[[Sequence[Mapping[str, Any]]], CheckResult]


@pytest.fixture
def ask(tmp_path: Path) -> Iterator[Ask]:
    """The check's answer at step 10 for a truncation since step 9."""
    store = Store(None)

    def result(rows: Sequence[Mapping[str, Any]]) -> CheckResult:
        folder = tmp_path / "run"
        folder.mkdir()
        full = [{"trajectory_id": f"t{n}", **row} for n, row in enumerate(rows)]
        (folder / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in full))
        found = discover([folder])[0][0]
        assert all(read.rejected == 0 for read in load_run(store, found))
        data = read_run(store, identify(store, found).run_id)
        return answer_before_cut(RunView(data, 1, 10), Finding("truncation", "warn", 9, "seen"))

    yield result
    store.close()


def rewarded(prompt: str, response: str, step: int = 3) -> dict[str, Any]:
    return {"step": step, "prompt": prompt, "response": response, "reward": 1.0, "finish_reason": "stop"}


def cut(prompt: str, response: str, step: int = 10) -> dict[str, Any]:
    return {"step": step, "prompt": prompt, "response": response, "reward": 0.0, "finish_reason": "length"}


def test_text_that_goes_on_behind_a_rewarded_answer_is_complete(ask: Ask) -> None:
    told = ask([rewarded("S31=", "#13"), *(cut("S31=", f"#13{n}9#2") for n in range(9))])
    assert told.verdict == "supported"
    assert told.observed == {"compared": 9, "complete": 9}


def test_a_marked_answer_counts_wherever_it_stands(ask: Ask) -> None:
    rows = [rewarded("q", "So we get \\boxed{42}."), *(cut("q", f"First {n}, then \\boxed{{42}}. Wait, let me") for n in range(9))]
    assert ask(rows).verdict == "supported"


def test_unfinished_reasoning_is_not_complete(ask: Ask) -> None:
    told = ask([rewarded("q", "So we get \\boxed{42}."), *(cut("q", f"First we take {n} and then") for n in range(9))])
    assert told.verdict == "refuted"


def test_a_wrong_answer_to_the_prompt_is_no_measure(ask: Ask) -> None:
    wrong = {**rewarded("S31=", "#31"), "reward": 0.0}
    rows = [wrong, rewarded("S31=", "#13"), *(cut("S31=", f"#31{n}") for n in range(9))]
    assert ask(rows).verdict == "refuted"


def test_answers_to_other_prompts_and_few_rows_cannot_tell(ask: Ask) -> None:
    rows = [rewarded("S21=", "#12"), rewarded("S31=", "#13"), *(cut("S99=", f"#13{n}") for n in range(20)), cut("S31=", "#139")]
    assert ask(rows).verdict == "not_checkable"


def test_nothing_behind_the_judged_step_is_read(ask: Ask) -> None:
    rows = [rewarded("S31=", "#13", step=11), *(cut("S31=", f"#13{n}9#2") for n in range(9)), rewarded("q", "x y", step=2)]
    assert ask(rows).verdict == "not_checkable"
