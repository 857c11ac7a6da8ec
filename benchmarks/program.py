"""The program's side of the ingest measurement: reads one file into a new store."""

from __future__ import annotations

import sys
from pathlib import Path

from ingest.report import ingest_once
from ingest.store.connection import Store


def main() -> int:
    """Arguments: the store and the file."""
    store = Store(Path(sys.argv[1]))
    report = ingest_once(store, [Path(sys.argv[2])], reader="native")
    store.close()
    return 0 if report.exit_code in (0, 1) and report.runs else 1


if __name__ == "__main__":
    sys.exit(main())
