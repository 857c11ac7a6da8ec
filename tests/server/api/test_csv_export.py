"""CSV that a spreadsheet shows and does not run."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.api.csv_export import csv_text


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", " =1", '=HYPERLINK("http://evil.example")'])
def test_text_that_would_run_is_quoted(text: str) -> None:
    (cell,) = next(csv.reader(io.StringIO(csv_text((text,), []), newline="")))
    assert cell == "'" + text


def test_numbers_stay_numbers_and_nothing_stays_empty() -> None:
    assert csv_text(("a",), [(-0.5,), (None,), (float("nan"),), (float("-inf"),), (3,)]) == "a\r\n-0.5\r\n\r\nnan\r\n-inf\r\n3\r\n".replace("\r\n\r\n", '\r\n""\r\n')  # fmt: skip  # noqa: E501


@given(st.lists(st.text(st.characters(codec="utf-8")), min_size=2, max_size=4))
def test_every_text_comes_back_whole(texts: list[str]) -> None:
    (cells,) = list(csv.reader(io.StringIO(csv_text(texts, []), newline="")))
    assert [cell.removeprefix("'") if not text.startswith("'") else cell for cell, text in zip(cells, texts, strict=True)] == texts
