"""Text from a log that tries to be more than text: it is shown, and nothing runs, loads or leaves the machine."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, expect

Write = Callable[..., None]
SCRIPT = "<script>window.pwned=1;fetch('http://evil.example/a')</script>"
HANDLER = '<img src=x onerror="window.pwned=1"><svg onload=window.pwned=1>'
IMAGE = '![pixel](http://evil.example/b.png) <img src=http://evil.example/c.png> <a href="javascript:window.pwned=1">go</a>'
BIDI = "safe\u202edesrever\u202c \u2066isolated\u2069 zero\u200bwidth"
TERMINAL = "\x1b[31mred\x1b]0;title\x07\x1b[2J\x9b1m bell\x07"
HOSTILE = "\n".join((SCRIPT, HANDLER, IMAGE, BIDI, TERMINAL))


@pytest.fixture
def hostile_run(tmp_path: Path, write_steps: Write) -> Path:
    """A run whose texts, keys and names are all hostile."""
    folder = tmp_path / "logs" / "run <b onmouseover=alert(1)>\u202exyz"
    # A token for every few characters, so that the token map has the same text to draw.
    tokens = [HOSTILE[at : at + 7] for at in range(0, len(HOSTILE), 7)]
    more = {"token_texts": tokens, "token_ids": list(range(len(tokens))), "response_mask": [1] * len(tokens)}
    logprobs = {"rollout_logprobs": [-0.1] * len(tokens), "old_logprobs": [-0.2] * len(tokens)}
    write_steps(folder, 1, 3, prompt=HOSTILE, response=HOSTILE, task=SCRIPT, finish_reason="stop", **more, **logprobs)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 4, "reward.mean": 0.5, SCRIPT: 1.0, "\x1b[31mkey": 2.0}) + "\n")
        file.write(f"no json \x1b[31m {SCRIPT}\n")
    (folder / "events.jsonl").write_text(json.dumps({"step": 2, "kind": "note", "text": HOSTILE}) + "\n")
    (folder / "config.json").write_text(json.dumps({"algorithm": SCRIPT, "api_key": "sk-very-secret"}))
    return folder


def test_hostile_text_is_shown_and_nothing_runs_or_leaves(page: Page, log: Any, start: Callable[..., Any], hostile_run: Path) -> None:
    server = start("serve", "--port", 0, "--watch", hostile_run)
    page.goto(server.address)
    expect(page.locator("#page")).to_contain_text("run <b onmouseover=alert(1)>")
    answer = httpx.get(f"{server.base}/api/v1/runs", headers={"Authorization": f"Bearer {server.token}"}, trust_env=False)
    run = f"{server.base}/r/{answer.json()['runs'][0]['run_id']}"
    for address in (run, f"{run}/slices", f"{run}/slices?by=task", f"{run}/rollouts", f"{run}/t/2.0", f"{server.base}/sources"):
        page.goto(address)
        expect(page.locator("#page h1").first).to_be_visible()
        # Charts, grids and the token map are drawn after the page is there.
        page.wait_for_timeout(700)
        assert page.evaluate("window.pwned") is None
        assert "\u202e" not in page.locator("body").inner_text()
    page.goto(f"{run}/t/2.0")
    text = page.locator("#page")
    expect(text).to_contain_text("<script>window.pwned=1")
    expect(text).to_contain_text("onerror=")
    expect(text).to_contain_text("\u241b[31mred")
    expect(text).to_contain_text("RLO")
    assert page.locator("#page img").count() == 0
    assert page.locator('a[href^="javascript:"]').count() == 0
    assert not log.elsewhere(server.base)


def test_hostile_text_reaches_no_terminal(hostile_run: Path, rlvitals: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    read = rlvitals("ingest", hostile_run)
    listed = rlvitals("runs")
    assert read.returncode == 1, read.stderr
    assert "\u241b[31m" in read.stdout
    for found in (read, listed):
        assert "onmouseover" in found.stdout
        for text in (found.stdout, found.stderr):
            assert not [character for character in text if (ord(character) < 32 and character != "\n") or 0x7F <= ord(character) < 0xA0]
            assert "\u202e" not in text


def test_secrets_of_a_configuration_are_in_no_store(
    tmp_path: Path, hostile_run: Path, rlvitals: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    rlvitals("ingest", hostile_run)
    out = tmp_path / "out"
    run = json.loads(rlvitals("runs", "--json").stdout)["runs"][0]["run_id"]
    assert rlvitals("export", run, "--format", "csv", "--out", out).returncode == 0
    assert "sk-very-secret" not in "".join(path.read_text() for path in out.iterdir())
    assert b"sk-very-secret" not in (tmp_path / "home" / "telemetry.duckdb").read_bytes()
