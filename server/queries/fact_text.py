"""Facts of text: similarity of responses within and across prompts, and tails that repeat themselves."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from server.queries.fact_rows import FactSeries
from server.queries.fact_table import LEAST_TAIL, NONE, Table
from server.queries.fact_trajectories import loss_weights
from server.queries.reductions import Floats, Ints, ratio
from server.queries.view import RunData

SHINGLE = 5
"""Characters of one shingle."""
_COMPRESSION = 10.0
"""A tail that deflates by more than this repeats itself (slime/observability/metric_utils.py)."""
_LEAST_COMPRESSED = 1000
_SUSPICIOUS = 4.0
"""Compression below which words are not counted: text that repeats more than half of its words deflates by more."""
_REPEATED_WORDS = 0.6
"""Share of repeated runs of four words from which a tail repeats itself (symptoms 10)."""
_PROMPTS = 6
_MEMBERS = 3


def text_facts(data: RunData, table: Table) -> FactSeries:
    """Facts of response text, reduced to steps; absent where no response is written.

    Similarity is measured on the first 512 characters of three responses to each of six prompts a step; repetition on the
    last 2,000 characters of every response of at least 256.
    """
    return table.index.series(_similarities(table) | _repetition(data, table))


def _similarities(table: Table) -> dict[str, Floats]:
    within, across, prefix = (np.full(table.index.size, np.nan) for _ in range(3))
    rows, prompts = _members(table)
    heads = table.texts["head"][rows].tolist()
    edges = np.searchsorted(table.index.of[rows], np.arange(table.index.size + 1)).tolist()
    for step, (a, b) in enumerate(itertools.pairwise(edges)):
        if b > a:
            asked, texts = prompts[a:b].tolist(), heads[a:b]
            within[step], across[step] = similarities(asked, texts)
            prefix[step] = prefix_agreement(asked, texts)
    return {"fact.similarity.within": within, "fact.similarity.across": across, "fact.similarity.prefix": prefix}


def _members(table: Table) -> tuple[Ints, Ints]:
    """Rows whose texts are compared, by step, prompt and n, and the number of each one's prompt in its step, from 0 on."""
    written = (table.hashes["prompt_hash"] != NONE) & (table["characters"] >= SHINGLE)
    rows, prompts, steps = table.by("prompt_hash", where=written)
    order = np.argsort(prompts.of, kind="stable")
    starts = np.searchsorted(prompts.of[order], np.arange(prompts.size))
    member = np.arange(len(rows)) - starts[prompts.of[order]]
    first = np.searchsorted(steps, np.arange(table.index.size))
    number = prompts.of[order] - first[steps[prompts.of[order]]]
    chosen = (number < _PROMPTS) & (member < _MEMBERS)
    return rows[order][chosen], number[chosen]


def prefix_agreement(prompts: Sequence[int], texts: Sequence[str]) -> float:
    """Longest common prefix over the mean length, mean over neighbouring texts of one prompt; NaN without any."""
    pairs = [(a, b) for p, q, a, b in zip(prompts, prompts[1:], texts, texts[1:], strict=False) if p == q]
    return _mean([2 * _common(a, b) / max(len(a) + len(b), 1) for a, b in pairs])


def _common(a: str, b: str) -> int:
    return next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def similarities(prompts: Sequence[int], texts: Sequence[str]) -> tuple[float, float]:
    """Mean Jaccard similarity of 5-character shingles over pairs of one prompt and over pairs of different prompts (first members).

    NaN where there is no such pair.
    """
    first = {prompt: position for position, prompt in reversed(list(enumerate(prompts)))}
    likeness = _likeness(texts)
    inside = [likeness[i][j] for i, j in itertools.combinations(range(len(texts)), 2) if prompts[i] == prompts[j]]
    outside = [likeness[i][j] for i, j in itertools.combinations(sorted(first.values()), 2)]
    return _mean(inside), _mean(outside)


def _likeness(texts: Sequence[str]) -> list[list[float]]:
    """Jaccard similarity of every text with every other."""
    numbers = _numbered([_plain(text) for text in texts])
    if numbers is None:
        sets = [shingles(text) for text in texts]
        return [[jaccard(a, b) for b in sets] for a in sets]
    owners, shingle = numbers
    held = np.zeros((len(texts), (int(shingle.max()) // 64 + 1) * 64), np.bool_)
    held[owners, shingle] = True
    words = np.packbits(held, axis=1).view(np.uint64)  # counted by bits: a product of matrices would wake all cores for so little
    shared = np.bitwise_count(words[:, None, :] & words[None, :, :]).sum(axis=2, dtype=np.int64)
    own = shared.diagonal()
    found: list[list[float]] = (shared / (own[:, None] + own[None, :] - shared)).tolist()
    return found


def _numbered(texts: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Text and number of every shingle, equal shingles with equal numbers; None for texts too short or too rich to be packed in 64 bits."""
    sizes = [len(text) for text in texts]
    if min(sizes) < SHINGLE:
        return None
    joined = "".join(texts)
    try:
        codes, bits = np.frombuffer(joined.encode("latin-1"), np.uint8).astype(np.int64), 8
    except UnicodeEncodeError:
        points, numbers = np.unique(np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), np.uint32), return_inverse=True)
        codes, bits = numbers.astype(np.int64), 12
        if len(points) > 1 << bits:
            return None
    owner = np.repeat(np.arange(len(texts)), sizes)
    packed = sum(codes[k : len(codes) - SHINGLE + 1 + k] << (bits * k) for k in range(SHINGLE))
    inside = owner[SHINGLE - 1 :] == owner[: len(owner) - SHINGLE + 1]
    _, shingle = np.unique(np.asarray(packed)[inside], return_inverse=True)
    return owner[: len(owner) - SHINGLE + 1][inside], shingle


def _plain(text: str) -> str:
    return " ".join(text.split())


def shingles(text: str) -> frozenset[str]:
    """Every run of 5 characters; white space counts as one blank."""
    plain = _plain(text)
    return frozenset(plain[at : at + SHINGLE] for at in range(max(1, len(plain) - SHINGLE + 1)))


def jaccard(a: frozenset[str], b: frozenset[str]) -> float:
    """Shared over all shingles."""
    shared = len(a & b)
    return shared / (len(a) + len(b) - shared) if a or b else 1.0


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")


def compression(tail: str) -> float:
    """Bytes over deflated bytes; NaN below 1,000 bytes, where the ratio says little."""
    raw = tail.encode()
    return len(raw) / len(zlib.compress(raw, 6)) if len(raw) >= _LEAST_COMPRESSED else float("nan")


def repeats(tail: str, ratio: float | None = None) -> bool:
    """Whether the end of a response repeats itself; ratio: its compression, where it is known already.

    It deflates by more than ten, most of its runs of four words were there before, or one period covers its last 256 bytes.
    """
    ratio = compression(tail) if ratio is None else ratio
    if ratio > _COMPRESSION or (ratio > _SUSPICIOUS and _repeated_words(tail) > _REPEATED_WORDS):
        return True
    raw = tail.encode()
    end = np.frombuffer(raw[-LEAST_TAIL:], np.uint8)
    return any(float((end[period:] == end[:-period]).mean()) > 0.95 for period in range(1, 33))


def _repeated_words(tail: str) -> float:
    """0..1, 1 - different over all runs of four words; 0 below 50 words."""
    words = tail.split()
    runs = [tuple(words[at : at + 4]) for at in range(len(words) - 3)]
    return 1 - len(set(runs)) / len(runs) if len(words) >= 50 else 0.0


def _repetition(data: RunData, table: Table) -> dict[str, Floats]:
    index = table.index
    tails = table.texts["tail"]
    long = np.array([tail is not None for tail in tails], np.bool_)
    ratios = np.full(len(table), np.nan)
    repeated = np.zeros(len(table), np.bool_)
    for row in np.flatnonzero(long).tolist():
        ratios[row] = compression(tails[row])
        repeated[row] = repeats(tails[row], ratios[row])
    written, weight = np.isfinite(table["characters"]), loss_weights(data, table)
    whole = np.where(index.count(written) > 0, index.total(weight), np.nan)
    shared = index.total(weight, repeated)
    cut = index.total(weight, table.truncated)
    outliers = cut + index.total(weight, repeated & ~table.truncated)
    reasons = index.count(table["finished"] > 0) > 0
    part = ratio(index.count(repeated), index.count(written))
    return {
        "fact.tail.compression": index.mean(ratios),
        "fact.repetitive_frac": np.where(index.count(long) > 0, part, np.nan),
        "fact.loss_share.repetitive": np.where(whole > 0, ratio(shared, whole), np.nan),
        "fact.loss_share.outliers": np.where((whole > 0) & reasons, ratio(outliers, whole), np.nan),
    }
