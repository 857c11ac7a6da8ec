"""A run that is being written, seen in an open page."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect


def test_a_new_step_appears_in_the_open_page_without_a_reload(
    page: Page, start: Callable[..., Any], write_steps: Callable[..., None], tmp_path: Path
) -> None:
    folder = tmp_path / "logs" / "followed"
    write_steps(folder, 1, 20)
    server = start("serve", "--port", 0, "--watch", folder)
    page.goto(server.address)
    page.get_by_role("link", name="followed").first.click()
    expect(page.locator("#run-facts")).to_contain_text(re.compile(r"\b20\b"))
    page.evaluate("window.stillHere = true")
    write_steps(folder, 21, 23)
    expect(page.locator("#run-facts")).to_contain_text(re.compile(r"\b23\b"))
    assert page.evaluate("window.stillHere") is True


def test_a_run_that_begins_appears_in_the_list_without_a_reload(
    page: Page, start: Callable[..., Any], write_steps: Callable[..., None], tmp_path: Path
) -> None:
    logs = tmp_path / "logs"
    write_steps(logs / "old", 1, 3)
    server = start("serve", "--port", 0, "--watch", logs)
    page.goto(server.address)
    expect(page.get_by_role("link", name="old").first).to_be_visible()
    page.evaluate("window.stillHere = true")
    write_steps(logs / "young", 1, 3)
    expect(page.get_by_role("link", name="young").first).to_be_visible()
    assert page.evaluate("window.stillHere") is True
