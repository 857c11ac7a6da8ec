"""A real server for a measurement, and its API."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_ADDRESS = re.compile(r"^RLVitals is at (\S+)$")


@contextmanager
def served(*arguments: str) -> Iterator[str]:
    """The address, with its token, of `rlvitals ARGUMENTS --port 0` once it answers; stopped at the end."""
    command = [str(Path(sys.executable).with_name("rlvitals")), *arguments, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            found = next((match for line in server.stdout if (match := _ADDRESS.match(line.strip()))), None)
            if found is None:
                raise SystemExit(f"{' '.join(arguments)}: the server did not start.")
            yield found[1]
        finally:
            server.terminate()


def answer(address: str, path: str) -> Any:
    """What `/api/v1PATH` of the server at `address` (as printed, with its token) says."""
    base, _, token = address.partition("/?token=")
    request = urllib.request.Request(f"{base}/api/v1{path}", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=30) as reply:
        return json.load(reply)
