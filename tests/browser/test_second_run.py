"""What a person does with a second run: finds it by name, sees what it answers, passes the address on, and goes back."""

from __future__ import annotations

import re
import time
from typing import Any

from playwright.sync_api import Page, expect


def wait_for_the_collapse(page: Page, demo: Any) -> None:
    """Until the demo's run with stale samples is judged to where its collapse is explained for the last time."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        runs = page.request.get(f"{demo.base}/api/v1/runs").json()["runs"]
        ids = [run["run_id"] for run in runs if run["name"] == "stale-async"]
        found = page.request.get(f"{demo.base}/api/v1/incidents?state=all&run_id={ids[0]}").json()["incidents"] if ids else []
        if any(one["symptom"] == "joint-collapse" and one["last_step"] > 190 for one in found):
            return
        page.wait_for_timeout(500)
    raise AssertionError("the run with stale samples was not judged in two minutes")


def test_an_incident_is_compared_with_a_second_run_by_keyboard_linked_and_left_again(page: Page, log: Any, demo: Any) -> None:
    page.goto(demo.address)
    wait_for_the_collapse(page, demo)
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Incidents").click()
    page.get_by_role("row").filter(has_text="stale-async").get_by_role("link", name="joint-collapse").click()
    rows = page.locator(".hypothesis")
    noise = rows.filter(has_text="Seed noise")
    expect(noise).to_contain_text("Not checkable")
    expect(noise).to_contain_text("Needs a second run: choose one above.")
    plain = page.url
    field = page.get_by_role("textbox", name="Compare with a second run")
    expect(field).to_have_value("")
    field.focus()
    page.keyboard.type("healt")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"/incidents/in_\w+\?baseline=\w+$"))
    notice = page.get_by_role("status").filter(has_text="With the second run healthy")
    expect(notice).to_contain_text("seed noise (H6f)")
    expect(noise).to_contain_text("was not checkable")
    expect(noise).to_contain_text("in the second run at equal samples")
    page.goto(page.url)
    expect(page.get_by_role("textbox", name="Compare with a second run")).to_have_value("healthy")
    expect(notice).to_contain_text("The incident and its alerts stay as they are.")
    page.get_by_role("button", name="Choose none").press("Enter")
    expect(page).to_have_url(plain)
    page.go_back()
    page.get_by_role("link", name="Back to the explanations without it").click()
    expect(page).to_have_url(plain)
    expect(noise).to_contain_text("Not checkable")
    page.goto(plain + "?baseline=nothing")
    expect(page.get_by_role("alert")).to_contain_text("There is no run nothing to compare with.")
    expect(noise).to_contain_text("Not checkable")
    assert not log.elsewhere(demo.base)
