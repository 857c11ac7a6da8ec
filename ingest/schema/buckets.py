"""Edges of the length and lag buckets used by slices, checks and pages alike."""

from __future__ import annotations

import math
from collections.abc import Sequence

LAG_EDGES: tuple[int, ...] = (0, 1, 2, 3, 5, 9, 17, 33)
"""Lower edges of policy-lag buckets, in policy versions: 0, 1, 2, 3-4, 5-8, 9-16, 17-32, 33 and more."""

_LENGTH_STEPS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24)


def length_edges(shortest: int, longest: int, buckets: int = 9) -> tuple[int, ...]:
    """Lower edges, in tokens, of at most `buckets` round length buckets that cover shortest..longest.

    Up to `buckets` different lengths get a bucket each; wider ranges get edges from the 1-2-3-4-5-6-8-10 series,
    thinned evenly, so that edges stay the same while a run grows within them.
    """
    shortest, longest = max(0, int(shortest)), max(1, int(longest))
    if longest - shortest < buckets:
        return tuple(range(shortest, longest + 1))
    decades = range(int(math.log10(longest)) + 1)
    candidates = sorted({step * 10**decade for decade in decades for step in _LENGTH_STEPS})
    inside = [edge for edge in candidates if shortest < edge <= longest]
    while len(inside) > buckets - 1:
        inside = inside[1::2] if len(inside) % 2 == 0 else inside[::2]
    return (shortest, *inside)


def bucket_label(edges: Sequence[int], index: int) -> str:
    """The words of one bucket: `8`, `3 to 5`, or `33 and more` for the last."""
    low = edges[index]
    if index + 1 >= len(edges):
        return f"{low} and more"
    high = edges[index + 1] - 1
    return str(low) if high == low else f"{low} to {high}"
