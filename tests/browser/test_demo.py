"""What a newcomer does with the demo: opens it, follows an incident down to the tokens, goes back, pastes an address."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from playwright.sync_api import Page, Response, expect

RUN = "lr-spike"


def _rows_with_tokens(response: Response) -> bool:
    """Whether these are the grid's rows under the filter: the rows before it may stand on the page a moment longer."""
    asked = response.request.post_data or ""
    return "rollouts-grid.getRowsResponse" in asked and '"tok":"yes"' in asked and '"startRow":0' in asked


def test_the_demo_opens_with_data_says_that_it_is_one_and_asks_nothing_of_the_internet(page: Page, log: Any, demo: Any) -> None:
    page.goto(demo.address)
    expect(page).to_have_url(re.compile(r"/runs$"))
    expect(page.get_by_role("link", name=RUN).first).to_be_visible()
    expect(page.get_by_role("link", name="entropy-collapse").first).to_be_visible()
    expect(page.locator("body")).to_contain_text("Demo")
    assert "token" not in page.url
    assert not log.elsewhere(demo.base)


def test_from_runs_by_clicks_alone_to_an_incident_its_rollouts_and_one_trajectorys_tokens(page: Page, log: Any, demo: Any) -> None:
    page.goto(demo.address)
    page.get_by_role("link", name=RUN).first.click()
    expect(page).to_have_url(re.compile(r"/r/[0-9a-f]{12}$"))
    page.get_by_role("link", name="Open incident", exact=True).first.click(timeout=60_000)
    expect(page).to_have_url(re.compile(r"/incidents/in_[0-9a-f]{12}"))
    expect(page.locator("#page")).to_contain_text("Hypotheses")
    page.get_by_role("link", name="Rollouts", exact=True).first.click()
    expect(page).to_have_url(re.compile(r"/r/[0-9a-f]{12}/rollouts\?.*step="))
    first = page.locator("#rollouts-grid a").first
    expect(first).to_be_visible()
    # Token arrays exist at every fifth step only, and not for the newest rollout of this run.
    page.get_by_role("combobox", name="Tokens", exact=True).or_(page.locator('input[aria-label="Tokens"]')).first.click()
    with page.expect_response(_rows_with_tokens) as answer:
        page.get_by_role("option", name="with arrays").click()
    expect(page).to_have_url(re.compile(r"tok=yes"))
    rows = answer.value.json()["response"]["rollouts-grid"]["getRowsResponse"]["rowData"]
    expect(first).to_have_text(rows[0]["place"])
    first.click()
    expect(page).to_have_url(re.compile(r"/r/[0-9a-f]{12}/t/\d+\.\d+"))
    tokens = page.locator("#trajectory-map [data-i], #trajectory-map canvas, #trajectory-map .tok")
    expect(tokens.first).to_be_visible()
    assert not log.elsewhere(demo.base)


def test_the_back_button_and_a_pasted_address_restore_the_view(page: Page, demo: Any) -> None:
    page.goto(demo.address)
    page.get_by_role("link", name=RUN).first.click()
    expect(page.locator("#run-facts")).to_be_visible()
    page.get_by_role("link", name="Rollouts", exact=True).first.click()
    expect(page.locator("#rollouts-grid a").first).to_be_visible()
    address = re.sub(r"\?.*", "", page.url) + "?step=100&task=copy"
    page.goto(address)
    expect(page.locator("#rollouts-grid a").first).to_be_visible()
    place = page.locator("#rollouts-grid a").first.inner_text()
    assert place.startswith("100")
    page.locator("#rollouts-grid a").first.click()
    expect(page).to_have_url(re.compile(r"/t/100\."))
    page.go_back()
    expect(page).to_have_url(address)
    expect(page.locator("#rollouts-grid a").first).to_have_text(place)
    page.go_back()
    page.go_back()
    expect(page).to_have_url(re.compile(r"/r/[0-9a-f]{12}$"))
    expect(page.locator("#run-facts")).to_be_visible()


def test_an_incident_of_the_live_run_appears_in_the_open_page(page: Page, start: Callable[..., Any]) -> None:
    server = start("demo", "--port", 0, "--speed", 4)
    page.goto(server.address)
    row = page.get_by_role("row").filter(has_text="entropy-collapse")
    expect(row).to_be_visible()
    expect(row.locator('a[href^="/incidents/"]')).to_have_count(0)
    page.evaluate("window.stillHere = true")
    expect(row.locator('a[href^="/incidents/"]').first).to_be_visible(timeout=120_000)
    assert page.evaluate("window.stillHere") is True
