"""From an address to a page: matching of paths, and writing of addresses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import parse_qsl, quote, urlencode

from ingest.errors import RLVitalsError


class NoSuchPage(RLVitalsError):
    """The address names nothing that exists; the message says what to do."""


@lru_cache(maxsize=256)
def _pattern(template: str) -> re.Pattern[str]:
    parts = re.split(r"<(\w+)>", template)
    return re.compile("^" + "".join(re.escape(p) if i % 2 == 0 else f"(?P<{p}>[^/]+)" for i, p in enumerate(parts)) + "/?$")


def match_path(template: str, path: str) -> dict[str, str] | None:
    """The varying parts of a path, or None if it is not of that form."""
    found = _pattern(template).match(path)
    return found.groupdict() if found else None


def query_of(search: str | None) -> dict[str, str]:
    """Keys and values of a query string; the last of equal keys counts."""
    return dict(parse_qsl((search or "").removeprefix("?"), keep_blank_values=False))


def address(path: str, query: Mapping[str, object] | None = None, **parts: object) -> str:
    """The address of a page: `<name>` parts filled in, empty values of the query left out."""
    filled = re.sub(r"<(\w+)>", lambda m: quote(str(parts[m.group(1)]), safe=""), path)
    kept = {key: value for key, value in (query or {}).items() if value not in (None, "", False)}
    return f"{filled}?{urlencode(kept)}" if kept else filled
