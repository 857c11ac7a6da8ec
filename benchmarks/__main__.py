"""All measurements in turn; ends with 1 if one misses its aim."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

from benchmarks import first_load, follow, ingest, overview

MOST_FIRST_LOAD_BYTES = 2_500_000
_ADDRESS = re.compile(r"^RLVitals is at (\S+)$")


def main() -> int:
    """Runs each measurement; what one prints stands under its name."""
    parts: dict[str, Callable[[], int]] = {
        "ingest": lambda: ingest.main([]),
        "overview": lambda: overview.main([]),
        "follow": lambda: follow.main([]),
        "first load": _first_load,
    }
    failed = []
    for name, part in parts.items():
        print(f"== {name}", flush=True)
        if part():
            failed.append(name)
    if failed:
        print(f"missed: {', '.join(failed)}")
    return int(bool(failed))


def _first_load() -> int:
    """The Overview of a run of the bundled demo in a browser with an empty cache."""
    command = [str(Path(sys.executable).with_name("rlvitals")), "demo", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            found = next((match for line in server.stdout if (match := _ADDRESS.match(line.strip()))), None)
            if found is None:
                print("the demo did not start")
                return 1
            result = first_load.measure(_overview_of(found[1]), 3)
        finally:
            server.terminate()
    print(json.dumps(result, indent=1))
    return int(result["bytes"] > MOST_FIRST_LOAD_BYTES)


def _overview_of(address: str) -> str:
    """The address of the first run's Overview, with the token."""
    base, _, token = address.partition("/?token=")
    request = urllib.request.Request(f"{base}/api/v1/runs", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=30) as reply:
        run = json.load(reply)["runs"][0]
    return f"{base}/r/{run['run_id']}?token={token}"


if __name__ == "__main__":
    sys.exit(main())
