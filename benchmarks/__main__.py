"""Every measurement, one after the other, each in a process of its own: `python -m benchmarks [NAME ...]`."""

from __future__ import annotations

import argparse
import subprocess
import sys

NAMES = ("ingest", "overview", "follow", "first_load")


def main() -> int:
    """Runs the named measurements (default: all); 0 if each met its aim."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    chosen = parser.parse_args().names or list(NAMES)
    if unknown := set(chosen) - set(NAMES):
        parser.error(f"there is no measurement {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    failed = [name for name in chosen if not _met(name)]
    print(f"missed: {', '.join(failed)}" if failed else "every measurement met its aim")
    return int(bool(failed))


def _met(name: str) -> bool:
    print(f"== {name}", flush=True)
    return subprocess.run([sys.executable, "-m", f"benchmarks.{name}"]).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
