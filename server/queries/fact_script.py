"""Facts of writing systems: letters of a response whose script its prompt does not have."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from server.queries.fact_rows import TRAINING, FactSeries, Floats, StepIndex, parameters
from server.queries.view import Position, RunData

_ROWS_A_STEP = 64
_ROWS_AT_ONCE = 4000
_CHARACTERS = 2000
"""Of the head and of the tail of a response."""
_MIXED = 0.05
"""Share of foreign letters from which a response counts as mixed (symptoms 20)."""
_OF_PROMPT = 0.02
"""A script belongs to the prompt from this share of its letters on."""
_LEAST_LETTERS = 20
"""Letters below which a response says nothing about its language."""

# Code, formulae and addresses are written in Latin letters in every language.
_NEUTRAL = re.compile(
    r"```.*?(```|\Z)|`[^`\n]*`|\$\$.*?\$\$|\$[^$\n]*\$|\\\(.*?\\\)|\\\[.*?\\\]|\\[A-Za-z]+|<[^<>\n]{1,80}>|https?://\S+", re.DOTALL
)
_LATIN_WORD = re.compile(r"[A-Za-z\u00c0-\u024f]+")

# First code point of each block of letters and the script it is written in; 0: no letter, or one of formulae (Greek).
_BLOCKS = (
    (0x0, 0), (0x41, 1), (0x5B, 0), (0x61, 1), (0x7B, 0), (0xC0, 1), (0xD7, 0), (0xD8, 1), (0xF7, 0), (0xF8, 1), (0x250, 0),
    (0x400, 2), (0x530, 3), (0x590, 4), (0x600, 5), (0x700, 0), (0x900, 6), (0x980, 7), (0xE00, 8), (0xE80, 0), (0x10A0, 9),
    (0x1100, 10), (0x1200, 0), (0x1E00, 1), (0x1F00, 0), (0x3040, 11), (0x3130, 10), (0x3190, 0), (0x31F0, 11), (0x3200, 0),
    (0x3400, 12), (0x4DC0, 0), (0x4E00, 12), (0xA000, 0), (0xAC00, 10), (0xD7A4, 0), (0xF900, 12), (0xFB00, 0), (0xFB1D, 4),
    (0xFB50, 5), (0xFE00, 0), (0xFE70, 5), (0xFEFF, 0), (0x20000, 12), (0x31350, 0),
)  # fmt: skip
_STARTS = np.array([start for start, _ in _BLOCKS])
_SCRIPTS = np.array([script for _, script in _BLOCKS], dtype=np.int8)
_LATIN, _KANA, _HAN = 1, 11, 12
_KINDS = 13


class Mixture(NamedTuple):
    """Share of foreign letters in a response, and changes of script in it."""

    foreign: float
    switches: int


def scripts(text: str) -> NDArray[np.int8]:
    """Script of every character, 0 for what is no letter: code, formulae and addresses count as such."""
    points = np.frombuffer(_NEUTRAL.sub(" ", text).encode("utf-32-le", "replace"), np.uint32)
    return np.asarray(_SCRIPTS[np.searchsorted(_STARTS, points, side="right") - 1])


def mixture(prompt: str, response: str) -> Mixture | None:
    """What of a response is written in other scripts than its prompt; None with too few letters in either.

    Latin letters in a response to a prompt without any count only as words of three letters and more: shorter ones are names
    of variables and units.
    """
    asked = np.bincount(scripts(prompt), minlength=_KINDS)[1:]
    own = 1 + np.flatnonzero(asked > _OF_PROMPT * max(int(asked.sum()), 1))
    if _KANA in own:
        own = np.append(own, _HAN)  # Japanese is written in both
    if not len(own):
        return None
    if _LATIN not in own:
        response = _LATIN_WORD.sub(lambda word: word[0] if len(word[0]) >= 3 else " ", response)
    found = scripts(response)
    letters = found[found > 0]
    if len(letters) < _LEAST_LETTERS:
        return None
    foreign = ~np.isin(letters, own)
    return Mixture(float(foreign.mean()), int(np.count_nonzero(foreign[1:] != foreign[:-1])))


def script_facts(data: RunData, after: Position | None) -> FactSeries:
    """Facts of scripts, reduced to steps, over at most 64 responses a step; absent where prompts or responses are not written.

    Responses and prompts of ASCII letters alone are Latin and are not read.
    """
    cursor = data.store.cursor().execute(
        f"""WITH t AS (
                SELECT attempt, step, reward, coalesce(prompt, prompt_messages::VARCHAR) AS asked, response,
                       row_number() OVER (PARTITION BY attempt, step ORDER BY n) AS place
                FROM trajectory t WHERE {TRAINING} AND response IS NOT NULL AND coalesce(prompt, prompt_messages::VARCHAR) IS NOT NULL)
            SELECT attempt, step, reward, length(response) AS size, strlen(response) = length(response) AND strlen(asked) = length(asked)
                   AND regexp_matches(asked, '[A-Za-z]') AS plain,
                   plain AND regexp_matches(response, '([A-Za-z][^A-Za-z]*){{{_LEAST_LETTERS}}}') AS lettered,
                   CASE WHEN NOT plain THEN left(asked, {2 * _CHARACTERS}) END,
                   CASE WHEN NOT plain AND size > {2 * _CHARACTERS}
                        THEN left(response, {_CHARACTERS}) || ' ' || right(response, {_CHARACTERS})
                        WHEN NOT plain THEN response END
            FROM t WHERE place <= {_ROWS_A_STEP}""",
        parameters(data, after),
    )
    found: list[tuple[float, ...]] = []
    # Text is read in parts: a whole run of it does not fit into memory.
    while rows := cursor.fetchmany(_ROWS_AT_ONCE):
        found += [_row(*row) for row in rows]
    if not found:
        return {}
    columns = np.array(found, dtype=np.float64)
    attempts, steps = columns[:, 0].astype(np.int64), columns[:, 1].astype(np.int64)
    return _reduced(StepIndex(attempts, steps), *columns[:, 2:].T)


def _row(
    attempt: int, step: int, reward: float | None, size: int, plain: bool, lettered: bool, asked: str | None, response: str | None
) -> tuple[float, ...]:
    """attempt, step, foreign share (NaN where it cannot be told), changes of script, size, reward."""
    seen = mixture(asked or "", response or "") if not plain else Mixture(0.0, 0) if lettered else None
    foreign, switches = seen if seen is not None else (np.nan, 0)
    return attempt, step, foreign, switches, size, np.nan if reward is None else reward


def _reduced(index: StepIndex, foreign: Floats, switches: Floats, size: Floats, reward: Floats) -> FactSeries:
    known = np.isfinite(foreign)
    mixed = known & (foreign > _MIXED)
    length = np.minimum(size, 2 * _CHARACTERS)
    return index.series(
        {
            "fact.script.foreign_frac": index.mean(foreign),
            "fact.script.mixed_frac": index.mean(mixed.astype(np.float64), known),
            "fact.script.switches": index.mean(1000 * switches / np.maximum(length, 1), known, length),
            "fact.script.reward_mixed": index.mean(reward, mixed),
            "fact.script.reward_plain": index.mean(reward, known & ~mixed),
        }
    )
