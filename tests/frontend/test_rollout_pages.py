"""Slices, Rollouts and Trajectory: what they show for a run with and without data, and that ingested text stays text."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from dash import html

from frontend.address import NoSuchPage
from frontend.components.flat import flat
from frontend.components.heat_map import heat_background, plain
from frontend.components.how import no_rollouts, tokens_sentence
from frontend.components.token_row import ground, token_row
from frontend.figures.slices import bucket_lines, lines_of
from frontend.pages import rollouts, slices, trajectory
from frontend.ranges import format_range, parse_range, words_of_range
from frontend.views import RolloutsView, SlicesView
from server.queries.rollouts import OPEN, rollout_facts
from server.queries.slices import slice_change, slice_grid
from server.queries.tokens import TokenArrays

HOSTILE = "<script>window.pwned=1</script><img src=x onerror=alert(1)> \u202egnp \x1b[31m"


def rollout(step: int, index: int, **more: Any) -> dict[str, Any]:
    return {
        "step": step, "trajectory_id": f"t{step}-{index}", "group_id": f"g{step}", "prompt": "1+1=", "response": f"{index}",
        "reward": float(index % 2), "response_tokens": 5 + index, "task": "sum", **more,
    }  # fmt: skip


def many(steps: int = 20, of_each: int = 10) -> list[dict[str, Any]]:
    return [rollout(step, index) for step in range(1, steps + 1) for index in range(of_each)]


def everything(component: Any) -> str:
    """Every property of a page, flat trees and grids included, as one text."""
    return json.dumps(component.to_plotly_json(), default=lambda c: c.to_plotly_json() if hasattr(c, "to_plotly_json") else str(c))


def nodes(tree: Any) -> list[Any]:
    """Every element of a flat tree."""
    if not isinstance(tree, list):
        return []
    if len(tree) == 3 and isinstance(tree[0], str) and isinstance(tree[1], dict):
        return [tree, *nodes(tree[2])]
    return [node for child in tree for node in nodes(child)]


def flat_nodes(component: Any) -> list[Any]:
    found: list[Any] = []
    if type(component).__name__ == "Flat":
        found += nodes(component.tree)
    children = getattr(component, "children", None)
    for child in children if isinstance(children, list | tuple) else [children]:
        if child is not None and not isinstance(child, str | int | float):
            found += flat_nodes(child)
    return found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("97", (97, 97)), ("90-100", (90, 100)), ("100-90", (90, 100)), ("0.5-", (0.5, None)), ("..5", (None, 5)), ("-1", (-1, -1)),
        ("-1..0", (-1, 0)), ("-5-3", (-5, 3)), ("", OPEN), ("abc", None), ("-", None), ("1 2", None),
    ],
)  # fmt: skip
def test_ranges_of_an_address_are_read_and_written_alike(text: str, found: Any) -> None:
    assert parse_range(text) == found
    if found is not None:
        assert parse_range(format_range(*found)) == found


def test_a_range_is_put_into_words() -> None:
    assert [words_of_range(*r) for r in ((97, 97), (90, 100), (None, 5), (5, None))] == ["97", "90 to 100", "up to 5", "from 5"]


def test_a_view_survives_its_own_address() -> None:
    view = RolloutsView(step="90-100", q="a b", sort="reward")
    assert RolloutsView.from_query({k: str(v) for k, v in view.to_query().items()}) == view
    assert SlicesView().to_query() == {}


def test_the_filter_of_an_address_marks_what_is_no_range() -> None:
    chosen, wrong = rollouts.filter_of(RolloutsView(step="abc", len="10-20", trunc="yes", split="eval", q="x"))
    assert wrong == ("step",) and chosen.step == OPEN and chosen.length == (10, 20)
    assert (chosen.truncated, chosen.split, chosen.text) == (True, "eval", "x")


@pytest.mark.parametrize("page", [slices, rollouts])
def test_a_run_without_rollouts_is_told_how_to_log_them(page: Any, service: Any, make_run: Callable[..., str], words_of: Any) -> None:
    run = make_run(rows=[{"reward.mean": 1.0}])
    assert "rollouts.jsonl" in words_of(page.layout(service, run=run))


@pytest.mark.parametrize(("framework", "switch"), [("verl", "trainer.rollout_data_dir"), ("trl", "log_completions=True")])
def test_each_trainer_is_told_its_own_switch(framework: str, switch: str, words_of: Any) -> None:
    assert switch in words_of(no_rollouts(framework))
    assert "native format" in tokens_sentence(framework, None, None)
    assert tokens_sentence(framework, 95, 100).endswith("95 and 100.")


@pytest.mark.parametrize("page", [slices, rollouts, trajectory])
def test_an_unknown_run_is_not_found(page: Any, service: Any) -> None:
    with pytest.raises(NoSuchPage):
        page.layout(service, run="nobody", place="1.0")


@pytest.mark.parametrize("place", ["x", "9.9", "1.99", "1.x"])
def test_an_address_of_no_trajectory_is_not_found(place: str, service: Any, make_run: Callable[..., str]) -> None:
    run = make_run(rollouts=many(2, 2))
    with pytest.raises(NoSuchPage):
        trajectory.layout(service, run=run, place=place)


def test_an_empty_answer_names_the_nearest_steps_and_links_them(service: Any, make_run: Callable[..., str], words_of: Any) -> None:
    run = make_run(rollouts=[rollout(step, 0) for step in (95, 100)])
    page = rollouts.layout(service, run=run, step="97")
    assert "No rollouts at step 97. " in words_of(page) and "Nearest:" in words_of(page)
    assert f"/r/{run}/rollouts?step=95" in everything(page) and f"/r/{run}/rollouts?step=100" in everything(page)


def test_the_grid_is_given_rows_and_the_true_count(service: Any, make_run: Callable[..., str]) -> None:
    run = make_run(rollouts=many())
    question = {"run_id": run, "query": {"score": "1"}}
    answer = rollouts.rows_for(service, question, {"startRow": 0, "endRow": 3, "sortModel": [{"colId": "length", "sort": "asc"}]})
    assert answer["rowCount"] == 100 and [row["length"] for row in answer["rowData"]] == [6, 6, 6]
    assert answer["rowData"][0]["address"] == f"/r/{run}/t/20.1"


def test_columns_that_a_run_never_writes_are_left_out(service: Any, make_run: Callable[..., str]) -> None:
    facts = rollout_facts(service.store, make_run(rollouts=many()))
    names = {column["colId"] for column in rollouts.column_definitions(facts, "-reward")}
    assert {"step", "reward", "length"} <= names and not names & {"lag", "finish", "verifier", "advantage"}
    (sorted_by,) = [c for c in rollouts.column_definitions(facts, "-reward") if "sort" in c]
    assert (sorted_by["colId"], sorted_by["sort"]) == ("reward", "desc")


def test_each_cell_of_the_map_links_to_its_rollouts_filtered_alike(service: Any, make_run: Callable[..., str]) -> None:
    run = make_run(rollouts=many())
    page = slices.layout(service, run=run)
    cells = [node for node in flat_nodes(page) if "heat-cell" in node[1].get("className", "")]
    grid = slice_grid(service.store, run, "reward", "length")
    assert len(cells) == int((grid.rollouts > 0).sum())
    assert all(node[1]["href"].startswith(f"/r/{run}/rollouts?step=") and "split=train" in node[1]["href"] for node in cells)
    assert sum(node[1]["tabIndex"] == 0 for node in cells) == 1


def test_small_cells_are_drawn_smaller_and_keep_their_number_on_hover(service: Any, make_run: Callable[..., str]) -> None:
    run = make_run(rollouts=[rollout(1, 0) for _ in range(8)] + [rollout(1, 1) for _ in range(4)] + [rollout(1, 2) for _ in range(3)])
    cells = [node for node in flat_nodes(slices.layout(service, run=run)) if "heat-cell" in node[1].get("className", "")]
    kinds = {json.loads(node[1]["data-card"])[1][1][1]: node[1]["className"] for node in cells}
    assert "is-small" not in kinds["8 of 15"] and "is-small" in kinds["4 of 15"] and "is-tiny" in kinds["3 of 15"]


def test_a_wrong_measure_or_dimension_counts_as_the_default(service: Any, make_run: Callable[..., str]) -> None:
    run = make_run(rollouts=many(3, 3))
    assert "Reward by response length and step" in everything(slices.layout(service, run=run, m="zzz", by="q", bin="x"))


def test_a_dimension_that_is_not_written_is_said_to_be_missing(service: Any, make_run: Callable[..., str], words_of: Any) -> None:
    run = make_run(rollouts=many(3, 3))
    assert "Policy lag is not in these rollouts" in words_of(slices.layout(service, run=run, by="lag"))


def test_the_reading_tells_mix_from_change_inside_buckets(service: Any, make_run: Callable[..., str]) -> None:
    before = [rollout(1, 0, reward=1.0, task=t) for t in ("a", "b") for _ in range(30)]
    after = [rollout(2, 0, reward=0.5 if t == "a" else 1.5, task=t) for t in ("a", "b", "a") for _ in range(30)]
    run = make_run(rollouts=[*before, *after])
    grid = slice_grid(service.store, run, "reward", "task")
    first, second = slices.reading(grid, slice_change(service.store, run, "reward", "task", (1, 1), (2, 2)))
    assert first == "Task a went from 50 % to 67 % of rollouts."
    assert "−0.500 at task a and by +0.500 at b" in second and "moved apart" in second


def test_lines_have_gaps_where_few_rollouts_stand_behind_them(service: Any, make_run: Callable[..., str]) -> None:
    rows = [rollout(step, 0) for step in (1, 2, 3) for _ in range(8 if step != 2 else 7)]
    grid = slice_grid(service.store, make_run(rollouts=rows), "reward", "length")
    figure = bucket_lines(grid, "value", lines_of(grid), 2, "light")
    assert list(figure.data[0].y) == [0.0, None, 0.0] and figure.data[0].connectgaps is False
    assert {shape.type for shape in figure.layout.shapes} == {"rect", "line"}


def test_titles_keep_their_signs_inside_a_sentence() -> None:
    assert [plain(t) for t in ("Response length", "|Δ logprob|", "Δ logprob")] == ["response length", "|Δ logprob|", "Δ logprob"]


def test_the_heat_of_a_value_is_limited_to_the_scale() -> None:
    assert heat_background(-5, 0, 1)[0] == heat_background(0, 0, 1)[0] and heat_background(9, 0, 1) == heat_background(1, 0, 1)
    assert heat_background(0.2, 0, 1)[1] is False and heat_background(0.8, 0, 1)[1] is True


@pytest.mark.parametrize("page", [slices, rollouts, trajectory])
def test_hostile_text_is_text_with_its_hidden_characters_visible(page: Any, service: Any, make_run: Callable[..., str]) -> None:
    turns = [{"role": HOSTILE, "content": HOSTILE, "tool_name": HOSTILE, "tool_args": {"q": HOSTILE}}]
    more = {"task": HOSTILE, "prompt": HOSTILE, "response": HOSTILE, "group_id": HOSTILE, "turns": turns, "extra": {"k": HOSTILE}}
    run = make_run(rollouts=[rollout(1, index, **more) for index in range(3)])
    made = page.layout(service, run=run, place="1.0")
    assert "dangerously" not in everything(made) and "Markdown" not in everything(made)
    shown = [str(node[2]) for node in flat_nodes(made)]
    assert page is not trajectory or any("<script>" in text for text in shown)
    assert not any("\u202e" in text or "\x1b" in text for text in shown)
    rows = rollouts.rows_for(service, {"run_id": run, "query": {}}, {"startRow": 0, "endRow": 9})["rowData"]
    assert rows[0]["response"].startswith("<script>") and "\u202e" not in str(rows) and "\x1b" not in str(rows)


def test_a_flat_tree_takes_no_component_that_could_carry_markup() -> None:
    from dash import dcc

    with pytest.raises(TypeError):
        flat(html.Div(dcc.Markdown("<b>x</b>")))
    assert flat(html.Div(["a", None, 3, html.B("x", **{"data-a": "1"})])).tree == ["div", {}, ["a", None, "3", ["b", {"data-a": "1"}, "x"]]]


def tokens(**arrays: Any) -> TokenArrays:
    names = ["response_mask", "loss_mask", "rollout_logprobs", "old_logprobs", "current_logprobs", "ref_logprobs"]
    names += ["entropies", "advantages"]
    rest = {name: arrays.get(name) for name in names}
    return TokenArrays(arrays.get("ids"), arrays.get("texts"), False, arrays.get("prompt_tokens", 0), **rest, policy_versions=None)


def test_a_trajectory_with_arrays_asks_for_them_and_marks_the_range(service: Any, make_run: Callable[..., str]) -> None:
    logprobs = {"rollout_logprobs": [None, -1, -1, -1], "old_logprobs": [None, -1, -2, -1]}
    arrays = {"token_ids": [1, 2, 3, 4], "response_mask": [0, 1, 1, 1], **logprobs}
    run = make_run(rollouts=[rollout(1, 0, **arrays), rollout(1, 1)])
    found = everything(trajectory.layout(service, run=run, place="1.0", tok="2-99", color="delta"))
    assert f"/api/v1/runs/{run}/trajectories/1/0/tokens" in found and '"tok": [2, 3]' in found and '"color": "delta"' in found
    assert "No token arrays were written" in everything(trajectory.layout(service, run=run, place="1.1"))


def test_group_rows_show_the_tokens_around_the_first_difference_and_count_the_rest() -> None:
    long = tokens(ids=tuple(range(100)), texts=tuple("x" * 100), rollout_logprobs=(-1.0,) * 100, old_logprobs=(-2.0,) * 100)
    cells = token_row(long, 50, "stop").children
    assert cells[0].children == "+46" and cells[-1].children == "+40"
    assert next(c for c in cells if "is-first-different" in (c.className or "")) is cells[5]


def test_what_a_tool_answered_has_no_colour() -> None:
    row = tokens(ids=(1, 2), texts=("a", "b"), response_mask=(1, 0), rollout_logprobs=(-1.0, 0.0), old_logprobs=(-3.0, -9.0))
    first, second = token_row(row, None, "stop").children
    assert "is-bare" not in first.className and "is-bare" in second.className


def test_the_colour_of_a_difference_is_limited_and_says_which_side() -> None:
    assert "trainer-lower" in ground(-1.0)[0] and "trainer-higher" in ground(1.0)[0]
    assert ground(-6.0) == ground(-60.0) and "is-strong" in ground(-6.0)[1] and "is-strong" not in ground(-0.5)[1]
    assert ground(None)[1] == "tok is-bare" and "is-odd" in ground(float("nan"))[1]


def test_bars_of_many_steps_are_gathered_without_losing_a_rollout() -> None:
    from frontend.figures.rollouts import by_step

    figure = by_step(np.arange(1000), np.full(1000, 3), "light")
    assert len(figure.data[0].x) <= 250 and sum(figure.data[0].y) == 3000
