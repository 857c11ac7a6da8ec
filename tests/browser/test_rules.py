"""What a person does with a rule: reads it, tries a value on the runs there are, sets it, takes it back, and judges an incident."""

from __future__ import annotations

import re
from typing import Any

from playwright.sync_api import Page, expect


def test_a_value_is_tried_on_all_runs_then_saved_and_taken_back(page: Page, log: Any, demo: Any) -> None:
    page.goto(demo.address)
    page.get_by_role("link", name="Rules", exact=True).click()
    page.get_by_role("link", name="zero-variance-groups").click()
    expect(page).to_have_url(re.compile(r"/rules/zero-variance-groups$"))
    expect(page.locator("#page")).to_contain_text("Why it matters")
    field = page.get_by_label("warn, in force", exact=True)
    before = field.input_value()
    field.fill("7")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("alert").first).to_contain_text("lies between 0 and 1")
    field.fill("0.99")
    page.get_by_role("button", name="Backtest these values").click()
    expect(page.locator("#rule-result")).to_contain_text("With warn 0.99", timeout=120_000)
    expect(page.get_by_role("button", name="Cancel")).to_be_hidden()
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#rule-message")).to_contain_text("Saved for all runs")
    page.reload()
    expect(page.get_by_label("warn, in force", exact=True)).to_have_value("0.99")
    expect(page.locator("#rule-fields")).to_contain_text("all runs")
    page.get_by_role("button", name="Take back").click()
    expect(page.get_by_label("warn, in force", exact=True)).to_have_value(before)
    assert not log.elsewhere(demo.base)


def test_an_incident_is_judged_counted_for_its_rule_and_the_word_taken_back(page: Page, demo: Any) -> None:
    page.goto(demo.address)
    page.get_by_role("link", name="lr-spike").first.click()
    page.get_by_role("link", name="Open incident", exact=True).first.click(timeout=60_000)
    useful = page.get_by_role("button", name="Useful")
    useful.click()
    expect(useful).to_have_attribute("aria-pressed", "true")
    page.get_by_text("How this rule works").click()
    page.get_by_role("link", name="Parameters and backtest").click()
    expect(page.locator("#rule-facts")).to_contain_text("1 of 1 judged incidents useful")
    page.go_back()
    useful.click()
    expect(useful).to_have_attribute("aria-pressed", "false")
