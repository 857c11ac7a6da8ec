"""The vocabulary: every canonical metric, and the one place where a trainer's key gets its meaning."""

from __future__ import annotations

from typing import NamedTuple


class Meaning(NamedTuple):
    """What a source key means; metric None: unknown, stored and plotted under its own name."""

    metric: str | None
    transform: str | None = None
    estimator: str | None = None
    aggregation: str | None = None
    unit: str | None = None


def resolve(key: str, framework: str, version: str | None) -> Meaning:
    """The meaning of a source key as that framework (and version, None: unknown) logs it."""
    return Meaning(key if framework == "native" else None, "identity")
