"""Canonical configuration keys (vocabulary section 5)."""

from __future__ import annotations

from collections.abc import Mapping

from ingest.schema.records import Json


def canonical(config: Mapping[str, Json], framework: str) -> dict[str, Json]:
    """The canonical keys that a configuration answers; absent: not in it."""
    return {}
