"""Facts of text: similarity of responses within and across prompts, and tails that repeat themselves."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from server.queries.fact_rows import TRAINING, FactSeries, Floats, StepIndex, parameters
from server.queries.fact_trajectories import loss_weight
from server.queries.view import Position, RunData

SHINGLE = 5
"""Characters of one shingle."""
_HEAD_CHARACTERS = 512
_TAIL_CHARACTERS = 2000
_LEAST_TAIL = 256
"""Characters from which a tail can be said to repeat itself."""
_COMPRESSION = 10.0
"""A tail that deflates by more than this repeats itself (slime/observability/metric_utils.py)."""
_LEAST_COMPRESSED = 1000
_SUSPICIOUS = 4.0
"""Compression below which words are not counted: text that repeats more than half of its words deflates by more."""
_REPEATED_WORDS = 0.6
"""Share of repeated runs of four words from which a tail repeats itself (symptoms 10)."""
_PROMPTS = 6
_MEMBERS = 3
_ROWS_AT_ONCE = 4000


def text_facts(data: RunData, after: Position | None) -> FactSeries:
    """Facts of response text, reduced to steps; absent where no response is written.

    Similarity is measured on the first 512 characters of three responses to each of six prompts a step; repetition on the
    last 2,000 characters of every response of at least 256.
    """
    result = _similarities(data, after)
    result.update(_repetition(data, after))
    return result


def _similarities(data: RunData, after: Position | None) -> FactSeries:
    rows = data.store.columns(
        f"""WITH t AS (
                SELECT attempt, step, n, left(response, {_HEAD_CHARACTERS}) AS head,
                       dense_rank() OVER (PARTITION BY attempt, step ORDER BY prompt_hash) AS prompt_number,
                       row_number() OVER (PARTITION BY attempt, step, prompt_hash ORDER BY n) AS member
                FROM (SELECT *, hash(coalesce(prompt, prompt_messages::VARCHAR)) AS prompt_hash FROM trajectory t
                      WHERE {TRAINING} AND length(response) >= {SHINGLE} AND coalesce(prompt, prompt_messages::VARCHAR) IS NOT NULL))
            SELECT attempt, step, prompt_number, head FROM t WHERE prompt_number <= {_PROMPTS} AND member <= {_MEMBERS}
            ORDER BY attempt, step, prompt_number, n""",
        parameters(data, after),
    )
    if not len(rows["step"]):
        return {}
    index = StepIndex(rows["attempt"], rows["step"])
    within, across, prefix = (np.full(index.size, np.nan) for _ in range(3))
    for number, picked in enumerate(index.rows()):
        prompts, heads = rows["prompt_number"][picked].tolist(), rows["head"][picked].tolist()
        within[number], across[number] = similarities(prompts, heads)
        prefix[number] = prefix_agreement(prompts, heads)
    return index.series({"fact.similarity.within": within, "fact.similarity.across": across, "fact.similarity.prefix": prefix})


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
    end = np.frombuffer(raw[-_LEAST_TAIL:], np.uint8)
    return any(float((end[period:] == end[:-period]).mean()) > 0.95 for period in range(1, 33))


def _repeated_words(tail: str) -> float:
    """0..1, 1 - different over all runs of four words; 0 below 50 words."""
    words = tail.split()
    runs = [tuple(words[at : at + 4]) for at in range(len(words) - 3)]
    return 1 - len(set(runs)) / len(runs) if len(words) >= 50 else 0.0


def _repetition(data: RunData, after: Position | None) -> FactSeries:
    counts = data.store.columns(
        f"""SELECT attempt, step, count(response) AS texts, sum({loss_weight(data)}) AS weight, count(finish_reason) AS reasons,
                   sum({loss_weight(data)}) FILTER (finish_reason = 'length') AS truncated,
                   count(*) FILTER (length(response) >= {_LEAST_TAIL}) AS long
            FROM trajectory t WHERE {TRAINING} GROUP BY ALL HAVING count(response) > 0 ORDER BY attempt, step""",
        parameters(data, after),
    )
    if not len(counts["step"]):
        return {}
    places = {key: at for at, key in enumerate(zip(counts["attempt"].tolist(), counts["step"].tolist(), strict=True))}
    repeated, weight, besides, ratios, measured = (np.zeros(len(places)) for _ in range(5))
    cursor = data.store.cursor().execute(
        f"""SELECT attempt, step, right(response, {_TAIL_CHARACTERS}), {loss_weight(data)}, finish_reason = 'length'
            FROM trajectory t WHERE {TRAINING} AND length(response) >= {_LEAST_TAIL}""",
        parameters(data, after),
    )
    while rows := cursor.fetchmany(_ROWS_AT_ONCE):
        for attempt, step, tail, share, truncated in rows:
            at, ratio = places[(attempt, step)], compression(tail)
            if ratio > 0:  # false where it is not a number
                ratios[at] += ratio
                measured[at] += 1
            if repeats(tail, ratio):
                repeated[at] += 1
                weight[at] += share or 0.0
                besides[at] += 0.0 if truncated else share or 0.0
    return _shares(counts, repeated, weight, besides, np.where(measured > 0, ratios / np.maximum(measured, 1), np.nan))


def _shares(counts: dict[str, NDArray[np.generic]], repeated: Floats, weight: Floats, besides: Floats, ratio: Floats) -> FactSeries:
    total = np.asarray(counts["weight"], dtype=np.float64)
    truncated = np.nan_to_num(np.asarray(counts["truncated"], dtype=np.float64))
    known = (total > 0) & (np.asarray(counts["reasons"], dtype=np.float64) > 0)
    index = StepIndex(np.asarray(counts["attempt"], dtype=np.int64), np.asarray(counts["step"], dtype=np.int64))
    long = np.asarray(counts["long"], dtype=np.float64)
    return index.series(
        {
            "fact.tail.compression": ratio,
            "fact.repetitive_frac": np.where(long > 0, repeated / np.maximum(counts["texts"].astype(np.float64), 1), np.nan),
            "fact.loss_share.repetitive": np.where(total > 0, weight / np.maximum(total, 1e-9), np.nan),
            "fact.loss_share.outliers": np.where(known, (truncated + besides) / np.maximum(total, 1e-9), np.nan),
        }
    )
