"""The rules' pages are written from the rules and complete."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.rules import RULES
from server.rules.base import Rule
from server.rules.document import HEADINGS, explanations, main, pages, sections

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_rule_says_what_its_page_needs(rule: Rule) -> None:
    said = sections(rule)
    assert list(said) == list(HEADINGS)
    assert all(text.strip() for text in said.values())


def test_the_pages_on_disk_are_current() -> None:
    assert main(["--check"], ROOT / "docs" / "rules") == 0


def test_a_page_that_differs_or_is_left_over_is_noticed_and_mended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([], tmp_path) == 0
    assert {path.name for path in tmp_path.iterdir()} == set(pages())
    (tmp_path / "gone-rule.md").write_text("old")
    (tmp_path / "spike.md").write_text("edited by hand")
    assert main(["--check"], tmp_path) == 1
    assert "gone-rule.md, spike.md" in capsys.readouterr().err
    assert main([], tmp_path) == 0
    assert main(["--check"], tmp_path) == 0


def test_each_explanation_names_what_decides_it() -> None:
    found = {one.id: one for one in explanations()}
    assert found["H12c"].kinds == ("action",)
    assert all(one.how for one in found.values())
    assert "advantage-or-mask-fault" in found["H14e"].rules
