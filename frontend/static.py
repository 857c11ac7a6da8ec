"""`python -m frontend.static` compresses, once after installing, every script and style sheet that a page may load.

Brotli at its highest level takes about 15 s for all of them, far too long for the first page.
"""

from __future__ import annotations

import sys

from frontend.app import static_files
from frontend.compression import CACHE, fill_cache


def main() -> None:
    """Fills the cache and says how many files were added."""
    sys.stdout.write(f"{fill_cache(path.read_bytes() for path in static_files())} static files compressed into {CACHE}\n")


if __name__ == "__main__":
    main()
