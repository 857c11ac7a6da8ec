"""Facts of writing systems: letters of a response whose script its prompt does not have."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from server.queries.fact_rows import FactSeries
from server.queries.fact_table import LEAST_LETTERS, NONE, PROMPT, Table
from server.queries.view import RunData

_ROWS_A_STEP = 64
_ROWS_AT_ONCE = 4000
_CHARACTERS = 2000
"""Of the head and of the tail of a response."""
_MIXED = 0.05
"""Share of foreign letters from which a response counts as mixed (symptoms 20)."""
_OF_PROMPT = 0.02
"""A script belongs to the prompt from this share of its letters on."""

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
    if len(letters) < LEAST_LETTERS:
        return None
    foreign = ~np.isin(letters, own)
    return Mixture(float(foreign.mean()), int(np.count_nonzero(foreign[1:] != foreign[:-1])))


def script_facts(data: RunData, table: Table) -> FactSeries:
    """Facts of scripts, reduced to steps, over at most 64 responses a step; absent where prompts or responses are not written.

    Responses and prompts of ASCII letters alone are Latin and are not read.
    """
    written = np.isfinite(table["characters"]) & (table.hashes["prompt_hash"] != NONE)
    place = np.cumsum(written) - 1
    chosen = written & (place - table.index.least(place.astype(np.float64), written)[table.index.of] < _ROWS_A_STEP)
    foreign = np.where(chosen & (table["lettered"] == 1), 0.0, np.nan)
    switches = np.zeros(len(table))
    for row, seen in _read(data, table, chosen & (table["plain"] == 0)):
        foreign[row], switches[row] = seen
    index, reward = table.index, table["reward"]
    known = np.isfinite(foreign)
    mixed = known & (foreign > _MIXED)
    length = np.minimum(table["characters"], 2 * _CHARACTERS)
    return index.series(
        {
            "fact.script.foreign_frac": index.mean(foreign),
            "fact.script.mixed_frac": index.mean(mixed.astype(np.float64), known),
            "fact.script.switches": index.mean(1000 * switches / np.maximum(length, 1), known, length),
            "fact.script.reward_mixed": index.mean(reward, mixed),
            "fact.script.reward_plain": index.mean(reward, known & ~mixed),
        }
    )


def _read(data: RunData, table: Table, wanted: NDArray[np.bool_]) -> Iterator[tuple[int, Mixture]]:
    """The mixtures of the wanted rows that have letters enough, by row. Texts are read in parts: all of them do not fit into memory."""
    rows = np.flatnonzero(wanted)
    if not len(rows):
        return
    places = zip(table.attempts[rows].tolist(), table.steps[rows].tolist(), table.n[rows].tolist(), strict=True)
    row_of = dict(zip(places, rows.tolist(), strict=True))
    cursor = data.store.cursor().execute(
        f"""SELECT attempt, step, n, left({PROMPT}, {2 * _CHARACTERS}),
                   CASE WHEN length(response) > {2 * _CHARACTERS}
                        THEN left(response, {_CHARACTERS}) || ' ' || right(response, {_CHARACTERS}) ELSE response END
            FROM trajectory WHERE {table.scope.where} AND n <= $last AND response IS NOT NULL AND {PROMPT} IS NOT NULL""",
        table.scope.parameters | {"last": int(table.n[rows].max())},
    )
    while found := cursor.fetchmany(_ROWS_AT_ONCE):
        for attempt, step, n, asked, response in found:
            row = row_of.get((attempt, step, n))
            seen = mixture(asked, response) if row is not None else None
            if row is not None and seen is not None:
                yield row, seen
