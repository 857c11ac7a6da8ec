"""Ranges as they stand in an address: `97`, `90-100`, `0.5-`, `-1..0`."""

from __future__ import annotations

import re

from server.queries.rollouts import OPEN, Range

_NUMBER = r"-?\d+(?:\.\d+)?(?:[eE]-?\d+)?"
_RANGE = re.compile(rf"^\s*(?P<low>{_NUMBER})?\s*(?:(?P<sign>\.\.|-|–|to)\s*(?P<high>{_NUMBER})?)?\s*$")


def parse_range(text: str) -> Range | None:
    """Both bounds inclusive, None for an open one; a single number is a range of one. None: not a range."""
    if not text.strip():
        return OPEN
    found = _RANGE.match(text)
    if found is None:
        return None
    low, high = (None if bound is None else float(bound) for bound in found.group("low", "high"))
    if low is None and high is None:
        return None
    if found.group("sign") is None:
        return (low, low)
    return (high, low) if low is not None and high is not None and low > high else (low, high)


def format_range(low: float | None, high: float | None) -> str:
    """The text of a range for an address; empty for an open one."""
    if low is None and high is None:
        return ""
    left, right = ("" if bound is None else f"{bound:.12g}" for bound in (low, high))
    if left == right:
        return left
    return f"{left}..{right}" if right.startswith("-") or not left else f"{left}-{right}"


def words_of_range(low: float | None, high: float | None) -> str:
    """The range for a sentence: `97`, `90 to 100`, `from 90`, `up to 100`."""
    left, right = ("" if bound is None else f"{bound:,.12g}" for bound in (low, high))
    if left == right:
        return left
    if not left:
        return f"up to {right}"
    return f"{left} to {right}" if right else f"from {left}"
