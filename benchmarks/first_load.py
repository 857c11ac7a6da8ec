"""First load of a run's Overview in Chromium: bytes over the wire and seconds to the last of twelve charts.

    python -m benchmarks.first_load ADDRESS [--repeats 3]

ADDRESS is that of one run, with `?token=` where the server asks for it. Each repeat begins with an empty cache; the
server should have answered once before. Prints one JSON object with medians and the largest files.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import time
from typing import Any

CHARTS = ".rlv-chart .js-plotly-plot .scatterlayer"
WAIT_MS = 60_000


def measure(address: str, repeats: int) -> dict[str, Any]:
    """Medians over the repeats; bytes are those transferred, compressed and with headers."""
    from playwright.sync_api import sync_playwright

    chromium = os.environ.get("RLVITALS_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("No Chromium found: install Debian's chromium, or set RLVITALS_CHROMIUM=/path/to/chrome.")
    sizes: list[int] = []
    seconds: list[float] = []
    files: dict[str, int] = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        )
        for _ in range(repeats):
            files, taken = _once(browser, address)
            sizes.append(sum(files.values()))
            seconds.append(taken)
        browser.close()
    largest = sorted(files.items(), key=lambda item: -item[1])[:6]
    return {
        "bytes": round(statistics.median(sizes)),
        "seconds": round(statistics.median(seconds), 2),
        "seconds_all": [round(value, 2) for value in seconds],
        "largest": [{"file": name.split("?")[0].rsplit("/", 1)[-1], "bytes": size} for name, size in largest],
    }


def _once(browser: Any, address: str) -> tuple[dict[str, int], float]:
    context = browser.new_context(viewport={"width": 1440, "height": 1000})
    page = context.new_page()
    network = context.new_cdp_session(page)
    network.send("Network.enable")
    names: dict[str, str] = {}
    sizes: dict[str, int] = {}
    network.on("Network.responseReceived", lambda event: names.__setitem__(event["requestId"], event["response"]["url"]))
    network.on("Network.loadingFinished", lambda event: sizes.__setitem__(event["requestId"], int(event["encodedDataLength"])))
    begun = time.monotonic()
    page.goto(address)
    page.locator(CHARTS).nth(11).wait_for(state="attached", timeout=WAIT_MS)
    taken = time.monotonic() - begun
    # What is fetched for later (fonts) belongs to the first load too.
    page.wait_for_timeout(1000)
    context.close()
    return {names.get(number, number): size for number, size in sizes.items()}, taken


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description="Bytes and seconds of the first load of an Overview.")
    parser.add_argument("address")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    json.dump(measure(given.address, given.repeats), sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
