"""Reading slices of trajectory lines: the fast way stores what the line-by-line way stores, and nothing changes silently."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ingest.readers.jsonl import decode_object
from ingest.schema.records import Cursor, Json, JsonSlice
from ingest.store.slices import SliceShape, read_slice

Tables: TypeAlias = dict[str, list[tuple[Any, ...]]]
ReadBoth: TypeAlias = Callable[..., tuple[Tables, Tables]]

_GOOD: dict[str, list[str]] = {
    "step": ["1", "2", "7"],
    "trajectory_id": ['"t1"', '"a\\"b"', "17"],
    "group_id": ['"g"', "null", "3"],
    "task": ['"math"', '"caf\\u00e9 \\ud83d\\ude00"'],
    "difficulty": ["5", '"hard"'],
    "prompt": ['"What is 1+1?"', '"say \\"step\\": 3, ok"', '[{"role":"user","content":"hi"}]', '"é 😀"'],
    "response": ['"two"', '""', '"{\\"reward\\": 1, \\"a\\":2}"', '"tab\\tnewline\\n"', '"\\\\"'],
    "reward": ["1", "0.5", "-1e-7", "null", "-0", "123456789012345678901234567890", "5e-324", "0.1"],
    "reward_parts": ['{"a": 1.5, "b": {"c": null}}', "{}", "[1, 2.5e-8]", "3", '"text"'],
    "advantage": ["0.25", "1e22"],
    "response_tokens": ["3", "0"],
    "policy_version": ["4", "[1, 2, null]", "null"],
    "kept": ["true", "false"],
    "verifier": [
        '{"status": "ok", "seconds": 0.5}',
        '{"name": "v", "version": "2"}',
        '{"status": "ok", "more": [1]}',
        '{"name": 3}',
        "null",
    ],
    "sampling": ['{"temperature": 1, "seed": 17}'],
    "turns": ['[{"role": "assistant", "content": "x", "token_ids": [1, 2]}, {"role": "tool", "content": {"a": 1}}]', "[]"],
    "extra": ['{"mine": 1}', '"loose"'],
    "acc": ["true", "0.5", '{"deep": [1]}'],
    "note": ['"free"', "12345678901234567890123"],
    "token_ids": ["[1, 2, 3]", "[1,2,3]", "[1.0, 2.0, 3.0]", "null"],
    "response_mask": ["[1, 1, 0]", "[1.0, 1.0, 0.0]"],
    "rollout_logprobs": ["[-0.5, -1.25e-5, null]", "[0, -1, -0.1]", "[-1.1920928955078125e-07,-0.25,-0.3333333333333333]"],
    "entropies": ["[0.1, 0.2, 0.3]"],
    "token_texts": ['["a", " b", null]', '["\\"x\\":", "é", "\\ud83d\\ude00"]'],
}
_ODD: dict[str, list[str]] = {
    "step": ["3.0", '"4"', "3.5", "true", "null", '"x"', "1e2", "99999999999999999999", "NaN", "{}"],
    "trajectory_id": ["1.5", "true", "{}", '"\\ud800"', "1e5"],
    "task": ["{}", "[1]"],
    "prompt": ["3", "true", '["plain", {"role": "user"}]', '[{"role": "user", "role": "x"}]'],
    "response": ["1", "{}", '"\\ud800x"', '"\\udc00"', '"\\u0000"', '"bad \x01"'],
    "reward": ["NaN", "Infinity", "-Infinity", "1e400", "-1e999", "true", '"0.5"', '"NaN"', '"1_0"', '"1e400"', "{}", "nan", "01", "1."],
    "reward_parts": ['{"a": NaN}', '{"a": 1, "a": 2}', '{"a" : 1}', '{"a": 1e400}', '{"a\\\\": 1, "b": 1, "b": 2}'],
    "response_tokens": ["3.7", "3.0", '"3"', "true", "4294967296", '"1.5"', "-1e3"],
    "policy_version": ["1.5", "[1.5]", "true", '"3"', "4294967296", "-1", "[]"],
    "kept": ["1", '"true"'],
    "verifier": ['"ok"', '{"seconds": true}', '{"seconds": "0.5"}', '{"status": 1}', '{"seconds": 1e400}'],
    "turns": ["{}", "[1]", '[{"role": 3}]', '[{"policy_version": 1.5}]'],
    "token_ids": ["[1, 2.5, 3]", "[1, true, 3]", '[1, "2", 3]', "[1, 2]", "[]", "[4294967296, 1, 2]",
                  "[1, NaN, 3]", "{}", "[[1], 2, 3]", "[1,2,3,]"],
    "response_mask": ["[1, 300, 0]", "[true, true, false]", "[0.5, 1, 1]"],
    "rollout_logprobs": ["[NaN, -1, -2]", "[1e39, 0, 0]", f"[1{'0' * 40}, 0, 0]", f"[1{'0' * 320}.5, 0, 0]",
                         "[1e400, 0, 0]", '["-0.5", 0, 0]', "[1e3, 0, 0]", "[-Infinity, 0, 0]"],
    "token_texts": ['["a", 1, "b"]', '["\\ud800", "a", "b"]'],
}  # fmt: skip
_TAILS = ["", "", "", "", " ", "\r", "}", ' {"step": 1}', ","]


@st.composite
def _line(draw: st.DrawFn) -> bytes:
    odd = draw(st.integers(0, 3)) == 0
    names = draw(st.lists(st.sampled_from(sorted(_GOOD)), unique=not odd, max_size=9))
    names = ["step", *(name for name in names if name != "step" or odd)]
    colon = draw(st.sampled_from([": ", ":", ": ", " : "] if odd else [": ", ":"]))
    parts = []
    for name in names:
        pool = _GOOD[name] + (_ODD.get(name, []) if odd else [])
        parts.append(f'"{name}"{colon}{draw(st.sampled_from(pool))}')
    text = "{" + draw(st.sampled_from([", ", ","])).join(parts) + "}" + (draw(st.sampled_from(_TAILS)) if odd else "")
    return text.encode("utf-8", "surrogatepass")


def slice_of(lines: list[bytes], rename: Mapping[str, str] | None = None, defaults: Mapping[str, Json] | None = None) -> JsonSlice:
    """Lines of a file as one slice."""
    data = b"".join(line + b"\n" for line in lines)
    return JsonSlice(Cursor(len(data), len(lines)), data, 1, 0, rename or {}, defaults or {})


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(_line(), min_size=1, max_size=25))
def test_the_fast_way_stores_exactly_what_the_line_by_line_way_stores(read_both: ReadBoth, lines: list[bytes]) -> None:
    fast, exact = read_both(slice_of(lines))
    assert fast == exact


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(_line(), min_size=1, max_size=12))
def test_renamed_keys_and_defaults_agree_too(read_both: ReadBoth, lines: list[bytes]) -> None:
    rename = {"acc": "reward", "note": "task", "prompt": "response", "response": "prompt"}
    fast, exact = read_both(slice_of(lines, rename, {"split": "train", "origin": "policy", "file": "a", "policy_version": 3}))
    assert fast == exact


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"step": 1, "response_tokens": 3.7}', "an integer was expected"),
        (b'{"step": 1, "reward": true}', "a number was expected"),
        (b'{"step": 1, "reward": 1e400}', "too large for a double"),
        (b'{"step": 1, "response": {"a": 1}}', "a text was expected"),
        (b'{"step": 1, "response": 5}', "a text was expected"),
        (b'{"step": 1, "reward": 1, "reward": 2}', "occurs twice"),
        (b'{"step": 1, "token_ids": [1, 2.5]}', "an integer was expected"),
        (b'{"step": 1, "response_mask": [true]}', "a number was expected"),
        (b'{"step": 1, "rollout_logprobs": [1e39]}', "too large for a 32-bit float"),
        (b'{"step": 1, "rollout_logprobs": [1' + b"0" * 45 + b"]}", "too large for a 32-bit float"),
        (b'{"step": 1, "token_ids": [1], "old_logprobs": [1, 2]}', "differ in length"),
        (b'{"step": 1, "token_ids": [3000000000]}', "an integer from"),
        (b'{"step": 1, "task": "\\ud800"}', "lone surrogate"),
        (b'{"step": 1, "reward": 1}}', "not JSON"),
        (b'{"reward": 1}', "no step"),
        (b"\xff\xfe", "not UTF-8"),
    ],
)
def test_a_line_that_cannot_be_stored_as_it_is_becomes_a_reject_with_line_and_reason(read_both: ReadBoth, line: bytes, reason: str) -> None:
    good = b'{"step": 1, "trajectory_id": "t", "token_ids": [1, 2], "rollout_logprobs": [-0.5, -1]}'
    fast, exact = read_both(slice_of([good, good, line, good]))
    assert fast == exact
    ((_, number, offset, said, sample),) = fast["reject"]
    assert (number, offset) == (3, 2 * len(good) + 2)
    assert reason in said
    assert sample == line[:800].decode("utf-8", "replace")[:200]
    assert len(fast["trajectory"]) == 3


def test_a_number_written_as_a_text_is_read_as_the_number(read_both: ReadBoth) -> None:
    fast, exact = read_both(slice_of([b'{"step": "3", "reward": "0.25", "response_tokens": "7", "token_ids": ["1", 2]}']))
    assert fast == exact
    assert fast["trajectory"][0][3] == 3
    assert 0.25 in fast["trajectory"][0]
    assert [1, 2] in fast["token"][0]


def test_literal_nan_and_infinity_are_kept(read_both: ReadBoth) -> None:
    fast, exact = read_both(slice_of([b'{"step": 1, "reward": NaN, "advantage": -Infinity, "entropies": [NaN, Infinity]}']))
    assert fast == exact
    assert "nan" in fast["trajectory"][0]
    assert -math.inf in fast["trajectory"][0]
    assert ["nan", math.inf] in fast["token"][0]


def test_unknown_keys_are_kept_and_cost_the_exact_way_only_once() -> None:
    lines = [json.dumps({"step": i, "acc": i % 2 == 0, "meta": {"k": i}}).encode() for i in range(600)]
    shape = SliceShape({}, {})
    exact: list[bytes] = []

    def counted(line: bytes) -> dict[str, Json]:
        exact.append(line)
        return decode_object(line)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("ingest.store.slices.decode_object", counted)
        found = read_slice(slice_of(lines), shape)
    extra = found.rows.columns[-1]
    assert [json.loads(text) for text in extra] == [{"acc": i % 2 == 0, "meta": {"k": i}} for i in range(600)]
    assert len(exact) == 1


def test_arrays_that_only_duckdb_can_refuse_are_read_the_exact_way(read_both: ReadBoth) -> None:
    rows = [b'{"step": %d, "token_ids": [%d, 2]}' % (i, 2**31 if i == 7 else i) for i in range(20)]
    fast, exact = read_both(slice_of(rows[:5]), slice_of(rows[5:]))
    assert fast == exact
    assert len(fast["token"]) == 19


def test_running_numbers_count_arrivals_within_a_step(read_both: ReadBoth) -> None:
    steps = [1, 1, 2, 1, 2, 2, 1]
    fast, exact = read_both(slice_of([b'{"step": %d, "attempt": 1, "trajectory_id": "%d"}' % (s, i) for i, s in enumerate(steps)]))
    assert fast == exact
    assert [(row[3], row[4], row[6]) for row in fast["trajectory"]] == [
        (1, 0, "0"), (1, 1, "1"), (1, 2, "3"), (1, 3, "6"), (2, 0, "2"), (2, 1, "4"), (2, 2, "5"),
    ]  # fmt: skip


def test_a_step_that_goes_back_is_a_new_attempt_with_an_event(read_both: ReadBoth) -> None:
    fast, exact = read_both(slice_of([b'{"step": %d}' % s for s in (1, 2, 3, 2, 3)]))
    assert fast == exact
    assert sorted((row[3], row[2]) for row in fast["trajectory"]) == [(1, 1), (2, 1), (2, 2), (3, 1), (3, 2)]
    assert "steps go back from 3 to 2: attempt 2" in fast["event"][0]
