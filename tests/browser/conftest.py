"""A real Chromium that notes everything a page says, asks for and throws."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
SWITCHES = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip
WAIT_MS = 30_000
expect.set_options(timeout=WAIT_MS)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test in this folder needs the browser."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)


def chromium() -> str:
    """The browser's path; without one the tests skip with the reason, or fail where RLVITALS_BROWSER=required."""
    found = os.environ.get("RLVITALS_CHROMIUM") or next((path for name in CHROMIUM_NAMES if (path := shutil.which(name))), None)
    if found is None:
        reason = "no Chromium: install Debian's chromium, or set RLVITALS_CHROMIUM=/path/to/chrome"
        if os.environ.get("RLVITALS_BROWSER") == "required":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One Chromium for a module's tests.

    Not for the whole session: its event loop stays in the thread, and later tests could start none of their own.
    """
    path = chromium()
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=list(SWITCHES))
        yield started
        started.close()


@dataclass
class Log:
    """What a page did: errors it wrote, exceptions, answers of 400 and more, dialogs, and addresses it asked for."""

    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)

    def elsewhere(self, base: str) -> list[str]:
        """Addresses beyond the server's own (data and blob addresses never leave the machine)."""
        own = urlsplit(base).netloc
        return [url for url in self.requests if urlsplit(url).scheme not in ("data", "blob", "about") and urlsplit(url).netloc != own]


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def page(browser: Browser, log: Log) -> Iterator[Page]:
    """A fresh page (own cookies). At the end it must have written no error and thrown nothing."""
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    opened = context.new_page()
    opened.set_default_timeout(WAIT_MS)
    opened.on("console", lambda message: log.errors.append(f"console: {message.text}") if message.type == "error" else None)
    opened.on("pageerror", lambda error: log.errors.append(f"thrown: {error}"))
    opened.on("response", lambda answer: log.errors.append(f"{answer.status} {answer.url}") if answer.status >= 400 else None)
    opened.on("request", lambda request: log.requests.append(request.url))
    opened.on("websocket", lambda socket: log.requests.append(socket.url))

    def dismiss(dialog: object) -> None:
        log.dialogs.append(str(dialog))
        dialog.dismiss()  # type: ignore[attr-defined]

    opened.on("dialog", dismiss)
    yield opened
    context.close()
    assert not log.errors
    assert not log.dialogs


Write = Callable[..., None]


@pytest.fixture
def write_steps(tmp_path: Path) -> Write:
    """Appends steps to a native run folder: `write_steps(folder, 1, 20)` writes metrics and two rollouts a step."""
    import json

    def write(folder: Path, first: int, last: int, **rollout: object) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "rollouts.jsonl").open("a") as rollouts, (folder / "metrics.jsonl").open("a") as metrics:
            for step in range(first, last + 1):
                for n in range(2):
                    row = {
                        "step": step,
                        "trajectory_id": f"t{n}",
                        "group_id": f"g{step}",
                        "prompt": "2+2=",
                        "response": "4",
                        "reward": float(n),
                    }
                    rollouts.write(json.dumps({**row, **rollout}) + "\n")
                metrics.write(json.dumps({"step": step, "reward.mean": 0.5 + step / 1000, "entropy.mean": 1.0, "grad.norm": 0.5}) + "\n")

    return write
