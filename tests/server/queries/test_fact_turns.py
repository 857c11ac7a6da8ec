"""Facts of turns and of context against values worked out by hand, on trajectories written through the native reader."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingest.discover import discover
from ingest.load import identify
from ingest.load import load_run as read_run
from ingest.store.connection import Store
from server.queries.fact_context import by_text, difference, kind
from server.queries.fact_list import FACTS
from server.queries.facts import add_facts
from server.queries.run_data import load_run
from server.queries.view import RunData, RunView

Build = Callable[..., RunData]
Turn = Mapping[str, Any]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Build]:
    """Makes a run of trajectories with these turns, all of step 1 unless a row says otherwise."""
    store = Store(None)

    def build(trajectories: Sequence[Sequence[Turn]], **more: Sequence[Any]) -> RunData:
        folder = tmp_path / "run"
        folder.mkdir()
        rows = [
            {"step": 1, "trajectory_id": f"t{n}", "finish_reason": "stop", "turns": turns, **{k: v[n] for k, v in more.items()}}
            for n, turns in enumerate(trajectories)
        ]
        (folder / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        found = discover([folder])[0][0]
        assert all(result.rejected == 0 for result in read_run(store, found))
        data = load_run(store, identify(store, found).run_id)
        add_facts(data)
        return data

    yield build
    store.close()


def value(data: RunData, fact: str, step: int = 1) -> float:
    chain = data.chain(fact, max(data.attempt_starts))
    return float(chain.values[chain.steps.tolist().index(step)])


def call(tool: str, seen: str, failed: bool | None = None, **arguments: Any) -> list[Turn]:
    """An assistant turn that calls a tool, and the tool's answer."""
    answer: dict[str, Any] = {"role": "tool", "content": seen, "tool_name": tool}
    if failed is not None:
        answer["is_error"] = failed
    return [{"role": "assistant", "content": f"I call {tool}", "tool_name": tool, "tool_args": arguments}, answer]


def said(text: str, **more: Any) -> Turn:
    return {"role": "assistant", "content": text, **more}


def test_three_identical_calls_in_a_row_are_a_loop_and_two_or_interrupted_ones_are_not(run: Build) -> None:
    same = call("look", "nothing", x=1)
    data = run(
        [
            [*same, *same, *same, said("done")],
            [*same, *same, said("done")],
            [*same, *same, *call("look", "nothing", x=2), *same, said("done")],
            [said("done")],
            [*call("wait", "10 %"), *call("wait", "60 %"), *call("wait", "100 %"), said("done")],
        ]
    )
    assert value(data, "fact.turns.loop_frac") == 2 / 5
    assert value(data, "fact.turns.stuck_frac") == 1 / 5
    assert value(data, "fact.turns.loop.example") == 0
    assert value(data, "fact.turns.mean") == (4 + 3 + 5 + 1 + 4) / 5
    assert value(data, "fact.turns.calls") == (3 + 2 + 4 + 0 + 3) / 5
    assert value(data, "fact.turns.repeated_frac") == pytest.approx((2 + 1 + 1 + 2) / (3 + 2 + 4 + 3))
    assert value(data, "fact.turns.same_observation_frac") == pytest.approx(4 / 6)


def test_calls_that_are_written_in_the_text_only_are_compared_without_the_thinking(run: Build) -> None:
    calls = [said(f"<think>try {n}</think><tool_call>look</tool_call>") for n in range(3)]
    moves = [said(f"<think>try {n}</think>go north") for n in range(3)]
    others = [said(f"go {n} steps") for n in range(3)]
    answer, wall, ends = {"role": "tool", "content": "nothing"}, {"role": "user", "content": "a wall"}, said("done")
    data = run(
        [[turn for own in said_by for turn in (own, seen)] + [ends] for said_by, seen in ((calls, answer), (moves, wall), (others, wall))]
    )
    assert value(data, "fact.turns.loop_frac") == pytest.approx(2 / 3)
    assert value(data, "fact.turns.calls") == 1  # three answers of a tool, over three trajectories


def test_turns_whose_calls_were_not_written_are_not_told_as_identical(run: Build) -> None:
    step = [said("null"), {"role": "tool", "content": "ok"}]
    data = run([[*step, *step, *step, said("done")]])
    assert "fact.turns.loop_frac" not in data.metrics()
    assert value(data, "fact.turns.calls") == 3


def test_errors_are_shares_of_the_answers_that_say_so_and_a_retry_that_works_is_told(run: Build) -> None:
    data = run(
        [
            [*call("search", "timeout", True, q="a"), *call("search", "found", False, q="a"), said("done")],
            [*call("search", "timeout", True, q="b"), *call("search", "timeout", True, q="b"), said("done")],
            [*call("run", "could not parse the call, invalid JSON", True), *call("run", "unknown to say"), said("done")],
            [*call("search", "found", False, q="c"), said("done")],
        ]
    )
    assert value(data, "fact.tools.error_frac") == pytest.approx(4 / 6)
    assert value(data, "fact.tools.error.example") == 0
    assert value(data, "fact.turns.retry_ok_frac") == 1 / 2
    assert value(data, "fact.turns.repeat_after_error_frac") == 1
    assert value(data, "fact.tools.error_frac.search") == pytest.approx(3 / 5)
    assert "fact.tools.error_frac.run" not in data.metrics()  # one answer is no share
    assert value(data, "fact.tools.error_parser_frac") == 1  # "timeout" is too short to tell


def test_ends_are_told_apart(run: Build) -> None:
    step = call("look", "x")
    data = run(
        [[*step, *step, *step], [*step, said("done")], [*step, said("")], [*step, *step, *step]],
        finish_reason=["abort", "stop", "stop", "stop"],
    )
    assert value(data, "fact.turns.limit_frac") == 1 / 4
    assert value(data, "fact.turns.limit.example") == 0
    assert value(data, "fact.turns.no_answer_frac") == 3 / 4


def test_marked_calls_that_nobody_read_are_told_but_not_the_last_one_at_the_limit(run: Build) -> None:
    read = [said("<tool_call>{}</tool_call>", tool_name="look"), {"role": "tool", "content": "x"}]
    unread = said("<tool_call>{broken")
    data = run([[*read, said("done")], [*read, unread], [*read, unread]], finish_reason=["stop", "stop", "abort"])
    assert value(data, "fact.turns.unparsed_frac") == 1 / 5


def test_exclamation_marks_are_garbage_and_a_few_are_not(run: Build) -> None:
    step = call("look", "x")
    data = run([[*step, said("!" * 40)], [*step, said("done!!!")]])
    assert value(data, "fact.turns.garbage_frac") == 1 / 2


def test_words_of_the_task_in_the_first_and_the_last_turn(run: Build) -> None:
    answer = {"role": "tool", "content": "x"}
    turns = [said("find the red key"), answer, said("look around"), answer, said("find nothing")]
    data = run([turns], prompt=["Find the red key"])
    assert value(data, "fact.turns.goal.first") == 1
    assert value(data, "fact.turns.goal.last") == 1 / 4


def test_single_turns_have_no_facts_of_turns(run: Build) -> None:
    data = run([[said("4")], [said("5")]])
    assert not [m for m in data.metrics() if m.startswith(("fact.turns.", "fact.tools.", "fact.context."))]


def test_turns_of_a_view_are_those_of_its_trajectories_up_to_its_step(run: Build) -> None:
    step = call("look", "x", True)
    data = run([[*step, said("a")], [*step, said("b")], [*step, said("c")]], step=[1, 2, 2], split=["train", "train", "eval"])
    rows = RunView(data, 1, 1).turns(1, 9, ("role", "is_error"))
    assert rows["role"].tolist() == ["assistant", "tool", "assistant"]
    assert RunView(data, 1, 2).turns(2, 2, ("content",))["content"].tolist() == ["I call look", "x", "b"]


def given(prompt: Sequence[int], own: Sequence[int], text: str = "<think>x</think>y") -> Turn:
    return said(text, prompt_token_ids=list(prompt), token_ids=list(own))


SEEN: Turn = {"role": "tool", "content": "ok", "token_ids": [50]}


def test_a_prompt_that_begins_with_what_came_before_passes_the_test(run: Build) -> None:
    data = run([[given([1, 2], [3, 4]), SEEN, given([1, 2, 3, 4, 50], [5])]])
    assert value(data, "fact.context.n") == 1
    assert value(data, "fact.context.rewritten_frac") == 0
    assert value(data, "fact.context.segments") == 1
    assert value(data, "fact.context.empty_delta_frac") == 0
    assert value(data, "fact.context.goal_kept_frac") == 1
    assert "fact.context.think_frac" not in data.metrics()


def test_dropped_thinking_fails_the_test_and_is_recognised(run: Build) -> None:
    kept = [given([1, 2], [10, 11, 12, 3, 4]), SEEN, given([1, 2, 10, 11, 12, 3, 4, 50], [5])]
    stripped = [
        given([1, 2], [10, 11, 12, 3, 4]),
        SEEN,
        given([1, 2, 3, 4, 50], [10, 11, 12, 6]),
        SEEN,
        given([1, 2, 3, 4, 50, 6, 50], [5]),
    ]
    data = run([kept, stripped])
    assert value(data, "fact.context.rewritten_frac") == 1 / 2
    assert value(data, "fact.context.rewritten.example") == 1
    assert value(data, "fact.context.segments") == (1 + 3) / 2
    assert value(data, "fact.context.empty_delta_frac") == pytest.approx(2 / 3)
    assert value(data, "fact.context.think_frac") == 1
    assert value(data, "fact.context.position") == (2 + 5) / 2
    assert value(data, "fact.context.dropped") == 3


def test_short_differences_are_read_where_the_texts_of_tokens_are_written(run: Build) -> None:
    later = [1, 2, 3, 4, 40, 5, 6, 7, 8, 50]
    turns = [given([1, 2], [3, 4, 41, 42, 5, 6, 7, 8], "plain"), SEEN, given(later, [9], "plain")]
    ids = [1, 2, 3, 4, 41, 42, 40, 5]
    texts = ["a", "b", "c", "d", "wor", "ld", "world", "e"]
    data = run([turns], token_ids=[ids], token_texts=[texts], response_mask=[[1] * 8])
    assert value(data, "fact.context.retokenised_frac") == 1
    assert value(data, "fact.context.short_frac") == 0


def test_short_differences_stay_open_without_texts(run: Build) -> None:
    data = run([[given([1, 2], [3, 4, 41, 42, 5, 6, 7, 8], "plain"), SEEN, given([1, 2, 3, 4, 40, 5, 6, 7, 8, 50], [9], "plain")]])
    assert value(data, "fact.context.short_frac") == 1
    assert value(data, "fact.context.retokenised_frac") == 0


@pytest.mark.parametrize(
    ("trained", "expected"),
    [([3, 4, 50, 5], 0), ([1, 2, 3, 4, 50, 5], 0), ([3, 4, 99, 5], 1), ([9, 9, 1, 2, 3, 4, 50, 5], 1), ([5], 0)],
    ids=["without the prompt", "with the prompt", "another observation", "more before it", "the last turn alone"],
)
def test_what_is_trained_is_compared_with_what_the_engine_was_given(run: Build, trained: list[int], expected: float) -> None:
    turns = [given([1, 2], [3, 4]), SEEN, given([1, 2, 3, 4, 50], [5])]
    data = run([turns], token_ids=[trained], response_mask=[[1] * len(trained)])
    assert value(data, "fact.context.trainer_differs_frac") == expected


def test_mismatch_by_turn(run: Build) -> None:
    mask = [1, 1, 0, 1, 1, 1]
    data = run([[*call("look", "x"), said("done")]], token_ids=[[1, 2, 3, 4, 5, 6]], response_mask=[mask],
               old_logprobs=[[-1.0, -1.0, -9.0, -1.0, -1.0, -1.0]], rollout_logprobs=[[-1.1, -1.1, None, -1.5, -1.5, -1.5]])  # fmt: skip
    assert value(data, "fact.mismatch.turn.first") == pytest.approx(0.1)
    assert value(data, "fact.mismatch.turn.later") == pytest.approx(0.5)


def test_every_fact_of_turns_is_explained(run: Build) -> None:
    bad = [given([1, 2], [3, 4]), SEEN, given([1, 9, 3, 4, 50], [5])]
    look = call("look", "something could not be parsed", True)
    data = run([bad, [*look, *look, *look, *look, *look, said("<tool_call>")]], prompt=["find it", "find it"], reward=[1.0, 0.0])
    facts = [m for m in data.metrics() if m.startswith(("fact.turns.", "fact.context.", "fact.tools.")) and "error_frac." not in m]
    assert len(facts) > 30
    assert [fact for fact in facts if fact not in FACTS] == []


def ids(text: str) -> Any:
    return np.array([ord(c) for c in text])


@pytest.mark.parametrize(
    ("whole", "later", "starts", "thinking", "expected"),
    [
        ("GOAL:tttaction", "GOAL:action#", [5], [True], "think"),
        ("GOAL:tttaction", "GOAL:action#", [5], [False], None),
        ("GOAL:abcdefgh", "GOAL:aXcdefgh#", [5], [False], None),
        ("GOAL:" + "0123456789" * 4 + "the recent part", "the recent part#", [5], [False], "left"),
        ("GOAL:" + "0123456789" * 4 + "the recent part", "GOAL:the recent part#", [5], [False], "left"),
        ("GOAL:" + "0123456789" * 4 + "the recent part", "GOAL:in short, digits#", [5], [False], "compacted"),
        ("GOAL:" + "0123456789" * 4, "GOAL:" + "abcdefghij" * 5, [5], [False], "other"),
    ],
    ids=["thinking", "short, no thinking", "one token", "left", "left behind the task", "summary", "another text"],
)
def test_differences_by_place_and_size(whole: str, later: str, starts: list[int], thinking: list[bool], expected: str | None) -> None:
    assert kind(difference(ids(whole), ids(later)), len(whole), len(later), starts, thinking) == expected


def test_short_differences_by_their_texts() -> None:
    assert by_text("hello world", "hello world") == "retokenised"
    assert by_text('{"a": 1, "b": 2}', '{"b":2,"a":1}') == "reserialised"
    assert by_text("yes", "no") == "other"
