"""All measurements in turn; ends with 1 if one misses its aim."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

from benchmarks import first_load, follow, ingest, overview, replay
from benchmarks.served import answer, served

MOST_FIRST_LOAD_BYTES = 2_500_000


def main() -> int:
    """Runs each measurement; what one prints stands under its name."""
    parts: dict[str, Callable[[], int]] = {
        "ingest": lambda: ingest.main([]),
        "overview": lambda: overview.main([]),
        "replay": lambda: replay.main([]),
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
    with served("demo") as address:
        base, _, token = address.partition("/?token=")
        run = answer(address, "/runs")["runs"][0]
        result = first_load.measure(f"{base}/r/{run['run_id']}?token={token}", 3)
    print(json.dumps(result, indent=1))
    return int(result["bytes"] > MOST_FIRST_LOAD_BYTES)


if __name__ == "__main__":
    sys.exit(main())
